"""The command that describes this machine, the memory that a config needs on it, and what a trainer really does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from grpo_lab.cli.app import Device, Model, app, given
from grpo_lab.errors import ConfigError

if TYPE_CHECKING:
    from grpo_lab.config.schema import Config
    from grpo_lab.runs.fitting import Halving
    from grpo_lab.runs.memory import Prediction


@app.command(example="doctor --memory stable")
def doctor(
    target: Annotated[
        str | None,
        typer.Argument(metavar="[CONFIG | RUN | FILE.PY]", help="For --verify: a preset or scenario, a run, a file."),
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Check a trainer by its behaviour (docs/verify.md).")
    ] = False,
    memory: Annotated[
        str | None,
        typer.Option(
            metavar="CONFIG",
            help="Predict the memory of a preset, a scenario, its .toml, or a run's folder or config.json.",
        ),
    ] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="section.setting=value; may be repeated.")] = None,
    model: Model = None,
    device: Device = None,
    measure: Annotated[
        bool, typer.Option(help="Compare the prediction with three steps in a child process, if they fit.")
    ] = True,
) -> None:
    """Show versions, device, memory, and the models that fit; or the memory of a config, and settings to halve.

    With --verify, check a trainer; exit code 1 on a failed check.
    """
    if verify and memory is None:
        from grpo_lab.ui.console import say_verified

        raise typer.Exit(say_verified(target or "stable", (*given(model, device), *(settings or ()))))
    if memory is not None and not (target or verify):
        from grpo_lab.config import catalog

        config = catalog.named(memory, model or "").with_(*given(model, device), *(settings or []))
        return _show_memory(config, measure)
    if memory is not None or target or settings or model or device:
        raise ConfigError(
            "a target goes with --verify; --set, --model and --device go with either --verify or --memory CONFIG"
        )
    _show_machine()


def _show_memory(config: Config, measure: bool) -> None:
    """Print the prediction by parts, the measurement, and the halvings."""
    from grpo_lab.runs import environment
    from grpo_lab.runs.fitting import HALVED, by_savings, halvings
    from grpo_lab.runs.measured_memory import measure as measured
    from grpo_lab.runs.memory import predict
    from grpo_lab.ui import console

    console.say_warnings()
    with console.progress() as bars:
        task = bars.add_task("predicting", total=1 + len(HALVED), note="")
        now, found = predict(config), []
        for halving in halvings(config, now):
            found.append(halving)
            bars.update(task, advance=1, note=halving.setting)
    _say_prediction(config, now)
    free = environment.free_mib(config.run.device)
    fits = free is None or now.peak < free
    console.say(f"free here: {free:,.0f} MiB" + ("" if fits else ", too little") if free else "free here: unknown")
    if measure and fits:
        with console.progress() as bars:
            peak = measured(config, [console.ProgressView(bars, "measuring")], now.stage)
        console.say(
            f"measured: {peak:,.0f} MiB in three steps of {now.stage}; the prediction is {now.peak / peak - 1:+.1%} off"
        )
    elif measure:
        console.say("not measured: it would not fit")
    _say_halvings(by_savings(iter(found)), now)


def _say_prediction(config: Config, now: Prediction) -> None:
    from grpo_lab.runs.memory import TIMES
    from grpo_lab.ui import console

    for note in console.notes(config):
        console.say(note)
    (prompts, prompt_length), (completions, length) = now.prompts, now.completions
    console.say(
        f"model {config.model.name}, {now.parameters:,} parameters, {now.trained:,} trained, {config.model.precision}"
    )
    console.say(
        f"a step: {prompts} prompts of up to {prompt_length} tokens, {completions} completions of up to {length}"
    )
    console.say(f"a forward-backward pass: {now.micro_batch} prompts with their completions")
    rows = [[name, *(f"{size:9,.1f}" if size else "" for size in sizes)] for name, sizes in now.parts.items()]
    rows.append(["sum", *(f"{size:9,.1f}" for size in now.sums)])
    console.out.print(console.table([["MiB", *(f"{name:>9}" for name in TIMES)], *rows]))
    console.say(f"predicted: {now.peak:,.0f} MiB, in stage {now.stage}, at the time of the {now.when}")


def _say_halvings(found: list[Halving], now: Prediction) -> None:
    from grpo_lab.ui import console

    if not found:
        return console.say("nothing is left to halve")
    rows = [
        [
            each.setting,
            f"{each.old} -> {each.new}",
            f"{now.peak - each.after.peak:,.0f}",
            f"{1 - each.after.peak / now.peak:.1%}",
        ]
        for each in found
    ]
    console.out.print(console.table([["halve first", "", "saves MiB", ""], *rows]))
    console.say("smaller micro-batches give the same results; the other halvings change the work")


def _show_machine() -> None:
    """Print versions, device, memory, and the memory that a default run of each model takes at most."""
    from grpo_lab.models import registry
    from grpo_lab.runs import environment
    from grpo_lab.ui import console

    found = environment.describe()
    memory = environment.memory_bytes()
    console.out.print(f"python {found['python']} on {found['platform']}")
    for name, version in found["packages"].items():
        console.out.print(f"  {name} {version or 'not installed'}")
    console.out.print(f"device {found['device']}, {found['cpu_count']} CPU cores, {found['threads']} torch threads")
    console.out.print(f"attention {found['attention']}")
    console.out.print(f"memory {memory / 2**30:.1f} GiB" if memory else "memory unknown")
    needs = _default_runs([known.name for known in registry.MODELS.values() if known.present])
    rows = [["model", "parameters", "a default run needs", "here"]]
    for known in registry.MODELS.values():
        here = "yes" if known.present else "no: " + known.origin
        rows.append([known.name, f"{known.parameters:,}", needs.get(known.name, "known once it is here"), here])
    console.out.print(console.table(rows))
    console.say("by parts, and for other settings: grpo-lab doctor --memory stable --model NAME")


def _default_runs(names: list[str]) -> dict[str, str]:
    """The predicted memory of the preset `stable` with each of these models, as it is shown."""
    from grpo_lab.config import catalog
    from grpo_lab.runs import environment
    from grpo_lab.runs.memory import predict, process_before_a_model

    configs = {name: catalog.preset("stable").with_(f"model.name={name}") for name in names}
    shown, process = {}, None
    for name, config in configs.items():
        process = process_before_a_model(config) if process is None else process  # of this one, before it predicts
        peak, free = predict(config, process).peak, environment.free_mib(config.run.device)
        shown[name] = f"{peak:,.0f} MiB" + (" (too much)" if free is not None and peak >= free else "")
    return shown
