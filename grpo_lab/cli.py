"""The command line. Exit codes: 0 done, 1 the run failed, crashed or was stopped, 2 bad usage, 130 interrupted."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grpo_lab.errors import ConfigError, GrpoLabError

if TYPE_CHECKING:
    from grpo_lab.config import Config
    from grpo_lab.session import Session

# Commands import what they need when they run: torch takes seconds, and --help must not.
app = typer.Typer(
    help="Reproduce, trace and stop the ways a GRPO run blows up.",
    epilog="Exit codes: 0 done; 1 the run failed, crashed or was stopped; 2 bad usage; 130 interrupted.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
models_app = typer.Typer(help="What can be trained here.", invoke_without_command=True)
app.add_typer(models_app, name="models")

INTERRUPTED = 130
Model = Annotated[str | None, typer.Option("--model", help="tiny, a local folder, or a hub id.")]
Device = Annotated[str | None, typer.Option("--device", help="auto, cpu, cuda or cuda:1.")]
Out = Annotated[Path | None, typer.Option("--out", help="Folder for what is written.")]
Run = Annotated[Path, typer.Argument(help="A run folder.")]


def main() -> None:
    """Entry point: a user's mistake becomes one line on standard error, never a traceback."""
    try:
        app()
    except GrpoLabError as error:
        typer.echo("error: " + " ".join(str(error).split("\n")), err=True)
        sys.exit(error.exit_code)
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        typer.echo(f"error: {place}{error.strerror or error}; choose a folder with room and permission", err=True)
        sys.exit(1)
    except SystemExit as end:
        if end.code == INTERRUPTED:  # how typer hands on a KeyboardInterrupt
            typer.echo("interrupted", err=True)
        raise


@app.command()
def reproduce(model: Model = None, device: Device = None, out: Out = None) -> None:
    """The reports' before/after table, measured here; figures and a page to read."""
    from grpo_lab import console
    from grpo_lab.folder import next_free
    from grpo_lab.reproduce import reproduce_all

    page = reproduce_all(out or next_free(Path("runs/reproduce")), _given(model, device))
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
    guards: Annotated[str | None, typer.Option(help="A preset's guards, or names: a,b,c. `none` for none.")] = None,
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
    from grpo_lab import console
    from grpo_lab.models import resolve_device
    from grpo_lab.session import Session

    config = _config(preset, scenario, guards).with_(
        *_given(model, device),
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
        _say_end(session)
    sys.exit(0 if session.status == "done" else 1)


@app.command()
def scenarios() -> None:
    """The failures that can be caused here."""
    from grpo_lab import console
    from grpo_lab.scenarios import scenario, scenario_names

    found = [scenario(name) for name in scenario_names()]
    console.out.print(
        console.table([["scenario", "what it shows", "source"], *([s.name, s.title, s.source] for s in found)])
    )


@app.command()
def presets() -> None:
    """The ready-made configurations."""
    from grpo_lab import console
    from grpo_lab.scenarios import load_preset, preset_names

    found = [load_preset(name) for name in preset_names()]
    rows = [[p.name, p.title, ", ".join(p.config.guards) or "none"] for p in found]
    console.out.print(console.table([["preset", "what it is", "guards"], *rows]))


@app.command()
def guards() -> None:
    """The guards: where each acts, what it stops, costs and hides."""
    from grpo_lab import console
    from grpo_lab.guards import GUARDS
    from grpo_lab.settings import settings_of

    for name, guard in GUARDS.items():
        console.out.print(f"[bold]{name}[/bold]  at {guard.stage}")
        console.out.print(console.indented(" ".join((guard.__doc__ or "").split()), 2))
        for setting in settings_of(guard).values():
            console.out.print(console.indented(f"{setting.name} = {setting.default}: {setting.help}", 4))


@app.command()
def trace(run: Run) -> None:
    """Which link of the chain broke first, read from a run's record."""
    from grpo_lab import console, plots
    from grpo_lab.chain import summary
    from grpo_lab.session import Session

    session = Session.open(run)
    console.out.print(summary(session.events), markup=False)
    path = plots.save(plots.strip_figure(session.events, title=session.config.run.name), run / "chain.png")
    console.out.print(f"figure: {path}", markup=False, soft_wrap=True)


@app.command()
def replay(
    run: Run, speed: Annotated[float, typer.Option(min=0.0, help="Times the recorded speed; 0 for at once.")] = 0.0
) -> None:
    """Show a recorded run again, step by step, without training."""
    from grpo_lab import console, plots
    from grpo_lab.session import Session

    session = Session.open(run)
    with console.progress() as bars:
        for _ in session.replay(console.ProgressView(bars, session.config.run.name), speed):
            pass
    path = plots.save(plots.run_figure(session.events, title=session.config.run.name), run / "run.png")
    _say_end(session)
    console.out.print(f"figure: {path}", markup=False, soft_wrap=True)


@app.command()
def doctor() -> None:
    """Versions, device, memory, and what will fit."""
    from grpo_lab import console, environment, models

    found = environment.describe()
    memory = environment.memory_bytes()
    console.out.print(f"python {found['python']} on {found['platform']}")
    for name, version in found["packages"].items():
        console.out.print(f"  {name} {version or 'not installed'}")
    console.out.print(f"device {found['device']}, {found['cpu_count']} CPU cores, {found['threads']} torch threads")
    console.out.print(f"memory {memory / 2**30:.1f} GiB" if memory else "memory unknown")
    rows = [["model", "parameters", "needs", "here"]]
    for known in models.available():
        needed = known.parameters * environment.BYTES_PER_PARAMETER
        fits = memory is None or needed < memory
        here = "yes" if known.present else "no: " + known.origin
        rows.append(
            [known.name, f"{known.parameters:,}", f"{needed / 2**20:.0f} MiB" + ("" if fits else " (too much)"), here]
        )
    console.out.print(console.table(rows))


@models_app.callback()
def models(context: typer.Context) -> None:
    """What can be trained here."""
    from grpo_lab import console
    from grpo_lab.models import available

    if context.invoked_subcommand is None:
        rows = [
            [m.name, f"{m.parameters:,}", str(m.path) if m.present else f"not here: {m.origin}"] for m in available()
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
    from grpo_lab import console
    from grpo_lab.errors import unknown
    from grpo_lab.model_building import build_tiny
    from grpo_lab.models import MODELS

    if name != "tiny":
        raise unknown("model to build", name, ["tiny"])
    folder = out or MODELS[name].path
    with console.progress() as bars:
        task = bars.add_task("teaching", total=None, note="")
        built = build_tiny(folder, seed, lambda done, total: bars.update(task, completed=done, total=total))
    console.out.print(f"{folder}: {built['accuracy']:.1%} of held-out problems exact at T = 1")


def _config(preset: str | None, scenario: str | None, guards: str | None) -> Config:
    """Preset, then the scenario's cause, then the guards asked for."""
    from grpo_lab import scenarios

    if preset and scenario and scenarios.scenario(scenario).preset != preset:
        raise ConfigError("--preset and --scenario name two beginnings; give one, and --guards for the cure")
    config = scenarios.scenario(scenario).config() if scenario else scenarios.preset(preset or "stable")
    if guards is None:
        return config
    if guards in scenarios.preset_names():
        return config.with_guards(scenarios.preset(guards).guards)
    names = [] if guards == "none" else [name.strip() for name in guards.split(",") if name.strip()]
    return config.with_guards({name: dict(scenarios.preset("stable").guards.get(name, {})) for name in names})


def _given(model: str | None, device: str | None) -> tuple[str, ...]:
    pairs = (("model.name", model), ("run.device", device))
    return tuple(f"{name}={value}" for name, value in pairs if value)


def _say_end(session: Session) -> None:
    from grpo_lab import console
    from grpo_lab.chain import summary

    console.out.print(summary(session.events), markup=False)
    console.out.print(f"run: {session.directory}", markup=False, soft_wrap=True)
    if session.saved_model:
        console.out.print(f"model: {session.saved_model}", markup=False, soft_wrap=True)


if __name__ == "__main__":
    main()
