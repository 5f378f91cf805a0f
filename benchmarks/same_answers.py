"""`python -m benchmarks.same_answers`: does the upper half of the package still give the answers of benchmarks/answers?

Each difference is listed (exit code 1). `--write` writes the answers anew instead. The parts are:

- findings: each reference, wrong answer, right answer in other words and near miss of the ten labs, with seeds 0 to 4:
  which findings are right, the reasons, the points; and what a notebook shows (seed 0), with its Chinese.
- attacks: each of tests/grading/hostile in place of a function and of a value, in every tier that works here.
- diagnosis: of all recordings, of logs that the tests of commit 6a5ddf1 made (logs.json.gz), and of shared/inputs
  beside the checkout, if it is there; with every line of its text, in English and Chinese.
- panels: the screen of each recording after a quarter, half, three quarters and all of its events, and its summary.

Numbers have four digits, of which the last may differ by one.
"""

from __future__ import annotations

import argparse
import functools
import gzip
import hashlib
import itertools
import json
import math
import multiprocessing
import os
import re
import signal
import sys
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import chdir
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from rich.console import Console
from rich.progress import track

ROOT = Path(__file__).parents[1]
FOLDER, INPUTS = ROOT / "benchmarks/answers", ROOT.parent / "shared/inputs"
PARTS = ("findings", "attacks", "diagnosis", "panels")
SEEDS = range(5)
LANGUAGES = ("en", "zh")
PLACES = (("05_kl", "k3"), ("02_explosion", "reported"))
"""The function and the value that attacks stand in for."""
ATTACKED: dict[str, Any] = {"memory_mb": 512, "output_kb": 256, "total_seconds": 900.0}
NOT_RUN, WITH_INPUTS = "not run: ", "diagnosis_inputs"
NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?:e[+-]?\d+)?(?!\w)")
Answers = Iterator[tuple[tuple[str, ...], Any]]
"""Values with their places in a file."""


class Task(NamedTuple):
    """Something to compute by one of the functions below, for a file of answers."""

    file: str
    name: str
    args: Sequence[Any]
    slow: bool = False

    def answers(self) -> list[tuple[tuple[str, ...], Any]]:
        """Compute them in an empty folder. An error of the package is an answer, too."""
        from grpo_lab.errors import GrpoLabError

        with warnings.catch_warnings(), tempfile.TemporaryDirectory() as scratch, chdir(scratch):
            warnings.simplefilter("ignore")
            try:
                return list(globals()[self.name](*self.args))
            except GrpoLabError as error:
                place = [str(each) for each in self.args if isinstance(each, str | int)][:3]
                return [((self.name, *place, "error"), f"{type(error).__name__}: {error}")]


def tasks(parts: Iterable[str] = PARTS, inputs: Path = INPUTS) -> list[Task]:
    """Everything that these parts compute, the slow ones first. It alone names the tables of answers."""
    from grpo_lab.course import registry
    from grpo_lab.grading.sandbox.box import PROMISED
    from grpo_lab.runs.recordings import recording_names
    from tests.grading import hostile, mutants

    tables = {"reference": mutants.references(), "wrong": mutants.wrong()}
    tables |= {"near": mutants.near(), "right": mutants.right()}
    exercises = [(lab, name) for lab in registry.course_labs() for name in registry.lab_page(lab).exercises]
    answers = [(each, f"{kind}: {each.name}") for kind, table in tables.items() for each in table]
    logs = json.loads(gzip.decompress((FOLDER / "logs.json.gz").read_bytes()))
    given = sorted(inputs.iterdir()) if inputs.is_dir() else []
    known = {
        "findings": [
            *(Task(f"findings_{lab}", "cases", (lab, name)) for lab, name in exercises),
            *(
                Task(
                    f"findings_{each.lab}",
                    "findings",
                    (each.lab, each.exercise, key, each.source),
                    mutants.trains(each),
                )
                for each, key in answers
            ),
        ],
        "attacks": [Task("attacks", "attack", (tier, name), True) for tier in PROMISED for name in hostile.attacks()],
        "diagnosis": [
            *(Task("diagnosis", "diagnosis", (f"recording {name}", {"recording": name})) for name in recording_names()),
            *(Task("diagnosis", "diagnosis", (f"log {name}", log)) for name, log in logs.items()),
            *(Task(WITH_INPUTS, "diagnosis", (path.name, _read(path))) for path in given if path.suffix != ".md"),
        ],
        "panels": [Task("panels", "panel", (name,)) for name in recording_names()],
    }
    return sorted((task for part in parts for task in known[part]), key=lambda task: not task.slow)


def _read(path: Path) -> dict[str, Any]:
    """A log in the form of logs.json.gz."""
    files = [file for file in (path.rglob("*") if path.is_dir() else [path]) if file.is_file()]
    texts = {str(file.relative_to(path.parent)): file.read_bytes().decode("latin-1") for file in files}
    return {"path": path.name, "files": texts}


def cases(lab: str, name: str) -> Answers:
    """Of an exercise's test inputs in each round, how many they are, and the sum of their numbers."""
    from grpo_lab.course import evaluate, registry

    task = registry.lab_page(lab).exercises[name]
    yield (name, "exercise"), f"{task.title}: {task.kind}, {task.points} points"
    for seed, transformed in itertools.product(SEEDS, (False, True)):
        if found := evaluate.asked(task, seed, transformed):
            numbers = list(_numbers([[*case.inputs.values(), case.expected] for case in found]))
            said = f"{len(found)} cases of {len(numbers)} numbers, in all {sum(numbers):.4g}"
            yield (name, "inputs", f"{seed}{', transformed' * transformed}"), said


def _numbers(value: Any) -> Iterator[float]:
    """The size of every finite number in tensors, lists and dictionaries."""
    value = value.detach().tolist() if hasattr(value, "detach") else value
    if isinstance(value, Mapping | Sequence) and not isinstance(value, str):
        yield from itertools.chain(*map(_numbers, value.values() if isinstance(value, Mapping) else value))
    elif isinstance(value, int | float) and math.isfinite(value):
        yield abs(float(value))


def findings(lab: str, name: str, key: str, source: str) -> Answers:
    """The findings about an answer in a round as it is, and transformed: `.`, or a letter for a wrong one's reason."""
    from grpo_lab.course import evaluate, registry, translation
    from grpo_lab.course.exercises import Function
    from grpo_lab.grading.grader import SCORING

    path, task, place = Path(f"{name}.py"), registry.lab_page(lab).exercises[name], (name, "answers", key)
    path.write_text(source, encoding="utf-8")
    yield (*place, "source"), _hash(source)
    shown, reasons, seeds = evaluate.check(task, path), list[str](), dict[str, list[str]]()
    for seed in SEEDS:
        rounds = [evaluate.check(task, path, seed) if seed else shown]
        if isinstance(task.check, Function) and len(rounds[0]) == len(asked := evaluate.asked(task, seed, True)):
            given = evaluate.run(task, path, [case.inputs for case in asked])
            rounds.append(evaluate.judged(task, given, asked, seed))
        marks = " ".join("".join(_letter(each, reasons) for each in found) for found in rounds)
        points = [f"{task.points * score([*itertools.chain(*rounds)]):.4g}" for score in SCORING.values()]
        seeds.setdefault(f"{marks} {'/'.join(points)}", []).append(str(seed))
    yield from (((*place, f"seeds {' '.join(those)}"), said) for said, those in seeds.items())
    yield from [((*place, "reasons"), reasons)] if reasons else []
    for number, found in enumerate(each for each in evaluate.folded(shown) if not each.right):
        yield (*place, f"shown {number}"), " | ".join(found[1:])
        chinese = translation.in_language(found, "zh")
        yield from ((("zh", text), said) for text, said in zip(found[1:], chinese[1:], strict=True) if said != text)


def _letter(found: Any, reasons: list[str]) -> str:
    """`.` for a right finding, or a letter for the reason of a wrong one, which becomes one of the reasons."""
    if found.right:
        return "."
    if (why := NUMBER.sub("#", found.why)) not in reasons:
        reasons.append(why)
    return chr(ord("a") + reasons.index(why))


def attack(tier: int, name: str) -> Answers:
    """The marks of an attack, without numbers and names of the machine, and the number of its traces."""
    from grpo_lab.course.registry import lab_page
    from grpo_lab.grading.grader import Course, Grader
    from grpo_lab.grading.notebooks import Submission
    from grpo_lab.grading.rules import Rules
    from tests.grading import hostile
    from tests.grading.hostile.world import World

    # A busy machine must not turn the limit on memory into the one on time.
    rules = Rules(**ATTACKED, tier=tier, seconds=40.0 if name.startswith("memory") else 6.0)
    place = (f"tier {tier}", name)
    if why := _unusable(tier):
        yield place, NOT_RUN + why
        return
    world, told = World(), hostile.attacks()[name]
    grader = Grader(Course(rules, b"a secret of the oracle that never changes"))
    try:
        for lab, task in PLACES:
            answers = {task: told.answer(lab, task, world.known())}
            mark = grader.mark(Submission("one", "one.ipynb", lab, "00", answers), lab_page(lab).exercises[task])
            said = [mark.note, *(f"{each.got} | {each.why}" for each in mark.findings if not each.right)]
            clean = [re.sub(r"\d[\d,.]*", "#", each.replace(world.token, "TOKEN")) for each in said if each]
            yield (*place, f"{lab}/{task}"), [f"{mark.status}, {mark.points:g} of {mark.out_of}", *clean]
        yield (*place, "traces"), len(world.traces())
    finally:
        grader.close()
        world.close()


@functools.cache
def _unusable(tier: int) -> str:
    """Why attacks are not tried in a tier here, or nothing."""
    from grpo_lab.errors import ConfigError
    from grpo_lab.grading.rules import Rules
    from grpo_lab.grading.sandbox import box

    contained = box.at_least(tier)
    try:
        return box.unusable(contained, Rules(**ATTACKED).limits) or "it is not root" * contained.exposed
    except ConfigError as error:
        return str(error).partition(":")[0]  # the rest names folders of this machine


def diagnosis(name: str, log: dict[str, Any]) -> Answers:
    """A diagnosis: what it names, and each line of its text with `#` for numbers."""
    import pandas as pd

    from grpo_lab.analysis.diagnosis import diagnose
    from grpo_lab.analysis.logs import Log
    from grpo_lab.runs.recordings import find

    source: Any = find(log["recording"]) if "recording" in log else Path(log.get("path", ""))
    if "curves" in log:
        curves = {each: pd.Series(values, steps, dtype=float) for each, (steps, values) in log["curves"].items()}
        source = Log(curves, source=log["source"], settings=log["settings"], crash=log["crash"])
    for file, text in log.get("files", {}).items():
        Path(file).parent.mkdir(parents=True, exist_ok=True)
        Path(file).write_bytes(text.encode("latin-1"))
    found = diagnose(source)
    yield ("verdicts", name), list(_told(found.tree()))
    for language in LANGUAGES:
        with patch.dict(os.environ, GRPO_LAB_LANG=language):
            lines = found.text("LOG").splitlines()
        yield from (((f"lines, {language}", NUMBER.sub("#", " ".join(line.split()))), name) for line in lines)


def _told(tree: dict[str, Any]) -> Iterator[str]:
    """A diagnosis in short lines."""
    log = tree["log"]
    facts = (f"{log['steps']} steps", f"{len(log['metrics'])} metrics", f"{log['settings']} settings", log["crash"])
    yield ", ".join(filter(None, (tree["verdict"], log["format"], log["source"], log["algorithm"], *facts)))
    for found in tree["findings"]:
        yield f"{found['level']} {found['cause']} {found['objective']} at {found['step']}"
        for each in found["evidence"]:
            yield f"  {each['symptom']}: {each['metric']} at {each['step']} is {each['value']}, at last {each['last']}"
        yield f"  suspects: {[name or '-' for name in found['suspect_names']]}"
        yield f"  remedies: {[each['against'] or '-' for each in found['remedies']]}"
    yield from (f"possible {each['cause']} at {each['step']}: lacks {len(each['lacks'])}" for each in tree["possible"])
    yield f"cannot show {len(tree['cannot_show'])} metrics"
    yield from (f"note: {said}" for said in (*log["notes"], *tree["lacking"]))
    yield from (f"earlier: {each['verdict']}" for each in tree["earlier"])


def panel(name: str) -> Answers:
    """The words of a recording's screen at four places, the whole screen at the last, and the summary of its run."""
    from grpo_lab.analysis import run_state
    from grpo_lab.runs import run_folder, summary
    from grpo_lab.runs.recordings import find

    events = run_folder.read(find(name))[1]
    for quarter in range(1, 5):
        screen, place = run_state.fold(events[: len(events) * quarter // 4]), (name, f"{quarter} of 4")
        yield (*place, "status"), f"{screen.status} ({run_state.tone(screen.status)}) {screen.message}"
        for language in LANGUAGES:
            with patch.dict(os.environ, GRPO_LAB_LANG=language):
                yield (*place, language), run_state.describe(screen)
    for language in LANGUAGES:
        with patch.dict(os.environ, GRPO_LAB_LANG=language):
            yield (name, "summary", language), summary.summary(events).splitlines()
    whole = run_state.fold(events)
    yield from (((name, "screen", each.name), _shortened(getattr(whole, each.name))) for each in fields(whole))


def _shortened(value: Any) -> Any:
    """A value as text; of a long one its length, a hash, and its end. A panel computes nothing that may be rounded."""
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _shortened(each) for key, each in value.items()}
    text = json.dumps(value, default=asdict, sort_keys=True)
    return text if len(text) <= 160 else f"{len(text)} characters, {_hash(text)}, … {text[-60:]}"


def _hash(text: str) -> str:
    return f"x{hashlib.sha256(text.encode()).hexdigest()[:8]}"  # the x, for it is no number


def computed(wanted: Sequence[Task], jobs: int) -> dict[str, Any]:
    """The answers of these tasks, by file."""
    found, files = dict[int, Any](), dict[str, Any]()
    os.environ["OMP_NUM_THREADS"] = "1"
    pool = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"))
    interrupted = signal.signal(signal.SIGINT, signal.SIG_IGN)  # workers inherit it, and end what they do
    try:
        waiting = {pool.submit(task.answers): number for number, task in enumerate(wanted)}
        signal.signal(signal.SIGINT, interrupted)
        for future in track(as_completed(waiting), "answers", len(waiting), console=Console(stderr=True)):
            found[waiting[future]] = future.result()
    finally:
        pool.shutdown(cancel_futures=True)
    for number, task in enumerate(wanted):
        for (*above, last), value in found[number]:
            tree = files.setdefault(task.file, {})
            for key in map(rounded, above):
                tree = tree.setdefault(key, {})
            tree.setdefault(rounded(last), rounded(value))
    return files


def rounded(value: Any) -> Any:
    """Values for JSON, with four digits of each number that has a point or an exponent, also within a text."""
    if isinstance(value, dict):
        return {rounded(key): rounded(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(each) for each in value]
    short = NUMBER.sub(lambda found: found[0] if found[0].isdigit() else f"{float(found[0]):.4g}", str(value))
    return short if isinstance(value, str) else value


def same(old: Any, new: Any) -> bool:
    """Whether two values are the same, but for one in the fourth digit of a number.

    >>> same("norm 1.234 > 1", "norm 1.235 > 1"), same("norm 1.234 > 1", "norm 1.236 > 1"), same("step 4", "step 5")
    (True, False, False)
    """
    if old == new or not (isinstance(old, str) and isinstance(new, str)):
        return old == new
    numbers = zip(NUMBER.findall(old), NUMBER.findall(new), strict=False)
    return NUMBER.split(old) == NUMBER.split(new) and all(a == b or _near(a, b) for a, b in numbers)


def _near(old: str, new: str) -> bool:
    sizes = sorted(map(float, (old, new)))
    digit = 10.0 ** (math.floor(math.log10(sizes[1])) - 3)
    return not (old.isdigit() and new.isdigit()) and sizes[1] - sizes[0] < 1.5 * digit


def differences(old: Any, new: Any, place: tuple[str, ...] = ()) -> Iterator[str]:
    """A line for each value that differs, or that one tree alone has."""
    if isinstance(old, list) and isinstance(new, list):
        old, new = ({str(number): each for number, each in enumerate(values)} for values in (old, new))
    if isinstance(old, dict) and isinstance(new, dict):
        for key in {**old, **new}:
            yield from differences(old.get(key), new.get(key), (*place, key))
    elif not same(old, new):
        yield f"{' > '.join(place)}: {old!r} -> {new!r}"


def stored(parts: Iterable[str]) -> dict[str, Any]:
    """The answers of these parts in benchmarks/answers, by file."""
    files = {path.stem: path for path in sorted(FOLDER.glob("*.json")) if path.stem.partition("_")[0] in parts}
    return {name: json.loads(path.read_text(encoding="utf-8")) for name, path in files.items()}


def main(words: Sequence[str] | None = None) -> int:
    """Compute the answers; write them, or list every difference and return 1 if there is one."""
    parser = argparse.ArgumentParser("python -m benchmarks.same_answers", description=str(__doc__).partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="write benchmarks/answers anew")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="the parts; all by default")
    parser.add_argument("--jobs", type=int, default=2, help="processes; 2 by default")
    parser.add_argument("--inputs", type=Path, default=INPUTS, help="more logs; shared/inputs beside the checkout")
    given = parser.parse_args(words)
    new, old = computed(tasks(given.only, given.inputs), given.jobs), stored(given.only)
    if "diagnosis" in given.only and not given.inputs.is_dir():
        print(f"not there, so not compared: {given.inputs}")
        old.pop(WITH_INPUTS, None)
    if given.write:
        for name, tree in new.items():
            text = json.dumps(tree, indent=1, sort_keys=True, ensure_ascii=False)
            (FOLDER / f"{name}.json").write_text(f"{text}\n", encoding="utf-8")
        print(f"written: {', '.join(new)}")
        return 0
    found = list(differences(old, new))
    told = [line for line in found if NOT_RUN not in line]
    print(*told, f"{len(told)} differences in {', '.join(new)}", sep="\n")
    if attacks := max(json.dumps(each).count(NOT_RUN) for each in (old, new)):
        print(f"{attacks} attacks were not compared, for their tier does not work here or where they were written")
    return int(bool(told))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
