"""The command that lists settings."""

from typing import Annotated

import typer

from grpo_lab.cli.app import AsJson, app


@app.command(example="settings optimizer")
def settings(
    name: Annotated[
        str, typer.Argument(help="A section or a key: loss, loss.beta, guards.warm_up; by default all.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """List the keys of a config, each with its meaning, type, limit and default."""
    from dataclasses import asdict

    from grpo_lab.ui import console
    from grpo_lab.ui.docs_pages.settings import described, text

    found = described(name)
    if as_json:
        return console.say_json([asdict(each) for each in found])
    rows = [[d.key, d.type, d.limit, text(d.default).replace("\n", "\\n"), d.meaning] for d in found]
    console.out.print(console.table([["key", "type", "limit", "default", "meaning"], *rows]))
