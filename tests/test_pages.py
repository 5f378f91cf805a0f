"""The pages of docs/: up to date, complete, and without a link, a test or a command that is not there."""

import ast
import re
from pathlib import Path

import pytest

from grpo_lab.analysis import markdown
from grpo_lab.config import catalog
from grpo_lab.config.fields import settings_of
from grpo_lab.metrics import LINKS, METRICS
from grpo_lab.training.faults import FAULTS
from grpo_lab.training.guards import GUARDS
from website import docs as docs_pages

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
WRITTEN = sorted(DOCS.glob("*.md"))
EACH_FILE = pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.name)


@pytest.fixture(scope="module")
def made():
    """Every page as it would be written now."""
    return docs_pages.render()


def test_no_page_is_out_of_date():
    assert docs_pages.stale(DOCS) == [], f"run {docs_pages.COMMAND}"


def sections(text: str) -> dict[str, str]:
    """What stands under each second heading."""
    heads = re.split(r"^## (.+)$", text, flags=re.MULTILINE)
    return dict(zip(heads[1::2], heads[2::2], strict=True))


def test_every_guard_has_its_section_with_every_setting(made):
    found = sections(made["guards.md"])
    for name, guard in GUARDS.items():
        section = found[f"`{name}`"]
        assert all(f"**{word}:**" in section for word in ("Stops", "Costs", "Hides"))
        assert f"Acts at `{guard.stage}`" in section
        assert all(f"| `{setting}` |" in section for setting in settings_of(guard))
        assert (guard.changes_healthy_runs or "is bit-identical") in section


def test_a_guard_is_shown_with_its_presets_and_scenarios(made):
    section = sections(made["guards.md"])["`skip_nonfinite`"]
    assert "On in: `dual`, `dual-smollm2`, `stable`." in section
    stopped, not_stopped = re.findall(r"- (?:Stopped|Not stopped): (.+)", section)
    assert "[`clip-spreads-nan`](scenarios.md#clip-spreads-nan) (`guards.skip_nonfinite=on`)" in stopped
    assert "fp16-adam-epsilon" in not_stopped and "fp16-adam-epsilon" not in stopped
    clip = sections(made["guards.md"])["`clip_gradients`"]
    assert "clip_gradients=off" not in clip  # that is a decoy without the guard, not with it


def test_every_scenario_has_its_section_with_cause_symptom_cures_and_decoys(made):
    found = sections(made["scenarios.md"])
    for name in catalog.scenario_names():
        case, section = catalog.scenario(name), found[f"`{name}`"]
        assert case.title in section and f"`grpo-lab train --scenario {name}`" in section
        assert (f"crashes in `{case.expect.crash}`" if case.expect.crash else "goes on to the end") in section
        heals = [heal.change for heal in case.heals]
        assert heals and all(f"`{text}`" in section for row in (*case.cures, *heals, *case.decoys) for text in row)
        assert all(f"| `{fault}`" in section or f"`{fault}`" in section for fault in case.config().faults)
    assert all(f"| `{name}` |" in found["Faults"] for name in FAULTS)


def test_a_cause_is_what_differs_from_its_preset(made):
    section = sections(made["scenarios.md"])["`cuda-001`"]
    rows = re.findall(r"^\| (`.+`|guards|faults) \| (.+) \| (.+) \|$", section, flags=re.MULTILINE)
    assert ("`model.precision`", "`fp32`", "`fp16_pure`") in rows
    assert ("`optimizer.learning_rate`", "`1e-05`", "`0.0003`") in rows
    assert not any("log_ratio" in setting or "run.name" in setting for setting, _, _ in rows)
    guards_of = sections(made["scenarios.md"])["`clip-spreads-nan`"]
    assert "| faults | off | `nan_gradient` (`at_step=1`) |" in guards_of


def test_every_metric_and_every_link_has_its_row(made):
    text = made["metrics.md"]
    assert all(f"| `{name}` | {metric.label} |" in text for name, metric in METRICS.items())
    assert all(f"| `{name}` | {link.label} | {link.warning:g} |" in text for name, link in LINKS.items())
    assert "| `grad_norm` | gradient norm |  | 0 to 10 |" in text and "`actor/grad_norm`" in text


def test_a_bar_in_a_cell_ends_no_cell(made):
    assert markdown.table([["a"], ["KL(p || q)"]]).endswith("| KL(p \\|\\| q) |")
    for text in made.values():
        for rows in re.findall(r"(?:^\|.*\|\n)+", text, flags=re.MULTILINE):
            widths = {len(re.findall(r"(?<!\\)\|", row)) for row in rows.splitlines()}
            assert len(widths) == 1, rows


# --- what the pages, written by hand or made, point at ---------------------------------------------------------------


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    heads = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


@EACH_FILE
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)]+)\)", path.read_text(encoding="utf-8")):
        if target.startswith("http"):
            continue
        name, _, anchor = target.partition("#")
        file = path if not name else path.parent / name
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


@EACH_FILE
def test_tests_and_commands_that_are_named_exist(path):
    text = path.read_text(encoding="utf-8")
    for file, wanted in re.findall(r"`(?:pytest )?(tests/[\w/]+\.py)(?: -k (\w+)|::\w+)?`", text):
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        names = [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        assert any(name.startswith("test_") and wanted in name for name in names), (file, wanted)
    for name in re.findall(r"--scenario ([\w-]+)(?![\w.-])", text):
        assert name in catalog.scenario_names() or name in ("healthy", "mine", "NAME"), name
    for name in re.findall(r"--preset ([\w-]+)", text):
        assert name in catalog.preset_names(), name
    for names in re.findall(r"--guards ([\w,]+)", text):
        assert set(names.split(",")) <= {*GUARDS, *catalog.preset_names()}, names


CITED = re.compile(r"\b(cure|decoy) in ((?:`[\w-]+`(?:, | and )?)+): ((?:`[^`]+`(?: with |, )?)+)", re.IGNORECASE)


def test_cures_and_decoys_that_claims_cite_are_those_of_the_scenarios():
    text = (DOCS / "claims.md").read_text(encoding="utf-8").replace("\n", " ")
    cited = CITED.findall(" ".join(text.split()))
    assert len(cited) == len(re.findall(r"\b(?:cure|decoy) in `", " ".join(text.split()), flags=re.IGNORECASE)) > 30
    for kind, names, said in cited:
        for name in re.findall(r"`([^`]+)`", names):
            known = getattr(catalog.scenario(name), kind.lower() + "s")
            for row in said.rstrip().rstrip(",").split(", "):
                assert tuple(re.findall(r"`([^`]+)`", row)) in known, f"{name} has no {kind.lower()} {row}"


def test_every_scenario_that_claims_name_exists():
    quoted = re.findall(r"`([a-z0-9]+(?:-[a-z0-9]+)+)`", (DOCS / "claims.md").read_text(encoding="utf-8"))
    assert set(quoted) - set(catalog.scenario_names()) == set()


# --- the command -----------------------------------------------------------------------------------------------------


def test_the_command_writes_and_checks(tmp_path):
    folder = tmp_path / "docs"
    with pytest.raises(SystemExit, match=re.escape(f"run python -m website.docs --out {folder}")):
        docs_pages.main(folder, check=True)
    assert not folder.exists()
    docs_pages.main(folder)
    docs_pages.main(folder, check=True)
    (folder / "metrics.md").write_text("old")
    (folder / "guards.md").unlink()
    with pytest.raises(SystemExit, match=r"out of date: guards\.md, metrics\.md;"):
        docs_pages.main(folder, check=True)
