"""The recorder notes how large a value was, how much of it was not finite, and where; then it forgets."""

import math

import pytest
import torch
from torch import tensor
from torch.utils._python_dispatch import TorchDispatchMode

from grpo_lab.training import recorder as module
from grpo_lab.training.recorder import LARGEST, Recorder

INF, NAN = math.inf, math.nan


@pytest.fixture
def recorder():
    return Recorder()


def only(recorder):
    """The one note since the last flush."""
    (note,), metrics = recorder.flush()
    assert metrics == {}
    return note


@pytest.mark.parametrize(
    ("values", "magnitude", "nonfinite", "where"),
    [
        ([[1.0, -3.0], [2.0, 0.0]], 3.0, 0, "[0, 1]"),
        ([[1.0, -3.0], [-INF, 0.0]], INF, 1, "[1, 0]"),
        ([[INF, -3.0], [2.0, NAN]], NAN, 2, "[1, 1]"),
        ([[NAN, NAN], [NAN, NAN]], NAN, 4, "[0, 0]"),
        ([[0.0, 0.0], [0.0, 0.0]], 0.0, 0, "[0, 0]"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_tensor_is_noted_by_its_size_and_its_worst_element(recorder, values, magnitude, nonfinite, where, dtype):
    recorder.tensor("ratio", tensor(values, dtype=dtype), update=2)
    note = only(recorder)
    assert (note.link, note.update, note.nonfinite, note.numel, note.where) == ("ratio", 2, nonfinite, 4, where)
    assert note.magnitude == pytest.approx(magnitude, nan_ok=True)
    assert note.broken == (nonfinite > 0)


def test_a_large_tensor_is_counted_but_not_searched(recorder, monkeypatch):
    monkeypatch.setattr(module, "LOCATE_LIMIT", 3)
    recorder.tensor("logits", tensor([1.0, NAN, 5.0, INF]), note="old")
    note = only(recorder)
    assert (note.nonfinite, note.numel, note.where) == (2, 4, "old")


@pytest.mark.parametrize("shape", [(1000,), (50, 20), (20, 50)])
def test_a_large_tensor_is_counted_in_parts(recorder, monkeypatch, shape):
    """Without a second tensor of its size, which for logits would be the largest of the step; also if transposed."""
    values = torch.ones(1000)
    values[[1, 500, 999]] = tensor([NAN, INF, -INF])
    values = values.view(shape).t()
    monkeypatch.setattr(module, "PART", 64)
    monkeypatch.setattr(module, "LOCATE_LIMIT", 64)
    monkeypatch.setattr(module, "SAMPLE", 64)
    with Largest() as largest:
        recorder.tensor("logits", values)
    assert largest.made <= 64
    note = only(recorder)
    assert (note.nonfinite, note.numel) == (3, 1000)


class Largest(TorchDispatchMode):
    """The most elements of any tensor that an operation makes, views aside."""

    made = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and not func.is_view:
            self.made = max(self.made, result.numel())
        return result


def test_a_tensor_that_a_later_guard_mends_in_place_was_broken(recorder):
    value = tensor([1.0, NAN, INF])
    recorder.tensor("old_logprobs", value)
    value.nan_to_num_()
    assert only(recorder).nonfinite == 2


def test_micro_batches_of_one_update_are_merged_and_the_worst_says_where(recorder):
    for values in ([1.0, 2.0], [7.0, 3.0, 4.0], [5.0]):
        recorder.tensor("ratio", tensor(values))
    note = only(recorder)
    assert (note.magnitude, note.nonfinite, note.numel, note.where) == (7.0, 0, 6, "[0]")


@pytest.mark.parametrize("bad", [NAN, INF])
def test_a_broken_micro_batch_wins_and_the_first_broken_one_says_where(recorder, bad):
    for values in ([1e9, 2.0], [1.0, 2.0, bad], [bad, bad], [3.0]):
        recorder.tensor("ratio", tensor(values))
    note = only(recorder)
    assert not math.isfinite(note.magnitude)
    assert (note.nonfinite, note.numel, note.where) == (3, 8, "[2]")


def test_parameters_are_noted_by_their_norms_and_the_largest_says_where(recorder):
    norms = recorder.parameters("weights", ["a", "b"], [tensor([3.0, 4.0]), tensor([[12.0]])], 1)
    assert norms.tolist() == [5.0, 12.0]
    note = only(recorder)
    assert (note.link, note.update, note.magnitude, note.nonfinite, note.numel) == ("weights", 1, 13.0, 0, 3)
    assert note.where == "b"


def test_broken_parameters_are_counted_and_the_first_is_named(recorder):
    recorder.parameters("weights", ["a", "b", "c"], [tensor([1e9]), tensor([NAN, 1.0, INF]), tensor([NAN])])
    note = only(recorder)
    assert math.isnan(note.magnitude)
    assert (note.nonfinite, note.numel, note.where, note.broken) == (3, 5, "b", True)


def test_a_norm_that_overflows_breaks_nothing(recorder):
    """FACTS: finite gradients near 2e19 overflow the norm."""
    recorder.parameters("gradients", ["a"], [torch.full((2,), 2e19)])
    note = only(recorder)
    assert (note.magnitude, note.nonfinite, note.broken) == (INF, 0, False)


def test_counting_now_sees_what_a_guard_then_overwrites(recorder):
    gradient = tensor([NAN, 1.0, 2.0, INF])
    recorder.parameters("gradients", ["a"], [gradient], facts={"x": 1.0})
    assert math.isnan(recorder.count_now())
    gradient.fill_(NAN)  # what clip_grad_norm_ does
    note = only(recorder)
    assert (note.nonfinite, note.facts) == (2, {"x": 1.0})


def test_metrics_of_micro_batches_add_up_and_those_of_updates_are_averaged(recorder):
    for update, value in ((0, 1.0), (0, 2.0), (1, 7.0)):
        recorder.metric("kl", tensor(value), update)
    assert recorder.flush() == ((), {"kl": 5.0})


@pytest.mark.parametrize("name", sorted(LARGEST))
def test_some_metrics_keep_the_largest_of_the_step(recorder, name):
    for update, value in ((0, 1.0), (0, 9.0), (1, 7.0)):
        recorder.metric(name, tensor(value), update)
    assert recorder.flush() == ((), {name: 9.0})


@pytest.mark.parametrize("name", ["grad_norm", "kl"])
@pytest.mark.parametrize("values", [(NAN, 1.0, INF), (1.0, NAN, INF), (INF, 1.0, NAN)])
def test_a_nan_wins_over_every_other_number_of_a_metric(recorder, name, values):
    for update, value in enumerate(values):
        recorder.metric(name, tensor(value), update)
    assert math.isnan(recorder.flush()[1][name])
