"""`make site`: docs, measurements and labs with their outputs as a static site in build/site/html.

Sphinx and myst-nb make it, because both install by pip and need no network to build; Jupyter Book 2 needs Node packages
and a theme from the network. The source is a copy of the repository's own pages at their own places: their links hold.
"""

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import nbformat

from grpo_lab.course.editions import build
from grpo_lab.course.registry import course_labs
from grpo_lab.errors import GrpoLabError, unknown
from grpo_lab.messages import text_in
from website import animation, checks, executed, pages

ROOT = Path(__file__).parents[1]
LABS = ROOT / "labs"
COPIED = (
    "*.md",
    "LICENSE",
    "docs/**/*",
    "labs/*.md",
    "benchmarks/**/*.md",
    "benchmarks/results/*",
    "data/recordings/*.md",
)
"""Pages of the repository, and files that they link to."""
OUT = Path("build/site")


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the site; 0 if every link and picture of it is in order."""
    parser = argparse.ArgumentParser(prog="python -m website", description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=OUT, help="Folder of the site; html/ in it is what to publish.")
    parser.add_argument("--lab", action="append", help="A lab to execute, repeatable; by default all.")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 1) // 2), help="Labs at a time.")
    options = parser.parse_args(arguments)
    try:
        return site(options.out, options.lab, options.jobs)
    except GrpoLabError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; labs that were executed are kept", file=sys.stderr)
        return 130


def site(out: Path, labs: Sequence[str] | None, jobs: int) -> int:
    """Build the site in a folder, with the outputs of these labs, or of all."""
    every = course_labs()
    for name in labs or ():
        if name not in every:
            raise unknown("lab", name, every)
    source, html = out / "source", out / "html"
    for folder in (source, html):
        shutil.rmtree(folder, ignore_errors=True)
    copy_pages(source)
    print("animation")
    animation.write(source / "_static")
    write_labs(source, out / "executed", every if labs is None else labs, jobs)
    sphinx = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q"]
    code = subprocess.run([*sphinx, str(source), str(html)], check=False).returncode
    faults = list(checks.faults(html))
    print(*faults, sep="\n", file=sys.stderr)
    print(f"{html / 'index.html'}: {len(list(html.rglob('*.html')))} pages, {len(faults)} faults")
    return code or bool(faults)


def copy_pages(source: Path) -> None:
    """Copy the pages of the repository to their own places below `source`, and those of the site."""
    for path in sorted({path for pattern in COPIED for path in ROOT.glob(pattern) if path.is_file()}):
        _copy(path, source / path.relative_to(ROOT))
    _copy(ROOT / "website" / "conf.py", source / "conf.py")
    for path in (ROOT / "website" / "static").iterdir():
        _copy(path, source / "_static" / path.name)
    for language, alt in animation.ALT.items():
        name = "index.md" if language == "en" else f"index.{language}.md"
        front = (ROOT / "website" / name).read_text(encoding="utf-8")
        (source / name).write_text(front.replace("{{ alt }}", alt), encoding="utf-8")


def write_labs(source: Path, cache: Path, labs: Sequence[str], jobs: int) -> None:
    """Write a page for each lab and language; the named labs have outputs."""
    pairs = [(name, language) for name in course_labs() for language in build.languages(LABS, name)]
    done = executed.notebooks([pair for pair in pairs if pair[0] in labs], cache, jobs)
    for name, language in pairs:
        file = build.place(source / "labs", name, language)
        learner = nbformat.reads(build.notebook(LABS, name, build.LEARNER, language), as_version=4)
        depth = len(file.relative_to(source).parts) - 1
        book = pages.page(learner, done.get((name, language)), source / "_static", depth, _others(name, language))
        file.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(book, file)


def _others(name: str, language: str) -> dict[str, str]:
    """The links from a lab's page to the same page in the other languages, by the language's name for itself."""
    here = build.place(LABS, name, language).parent
    others = [other for other in build.languages(LABS, name) if other != language]
    places = {other: os.path.relpath(build.place(LABS, name, other), here) for other in others}
    return {text_in(other, "panel.language_name"): place for other, place in places.items()}


def _copy(path: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, to)


if __name__ == "__main__":
    sys.exit(main())
