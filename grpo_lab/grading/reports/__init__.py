"""Reports on a class: pages, tables, files for other graders, and the texts that a person marks.

Reports are made from results alone. Reports show a student's content as plain text, shortened and escaped.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from grpo_lab.grading.reports import gradescope, marking, pages, tables
from grpo_lab.grading.reports.files import names_of, write_all
from grpo_lab.grading.reports.words import ENGLISH
from grpo_lab.grading.results import Result


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
