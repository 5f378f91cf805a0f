"""Reports on a class: pages, tables, files for other graders, and the texts that a person marks.

Reports are made from results alone. Reports show a student's content as plain text, shortened and escaped.
"""

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from grpo_lab.errors import RunError
from grpo_lab.grading.reports import gradescope, marking, pages, tables
from grpo_lab.grading.reports.words import ENGLISH
from grpo_lab.grading.results import Result

_WORDS, _HASH = 40, 16
"""Characters of a file name: of the student and lab, for people, and of the hash, which makes the name unique."""


def write(results: Sequence[Result], out: Path, submission: Path | None = None, language: str = ENGLISH) -> list[Path]:
    """Write all reports below `out`, each whole or not at all, and return their paths.

    Pages and Gradescope's texts are in the language; tables, which other programs read, are in English.
    The file `submission`, if named, gets all results as one Gradescope results.json. Marks that a person entered in an
    earlier to_mark.csv stay in the file; `marking.with_marks` puts them into the results. Raises ConfigError for an
    unknown language, DataError for a to_mark.csv that cannot be read, RunError for a folder that cannot be written.
    """
    names = names_of(results)
    contents = {
        "index.html": pages.of_class(results, names, language),
        "class.csv": tables.by_student(tables.of_class(results)),
        "grades.csv": tables.by_exercise(results),
    }
    for name, result in zip(names, results, strict=True):
        contents[f"gradescope/{name}.json"] = json.dumps(gradescope.document(result, language), indent=2)
        contents[f"pages/{name}.html"] = pages.of_notebook(result, language)
    files = {out / name: content.encode() for name, content in contents.items()}
    if texts := marking.to_mark(results, out / marking.TO_MARK):
        files[out / marking.TO_MARK] = texts
    if submission:
        files[submission] = json.dumps(gradescope.of_submission(results, language), indent=2).encode()
    return write_all(files)


def name_of(result: Result) -> str:
    """The file name for a notebook's reports: safe in any file system, and unique for each notebook.

    >>> name_of(Result("../../Ann B", "05_kl", "ann.ipynb", "00", 2, ""))
    'ann-b-05-kl-72cf9781746b1025'
    """
    identity = json.dumps([result.student, result.lab, result.file])
    words = re.sub(r"[^a-z0-9]+", "-", f"{result.student}-{result.lab}".lower()).strip("-")[:_WORDS].rstrip("-")
    return f"{words or 'notebook'}-{hashlib.sha256(identity.encode()).hexdigest()[:_HASH]}"


def names_of(results: Sequence[Result]) -> list[str]:
    """One name for each result. Results with the same identity get numbers, so that no report replaces another."""
    met: Counter[str] = Counter()
    names = []
    for name in map(name_of, results):
        met[name] += 1
        names.append(f"{name}-{met[name]}" if met[name] > 1 else name)
    return names


def write_all(contents: Mapping[Path, bytes]) -> list[Path]:
    """Write files, and replace older ones only after all are on disk. Raises RunError where one cannot be written."""
    parts: list[Path] = []
    try:
        for path, content in contents.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            parts.append(path.with_name(f"{path.name}.part"))
            parts[-1].write_bytes(content)
        for part, path in zip(parts, contents, strict=True):
            os.replace(part, path)
    except OSError as error:
        for part in parts:
            part.unlink(missing_ok=True)
        way_out = "free some space, close the file where it is open, or give another folder"
        raise RunError(f"{error.filename or parts[-1]} cannot be written: {error.strerror}; {way_out}") from error
    return list(contents)
