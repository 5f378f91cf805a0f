"""Lab 6: the records drawn for the check lie in the ranges of real runs."""

import pytest

import grpo_lab as gl
from tests.grading import mutants

cases = mutants.checks("06_silent_failures")

FEW = gl.preset("plain").with_("run.threads=1", "run.num_steps=8", "data.num_prompts=4", "sampling.top_p=0.9999")
CAUSES = {
    "healthy": (),
    "zeroed": ("loss.accumulation=zeroed",),
    "step_inside": ("loss.accumulation=step_inside", "data.micro_batch_prompts=1"),
    "temperature": ("faults.ignore_temperature=on", "sampling.temperature=0.5"),
    "padding": ("loss.completion_mask=all",),
    "dropout": ("faults.dropout_on=on", "model.prompt_pass=plain"),
}


ALWAYS = ("healthy", "padding")
"""Those that `make test` runs too."""
EACH = [pytest.param(cause, marks=[] if cause in ALWAYS else [pytest.mark.slow]) for cause in (*CAUSES, "no_spread")]


@pytest.mark.parametrize("cause", EACH)
def test_a_real_run_is_named_by_the_rules_that_the_check_asks_for(cause, tmp_path, lab, load):
    """Its metrics lie in the ranges from which the check draws records."""
    overrides = CAUSES.get(cause)
    if overrides is None:
        (tmp_path / "rewards.py").write_text("def all_one(completions, **_):\n    return [1.0] * len(completions)\n")
        overrides = (f"data.rewards={tmp_path / 'rewards.py'}:all_one",)
    record = gl.Session(FEW.with_(*overrides), tmp_path / "run").run().records.mean(numeric_only=True).to_dict()
    assert load(mutants.solution(lab, "which")).which(record) == cause
    for name, (low, high) in {**cases.USUAL, **cases.CHANGED[cause]}.items():
        assert low - 1e-6 <= record[name] <= high + 1e-6, name
