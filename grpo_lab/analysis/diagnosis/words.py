"""The texts of a diagnosis in a language. Data, verdicts and JSON are English in every language.

Fixed phrases are in data/messages, and the translations of data/diagnosis in data/diagnosis/<language>.toml. Facts
about a log, which its readers put together, are in [log] of data/translations/<language>.toml.
"""

from dataclasses import dataclass
from typing import Any

from grpo_lab import messages
from grpo_lab.analysis.diagnosis.causes import Cause, Remedy, Suspect
from grpo_lab.analysis.diagnosis.findings import DetectedCause, Evidence
from grpo_lab.messages import ENGLISH


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

    def title(self, cause: Cause) -> str:
        """The title of a cause."""
        return self._of(f"cause.{cause.name}.title", cause.title)

    def titled(self, finding: DetectedCause) -> str:
        """The title of a finding's cause, with the objective that shows it."""
        objective = self("objective", name=finding.objective) if finding.objective else ""
        return self.title(finding.cause) + objective

    def what(self, cause: Cause) -> str:
        """What a cause does."""
        return self._of(f"cause.{cause.name}.what", cause.what)

    def tell_apart(self, cause: Cause) -> str:
        """How the suspects of a cause are told apart."""
        return self._of(f"cause.{cause.name}.tell_apart", cause.tell_apart)

    def suspect(self, suspect: Suspect) -> str:
        """A suspect in words; one that a single cause names has its words as its name."""
        table = "suspect" if suspect.name else "own_suspect"
        return self._of(f"{table}.{suspect.name or suspect.says}", suspect.says)

    def remedy(self, remedy: Remedy) -> str:
        """What a remedy does."""
        return self._of(f"remedy.{remedy.do}", remedy.do)

    def setting(self, setting: str) -> str:
        """The setting of a remedy in a trainer; code alone has no translation."""
        table = {} if self.language == ENGLISH else messages.catalogue(self.language, "diagnosis")
        return table.get(f"setting.{setting}", setting)

    def trainer(self, name: str) -> str:
        """A trainer's name, or the word for this one."""
        return self("here") if name == "here" else name

    def symptom(self, evidence: Evidence) -> str:
        """A symptom in words, with the medians of objectives that stand behind them."""
        said, medians, values = evidence.says.partition(MEDIANS)
        begins, ends = (self("medians"), self("medians_end")) if medians else ("", "")
        return self._of(f"symptom.{evidence.symptom}", said) + begins + values.removesuffix(")" * bool(medians)) + ends

    def fact(self, english: str) -> str:
        """A fact about a log, such as a note; a part without a translation stays English."""
        return english if self.language == ENGLISH else messages.reworded(english, "log")

    def _of(self, key: str, english: str) -> str:
        return english if self.language == ENGLISH else messages.catalogue(self.language, "diagnosis")[key]


MEDIANS = " (medians: "
"""Begins the medians of the objectives' curves in the text of an evidence."""
