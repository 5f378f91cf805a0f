"""Reports on a class: Gradescope's JSON, nbgrader's CSV, HTML pages, and the texts that a person marks.

Reports are made from results alone. Reports show a student's content as plain text, shortened and escaped.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from grpo_lab.grading.reports import gradebook, gradescope, marking, pages
from grpo_lab.grading.reports.files import names_of, write_all
from grpo_lab.grading.results import Result


def write(results: Sequence[Result], out: Path, submission: Path | None = None) -> list[Path]:
    """Write all reports below `out`, each whole or not at all, and return their paths.

    The file `submission`, if named, gets all results as one Gradescope results.json. Marks that a person entered in an
    earlier to_mark.csv stay in the file; `marking.with_marks` puts them into the results. Raises DataError for a
    to_mark.csv that cannot be read, RunError for a folder that cannot be written.
    """
    names = names_of(results)
    contents = {
        "index.html": pages.of_class(results, names).encode(),
        "gradebook.csv": gradebook.for_nbgrader(results).encode(),
        "grades.csv": gradebook.by_exercise(results).encode(),
    }
    if texts := marking.to_mark(results, out / marking.TO_MARK):
        contents[marking.TO_MARK] = texts
    for name, result in zip(names, results, strict=True):
        contents[f"gradescope/{name}.json"] = json.dumps(gradescope.document(result), indent=2).encode()
        contents[f"pages/{name}.html"] = pages.of_notebook(result).encode()
    files = {out / name: content for name, content in contents.items()}
    if submission:
        files[submission] = json.dumps(gradescope.of_submission(results), indent=2).encode()
    return write_all(files)
