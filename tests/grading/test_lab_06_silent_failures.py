"""The checks of lab 6 accept what is right, on any seed, and tell the usual mistakes apart."""

import pytest
import torch

import grpo_lab as gl
from grpo_lab.batch import Batch
from grpo_lab.faults.formulas import MASKS
from grpo_lab.grading import checking
from grpo_lab.grading.checks import cases_06_silent_failures as cases
from grpo_lab.grading.checks import exercise, lab_page

LAB = lab_page("06_silent_failures")
SEEDS = range(5)
FEW = gl.preset("plain").with_("run.threads=1", "run.num_steps=8", "data.num_prompts=4", "sampling.top_p=0.9999")
CAUSES = {
    "healthy": (),
    "zeroed": ("loss.accumulation=zeroed",),
    "step_inside": ("loss.accumulation=step_inside", "data.micro_batch_prompts=1"),
    "temperature": ("faults.ignore_temperature=on", "sampling.temperature=0.5"),
    "padding": ("loss.completion_mask=all",),
    "dropout": ("faults.dropout_on=on", "model.prompt_pass=plain"),
}


def findings(name, seed=0, **answer):
    return checking.check(exercise("06_silent_failures", name), answer, seed)


def one_update(parts, loss_of, optimizer):
    total = sum(part.mask.sum() for part in parts)
    optimizer.zero_grad()
    for part in parts:
        ((loss_of(part) * part.mask).sum() / total).backward()
    optimizer.step()


def accumulating(share, before="", after="", clear=True):
    """An update with `share(loss, part, parts)` of each part, and something wrong before or after its backward."""

    def answer(parts, loss_of, optimizer):
        if clear:
            optimizer.zero_grad()
        for part in parts:
            if "zero" in before:
                optimizer.zero_grad()
            share(loss_of(part), part, parts).backward()
            if "step" in after:
                optimizer.step()
            if "zero" in after:
                optimizer.zero_grad()
        if "step" not in after:
            optimizer.step()

    return answer


def of_all(loss, part, parts):
    return (loss * part.mask).sum() / sum(each.mask.sum() for each in parts)


def mean_of(loss, part, parts):
    return (loss * part.mask).sum() / part.mask.sum()


def without_step(parts, loss_of, optimizer):
    optimizer.zero_grad()
    for part in parts:
        of_all(loss_of(part), part, parts).backward()


def completion_mask(tokens, end):
    ends = tokens == end
    return ends.cumsum(dim=1) - ends.int() == 0


def mismatch(old_logprobs, sampling_logprobs, mask):
    gaps = (old_logprobs - sampling_logprobs)[mask].abs()
    return float(gaps.mean()), float(gaps.max())


def gap_by(function):
    def answer(old_logprobs, sampling_logprobs, mask):
        gaps = function(old_logprobs, sampling_logprobs)
        return float(gaps[mask].mean()), float(gaps[mask].max())

    return answer


def unmasked(old_logprobs, sampling_logprobs, mask):
    gaps = (old_logprobs - sampling_logprobs).abs()
    return float(gaps.mean()), float(gaps.max())


def masked_by_product(old_logprobs, sampling_logprobs, mask):
    gaps = (old_logprobs - sampling_logprobs).abs() * mask
    return float(gaps.mean()), float(gaps.max())


def which(record):
    if record["frac_reward_zero_std"] == 1:
        return "no_spread"
    if record["grad_norm"] < 1e-6:
        return "step_inside" if record["weights/max_move"] > 0 else "zeroed"
    if record["sampling/sampling_logp_difference/mean"] > 0.1:
        return "padding" if record["sampling/sampling_logp_difference/max"] > 8 else "temperature"
    return "dropout" if record["ratio/max"] > 1.1 else "healthy"


def up_to_the_last(tokens, end):
    ends = tokens == end
    return (ends.flip(1).cumsum(dim=1).flip(1) > 0) | ~ends.any(dim=1, keepdim=True)


def by_the_trainers(name, pad=9):
    """A mask of the trainer's, by name, on tokens alone."""

    def answer(tokens, end):
        floats = torch.zeros(tokens.shape)
        ids = torch.ones(1, 1, dtype=torch.long)
        everything = torch.ones(tokens.shape, dtype=torch.bool)
        return MASKS[name](Batch(ids, ids, torch.zeros(len(tokens)).long(), tokens, everything, floats, floats), pad)

    return answer


RIGHT = {"one_update": one_update, "completion_mask": completion_mask, "mismatch": mismatch, "which": which}
WRONG = {
    "one_update": {
        "overwrite": accumulating(of_all, before="zero"),
        "step inside": accumulating(of_all, after="step, zero"),
        "step inside, never cleared": accumulating(of_all, after="step"),
        "zeroed between backward and step": accumulating(of_all, after="zero"),
        "never cleared": accumulating(of_all, clear=False),
        "not divided": accumulating(lambda loss, part, parts: (loss * part.mask).sum()),
        "a mean each, added": accumulating(mean_of),
        "divided by the number of parts": accumulating(
            lambda loss, part, parts: mean_of(loss, part, parts) / len(parts)
        ),
        "mask ignored": accumulating(lambda loss, part, parts: loss.sum() / sum(each.mask.numel() for each in parts)),
        "padding counted below": accumulating(
            lambda loss, part, parts: (loss * part.mask).sum() / sum(each.mask.numel() for each in parts)
        ),
        "the last part alone": lambda parts, loss_of, optimizer: one_update(parts[-1:], loss_of, optimizer),
        "no step": without_step,
    },
    "completion_mask": {
        "all": by_the_trainers("all"),
        "not_pad": by_the_trainers("not_pad"),
        "not_pad, the other one": by_the_trainers("not_pad", pad=0),
        "without the end token": lambda tokens, end: (tokens == end).cumsum(dim=1) == 0,
        "one token too many": lambda tokens, end: (tokens == end).cumsum(dim=1) <= 1,
        "numbers": lambda tokens, end: completion_mask(tokens, end).float(),
        "up to the last end token": up_to_the_last,
    },
    "mismatch": {
        "signed": gap_by(lambda old, sampled: old - sampled),
        "ratio": gap_by(lambda old, sampled: (old - sampled).exp()),
        "squared": gap_by(lambda old, sampled: (old - sampled).square()),
        "probabilities": gap_by(lambda old, sampled: (old.exp() - sampled.exp()).abs()),
        "mask ignored": unmasked,
        "padding counted below": masked_by_product,
        "max and mean": lambda old_logprobs, sampling_logprobs, mask: mismatch(old_logprobs, sampling_logprobs, mask)[
            ::-1
        ],
        "mean alone": lambda old_logprobs, sampling_logprobs, mask: mismatch(old_logprobs, sampling_logprobs, mask)[0],
    },
    "which": {
        "always healthy": lambda record: "healthy",
        "no second look at 0": lambda record: "zeroed" if record["grad_norm"] < 1e-6 else which(record),
        "KL 0 alone": lambda record: "zeroed" if record["kl"] < 0.05 else which(record),
        "mismatch means temperature": lambda record: (
            "temperature" if record["sampling/sampling_logp_difference/mean"] > 0.1 else which(record)
        ),
        "a ratio means dropout": lambda record: "dropout" if record["ratio/max"] > 1.1 else which(record),
    },
}


def summed_first(parts, loss_of, optimizer):
    optimizer.zero_grad()
    losses = torch.cat([loss_of(part)[part.mask] for part in parts])
    losses.mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def mask_by_rows(tokens, end):
    mask = torch.zeros(tokens.shape, dtype=torch.bool)
    for row, ids in enumerate(tokens.tolist()):
        mask[row, : (ids.index(end) + 1 if end in ids else len(ids))] = True
    return mask


def in_another_order(record):
    if record["weights/max_move"] == 0:
        return "zeroed"
    if record["ratio/max"] > 1.1:
        return "step_inside" if record["grad_norm"] == 0 else "dropout"
    if record["sampling/sampling_logp_difference/max"] > 2:
        return "temperature" if record["sampling/sampling_logp_difference/mean"] < 1 else "padding"
    return "no_spread" if record["grad_norm"] < 0.5 else "healthy"


ANOTHER_WAY = {"one_update": summed_first, "completion_mask": mask_by_rows, "which": in_another_order}


@pytest.mark.parametrize("name", ANOTHER_WAY)
def test_another_way_is_right_too(name):
    for seed in SEEDS:
        assert checking.all_right(findings(name, seed, **{name: ANOTHER_WAY[name]}))


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_right_passes_on_every_seed(name, seed):
    found = findings(name, seed, **{name: RIGHT[name]})
    assert [finding for finding in found if not finding.right] == []
    assert found


@pytest.mark.parametrize(
    ("name", "wrong"), [pytest.param(name, w, id=f"{name}-{w}") for name, answers in WRONG.items() for w in answers]
)
def test_a_usual_mistake_is_found_and_explained(name, wrong):
    for seed in SEEDS:
        found = [finding for finding in findings(name, seed, **{name: WRONG[name][wrong]}) if not finding.right]
        assert found and all(finding.why for finding in found)
        assert any("Error" not in finding.got for finding in found)  # wrong, and not only broken


@pytest.mark.parametrize("cause", [*CAUSES, "no_spread"])
def test_a_real_run_is_named_by_the_rules_that_the_check_asks_for(cause, tmp_path):
    """So the ranges that records are drawn from are those that runs give."""
    overrides = CAUSES.get(cause)
    if overrides is None:
        (tmp_path / "rewards.py").write_text("def all_one(completions, **_):\n    return [1.0] * len(completions)\n")
        overrides = (f"data.rewards={tmp_path / 'rewards.py'}:all_one",)
    record = gl.Session(FEW.with_(*overrides), tmp_path / "run").run().records.mean(numeric_only=True).to_dict()
    assert which(record) == cause
    for name, (low, high) in {**cases.USUAL, **cases.CHANGED[cause][0]}.items():
        assert low - 1e-6 <= record[name] <= high + 1e-6, name


def test_a_prediction_counts_when_it_is_made():
    assert checking.all_right(findings("forecast", answer="d"))
    assert not checking.all_right(findings("forecast", answer=""))


def test_the_page_holds_what_a_lab_must_hold():
    assert 4 <= len(LAB.exercises) <= 6
    assert len(LAB.questions) == 3
    assert sum(each.minutes for each in LAB.exercises.values()) < LAB.minutes
