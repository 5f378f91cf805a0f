"""`python -m benchmarks.planted`: do the tests still notice sixty planted bugs?

planted.toml has each bug as a patch of a few lines, with tests that fail with it. Each is planted alone in a copy of
the checkout. This module imports nothing of the package, which has the bug. Writes results/planted.md of all bugs.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
LIST, PAGE = ROOT / "benchmarks/planted.toml", ROOT / "benchmarks/results/planted.md"
OUTCOMES = {0: "SURVIVED", 1: "killed"}
"""By pytest's exit code. Any other one, as for a test that does not exist, is no verdict on the bug."""


class Bug(NamedTuple):
    """A table of planted.toml, which explains the fields."""

    name: str
    what: str
    file: str
    old: str
    new: str
    tests: Sequence[str]

    def problem(self) -> str:
        """Why the patch does not apply to this checkout, or ""."""
        path = ROOT / self.file
        count = path.read_text(encoding="utf-8").count(self.old) if path.exists() else 0
        return "" if count == 1 else f"{self.name}: `old` is {count} times in {self.file}; give the text that is there"


class Tried(NamedTuple):
    """The outcome of tests, their seconds, and pytest's output."""

    outcome: str
    seconds: float
    said: str


def bugs() -> list[Bug]:
    """All bugs of planted.toml."""
    return [Bug(**table) for table in tomllib.loads(LIST.read_text(encoding="utf-8"))["bug"]]


def tried(tests: Sequence[str], bug: Bug | None = None) -> Tried:
    """Run tests in a copy of the files that git does not ignore, with a bug in it if one is given."""
    begun, listing = time.monotonic(), ["git", "ls-files", "-coz", "--exclude-standard"]
    names = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    with tempfile.TemporaryDirectory(prefix="planted-") as scratch:
        folder = Path(scratch)
        for name in (name for name in names if (ROOT / name).is_file()):  # one that was deleted may be listed
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
        if bug:
            text = (folder / bug.file).read_text(encoding="utf-8")
            (folder / bug.file).write_text(text.replace(bug.old, bug.new), encoding="utf-8")
        usual = {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", **os.environ, "PYTHONPATH": scratch}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
        done = subprocess.run(command, cwd=folder, env=usual, capture_output=True, text=True)
    return Tried(OUTCOMES.get(done.returncode, "ERROR"), time.monotonic() - begun, done.stdout + done.stderr)


def page(wanted: Sequence[Bug], found: Mapping[str, Tried], jobs: int, seconds: float) -> str:
    """The page of the results."""
    killed = sum(one.outcome == "killed" for one in found.values())
    made = f"Made by `python -m benchmarks.planted --jobs {jobs}` in {seconds / 60:.0f} minutes"
    about = f"{killed} of {len(wanted)} killed. {made} on {os.cpu_count()} processors, torch {version('torch')}."
    lines = ["# Planted bugs", "", about, "", "| bug | harm | tests | outcome | seconds |", "|---|---|---|---|---|"]
    for name, what, *_, tests in wanted:
        lines.append(f"| {name} | {what} | {'<br>'.join(tests)} | {found[name].outcome} | {found[name].seconds:.0f} |")
    return "\n".join([*lines, ""])


def main(words: Sequence[str] | None = None) -> int:
    """Plant each bug and run its tests; return 0 if all are killed."""
    begun, known = time.monotonic(), {bug.name: bug for bug in bugs()}
    parser = argparse.ArgumentParser("python -m benchmarks.planted", description=str(__doc__).partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=known, metavar="NAME", help="the bugs to plant; all by default")
    parser.add_argument("--jobs", type=int, default=1, help="bugs at the same time")
    given = parser.parse_args(words)
    wanted = [known[name] for name in given.only or known]
    if problems := [problem for bug in wanted if (problem := bug.problem())]:
        sys.exit("\n".join(problems))
    print(f"the tests of {len(wanted)} bugs, without a bug ...", flush=True)
    healthy = tried(sorted({test for bug in wanted for test in bug.tests}))
    if healthy.outcome != "SURVIVED" or " skipped" in healthy.said:
        sys.exit(f"{healthy.said}\nThese tests fail or are skipped without a bug, so that they cannot tell.")
    found, pool = dict[str, Tried](), ThreadPoolExecutor(given.jobs)
    waiting = {pool.submit(tried, bug.tests, bug): bug.name for bug in wanted}
    try:
        for number, future in enumerate(as_completed(waiting), start=1):
            one = found[waiting[future]] = future.result()
            print(f"{number} of {len(wanted)}: {one.outcome} in {one.seconds:.0f} s, {waiting[future]}", flush=True)
            print(one.said if one.outcome != "killed" else "", end="")
    finally:
        pool.shutdown(cancel_futures=True)
    if not given.only:
        PAGE.write_text(page(wanted, found, given.jobs, time.monotonic() - begun), encoding="utf-8")
    return int(any(one.outcome != "killed" for one in found.values()))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
