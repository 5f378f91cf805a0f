"""Commands that list scenarios, presets, algorithms and guards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from grpo_lab.cli.app import AsJson, app

if TYPE_CHECKING:
    from grpo_lab.config.catalog import Scenario
    from grpo_lab.training.interventions import Intervention


@app.command(example="scenarios cuda-001")
def scenarios(
    name: Annotated[
        str | None, typer.Argument(help="A scenario or the .toml of your own, to see its cures and heals.")
    ] = None,
    as_json: AsJson = False,
    check: Annotated[bool, typer.Option("--check", help="Try its failure, cures, heals and decoys.")] = False,
    seeds: Annotated[int, typer.Option(min=1, max=100, help="Seeds of --check.")] = 3,
) -> None:
    """List the failures that can be reproduced, or describe one: what stops it, what heals it, and why.

    With --check, train it: exit code 1 if one claim of the scenario does not hold on every seed.
    """
    from dataclasses import asdict

    from grpo_lab.config.catalog import scenario, scenario_names
    from grpo_lab.errors import ConfigError
    from grpo_lab.ui import console

    if check:
        if not name:
            raise ConfigError("--check tries one scenario; name it, or the .toml of your own")
        return _check(scenario(name), seeds)
    if as_json:
        return console.say_json(
            asdict(scenario(name)) if name else [asdict(scenario(each)) for each in scenario_names()]
        )
    if name:
        return _describe(scenario(name))
    rows = [[found.name, found.title, found.source] for found in map(scenario, scenario_names())]
    console.out.print(console.table([["scenario", "failure", "source"], *rows]))


def _check(case: Scenario, seeds: int) -> None:
    """Print each claim with its result on each seed; exit code 1 if one does not hold."""
    from grpo_lab.analysis.scenario_check import EXPECTED, claims
    from grpo_lab.ui import console

    rows, wrong = [], 0
    with console.progress() as bars:
        task = bars.add_task("trying", total=None, note="")
        for claim in claims(case, range(seeds)):
            wrong += not claim.holds
            kept = sum(result == EXPECTED[claim.kind] for result in claim.results)
            others = sorted({result for result in claim.results if result != EXPECTED[claim.kind]})
            told = "" if claim.holds else f"wrong: {', '.join(others)}"
            rows.append([claim.kind, ", ".join(claim.change), EXPECTED[claim.kind], f"{kept} of {seeds}", told])
            bars.update(task, advance=1, note=claim.kind)
    console.out.print(console.table([["", "change", "promised", "seeds", ""], *rows]))
    if wrong:
        console.say(f"{wrong} of {len(rows)} claims do not hold: correct the .toml, or try other settings")
        raise typer.Exit(1)


def _describe(case: Scenario) -> None:
    """Print a scenario: cause, symptom, cures, decoys and heals."""
    from grpo_lab.ui import console

    console.out.print(f"[bold]{case.name}[/bold]  {case.title}")
    console.out.print(console.indented(" ".join(case.story.split()), 2))
    rows = [("stop", cure, "") for cure in case.cures] + [("heal", heal.change, heal.why) for heal in case.heals]
    rows += [("no help", decoy, "") for decoy in case.decoys]
    body = [[kind, ", ".join(change), " ".join(why.split())] for kind, change, why in rows]
    console.out.print(console.table([["", "change", "why"], *body]))
    console.out.print(console.table([["model", "settings"], *map(list, case.sizes().items())]))
    console.say(f"try it: grpo-lab train --scenario {case.name} --heal")


@app.command(example="presets --json")
def presets(as_json: AsJson = False) -> None:
    """List the ready-made configurations."""
    from grpo_lab.config.catalog import load_preset, preset_names
    from grpo_lab.ui import console

    found = [load_preset(name) for name in preset_names()]
    if as_json:
        texts = [{"name": p.name, "title": p.title, "source": p.source, "story": p.story} for p in found]
        return console.say_json([t | {"config": p.config.to_dict()} for t, p in zip(texts, found, strict=True)])
    rows = [[p.name, p.title, ", ".join(p.config.guards) or "none"] for p in found]
    console.out.print(console.table([["preset", "description", "guards"], *rows]))


@app.command(example="algorithms --json")
def algorithms(as_json: AsJson = False) -> None:
    """List the algorithms for `train --algorithm`, each with what differs from GRPO, its settings and its paper."""
    from dataclasses import asdict

    from grpo_lab.config.algorithms import algorithm, algorithm_names
    from grpo_lab.ui import console

    found = [algorithm(name) for name in algorithm_names()]
    if as_json:
        return console.say_json([asdict(each) for each in found])
    for each in found:
        console.out.print(f"[bold]{each.name}[/bold]  {each.title}")
        settings = ", ".join(f"loss.{name}={value}" for name, value in each.loss.items())
        for text in (each.differs, settings, each.paper):
            console.out.print(console.indented(text, 2))


@app.command(example="guards")
def guards(as_json: AsJson = False) -> None:
    """List the guards, each with its stage and the texts `Stops`, `Costs` and `Hides`."""
    from grpo_lab.config.fields import settings_of
    from grpo_lab.training.guards import GUARDS
    from grpo_lab.ui import console

    if as_json:
        from grpo_lab.ui.docs_pages.guards import docstring

        return console.say_json([_tree(name, guard, *docstring(guard)) for name, guard in GUARDS.items()])
    for name, guard in GUARDS.items():
        console.out.print(f"[bold]{name}[/bold]  at {guard.stage}")
        console.out.print(console.indented(" ".join((guard.__doc__ or "").split()), 2))
        for setting in settings_of(guard).values():
            console.out.print(console.indented(f"{setting.name} = {setting.default}: {setting.help}", 4))


def _tree(name: str, guard: type[Intervention], about: str, notes: dict[str, str]) -> dict[str, Any]:
    """A guard as plain values."""
    from grpo_lab.config.fields import settings_of

    settings = {each.name: {"default": each.default, "help": each.help} for each in settings_of(guard).values()}
    return {"name": name, "stage": str(guard.stage), "meaning": about, **notes, "settings": settings}
