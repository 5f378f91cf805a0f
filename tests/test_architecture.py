"""The rules a reader relies on: floors, import cost, and files short enough to read."""

import ast
import graphlib
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "grpo_lab"
FLOORS = {
    0: "config scenarios presets events settings errors own_code seeds shapes shipped",
    1: "advantages losses kl logprobs",
    2: "batch interventions probes guards faults rewards tasks recorder",
    3: "half_precision models model_building model_fetching rollouts snapshots",
    4: "measures learner trainer",
    5: "session folder controls fanout warm worker chain crashes environment reproduction recordings logs diagnosis"
    " matrix grading",
    6: "cli console reproduce series dashboard plots pages widgets labs __init__ __main__",
}
FLOOR = {name: floor for floor, names in FLOORS.items() for name in names.split()}
VIEWS = {"IPython", "ipywidgets", "matplotlib"}
FORBIDDEN = {0: VIEWS | {"torch", "transformers"}, **dict.fromkeys(range(1, 5), VIEWS)}
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}


def part(path: Path) -> str:
    """The module or sub-package directly below grpo_lab that a file belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path):
    """Absolute dotted names of everything a file imports, inside functions too."""
    here = ("grpo_lab", *path.relative_to(PACKAGE).parent.parts)
    for node in ast.walk(TREES[path]):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level + 1] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            # Only `from grpo_lab import x` names a module by its last word.
            yield from (f"{module}.{alias.name}" for alias in node.names) if module == "grpo_lab" else (module,)


def test_every_module_has_a_floor():
    assert {part(path) for path in TREES} <= set(FLOOR)


@pytest.mark.parametrize("path", TREES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_down(path):
    floor = FLOOR[part(path)]
    names = list(imports(path))
    # A public name, `from grpo_lab import Session`, belongs to __init__ and so to the top.
    inside = [name.split(".")[1] if "." in name else "__init__" for name in names if name.split(".")[0] == "grpo_lab"]
    assert [name for name in inside if FLOOR.get(name, FLOOR["__init__"]) > floor] == []
    assert {name.split(".")[0] for name in names} & FORBIDDEN.get(floor, set()) == set()


def test_no_cycles():
    graph: dict[str, set[str]] = {}
    for path in TREES:
        below = {name.split(".")[1] for name in imports(path) if name.startswith("grpo_lab.")}
        graph.setdefault(part(path), set()).update(below - {part(path)})
    ordered = list(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError, naming the cycle
    assert set(ordered) >= {part(path) for path in TREES}


@pytest.mark.parametrize("path", TREES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_short_enough_to_read(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 300
    functions = [node for node in ast.walk(TREES[path]) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    lengths = {node.name: (node.end_lineno or 0) - node.lineno + 1 for node in functions}
    # `train` is the algorithm on one page; cut up, it would stop reading like the paper.
    assert {name: length for name, length in lengths.items() if length > (80 if name == "train" else 50)} == {}


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
    assert python(f"import sys, grpo_lab.session; print([name for name in {heavy} if name in sys.modules])") == "[]"


def test_imports_without_the_development_dependencies():
    absent = "sys.modules.update(dict.fromkeys(['jaxtyping', 'beartype', 'hypothesis']))"
    assert python(f"import sys; {absent}; from grpo_lab import advantages, losses, kl, logprobs; print('ok')") == "ok"


def test_shapes_are_checked_here():
    """Without this, a broken hook would look like annotations that are always right."""
    pytest.importorskip("beartype")
    pytest.importorskip("jaxtyping")
    import torch

    from grpo_lab.advantages import group_advantages

    with pytest.raises(TypeError, match="Float"):
        group_advantages(torch.ones(4))
