"""A click on a cell of the chain shows its numbers, its worst element in words, and the lines that computed it."""

import importlib.util
import math
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from torch import tensor

from grpo_lab.analysis.anatomy import COMPUTED, anatomy, place, source
from grpo_lab.analysis.run_state import MULTINOMIAL, fold
from grpo_lab.core import loss
from grpo_lab.core.batch import Batch
from grpo_lab.core.hooks import Context, Verdict
from grpo_lab.errors import RunError
from grpo_lab.events import LinkNote, Started, Stepped, from_json
from grpo_lab.metrics import LINKS
from grpo_lab.runs import recordings
from grpo_lab.runs.session import Session
from grpo_lab.training import recorder as module
from grpo_lab.training.recorder import Recorder
from grpo_lab.ui.plots import strip, style
from grpo_lab.ui.widgets.live import CHAIN_WIDE, LiveFigure
from grpo_lab.ui.widgets.panel import AnatomyView, Panel

INF, NAN = math.inf, math.nan
NAME = "lecture-cuda-001"


@pytest.fixture(scope="module")
def crashed():
    return Session.open(recordings.find(NAME)).events


def noted(recorder):
    (note,), _ = recorder.flush()
    return note


def buckets(**counts):
    """A histogram with these counts, by the number of the bucket."""
    return tuple(counts.get(f"b{number}", 0) for number in range(16))


@pytest.mark.parametrize("link", [*LINKS, MULTINOMIAL])
def test_every_link_finds_the_lines_that_compute_it_in_the_installed_files(link):
    notes = () if link == MULTINOMIAL else (LinkNote(link, 0, 1.0, 0.0, 8),)
    step = Stepped(0, 1, Verdict.KEEP, {}, notes, ())
    for (_, *expressions), found in zip(COMPUTED[link], anatomy([step], link).sources, strict=True):
        whole = found.path.read_text(encoding="utf-8").split("\n")
        assert all(whole[number - 1].rstrip() == line for number, line, _ in found.lines)
        computed = [line for _, line, marked in found.lines if marked]
        assert computed and all(any(each in line for line in computed) for each in expressions)
        assert "grpo_lab/core/" in found.path.as_posix() or link == "clipped_gradients", "a guard clips"
    assert set(COMPUTED) == {*LINKS, MULTINOMIAL}


def test_an_expression_that_is_gone_is_an_error_and_a_changed_file_is_read_again(tmp_path):
    with pytest.raises(RunError, match="k3"):
        source(loss.k3, ("torch.expm2",))
    path = tmp_path / "own.py"
    path.write_text("def f(x):\n    return x + 1\n")
    spec = importlib.util.spec_from_file_location("own", path)
    assert spec and spec.loader
    own = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(own)
    assert source(own.f, ("x + 1",)).lines[1] == (2, "    return x + 1", True)
    path.write_text("def f(x):\n    return x + 1  # by hand\n")
    assert source(own.f, ("x + 1",)).lines[1][1] == "    return x + 1  # by hand"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_histogram_counts_magnitudes_by_decades(dtype):
    recorder = Recorder()
    recorder.tensor("ratio", tensor([[0.0, -1e-9, 0.5], [-3.0, 200.0, NAN], [INF, -INF, -0.25]], dtype=dtype))
    note = noted(recorder)
    assert note.histogram == buckets(b0=2, b7=2, b8=1, b10=1), "NaN and inf are in no bucket"
    assert note.shape == (3, 3)


def test_the_last_bucket_has_all_that_is_larger_and_histograms_of_micro_batches_add_up():
    recorder = Recorder()
    for values in ([1e7, 2e30], [1.0], [5e-8, 2.0]):
        recorder.tensor("ratio", tensor(values))
    note = noted(recorder)
    assert note.histogram == buckets(b0=1, b8=2, b15=2)
    assert note.facts == {"lowest": pytest.approx(5e-8), "highest": pytest.approx(2e30)}


def test_a_large_tensor_is_sampled_in_all_its_columns():
    values = torch.zeros(128, 258)
    values[:, 7] = 1.0
    for each in (values, values.t()):
        recorder = Recorder()
        recorder.tensor("logits", each)
        counts = noted(recorder).histogram
        assert sum(counts) <= module.SAMPLE and 0 < counts[8] < 0.05 * sum(counts)


def test_tokens_of_one_pass_of_sampling_are_sampled_once_and_parameters_in_part():
    recorder = Recorder()
    for _ in range(3):
        recorder.tensor("logits", torch.ones(2, 1, 4), note="sampling")
        recorder.tensor("probabilities", torch.ones(2, 4))
    recorder.parameters("weights", [*"abcdefgh"], [torch.full((100,), 0.2)] * 8)
    logits, probabilities, weights = recorder.flush()[0]
    assert (logits.histogram[8], logits.numel, probabilities.histogram[8]) == (8, 24, 8)
    assert 0 < weights.histogram[7] <= module.SAMPLE and weights.shape == (100,)


def batch_of(groups):
    ids = tensor([[0, 5, 6], [7, 8, 9]])
    rows, zeros = len(groups), torch.zeros(len(groups), 4)
    return Batch(ids, (ids > 0).long(), tensor(groups), zeros.long(), torch.ones(rows, 4).bool(), zeros, entropy=zeros)


@pytest.fixture
def located():
    """A recorder of a step of two prompts, of whose second one a completion left."""
    recorder = Recorder()
    recorder.decode = lambda ids: "+".join(map(str, ids))
    recorder.context = cast(Context, SimpleNamespace(batch=batch_of([0, 0, 0, 1, 1])))
    return recorder


def test_the_worst_element_is_named_by_prompt_completion_and_token(located, monkeypatch):
    values = torch.zeros(5, 4)
    values[4, 2] = 7.0
    located.tensor("log_ratio", values)
    note = noted(located)
    assert (note.prompt, note.where) == ("7+8+9", "[4, 2]")
    assert place(note) == "completion 2 of prompt '7+8+9', token 3"
    monkeypatch.setenv("GRPO_LAB_LANG", "zh")
    assert place(note) == "提示 '7+8+9' 的第 2 个回答，第 3 个 token"


def test_a_reward_is_named_by_prompt_and_completion(located):
    located.batch(batch_of([0, 0, 1, 1]), tensor([0]))
    located.tensor("rewards", tensor([[0.0, 3.0], [1.0, 0.0]]))
    assert place(noted(located)) == "completion 2 of prompt '5+6'", "without the padding on its left"


def test_the_places_of_older_files_are_words_too():
    where = {"log_ratio": "[48, 0]", "advantages": "[2, 3]", "weights": "wte.weight", "loss": ""}
    assert [place(LinkNote(link, 0, 1.0, 0.0, 8, found)) for link, found in where.items()] == [
        "completion 49 of the batch, token 1",
        "completion 4 of prompt 3",
        "wte.weight",
        "",
    ]


def test_a_note_of_an_older_file_is_read():
    note = '{"link": "loss", "update": 0, "magnitude": "nan", "nonfinite": 1, "numel": 1, "where": "", "facts": {}}'
    rest = '"step": 0, "updates": 0, "verdict": "KEEP", "metrics": {}, "actions": [], "samples": []'
    event = from_json(f'{{"event": "Stepped", {rest}, "links": [{note}]}}')
    assert isinstance(event, Stepped)
    (link,) = event.links
    assert (link.shape, link.histogram, link.prompt) == ((), (), "")


def test_the_broken_update_of_the_headline_has_its_operator_and_lines(crashed):
    found, before = anatomy(crashed, "gradients"), anatomy(crashed, "gradients", 0, 0)
    assert found.note and before.note and not before.note.nonfinite
    assert (found.step, found.note.update) == (0, 1), "without a step, that of the first break"
    assert "float16" in found.operator and "65504" in found.explanation
    assert f"{found.note.nonfinite:,.0f} of 834,560" in str(found) and "loss.backward()" in str(found)
    with pytest.raises(RunError, match="step 1"):
        anatomy(crashed, "weights", 1)
    with pytest.raises(RunError, match="ratio"):
        anatomy(crashed, "rato")


def test_the_lines_are_those_of_the_formula_that_the_run_names(crashed):
    """CUDA-001 compares with the reference: the lines of the default formula would explain another run."""
    assert "wrong_formulas.py" in str(anatomy(crashed, "log_ratio", 0, 1))
    right = [Started({}, 1, "cpu"), *crashed[1:]]
    assert "return logprobs - batch.old_logprobs" in str(anatomy(right, "log_ratio", 0, 1))


def test_a_note_is_shown_with_every_text_escaped(crashed):
    note = LinkNote(
        "ratio", 0, 2.0, 0.0, 8, "[0, 0]", {"prompt": 1.0, "completion": 1.0}, (2, 4), buckets(b7=7, b8=1), "<b>"
    )
    step = crashed[2]
    view = AnatomyView(anatomy([type(step)(0, 1, step.verdict, {}, (note,), ())], "ratio"))
    words = view._repr_html_()
    assert "&lt;b&gt;" in words and "<b>" not in words
    assert words.count("<rect") == 16 and "≥ 1e0: 1" in words and "2 × 4" in repr(view)


def test_a_run_that_dies_in_its_first_steps_fills_the_axis_with_a_column_an_update(crashed):
    screen = fold(crashed)
    assert strip.span([screen], 50) == (0, 2)
    assert strip.span([fold(crashed[:3])], 50)[1] > 8, "a run that goes on leaves room"
    assert (strip.columns(screen, (0, 2), CHAIN_WIDE), strip.columns(screen, (0, 50), CHAIN_WIDE)) == (4, 1)
    cells, _ = strip.grid(screen, 0, 2, 4)
    row = [list(style.STATUSES)[code] for code in cells[list(strip.ROWS).index("gradients")]]
    assert row == ["healthy", "broken", "broken later", "broken later", *["not reached"] * 4]
    drawn = [list(style.STATUSES)[code] for code in cells[list(strip.ROWS).index(MULTINOMIAL)]]
    assert drawn == ["healthy"] * 4 + ["broken"] * 4
    once = cells[list(strip.ROWS).index("rewards"), :4]
    assert len(set(once.tolist())) == 1, "what is noted once a step is as wide as the step"


def test_a_cell_names_link_step_and_update(crashed):
    screen = fold(crashed)
    place_of = {link: row for row, link in enumerate(strip.ROWS)}
    assert strip.cell(screen, (0, 2), CHAIN_WIDE, -0.2, place_of["gradients"]) == ("gradients", 0, 1)
    assert strip.cell(screen, (0, 2), CHAIN_WIDE, 1.1, place_of[MULTINOMIAL]) == (MULTINOMIAL, 1, 2)
    assert strip.cell(screen, (0, 50), CHAIN_WIDE, 0.3, place_of["loss"]) == ("loss", 0, None)


def _outlined(panel):
    """Left, top, width and height of the outlines of open cells, as the panel draws them."""
    panel.figure.draw(*panel.screens())
    patches = [patch for patch in panel.figure._axes["strip"].patches if patch.get_gid() == "opened"]
    return [pytest.approx((*patch.get_xy(), patch.get_width(), patch.get_height())) for patch in patches]


def test_a_click_on_a_cell_opens_it_and_a_second_one_closes_it(crashed, tmp_path, monkeypatch):
    monkeypatch.delenv("GRPO_LAB_HEADLESS", raising=False)
    panel = Panel(recording=NAME, runs=tmp_path)
    panel.figure.draw(*panel.screens())
    (cut, high), (rest, _) = panel.figure.sizes
    x, y = panel.figure._axes["strip"].transData.transform((-0.2, list(strip.ROWS).index("gradients")))
    click = {"half": "chain", "x": (x - cut) / rest, "y": 1 - y / high}
    shown = panel._controls.anatomy
    panel._controls.browser.clicked = {**click, "n": 1}
    assert "loss.backward()" in shown.value and "of 834,560" in shown.value
    assert _outlined(panel) == [(-0.25, list(strip.ROWS).index("gradients") - 0.5, 0.25, 1)]
    panel._controls.browser.clicked = {**click, "n": 2}
    assert shown.value == "" and not _outlined(panel)
    assert "clamp" in repr(panel.anatomy("loss", 0, 1)) and "clamp" in shown.value
    panel._controls.browser.clicked = {**click, "y": 0.99, "n": 3}
    panel.reset()
    assert shown.value == "" and not _outlined(panel), "another run, another anatomy"
    assert LiveFigure().cell(fold(crashed), (), 0.5, 0.5) is None, "nothing is drawn yet"
