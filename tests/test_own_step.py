"""A step of a user's file (`loss.step`): lab 1's trainer is the package's to rounding, and guards see its updates."""

import pytest

from grpo_lab.config.catalog import preset
from grpo_lab.core.hooks import Verdict
from grpo_lab.course.editions.solutions import solution
from grpo_lab.course.registry import lab_folder
from grpo_lab.errors import ConfigError
from grpo_lab.training.registry import validated
from tests.steps import steps_of

PARTS = ("advantages", "policy_loss", "aggregate", "logprobs", "step")
SMALL = preset("plain").with_("run.threads=1", "run.num_steps=3", "data.num_prompts=4", "loss.num_iterations=2")


@pytest.fixture
def own(tmp_path):
    """`own(old, new)`: the name of a learner's step, after a change of the file that lab 1 puts together."""

    def write(old="", new=""):
        source = "\n\n".join(solution(lab_folder("01_grpo_by_hand"), part) for part in PARTS)
        assert old in source
        (tmp_path / "grpo.py").write_text(source.replace(old, new), encoding="utf-8")
        return f"loss.step={tmp_path / 'grpo.py'}:step"

    return write


def test_what_lab_1_asks_for_fits_into_sixty_lines():
    source = "\n".join(solution(lab_folder("01_grpo_by_hand"), part) for part in PARTS)
    assert len([line for line in source.splitlines() if line.strip() and not line.startswith("#")]) <= 60


def test_the_learners_trainer_is_the_packages_to_rounding(own):
    theirs, ours = (steps_of(config) for config in (SMALL.with_(own()), SMALL))
    for mine, usual in zip(theirs, ours, strict=True):
        assert mine.metrics["reward"] == usual.metrics["reward"] and mine.updates == usual.updates == 2
        assert mine.metrics["grad_norm"] == pytest.approx(usual.metrics["grad_norm"], rel=1e-4)
    assert {note.update for note in theirs[0].links if note.link in ("gradients", "weights")} == {0, 1}


def test_the_kl_is_that_of_the_package_where_a_batch_is_used_once(own):
    config = SMALL.with_("loss.num_iterations=1")
    kl = [[step.metrics["kl"] for step in steps_of(each)] for each in (config.with_(own()), config)]
    assert kl[0] == pytest.approx(kl[1], rel=1e-3, abs=1e-6) and kl[0][-1] > 0


def test_a_change_of_one_word_trains_otherwise(own):
    norms = [[step.metrics["grad_norm"] for step in steps_of(SMALL.with_(own(*change)))] for change in ((), WORD)]
    assert norms[0][0] == pytest.approx(norms[1][0], rel=1e-3) and norms[0][1] != pytest.approx(norms[1][1], rel=1e-2)


WORD = ("batch.old_logprobs", "batch.ref_logprobs")


def test_a_guard_refuses_an_update_of_it(own):
    config = SMALL.with_(own(), "guards.skip_spikes.threshold=1e-3")
    for step in steps_of(config):
        assert step.verdict == Verdict.SKIP_STEP and step.updates == 0


def test_a_step_that_makes_no_update_has_none(own):
    assert [step.updates for step in steps_of(SMALL.with_(own("        optimizer.step()", "")))] == [0, 0, 0]


def test_completions_without_a_reward_refuse_the_step(own, tmp_path):
    (tmp_path / "judge.py").write_text("def judge(prompts, completions, **_):\n    return [None, *[1.0] * 31]\n")
    (first, *_) = steps_of(SMALL.with_(own(), f"data.rewards={tmp_path / 'judge.py'}:judge"))
    assert first.verdict == Verdict.SKIP_STEP and first.updates == 0


@pytest.mark.parametrize("change", ["model.precision=bf16", "model.precision=fp16", "run.processes=2"])
def test_where_it_cannot_be_made_is_said_before_the_run(own, change):
    with pytest.raises(ConfigError, match=r"loss\.step"):
        validated(SMALL.with_(own(), change))


def test_a_file_that_is_not_there_is_named():
    with pytest.raises(ConfigError, match=r"nowhere\.py"):
        validated(SMALL.with_("loss.step=nowhere.py:step"))
