"""The command that describes this machine, the memory that a config needs on it, and what a trainer really does."""

from __future__ import annotations

from typing import Annotated

import typer
from typer import Argument, Option

from grpo_lab.cli.app import Device, Model, Settings, app, given
from grpo_lab.config import catalog
from grpo_lab.config.schema import Config
from grpo_lab.errors import ConfigError, RunError
from grpo_lab.ui import console


@app.command(example="doctor --memory stable")
def doctor(
    target: Annotated[str | None, Argument(metavar="[CONFIG | RUN | FILE.PY]", help="What to --verify.")] = None,
    verify: Annotated[bool, Option("--verify", help="Check a trainer by its behaviour (docs/verify.md).")] = False,
    memory: Annotated[str | None, Option(metavar="CONFIG", help="Memory of a preset, scenario, .toml or run.")] = None,
    settings: Settings = None,
    model: Model = None,
    device: Device = None,
    measure: Annotated[bool, Option(help="With --memory: measure a step in a child process.")] = True,
) -> None:
    """Show versions, device, memory, and the models that fit; or the memory of a config, and settings to change.

    With --verify, check a trainer; exit code 1 on a failed check.
    """
    if verify and memory is None:
        raise typer.Exit(console.say_verified(target or "stable", (*given(model, device), *(settings or ()))))
    if memory is not None and not (target or verify):
        config = catalog.named(memory, model or "").with_(*given(model, device), *(settings or []))
        return _show_memory(config, measure)
    if memory is not None or target or settings or model or device:
        raise ConfigError(
            "a target goes with --verify; --set, --model and --device go with either --verify or --memory CONFIG"
        )
    _show_machine()


def _show_memory(config: Config, measure: bool) -> None:
    """Print the bytes of each part, what a measured step takes beside them, and what to change first."""
    from grpo_lab.analysis import memory

    console.say_warnings()
    for note in console.notes(config):
        console.say(note)
    found, free = memory.parts(config), memory.free_mib(config.run.device)
    sizes, problem, rest = dict(found), "", float("inf")
    if free is not None and sum(found.values()) >= free * memory.MIB:
        problem, rest = "the parts alone are more than is free", 0.0
    elif not measure:
        problem = "--no-measure"
    else:
        try:
            with console.progress() as bars:
                process, peak = memory.measure(config, found, [console.ProgressView(bars, "measuring")])
        except RunError as error:
            problem = str(error)
        else:
            rest = max(0, peak - process - sum(found.values()))
            sizes |= {"python and torch": process, "rest: activations, logits, cache": rest}
    sizes["sum"] = sum(sizes.values())
    rows = [[name, f"{size:14,}", f"{size / memory.MIB:9,.1f}"] for name, size in sizes.items() if size]
    console.out.print(console.table([[f"{config.model.name}, {config.model.precision}", "bytes", "MiB"], *rows]))
    if problem:
        console.say(f"activations, logits and cache were not measured: {problem}")
    console.say("free here: unknown" if free is None else f"free here: {free:,.0f} MiB")
    console.out.print(console.table([["change first", "", "for"], *memory.change_first(config, found, rest)]))


def _show_machine() -> None:
    """Print versions, device, memory, and the memory that a default run of each model keeps from step to step."""
    import psutil

    from grpo_lab.analysis import memory
    from grpo_lab.models import registry
    from grpo_lab.runs import environment

    found = environment.describe()
    console.out.print(f"python {found['python']} on {found['platform']}")
    for name, version in found["packages"].items():
        console.out.print(f"  {name} {version or 'not installed'}")
    console.out.print(f"device {found['device']}, {found['cpu_count']} CPU cores, {found['threads']} torch threads")
    console.out.print(f"attention {found['attention']}")
    console.out.print(f"memory {psutil.virtual_memory().total / 2**30:.1f} GiB")
    stable = catalog.preset("stable")
    free, rows = memory.free_mib(stable.run.device), [["model", "parameters", "a default run keeps", "here"]]
    for known in registry.MODELS.values():
        kept, here = "once it is here", f"no: {known.origin}"
        if known.present:
            size = sum(memory.parts(stable.with_(f"model.name={known.name}")).values()) / memory.MIB
            kept, here = f"{size:,.0f} MiB" + (" (too much)" if free is not None and size >= free else ""), "yes"
        rows.append([known.name, f"{known.parameters:,}", kept, here])
    console.out.print(console.table(rows))
    console.say("with activations: grpo-lab doctor --memory stable --model NAME")
