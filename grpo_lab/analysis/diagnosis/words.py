"""The texts of a diagnosis in a language. Data, verdicts and JSON are English in every language.

All are in data/locale: fixed phrases and facts about a log by id, the texts of data/diagnosis with the context
`diagnosis`.
"""

from dataclasses import dataclass
from typing import Any

from grpo_lab import messages
from grpo_lab.analysis.diagnosis.causes import Cause, Remedy, Suspect
from grpo_lab.analysis.diagnosis.findings import Evidence


@dataclass(frozen=True)
class Words:
    """The words of one language.

    >>> Words("en")("tell_apart"), Words("zh")("tell_apart")
    ('To tell them apart', '如何区分')
    """

    language: str

    def __call__(self, key: str, **values: Any) -> str:
        """The fixed phrase of a key."""
        return messages.text_in(self.language, f"diagnosis.{key}", **values)

    def count(self, thing: str, number: int) -> str:
        """A number of steps, metrics or settings."""
        return self(f"{'one' if number == 1 else 'many'}.{thing}", count=f"{number:,}")

    def titled(self, cause: Cause, objective: str = "") -> str:
        """The title of a cause, with the objective that shows it."""
        title = self.of(f"cause.{cause.name}.title", cause.title)
        return title + self("objective", name=objective) if objective else title

    def what(self, cause: Cause) -> str:
        """What a cause does."""
        return self.of(f"cause.{cause.name}.what", cause.what)

    def suspect(self, suspect: Suspect) -> str:
        """A suspect in words; one that a single cause names has its words as its name."""
        table = "suspect" if suspect.name else "own_suspect"
        return self.of(f"{table}.{suspect.name or suspect.says}", suspect.says)

    def remedy(self, remedy: Remedy) -> str:
        """What a remedy does."""
        return self.of(f"remedy.{remedy.do}", remedy.do)

    def symptom(self, evidence: Evidence) -> str:
        """A symptom in words, with the medians of all objectives."""
        said = self.of(f"symptom.{evidence.symptom}", evidence.says)
        return said + self("medians", values=evidence.medians) if evidence.medians else said

    def of(self, key: str, english: str) -> str:
        """A text of data/diagnosis; code alone has no translation."""
        table = {} if self.language == messages.ENGLISH else messages.catalogue(self.language, "diagnosis")
        return table.get(key, english)
