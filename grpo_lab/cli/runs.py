"""Commands that train."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grpo_lab.cli.app import Device, Model, Out, app, given
from grpo_lab.errors import ConfigError

if TYPE_CHECKING:
    from grpo_lab.config.schema import Config


@app.command()
def reproduce(model: Model = None, device: Device = None, out: Out = None) -> None:
    """The reports' before/after table, measured here; figures and a page to read."""
    from grpo_lab.runs.run_folder import next_free
    from grpo_lab.ui import console
    from grpo_lab.ui.reproduce import reproduce_all

    page = reproduce_all(out or next_free(Path("runs/reproduce")), given(model, device))
    console.out.print(f"\nreport: {page}", markup=False, soft_wrap=True)
    commands = {
        f"grpo-lab trace {page.parent / 'cuda-001-original'}": "what broke first, link by link",
        "grpo-lab scenarios": "every failure that can be caused here",
        "grpo-lab train --scenario cuda-001 --guards skip_nonfinite": "a cure of your own",
    }
    for command, what in commands.items():
        console.out.print(f"next: {what}\n    {command}", markup=False, soft_wrap=True)


@app.command()
def train(
    preset: Annotated[str | None, typer.Option(help="A preset; see `grpo-lab presets`.")] = None,
    scenario: Annotated[str | None, typer.Option(help="A scenario, or the path of your own .toml.")] = None,
    guards: Annotated[
        str | None, typer.Option(help="A preset's guards, or names: a,b,file.py:Mine. `none` for none.")
    ] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="section.setting=value; may be repeated.")] = None,
    model: Model = None,
    device: Device = None,
    data: Annotated[str | None, typer.Option(help="A JSON-lines file with a prompt on every line.")] = None,
    reward: Annotated[list[str] | None, typer.Option(help="A reward: built-in name or file.py:name.")] = None,
    out: Out = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print events as JSON lines.")] = False,
    child: Annotated[
        bool, typer.Option(help="Train in a process of its own, which may crash alone; always so on a GPU.")
    ] = False,
) -> None:
    """One run; its folder holds config, events and the final healthy weights.

    Ctrl-C ends it after the current step, weights saved. Exit code 0 for a run that reached its end, 1 for one that
    crashed or was stopped, by a guard or by you.
    """
    from grpo_lab.models.loading import resolve_device
    from grpo_lab.runs.session import Session
    from grpo_lab.ui import console

    config = _config(preset, scenario, guards).with_(
        *given(model, device),
        *([f"data.tasks={data}"] if data else []),
        *([f"data.rewards={','.join(reward)},"] if reward else []),
        *(settings or []),
    )
    on_gpu = resolve_device(config.run.device).type == "cuda"  # where a failed assert would end this process
    session = Session(config, out, child=child or on_gpu, save_model=True)
    console.say_warnings()
    if as_json:
        session.views.append(console.JsonView())
        with contextlib.redirect_stdout(sys.stderr):  # what a reward function prints is no event
            session.run()
    else:
        with console.progress() as bars:
            session.views.append(console.ProgressView(bars, config.run.name))
            session.run()
        console.say_end(session)
    sys.exit(0 if session.status == "done" else 1)


def _config(preset: str | None, scenario: str | None, guards: str | None) -> Config:
    """Preset, then the scenario's cause, then the guards asked for."""
    from grpo_lab.config import catalog

    if preset and scenario and catalog.scenario(scenario).preset != preset:
        raise ConfigError("--preset and --scenario name two beginnings; give one, and --guards for the cure")
    config = catalog.scenario(scenario).config() if scenario else catalog.preset(preset or "stable")
    if guards is None:
        return config
    if guards in catalog.preset_names():
        return config.with_guards(catalog.preset(guards).guards)
    names = [] if guards == "none" else [name.strip() for name in guards.split(",") if name.strip()]
    return config.with_guards({name: dict(catalog.preset("stable").guards.get(name, {})) for name in names})
