"""Builds the notebooks: notebook.py of a lab -> <lab>.ipynb beside it for learners, and <language>/<lab>.ipynb.

Two other editions are written on request: the instructor's, with solutions and notes, and the reference, which is the
learner's with every answer filled in. The same source gives the same bytes. The cover, a heading before each exercise
and three hints after it come from lab.toml.
"""

import builtins
import re
import symtable
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from grpo_lab.course import known_answers, pages, translation
from grpo_lab.course.answers import MAGIC, by_clicks
from grpo_lab.course.editions import prose
from grpo_lab.course.editions.solutions import NOTEBOOK, Malformed, learners, reference, solutions
from grpo_lab.course.exercises import Exercise, LabPage
from grpo_lab.errors import DataError, check_known, unknown
from grpo_lab.messages import ENGLISH, text_in

LEARNER, INSTRUCTOR, REFERENCE = "learner", "instructor", "reference"
MAX_LINES, MAX_SOLUTION = 15, 12
DATA = "data"
"""The tag of a table, a cell that may be longer."""
HIDDEN = "hidden"
"""The tag of a cell with folded code."""
METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
_EXERCISE = re.compile(rf"%%{MAGIC}[ \t]+(\S+)[ \t]*\n")


def lab_names(folder: Path) -> list[str]:
    """The labs below a folder, and the lecture, which has no lab.toml."""
    return sorted(path.parent.name for path in folder.glob(f"*/{NOTEBOOK}"))


def has_exercises(folder: Path, name: str) -> bool:
    """Whether it is a lab and not the lecture."""
    return (folder / name / pages.FILE).is_file()


def languages(folder: Path, name: str = "*") -> list[str]:
    """The languages of a lab below a folder, or of all of them; English is first."""
    return [ENGLISH, *sorted({path.parent.name for path in folder.glob(f"{name}/*/{NOTEBOOK}")})]


def render(folder: Path, names: Sequence[str] = ()) -> dict[Path, str]:
    """The text of every learner's notebook by its file: of the named labs, or of all, in every language.

    Raises DataError for a source that breaks a rule, with all its faults.
    """
    return {
        place(folder, name, language): notebook(folder, name, LEARNER, language)
        for name in chosen(folder, lab_names(folder), names)
        for language in languages(folder, name)
    }


def place(folder: Path, name: str, language: str = ENGLISH) -> Path:
    """The file of a lab's notebook in a language."""
    return folder / name / ("" if language == ENGLISH else language) / f"{name}.ipynb"


def chosen(folder: Path, known: Sequence[str], names: Sequence[str]) -> Sequence[str]:
    """The named labs, or all known ones. Raises DataError where there are none, and ConfigError for an unknown name."""
    if not known:
        raise DataError(f"no lab in {folder}; run this in the checkout, or name its folder with --folder")
    check_known("lab", names, known)
    return names or known


def stale(files: Mapping[Path, str]) -> list[Path]:
    """The files that are missing or differ on disk."""
    return [path for path, text in files.items() if not path.is_file() or path.read_bytes() != text.encode()]


def write(files: Mapping[Path, str]) -> list[Path]:
    """Write the files that changed, and return them."""
    changed = stale(files)
    for path in changed:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(files[path], encoding="utf-8", newline="\n")
    return changed


def notebook(folder: Path, name: str, edition: str, language: str = ENGLISH) -> str:
    """One notebook as the text of its file."""
    return as_text(made(folder, name, edition, language))


def as_text(notebook: Any) -> str:
    """The text of a valid notebook's file; nbformat raises ValidationError for any other."""
    import nbformat

    nbformat.validate(notebook)
    return nbformat.writes(notebook) + "\n"


def made(folder: Path, name: str, edition: str, language: str = ENGLISH) -> Any:
    """One notebook, as a NotebookNode.

    Raises DataError for a source that breaks a rule, for prose that does not fit it, and where jupytext is missing;
    ConfigError for a language that the labs do not have.
    """
    check_known(f"language of {name}", [language], languages(folder, name))
    try:
        import jupytext
        import nbformat
    except ImportError as error:
        raise DataError(f"{error.name} is not installed: pip install jupytext nbformat") from error
    path = folder / name / NOTEBOOK
    source = jupytext.reads(path.read_text(encoding="utf-8"), fmt="py:percent")
    page = pages.page(folder / name) if has_exercises(folder, name) else None
    faults = list(_faults(source.cells, page))
    if faults:
        raise DataError(f"{path}: " + "; ".join(faults))
    if page:
        known_answers.known_answers(folder / name)  # a change that no longer fits is noticed now
    if page and language != ENGLISH:
        translation.check_places(folder / name, language)
    page = page and pages.in_language(page, language)
    told = prose.in_language(source.cells, folder / name, language)
    if fault := _start_fault(told, page):
        raise DataError(f"{folder / name / language / NOTEBOOK}: {fault}")
    cells = list(_cells(told, name, page, edition, language))
    return nbformat.v4.new_notebook(cells=cells, metadata=METADATA)


def _cells(source: Sequence[Any], name: str, page: LabPage | None, edition: str, language: str) -> Iterator[Any]:
    """The cells of an edition, with ids from the place in the source or from the exercise."""
    for number, cell in enumerate(source):
        exercise = page.exercises.get(_exercise_name(cell)) if page else None
        if edition != INSTRUCTOR and INSTRUCTOR in _tags(cell):
            continue
        if page and exercise:
            identity = page.cell_id(exercise.name)
            yield new_cell("markdown", f"{identity}-task", heading(exercise, language))
            text = learners(cell.source) if edition == LEARNER else reference(cell.source)
            folded = edition != INSTRUCTOR and by_clicks(exercise.check, text)
            yield new_cell("code", identity, text, _tags(cell), folded)
            yield new_cell("markdown", f"{identity}-hints", hints(exercise, language))
            continue
        text = cell.source
        if number == 0 and page:
            title, _, rest = text.partition("\n")
            facts = {"minutes": page.minutes, "stars": stars(page.difficulty), "summary": page.summary}
            text = f"{title}\n\n{text_in(language, 'notebook.cover', **facts)}\n{rest}"
        yield new_cell(cell.cell_type, f"{name}-{number:02d}", text, _tags(cell))


def heading(exercise: Exercise, language: str) -> str:
    """The heading of an exercise, and a line of facts."""
    kind = text_in(language, f"notebook.kind.{exercise.kind}")
    facts = {"minutes": exercise.minutes, "stars": stars(exercise.difficulty), "kind": kind}
    title = text_in(language, "notebook.exercise", title=exercise.title)
    return f"### {title}\n\n{text_in(language, 'notebook.facts', **facts)}"


def hints(exercise: Exercise, language: str) -> str:
    """The hints, each folded."""
    return "\n\n".join(
        f"<details><summary>{text_in(language, 'notebook.hint', number=number)}</summary>\n\n{hint}\n\n</details>"
        for number, hint in enumerate(exercise.hints, start=1)
    )


def stars(difficulty: int) -> str:
    """The difficulty as a row of three stars, as in ★★☆."""
    return "★" * difficulty + "☆" * (3 - difficulty)


def new_cell(kind: str, identity: str, source: str, tags: Sequence[str] = (), folded: bool = False) -> Any:
    """A cell, code or markdown, with this id; the code of one that is `folded` or tagged HIDDEN is folded."""
    from nbformat import v4

    make = v4.new_code_cell if kind == "code" else v4.new_markdown_cell
    hidden = {"jupyter": {"source_hidden": True}} if folded or HIDDEN in tags else {}
    return make(source.strip("\n"), id=identity, metadata={**({"tags": list(tags)} if tags else {}), **hidden})


def _tags(cell: Any) -> list[str]:
    return list(cell.metadata.get("tags", []))


def _exercise_name(cell: Any) -> str:
    found = _EXERCISE.match(cell.source + "\n") if cell.cell_type == "code" else None
    return found[1] if found else ""


def _faults(cells: Sequence[Any], page: LabPage | None) -> Iterator[str]:
    """Every fault of a source, each in a sentence with its place."""
    if fault := _start_fault(cells, page):
        yield fault
    asked = [name for cell in cells if (name := _exercise_name(cell))]
    known = page.exercises if page else {}
    for name in sorted(set(asked)):
        if name not in known:
            yield str(unknown("exercise", name, known))
        if asked.count(name) > 1:
            yield f"exercise {name!r} is asked {asked.count(name)} times; once is enough"
    for name in known:
        if name not in asked:
            yield f"exercise {name!r} is in lab.toml and has no cell; begin one with `%%{MAGIC} {name}`"
    for number, cell in enumerate(cells):
        if cell.cell_type == "code" and INSTRUCTOR in _tags(cell):
            yield f"cell {number} is for instructors and holds code: then the editions would not run alike"
        if cell.cell_type == "code":
            where = f"cell {number}, which begins {cell.source.partition(chr(10))[0]!r}"
            yield from (f"{where}: {fault}" for fault in _cell_faults(cell, asked))


def _start_fault(cells: Sequence[Any], page: LabPage | None) -> str:
    """The fault of a source without the lab's title in its first line, or without its `gl.Lab`; empty for any other."""
    first = cells[0].source.split("\n")[0] if cells else ""
    if not page:
        return ""
    if not any(f'gl.Lab("{page.name}"' in cell.source for cell in cells if cell.cell_type == "code"):
        return f'no cell calls gl.Lab("{page.name}"), the name of the folder'
    if first.startswith("# ") and page.title in first:
        return ""
    return f"the first cell must begin with a heading that holds the lab's title, as in '# {page.title}'"


def _cell_faults(cell: Any, asked: Sequence[str]) -> Iterator[str]:
    """The faults of a cell; an exercise may call functions of the others that are `asked`, if its check gives them."""
    if not _exercise_name(cell) and f"%%{MAGIC}" in cell.source:
        yield f"`%%{MAGIC} <name>` must be its first line"
    try:
        shown, solved = reference(cell.source), solutions(cell.source)
        for text in (shown, learners(cell.source)) if _exercise_name(cell) else ():
            compile(text.partition("\n")[2], "the exercise", "exec")
    except (Malformed, SyntaxError) as error:
        yield str(error)
        return
    if _exercise_name(cell) and (missing := _missing(shown.partition("\n")[2]) - {*asked}):
        names = ", ".join(sorted(missing))
        yield f"its cell uses {names}, and neither imports nor defines it: each exercise is its own file"
    if _exercise_name(cell) and not solved:
        yield "an exercise without a solution; put it between # BEGIN SOLUTION and # END SOLUTION"
    if not _exercise_name(cell) and solved:
        yield f"a solution outside an exercise; begin the cell with `%%{MAGIC} <name>`"
    if (length := sum(map(len, solved))) > MAX_SOLUTION:
        yield f"a solution of {length} lines; at most {MAX_SOLUTION}"
    lines = len(shown.strip("\n").split("\n"))
    if lines > MAX_LINES and DATA not in _tags(cell):
        yield f"{lines} lines; at most {MAX_LINES}, unless it is a table tagged {DATA!r}"


def _missing(source: str) -> set[str]:
    """The names that code uses, and that it neither imports nor defines.

    >>> _missing("import os.path as p\\ndef f(x): return [math.exp(y) for y in p.join(x)]")
    {'math'}
    """
    tables = [symtable.symtable(source, "cell", "exec")]
    for table in tables:
        tables += table.get_children()
    names = [name for table in tables for name in table.get_symbols() if name.is_global()]
    known = {name.get_name() for name in names if name.is_assigned() or name.is_imported()}
    return {name.get_name() for name in names if name.is_referenced()} - known - {*dir(builtins)}
