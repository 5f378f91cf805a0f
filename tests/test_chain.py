"""The first broken link is found from what was recorded, with the operator that broke it."""

import math

import pytest
import torch

from grpo_lab.core.hooks import Action, Verdict
from grpo_lab.events import Changed, Ended, LinkNote, Stepped
from grpo_lab.metrics import LINKS
from grpo_lab.runs.crashes import classify_crash
from grpo_lab.runs.first_break import absorbed, first_break, statuses

INF, NAN = math.inf, math.nan
FP16, FP32 = torch.finfo(torch.float16).max, torch.finfo(torch.float32).max


def note(link, magnitude=1.0, nonfinite=0, update=0, where="", **facts):
    return LinkNote(link, update, magnitude, nonfinite, 8, where, facts)


def broken(link, magnitude=NAN, nonfinite=1, update=0, where="[0, 1]", **facts):
    return note(link, magnitude, nonfinite, update, where, **facts)


def stepped(*links, step=0, actions=(), verdict=Verdict.KEEP):
    return Stepped(step, 1, verdict, {}, links, actions)


def broke(*events):
    """The first break of these events, which have one."""
    found = first_break(events)
    assert found is not None
    return found


# Each as the trainer records it, from what differs on: the first broken link, and the links of one update, in order.
FLOAT16 = (note("kl_delta", 18.0), note("loss", 6e5))
BREAKS = {
    "0 * inf in the backward of exp": (
        "log_ratio_gradient",
        (broken("ratio", INF), note("loss", 1.2), broken("log_ratio_gradient"), broken("gradients")),
    ),
    "exp (the KL estimate)": ("loss", (note("ratio"), note("kl_delta", 89.0), broken("loss", INF))),
    "0 / 0 in AdamW": (
        "weights",
        (
            note("gradients", 4.6),
            note("moments", adam_eps=1e-8, adam_eps_in_weights_dtype=0.0),
            broken("weights", nonfinite=8),
        ),
    ),
    "AdamW's update": (
        "weights",
        (
            note("gradients", 4.6),
            note("moments", adam_eps=1e-4, adam_eps_in_weights_dtype=1e-4),
            broken("weights", INF),
        ),
    ),
    "exp (the ratio)": ("ratio", (note("log_ratio", 90.0), broken("ratio", INF), broken("loss", INF))),
    "backward overflowed float16 (from the ratio)": (
        "gradients",
        (*FLOAT16, note("log_ratio_gradient", 6e5), broken("gradients", largest_representable=FP16)),
    ),
    "backward overflowed float16 (from the KL estimate)": (
        "gradients",
        (*FLOAT16, note("log_ratio_gradient", 0.1), broken("gradients", largest_representable=FP16)),
    ),
    "the gradient of a weight": ("gradients", (note("loss"), note("log_ratio_gradient"), broken("gradients"))),
    "log of a probability of 0": ("old_logprobs", (note("logits"), broken("old_logprobs", INF), broken("log_ratio"))),
    "the standard deviation of a group": ("advantages", (note("rewards"), broken("advantages"), broken("loss"))),
    "a reward function": ("rewards", (note("probabilities"), broken("rewards"), broken("advantages"))),
}
AFTER = (note("gradients"), note("moments"))
HEALTHY = stepped(note("rewards"), note("logits"), note("log_ratio"), note("ratio"), note("loss"), *AFTER)


@pytest.mark.parametrize("operator", BREAKS)
def test_the_first_broken_link_and_its_operator_are_named(operator):
    link, links = BREAKS[operator]
    found = broke(HEALTHY, stepped(*links, step=3), stepped(broken("rewards"), step=4))
    assert (found.step, found.link, found.caught_by) == (3, link, "")
    assert found.operator.startswith(operator)
    assert LINKS[found.link].label in str(found) and found.operator in str(found)


@pytest.mark.parametrize("link", ["old_logprobs", "ref_logprobs", "logprobs"])
def test_a_filtered_token_is_explained_in_whichever_pass_it_shows(link):
    found = broke(stepped(note("logits"), broken(link, INF), broken("log_ratio")))
    assert (found.link, found.operator) == (link, "log of a probability of 0")
    assert "-inf - (-inf) = NaN" in found.explanation


@pytest.mark.parametrize("links", [(note("logits"), broken("logprobs", NAN)), (broken("logprobs", INF),)])
def test_a_logprob_that_is_nan_or_follows_broken_logits_is_no_filtered_token(links):
    found = broke(stepped(*links))
    assert found.operator == "the operator before it"


@pytest.mark.parametrize(
    ("largest", "gradient", "kl_delta", "loss"),
    [
        (FP32, 6e5, 18.0, 6e5),  # wide enough: something else made it NaN
        (FP16, 0.1, 0.1, 0.1),  # nothing large came back: one NaN injected
        (FP16, 0.1, 18.0, 0.1),  # the reference is far away on the harmless side, where exp goes to 0
    ],
)
def test_float16_is_blamed_only_for_what_was_large(largest, gradient, kl_delta, loss):
    before = (note("kl_delta", kl_delta), note("loss", loss), note("log_ratio_gradient", gradient))
    found = broke(stepped(*before, broken("gradients", largest_representable=largest)))
    assert found.operator == "the gradient of a weight"


def test_nothing_broke():
    assert first_break([]) is None
    assert first_break([HEALTHY, Changed(1, ("loss.beta=1",)), HEALTHY, Ended("done")]) is None


def test_a_ratio_that_leaves_its_loss_finite_is_absorbed():
    ratio, other = broken("ratio", INF, update=1), note("loss", update=0)
    assert absorbed(ratio, (ratio, note("loss", update=1)))
    assert not absorbed(ratio, (ratio, broken("loss", update=1)))
    assert not absorbed(ratio, (ratio, other))  # the loss of another update says nothing
    assert not absorbed(ratio, (ratio,))  # the step ended before it had a loss
    loss = broken("loss")
    assert not absorbed(loss, (loss, note("loss")))
    assert first_break([stepped(broken("ratio", INF), note("loss"), note("log_ratio_gradient"), *AFTER)]) is None


@pytest.mark.parametrize(
    ("kind", "verdict", "caught_by"),
    [
        ("guard", Verdict.SKIP_STEP, "skip_nonfinite"),
        ("guard", Verdict.ROLL_BACK, "skip_nonfinite"),
        ("guard", Verdict.CHANGED, ""),
        ("guard", Verdict.KEEP, ""),
        ("fault", Verdict.STOP, ""),
    ],
)
def test_a_guard_that_refused_the_step_caught_it(kind, verdict, caught_by):
    actions = (
        Action("clip_gradients", "guard", "gradients", 0, Verdict.CHANGED, "grad norm nan > 1"),
        Action("skip_nonfinite", kind, "gradients", 0, verdict, "grad norm nan is not finite"),
    )
    found = broke(stepped(note("loss"), note("log_ratio_gradient"), broken("gradients"), actions=actions))
    assert found.caught_by == caught_by
    assert (f"Caught by {caught_by}." in str(found)) == bool(caught_by)


def mended(stage, *links, name="drop_nonfinite_samples", verdict=Verdict.CHANGED, update=0):
    action = Action(name, "guard", stage, update, verdict, "1 of 8 completions were not finite")
    found = broke(stepped(*links, actions=(action,)))
    return found.caught_by


def test_a_guard_that_kept_the_break_out_of_the_loss_caught_it():
    old = (broken("logits", where="old [0, 1]"), broken("old_logprobs"), note("logits"), note("logprobs"))
    assert mended("batch", *old, note("loss"), *AFTER) == "drop_nonfinite_samples"
    assert mended("log_ratio", *old, note("loss"), *AFTER) == "drop_nonfinite_samples"


@pytest.mark.parametrize(
    ("stage", "links"),
    [
        ("batch", (broken("logits"), broken("loss"))),  # it did not help
        ("batch", (broken("logits"), note("loss"), broken("loss", update=1))),
        ("batch", (broken("logits"),)),  # nobody knows whether it helped
        ("rewards", (broken("logits"), note("loss"))),  # it acted before
        ("logits", (broken("logits"), note("loss"))),  # the link is noted as it left this guard
        ("gradients", (broken("logits"), note("loss"))),  # the loss was finite already
        ("gradients", (note("loss"), broken("gradients"))),
    ],
)
def test_a_guard_that_acted_elsewhere_or_in_vain_did_not_catch_it(stage, links):
    assert mended(stage, *links) == ""


def test_a_crash_without_a_broken_link_is_the_break():
    crash = classify_crash("CUDA error: device-side assert triggered")
    found = broke(HEALTHY, Ended("crashed", "", crash))
    assert (found.link, found.operator, found.where) == ("cuda-assert", crash.operator, crash.text)
    assert crash.explanation in str(found)
    assert "step -1" not in str(found)


def test_a_broken_link_comes_before_the_crash_that_follows_it():
    events = [
        stepped(*BREAKS["0 / 0 in AdamW"][1]),
        Ended("crashed", "", classify_crash("probability tensor contains either")),
    ]
    found = broke(*events)
    assert found.link == "weights"


# Texts of real crashes: torch 2.13 on the CPU; FACTS.md section 1; CUDA-001 as reported.
MESSAGE = "probability tensor contains either `inf`, `nan` or element < 0"
ZERO_SUM = "invalid multinomial distribution (sum of probabilities <= 0)"
KERNEL = (
    "/pytorch/aten/src/ATen/native/cuda/TensorCompare.cu:110: _assert_async_cuda_kernel: "
    "block: [0,0,0], thread: [0,0,0]"
)
TRIGGERED = """RuntimeError: CUDA error: device-side assert triggered
CUDA kernel errors might be asynchronously reported at some other API call."""
CUDA_001 = f'{TRIGGERED}\nFile "TensorCompare.cu", line 110\nAssertion `input[0] != 0` failed.\n'
CRASHES = {
    f"Traceback (most recent call last):\nRuntimeError: {MESSAGE}": "multinomial-cpu",
    f"{KERNEL} Assertion `{MESSAGE}` failed.\n{TRIGGERED}": "multinomial-cuda-linux",
    f"{TRIGGERED}\n{KERNEL} Assertion `{MESSAGE}` failed.": "multinomial-cuda-linux",
    CUDA_001: "multinomial-cuda-windows",
    f"C:\\aten\\TensorCompare.cu:110: block: [0,0,0] Assertion `input[0] != 0` failed.\n{TRIGGERED}": (
        "multinomial-cuda-windows"
    ),
    f"RuntimeError: {ZERO_SUM}": "multinomial-zero-sum",
    f"{KERNEL} Assertion `{ZERO_SUM}` failed.\n{TRIGGERED}": "multinomial-zero-sum",
    TRIGGERED: "cuda-assert",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB.": "out-of-memory",
    "MemoryError": "out-of-memory",
    f"{KERNEL} Assertion `srcIndex < srcSelectDimSize` failed.\n{TRIGGERED}": "index-cuda",
    f'{KERNEL} Assertion `idx_dim >= 0 && idx_dim < index_size && "index out of bounds"` failed.\n': "index-cuda",
    f'{KERNEL} Assertion `-sizes[i] <= index && index < sizes[i] && "index out of bounds"` failed.\n': "index-cuda",
    f"{TRIGGERED}\n{KERNEL} Assertion `srcIndex < srcSelectDimSize` failed.\n": "index-cuda",
    "IndexError: list index out of range": "unknown",
    "torch.AcceleratorError: CUDA error: an illegal memory access was encountered\nSearch for": "cuda-error",
    "torch.AcceleratorError: CUDA error: out of memory\nSearch for": "out-of-memory",
    "RuntimeError: DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes.": "out-of-memory",
    f"{KERNEL} Assertion `another one` failed.\n{TRIGGERED}": "cuda-assert",
    "Traceback (most recent call last):\nValueError: something else\n": "unknown",
    "": "unknown",
    "  \n": "unknown",
}


@pytest.mark.parametrize(("text", "kind"), CRASHES.items(), ids=range(len(CRASHES)))
def test_a_crash_is_known_by_its_text(text, kind):
    crash = classify_crash(text)
    assert crash.kind == kind
    assert (crash.operator == "torch.multinomial") == kind.startswith("multinomial")
    assert "\n" not in crash.text
    assert crash.text
    assert crash.explanation


def test_the_text_of_a_crash_is_the_line_that_tells():
    assert classify_crash(f"Traceback:\n  RuntimeError: {MESSAGE}\nbye").text == f"RuntimeError: {MESSAGE}"
    assert classify_crash("a\nb: last\n\n").text == "b: last"
    assert classify_crash("").text == "no text"
    assert classify_crash(CUDA_001).text == "Assertion `input[0] != 0` failed."


def test_a_first_probability_of_0_is_no_crash():
    """The reports read `input[0] != 0` as a rule about the first probability."""
    assert torch.multinomial(torch.tensor([0.0, 1.0]), 1).item() == 1


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        *(
            (lambda row=row: torch.multinomial(torch.tensor(row), 1), "multinomial-cpu")
            for row in ([NAN, 1.0], [-1.0, 2.0])
        ),
        (lambda: torch.multinomial(torch.zeros(2), 1), "multinomial-zero-sum"),
        (lambda: torch.embedding(torch.zeros(3, 2), torch.tensor([5])), "index-cpu"),
        (lambda: torch.zeros(3).take_along_dim(torch.tensor([5])), "index-cpu"),
        (lambda: torch.empty(10**15), "out-of-memory"),
    ],
    ids=["nan", "negative", "zero-sum", "embedding", "index", "memory"],
)
def test_what_this_torch_raises_is_known(call, kind):
    with pytest.raises((IndexError, RuntimeError)) as caught:
        call()
    assert classify_crash(f"{type(caught.value).__name__}: {caught.value}").kind == kind


def test_statuses_take_the_worst_note_of_a_link_in_a_step():
    events = [
        stepped(note("ratio", 2.0), note("ratio", 200.0, update=1), note("ratio", 1.0, update=2), step=0),
        stepped(broken("ratio", INF), note("loss"), broken("logits"), note("logits"), step=1),
        stepped(broken("ratio", INF), broken("loss"), step=2),
        Ended("done"),
    ]
    assert statuses(events) == {
        0: {"ratio": "warning"},
        1: {"ratio": "warning", "loss": "healthy", "logits": "broken"},
        2: {"ratio": "broken", "loss": "broken"},
    }


def test_a_warning_starts_above_the_limit_of_the_link():
    limit = LINKS["log_ratio"].warning
    assert statuses([stepped(note("log_ratio", limit))])[0]["log_ratio"] == "healthy"
    assert statuses([stepped(note("log_ratio", limit * 1.01))])[0]["log_ratio"] == "warning"
    assert statuses([stepped(note("gradients", INF))])[0]["gradients"] == "warning"  # a norm that overflowed


def test_infinite_logits_that_only_filter_are_absorbed():
    """-inf at a token that was not sampled: its log-probabilities are numbers, and nothing is broken yet."""
    filtered = broken("logits", INF, nonfinite=3)
    links = (filtered, note("old_logprobs"), broken("logits", INF), note("logprobs"), note("loss"))
    assert absorbed(filtered, links) and first_break([stepped(*links)]) is None
    assert statuses([stepped(*links)])[0]["logits"] == "warning"


@pytest.mark.parametrize(
    "links",
    [
        (broken("logits", NAN), broken("old_logprobs", NAN)),
        (broken("logits", INF), broken("old_logprobs", NAN)),
        (broken("logits", INF), broken("probabilities", NAN)),
    ],
    ids=["NaN", "+inf, which makes NaN", "no log-probability followed"],
)
def test_logits_that_are_more_than_filtered_are_broken(links):
    found = broke(stepped(*links))
    assert found.link == "logits"
