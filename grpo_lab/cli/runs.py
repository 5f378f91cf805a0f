"""Commands that train."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from grpo_lab.cli.app import Device, Model, Out, app, given
from grpo_lab.errors import ConfigError

if TYPE_CHECKING:
    from grpo_lab.config.schema import Config

Settings = Annotated[list[str] | None, typer.Option("--set", help="section.setting=value; may be repeated.")]
Json = Annotated[bool, typer.Option("--json", help="Print events as JSON lines.")]


@app.command()
def reproduce(
    model: Model = None,
    device: Device = None,
    out: Out = None,
    live: Annotated[
        bool, typer.Option("--live", help="Train a pretrained model here, for minutes, instead of showing recordings.")
    ] = False,
) -> None:
    """Measure the before/after table of the reports; write figures and a page.

    With `--model smollm2-135m` the table is of recordings of that model, unless `--live` trains it.
    """
    from grpo_lab.analysis.reproduction import recording_of
    from grpo_lab.config.catalog import model_settings
    from grpo_lab.runs.run_folder import next_free
    from grpo_lab.ui import console
    from grpo_lab.ui.reproduce import reproduce_all

    tuned = model if model in model_settings() else None
    if device and tuned and not live:
        raise ConfigError(f"--device {device} says where to train, and recordings were trained before; add --live")
    page = reproduce_all(out or next_free(Path("runs/reproduce")), given(model, device), tuned or "", live or not tuned)
    console.say(f"\nreport: {page}")
    crashed = recording_of("cuda-001", "original", tuned) if tuned and not live else page.parent / "cuda-001-original"
    commands = {
        f"grpo-lab trace {crashed}": "find the first break, link by link",
        "grpo-lab scenarios": "list all failures that can be reproduced",
        "grpo-lab train --scenario cuda-001 --guards skip_nonfinite": "try your own guards",
    }
    for command, what in commands.items():
        console.say(f"next: {what}\n    {command}")


@app.command()
def dual(settings: Settings = None, out: Out = None) -> None:
    """Train two objectives by SFT, then GRPO, with each mistake of the fifth report on and off; write figures, a page.

    The preset `dual` and its variants take about ten minutes on two cores. For a quick look: --set run.num_steps=20
    --set sft.num_steps=60; the settings hold for every run.
    """
    from grpo_lab.runs.run_folder import next_free
    from grpo_lab.ui import console
    from grpo_lab.ui.dual import train_dual

    page = train_dual(out or next_free(Path("runs/dual")), settings or ())
    console.say(f"\nreport: {page}")


@app.command()
def train(
    preset: Annotated[str | None, typer.Option(help="A preset; see `grpo-lab presets`.")] = None,
    scenario: Annotated[str | None, typer.Option(help="A scenario, or the path of your own .toml.")] = None,
    guards: Annotated[
        str | None, typer.Option(help="A preset's guards, or names: a,b,file.py:Mine. `none` for none.")
    ] = None,
    heal: Annotated[
        bool, typer.Option("--heal", help="Remove the scenario's cause, so that the model learns.")
    ] = False,
    settings: Settings = None,
    model: Model = None,
    device: Device = None,
    data: Annotated[str | None, typer.Option(help="A JSON-lines file with one prompt a line.")] = None,
    reward: Annotated[list[str] | None, typer.Option(help="A reward: built-in name or file.py:name.")] = None,
    out: Out = None,
    as_json: Json = False,
    child: Annotated[
        bool, typer.Option(help="Train in a child process, whose crash leaves this one alive; always on a GPU.")
    ] = False,
    fit: Annotated[
        bool, typer.Option("--fit", help="Train with the largest data.micro_batch_prompts that fits in free memory.")
    ] = False,
) -> None:
    """Train once; the run's folder holds config, events and the final healthy weights.

    Ctrl-C ends the run after the current step and saves the weights. Exit code 0 if the run reached its end, 1 if it
    crashed or was stopped, by a guard or by you.
    """
    config = _config(preset, scenario, guards, heal, model or "").with_(
        *given(model, device),
        *([f"data.tasks={data}"] if data else []),
        *([f"data.rewards={','.join(reward)},"] if reward else []),
        *(settings or []),
    )
    _check_used(config, tasks=data, rewards=reward)
    config = _fitted(config, child) if fit else config
    _train(config, out, as_json, child)


@app.command()
def sft(
    data: Annotated[str, typer.Option(help="A JSON-lines file with a prompt and a completion on every line.")],
    settings: Settings = None,
    model: Model = None,
    device: Device = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Train on given completions, under the guards of `stable`; the run's folder holds the weights, as with `train`.

    To go on with GRPO in the same run: `grpo-lab train --set run.stages=sft,grpo --set sft.data=FILE`. Exit codes are
    those of `train`.
    """
    from grpo_lab.config import catalog

    stage = ("run.name=sft", "run.stages=sft", f"sft.data={data}")
    _train(catalog.preset("stable").with_(*given(model, device), *stage, *(settings or [])), out, as_json)


def _train(config: Config, out: Path | None, as_json: bool, child: bool = False) -> NoReturn:
    """Train by a config, and exit with the code of its result."""
    from grpo_lab.runs.session import Session
    from grpo_lab.ui import console

    session = Session(config, out, child=child or None, save_model=True)
    console.say_warnings()
    if as_json:
        session.views.append(console.JsonView())
        with contextlib.redirect_stdout(sys.stderr):  # a reward function may print
            session.run()
    else:
        try:
            with console.progress() as bars:
                session.views.append(console.ProgressView(bars, config.run.name))
                session.run()
        finally:  # also of a run that SIGTERM ended
            if session.ended and session.status != "failed":
                console.say_end(session)
    sys.exit(0 if session.status == "done" else 1)


def _check_used(config: Config, **options: object) -> None:
    """Raise ConfigError for --data or --reward where every objective has tasks or rewards of its own."""
    for (setting, value), option in zip(options.items(), ("--data", "--reward"), strict=True):
        if value and config.objectives and all(getattr(each, setting) for each in config.objectives):
            one = f"--set objectives.{config.objectives[0].name}.{setting}="
            raise ConfigError(
                f"{option}: every objective has {setting} of its own, so it would change nothing; use {one}"
            )


def _fitted(config: Config, child: bool) -> Config:
    """The config with the largest micro-batch that fits in the free memory, which is said on standard error.

    Raises ConfigError where none fits, and where the system does not tell its free memory.
    """
    from grpo_lab.runs import environment, fitting, memory
    from grpo_lab.ui import console

    device = config.run.device
    if (free := environment.free_mib(device)) is None:
        raise ConfigError(f"--fit: this system does not tell the free memory of {device}; set data.micro_batch_prompts")
    with console.progress() as bars:
        bars.add_task("fitting the micro-batch", total=None, note="")
        process = memory.process_before_a_model(config)
        here = 0.0 if child else process  # a run in this process has that part already
        found, needed = fitting.largest_micro_batch(config, free + here, process)
    console.report(
        f"--fit: data.micro_batch_prompts={found.data.micro_batch_prompts} of {needed.prompts[0]} prompts: "
        f"{needed.peak:,.0f} MiB predicted, {free + here:,.0f} free, with those of this process"
    )
    return found


def _config(preset: str | None, scenario: str | None, guards: str | None, heal: bool, model: str) -> Config:
    """The config of a preset or scenario with these guards, and of a scenario with the settings of a model.

    Raises ConfigError for an unknown name, for a scenario with another preset than its own, and for a heal without a
    scenario.
    """
    from grpo_lab.config import catalog

    if preset and scenario and catalog.scenario(scenario).preset != preset:
        raise ConfigError(
            "--preset and --scenario are mutually exclusive; give one of them, and --guards for the guards"
        )
    if heal and not scenario:
        raise ConfigError("--heal removes the cause of a scenario; name one with --scenario")
    found = catalog.scenario(scenario).config(heal=heal, model=model) if scenario else None
    config = found or catalog.preset(preset or "stable")
    if guards is None:
        return config
    if guards in catalog.preset_names():
        return config.with_guards(catalog.preset(guards).guards)
    names = [] if guards == "none" else [name.strip() for name in guards.split(",") if name.strip()]
    return config.with_guards({name: dict(catalog.preset("stable").guards.get(name, {})) for name in names})
