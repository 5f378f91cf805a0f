"""The rules a reader relies on: floors, import cost, and the size of the package."""

import ast
import graphlib
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "grpo_lab"
ROOMS = (
    "core",
    "",
    "config",
    "tasks",
    "algorithm",
    "models",
    "training",
    "runs",
    "hosted",
    "analysis",
    "course",
    "grading",
    "ui",
    "cli",
)
"""From the ground up; "" are the words: the modules beside `__init__`. The core imports nothing of the package."""
PUBLIC = {"__init__", "__main__"}
"""The public names and the command line stand on top of every room."""
VIEWS = {"IPython", "ipywidgets", "matplotlib"}
FORBIDDEN = {room: VIEWS | ({"torch", "transformers"} if room in ("", "config") else set()) for room in ROOMS[:-2]}


def name_of(path: Path, package: Path) -> str:
    """The dotted name of a file, `training.guards` for a package's own."""
    return ".".join(path.relative_to(package).with_suffix("").parts).removesuffix(".__init__")


def room(name: str) -> int:
    """The number of the room that a dotted name belongs to."""
    top = name.split(".")[0]
    return len(ROOMS) if name in PUBLIC else ROOMS.index(top if top in ROOMS else "")


def imported(tree: ast.AST, known: set[str]) -> tuple[set[str], set[str]]:
    """Files of the package that a file imports, inside functions too, and the other packages that it imports."""
    inside, outside = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute"
            base = node.module or ""
            names = [f"{base}.{alias.name}" if f"{base}.{alias.name}"[9:] in known else base for alias in node.names]
        else:
            continue
        inside |= {name[9:] or "__init__" for name in names if f"{name}.".startswith("grpo_lab.")}
        outside |= {name.split(".")[0] for name in names} - {"grpo_lab"}
    return inside, outside


def graph_of(package: Path) -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """What each file imports: of the package, and from outside."""
    trees = {name_of(path, package): ast.parse(path.read_text(encoding="utf-8")) for path in package.rglob("*.py")}
    found = {name: imported(tree, set(trees)) for name, tree in trees.items()}
    return {name: pair[0] for name, pair in found.items()}, {name: pair[1] for name, pair in found.items()}


def cycle(graph: dict[str, set[str]]) -> list[str]:
    """Files that import each other in a circle; empty where there is none."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return []


INSIDE, OUTSIDE = graph_of(PACKAGE)


def test_the_package_is_thirteen_rooms():
    entries = [path for path in PACKAGE.iterdir() if path.name not in ("__pycache__", "data")]
    assert sorted(path.name for path in entries if path.is_dir()) == sorted({*ROOMS} - {""})
    assert len([path for path in entries if path.suffix == ".py"]) <= 8


@pytest.mark.parametrize("number", range(len(ROOMS)), ids=[name or "words" for name in ROOMS])
def test_imports_go_down(number):
    here = [name for name in INSIDE if room(name) == number]
    assert here
    assert {name: up for name in here if (up := {other for other in INSIDE[name] if room(other) > number})} == {}
    views = FORBIDDEN.get(ROOMS[number], set())
    assert {name: seen for name in here if (seen := OUTSIDE[name] & views)} == {}


def test_no_circle_between_files():
    assert cycle(INSIDE) == []


def lines_of(folder: Path) -> int:
    """The lines of Python below a folder."""
    return sum(path.read_text(encoding="utf-8").count("\n") for path in folder.rglob("*.py"))


def test_the_package_only_gets_smaller():
    """Numbers that only fall; the design of the small house asks for 18,000 and, of the core with its loop, 900.

    The design keeps 1,000 lines for the inside of a step; tokens, anatomy, forks and a step of one's own took 1,376.
    """
    assert lines_of(PACKAGE) <= 33_554
    assert lines_of(PACKAGE / "core") <= 900


def test_the_core_knows_nothing_of_what_is_built_beside_it():
    rare = re.compile(r"\b(objectives?|ranks?|world|critics?|lora|adapters?|checkpoints?)\b", re.IGNORECASE)
    told = {path.name: rare.findall(path.read_text(encoding="utf-8")) for path in (PACKAGE / "core").glob("*.py")}
    assert len(told) > 8 and {name: words for name, words in told.items() if words} == {}


def python(code: str) -> str:
    """What a fresh interpreter prints."""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=PACKAGE.parent).stdout.strip()


def test_import_is_cheap():
    heavy = ["torch", "transformers", "pandas", "matplotlib", "IPython", "ipywidgets", "jupyter_client", "ipykernel"]
    assert python(f"import sys, grpo_lab; print([name for name in {heavy} if name in sys.modules])") == "[]"


def test_who_trains_in_a_child_imports_no_model():
    """A notebook's first picture would wait for it."""
    heavy = ["transformers.modeling_utils", "torch._dynamo", "sympy"]
    assert (
        python(f"import sys, grpo_lab.runs.session; print([name for name in {heavy} if name in sys.modules])") == "[]"
    )


def test_imports_without_the_development_dependencies():
    absent = "sys.modules.update(dict.fromkeys(['jaxtyping', 'beartype', 'hypothesis', 'babel']))"
    assert python(f"import sys; {absent}; import grpo_lab.algorithm.kl, grpo_lab.core.logprobs; print('ok')") == "ok"


@pytest.mark.parametrize("name", ["advantages", "kl", "logprobs", "losses", "interventions"])
def test_short_public_paths_go_on_working(name):
    """They give the very objects of the room, and loading one loads no other."""
    room = {"interventions": "training", "logprobs": "core"}.get(name, "algorithm")
    public, real = (importlib.import_module(f"grpo_lab.{path}") for path in (name, f"{room}.{name}"))
    names = [key for key in vars(real) if not key.startswith("_")]
    assert names and all(getattr(public, key) is getattr(real, key) for key in names)


def test_shapes_are_checked_here():
    """Without this, a broken hook would look like annotations that are always right."""
    pytest.importorskip("beartype")
    pytest.importorskip("jaxtyping")
    import torch

    from grpo_lab.core.advantages import group_advantages

    with pytest.raises(TypeError, match="Float"):
        group_advantages(torch.ones(4))
