"""The command that writes the generated pages of the documentation."""

from pathlib import Path
from typing import Annotated

import typer

from grpo_lab.cli.app import Out, app


@app.command(example="docs --check")
def docs(
    out: Out = None,
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit 1 if a page is out of date.")] = False,
) -> None:
    """Write the pages that are generated from code and data, into docs/ or the folder of --out."""
    from grpo_lab.errors import RunError
    from grpo_lab.ui import console, docs_pages

    folder = out or Path("docs")
    if not check:
        for path in docs_pages.write(folder):
            console.out.print(f"{path} written")
    elif stale := docs_pages.stale(folder):
        raise RunError(f"{folder}: out of date: {', '.join(stale)}; run {docs_pages.COMMAND} --out {folder}")
