"""Commands that train."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

from typer import Option

from grpo_lab.cli.app import INTERRUPTED, Device, Model, Out, Settings, app, given
from grpo_lab.config import catalog, toml
from grpo_lab.config.schema import Config, resized
from grpo_lab.config.user_code import is_own
from grpo_lab.errors import ConfigError, DataError, RunError, check_known
from grpo_lab.messages import text
from grpo_lab.ui import console

if TYPE_CHECKING:
    from grpo_lab.runs.session import Session

Json = Annotated[bool, Option("--json", help="Print events as JSON lines.")]
PrintConfig = Annotated[bool, Option("--print-config", help="Print the config as TOML; train nothing.")]
Live = Annotated[bool, Option("--live", help="Draw the curves in the terminal.")]
Save = Annotated[Literal["none", "last"], Option("--save", help="Weights to keep: none, or the last healthy ones.")]


@app.command(example="reproduce")
def reproduce(
    model: Model = None,
    device: Device = None,
    out: Out = None,
    live: Annotated[bool, Option("--live", help="Train a pretrained model here, for minutes.")] = False,
) -> None:
    """Measure the before/after table of the reports; write figures and a page.

    With `--model smollm2-135m` the table is of recordings of that model, unless `--live` trains it.
    """
    from grpo_lab.analysis.reproduction import recording_of
    from grpo_lab.runs.run_folder import next_free
    from grpo_lab.ui.run_tables import reproduce_all

    tuned = model if model in catalog.model_settings() else None
    if device and tuned and not live:
        raise ConfigError(f"--device {device} says where to train, and recordings were trained before; add --live")
    page = reproduce_all(out or next_free(Path("runs/reproduce")), given(model, device), tuned or "", live or not tuned)
    console.say("\n" + text("reproduction.report", page=page))
    crashed = recording_of("cuda-001", "original", tuned) if tuned and not live else page.parent / "cuda-001-original"
    for command in (f"trace {crashed}", "scenarios", "train --scenario cuda-001 --guards skip_nonfinite"):
        console.say(f"{text(f'reproduction.next.{command.split()[0]}')}\n    grpo-lab {command}")


@app.command(example="dual --set run.num_steps=20 --set sft.num_steps=60")
def dual(settings: Settings = None, out: Out = None) -> None:
    """Train two objectives by SFT, then GRPO, with each mistake of the fifth report on and off; write figures, a page.

    The preset `dual` and its variants take about ten minutes on two cores. For a quick look: --set run.num_steps=20
    --set sft.num_steps=60; the settings hold for every run.
    """
    from grpo_lab.runs.run_folder import next_free
    from grpo_lab.ui.run_tables import train_dual

    page = train_dual(out or next_free(Path("runs/dual")), settings or ())
    console.say(f"\nreport: {page}")


@app.command(example="train --scenario cuda-001 --guards stable")
def train(
    preset: Annotated[str | None, Option(help="A preset, or a preset's .toml; see `grpo-lab presets`.")] = None,
    scenario: Annotated[str | None, Option(help="A scenario, or the path of your own .toml.")] = None,
    algorithm: Annotated[str | None, Option(help="A name of `grpo-lab algorithms`, or its .toml.")] = None,
    guards: Annotated[str | None, Option(help="Guards, presets and file.py:Mine, as a,b; or none.")] = None,
    config: Annotated[Path | None, Option(help="A TOML file, as --print-config writes it.")] = None,
    print_config: PrintConfig = False,
    heal: Annotated[bool, Option("--heal", help="Remove the scenario's cause, so that the model learns.")] = False,
    settings: Settings = None,
    model: Model = None,
    device: Device = None,
    data: Annotated[str | None, Option(help="A JSON-lines file with one prompt a line.")] = None,
    reward: Annotated[list[str] | None, Option(help="A reward: built-in name or file.py:name.")] = None,
    out: Out = None,
    as_json: Json = False,
    live: Live = False,
    save: Save = "last",
    track: Annotated[str, Option(help="Trackers that follow: tensorboard, wandb, trackio, as a,b.")] = "",
    child: Annotated[bool, Option(help="Train in a child process; on a GPU it always is.")] = False,
    processes: Annotated[int | None, Option(help="Processes that share each step; a launcher says it itself.")] = None,
    fit: Annotated[bool, Option("--fit", help="In a child, halve micro-batches where memory runs out.")] = False,
    resume: Annotated[Path | None, Option(help="Go on with the run of a folder from its newest checkpoint.")] = None,
    recover: Annotated[list[str] | None, Option(help="With --resume: section.setting=value; repeatable.")] = None,
    fork: Annotated[int | None, Option(help="With --resume: a copy of the run until this step, which goes on.")] = None,
) -> None:
    """Train once; the run's folder holds config, events, checkpoints and the final healthy weights.

    The config is that of --config, --preset or --scenario; then --algorithm; then --guards; then the options of single
    settings; then --set. Ctrl-C ends the run after the current step and saves the weights; then the exit code is 130.
    A run that was stopped, killed or that crashed goes on with --resume. `--resume RUN --fork STEP` trains a
    new run that equals RUN before STEP; RUN stays as it is.
    """
    from grpo_lab.runs.processes import started_by_torchrun
    from grpo_lab.runs.session import Session
    from grpo_lab.training.registry import validated

    processes = (started_by_torchrun() or None) if processes is None else processes
    if resume:
        own = (preset, scenario, algorithm, guards, config, settings, model, device, data, reward)
        if any(own) or heal or fit or print_config:
            raise ConfigError("--resume goes on with the run's own config; to change a setting there: --recover a.b=c")
        session = _begun_again(resume, fork, recover or (), out, child, save, processes)
        _run_and_exit(session, as_json, live, track)
    if fork is not None:
        raise ConfigError("--fork begins a run at a step of another one: name that one's folder with --resume")
    if recover:
        raise ConfigError(
            "--recover changes a run that goes on: name it with --resume; else use --set run.recover=a.b=c"
        )
    found = _config(config, preset, scenario, guards, heal, model or "")
    found = (found.with_algorithm(algorithm) if algorithm else found).with_(
        *given(model, device),
        *([] if processes is None else [f"run.processes={processes}"]),
        *([f"data.tasks={data}"] if data else []),
        *([f"data.rewards={','.join(reward)},"] if reward else []),
        *(settings or []),
    )
    for option, value, setting in (("--data", data, "tasks"), ("--reward", reward, "rewards")):
        if value and found.objectives and all(getattr(each, setting) for each in found.objectives):
            one = f"--set objectives.{found.objectives[0].name}.{setting}="
            raise ConfigError(f"{option}: every objective has {setting} of its own: it would change nothing; use {one}")
    if print_config:
        validated(found)
        print("".join(f"# {note}\n" for note in console.notes(found)) + toml.dumps(found), end="")
        sys.exit(0)
    if fit and started_by_torchrun():
        raise ConfigError("--fit begins a run again, and a launcher's processes cannot: set data.micro_batch_prompts")
    launched = _take_part_unless_first(lambda: found)
    # The system may kill a process for lack of memory: with `fit` that is a child, and another one goes on.
    session = Session(found, out, child=child or fit or launched, save_model=save == "last", fit=fit)
    _run_and_exit(session, as_json, live, track)


@app.command(example="sft --data shown.jsonl")
def sft(
    data: Annotated[str, Option(help="A JSON-lines file with a prompt and a completion on every line.")],
    settings: Settings = None,
    model: Model = None,
    device: Device = None,
    out: Out = None,
    as_json: Json = False,
    live: Live = False,
    save: Save = "last",
    print_config: PrintConfig = False,
) -> None:
    """Train on given completions, under the guards of `stable`; the run's folder holds the weights, as with `train`.

    To go on with GRPO in the same run: `grpo-lab train --set run.stages=sft,grpo --set sft.data=FILE`.
    """
    train(
        print_config=print_config,
        settings=["run.name=sft", "run.stages=sft", f"sft.data={data}", *(settings or [])],
        model=model,
        device=device,
        out=out,
        as_json=as_json,
        live=live,
        save=save,
    )


def _config(
    file: Path | None, preset: str | None, scenario: str | None, guards: str | None, heal: bool, model: str
) -> Config:
    """The config of a file, preset or scenario with these guards, and of a scenario with the settings of a model.

    Raises ConfigError for an unknown name, for two of the three, except for a scenario with its own preset, and for a
    heal without a scenario.
    """
    if file and (preset or scenario):
        raise ConfigError("--config holds a whole config: give it without --preset and --scenario")
    if preset and scenario and catalog.scenario(scenario).preset != preset:
        raise ConfigError(
            "--preset and --scenario are mutually exclusive; give one of them, and --guards for the guards"
        )
    if heal and not scenario:
        raise ConfigError("--heal removes the cause of a scenario; name one with --scenario")
    if file:
        config = toml.load(file)
    elif scenario:
        config = catalog.scenario(scenario).config(heal=heal, model=model)
    else:
        config = catalog.preset(preset or "stable")
    if guards is None:
        return config
    from grpo_lab.training.guards import GUARDS

    named = catalog.guards_named(guards)
    check_known("guard", (name for name in named if not is_own(name)), [*GUARDS, *catalog.preset_names(), "none"])
    return config.with_guards(named)


def _take_part_unless_first(config: Callable[[], Config]) -> bool | None:
    """Train and exit as one of the processes that a launcher has started, unless this is the first one of them.

    Return False for the first one, which trains in its own process, and None where no launcher is at work.
    """
    from grpo_lab.runs import processes

    if not processes.started_by_torchrun():
        return None
    if os.environ["RANK"] != "0":
        sys.exit(processes.take_part(found := config(), processes.joined(found)))
    return False


def _begun_again(
    folder: Path,
    step: int | None,
    recover: Sequence[str],
    out: Path | None,
    child: bool,
    save: str,
    processes: int | None,
) -> Session:
    """The session that goes on with a run or, with a step, that of a new run which is the same one until there."""
    from grpo_lab.runs import run_folder
    from grpo_lab.runs.session import Session

    if step is None and out:
        raise ConfigError("--resume writes into the run's own folder: --out goes with --fork")
    if step is not None and processes:
        raise ConfigError("--fork makes the same steps again in one process: start it without --processes or torchrun")
    try:
        if step is not None:
            return Session.fork(folder, step, recover, out, child=child or None, save_model=save == "last")
        launched = _take_part_unless_first(lambda: resized(run_folder.read(folder)[0], processes))
        return Session.resume(folder, recover, child=child or launched, save_model=save == "last", processes=processes)
    except RunError as error:
        raise DataError(str(error)) from error


def _run_and_exit(session: Session, as_json: bool, live: bool, track: str) -> NoReturn:
    """Train, show the run while it goes on, also to these trackers, and exit with the code of the result."""
    from grpo_lab.runs.session import BY_THE_USER
    from grpo_lab.ui import trackers

    session.views += trackers.views(track, session)
    console.say_warnings()
    for note in console.notes(session.config):
        console.report(note)
    if as_json:
        session.views.append(console.JsonView())
        with contextlib.redirect_stdout(sys.stderr):  # a reward function may print
            session.run()
    else:
        try:
            _run_in_view(session, live)
        finally:  # also of a run that a signal ended
            if session.ended and session.status != "failed":
                console.say_end(session)
    by_user = session.ended is not None and session.ended.message.startswith(BY_THE_USER)
    sys.exit(0 if session.status == "done" else INTERRUPTED if by_user else 1)


def _run_in_view(session: Session, live: bool) -> None:
    """Train, and show the run while it goes on: curves in a terminal if they are wanted, else one line."""
    if live and console.out.is_terminal:
        from grpo_lab.ui.live_terminal import LiveView

        with LiveView(console.out) as view:
            session.views.append(view)
            session.run()
    else:
        with console.progress() as bars:
            session.views.append(console.ProgressView(bars, session.config.run.name))
            session.run()
