"""Short runs test whether a configuration survives, learns, and leaves a healthy run alone."""

from types import SimpleNamespace

import pytest
import torch

from grpo_lab.config.catalog import preset
from grpo_lab.core.hooks import Stage, Verdict
from grpo_lab.course import evaluate, trials
from grpo_lab.course.registry import lab_page
from grpo_lab.errors import ConfigError
from grpo_lab.training.guards import GUARDS
from grpo_lab.training.interventions import Outcome

HEALTHY = preset("plain").with_("optimizer.learning_rate=5e-4")
SKIPS_ALL = trials.guards_of({"skip_spikes": {"threshold": 1e-9}})


def test_a_guard_that_stops_a_failure():
    assert trials.stops("nan-reward", trials.guards_of(("sanitize_rewards",)), seed=1, why="").right


def test_the_criterion_that_failed_is_named_with_number_and_limit(fault):
    crashed = trials.stops("nan-reward", {}, seed=1, why="look at the rewards")
    assert not crashed.right and crashed.why == "look at the rewards"
    assert crashed.got == "crashed in torch.multinomial after 2 of 10 steps" and crashed.expected == "no crash"
    shown = trials.stops("bad-batch", {}, seed=0, why="")
    assert shown.expected == "kl below 1 or grad_norm below 20 in every step kept"
    kl, norm = (float(text.split()[-1]) for text in shown.got.removesuffix(" in steps kept").split(" and "))
    assert kl >= 1 and norm >= 20
    halt = fault(Stage.GRADIENTS, lambda value, step: Outcome(value, Verdict.STOP, "") if step.index == 1 else None)
    halted = trials.survives(HEALTHY.with_("data.num_prompts=2", "run.num_steps=3", halt), "", seed=1, why="")
    assert (halted.got, halted.expected) == ("a guard ended the run after 2 of 3 steps", "a run that no guard ends")


def test_a_kept_step_leaves_finite_weights():
    """The guard rolls each broken step back one step later, so that the run ends with finite weights."""
    late = trials.guards_of(("check_probabilities",))
    found = trials.stops("fp16-adam-epsilon", late, 0, "", "run.num_steps=6")
    assert not found.right and found.got == "weights that are NaN or inf after 3 of 3 steps kept"
    assert found.expected == "every weight finite"


@pytest.mark.parametrize(("made", "enough"), [(3, False), (2, True)])
def test_at_least_half_of_the_steps_are_made(fault, made, enough):
    refuse = fault(Stage.GRADIENTS, lambda value, s: Outcome(value, Verdict.SKIP_STEP, "") if s.index % made else None)
    found = trials.survives(HEALTHY.with_("data.num_prompts=2", "run.num_steps=6", refuse), "", seed=1, why="")
    assert found.right is enough and f"{6 // made} of 6 steps kept" in found.got
    assert ("at least 3 of 6 steps kept" in found.expected) is not enough


def test_a_lesson_teaches_and_no_guard_acts():
    learned, quiet = trials.learns(HEALTHY.with_guards(trials.guards_of(("skip_nonfinite",))), seed=1)
    assert learned.right and quiet.right


@pytest.mark.slow
def test_a_lesson_that_is_refused_teaches_nothing():
    learned, quiet = trials.learns(HEALTHY.with_guards(SKIPS_ALL), seed=1)
    assert not learned.right and "0 updates" in learned.got
    assert not quiet.right and quiet.got == "skip_spikes"


def test_the_gradient_without_guards_and_with_silent_ones():
    silent = trials.guards_of(("skip_nonfinite", "clamp_kl", "check_weights"))
    assert trials.leaves_gradient(HEALTHY.with_guards(silent), seed=1).right


@pytest.mark.parametrize(
    "guards", [("clip_gradients",), ("safe_sampling",), tuple(GUARDS)], ids=["clip", "sampling", "all"]
)
def test_guards_that_change_a_healthy_gradient(guards):
    assert not trials.leaves_gradient(HEALTHY.with_guards(trials.guards_of(guards)), seed=1).right


def test_a_gradient_that_never_reaches_the_optimizer():
    assert trials.first_gradient(HEALTHY.with_(*trials.HERE, "run.num_steps=1").with_guards(SKIPS_ALL)) is None


@pytest.mark.parametrize("value", ["skip_spikes", ("mine.py:Mine",), 3, ({"skip_spikes": {}},), {"skip_spikes": 3}])
def test_guards_that_no_judge_runs(value):
    with pytest.raises(ConfigError):
        trials.guards_of(value)


def test_settings_of_a_preset_and_of_the_answer():
    assert trials.guards_of(("warm_up",)) == {"warm_up": {"steps": 10}}
    assert trials.guards_of({"warm_up": {"steps": 3}}) == {"warm_up": {"steps": 3}}


@pytest.mark.parametrize(
    "value", [("run.num_steps=1000",), ("data.num_prompts=1",), "loss.beta=0", ("model.name=tiny",)]
)
def test_overrides_that_would_change_what_a_check_costs(value):
    with pytest.raises(ConfigError):
        trials.overrides_of(value, ("loss", "optimizer"))


@pytest.mark.parametrize("setting", ["loss.kl_estimator", "loss.log_ratio", " loss . kl_estimator ", "sampling.top_p"])
def test_a_judge_runs_no_file_that_an_answer_names(setting, tmp_path):
    """A file that was handed in beside the notebook would run as the grader, with access to the secret."""
    file = tmp_path / "mine.py"
    file.write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\ndef f(delta, *_):\n    return delta\n")
    values = {"guards": ("skip_nonfinite",), "overrides": (f"{setting}={file}:f",)}
    (finding,) = evaluate.check(lab_page("08_mystery_runs").exercises["stable"], values, seed=1)
    assert not finding.right and "names a file" in finding.why
    assert not (tmp_path / "ran").exists()


def test_what_a_run_may_cost_is_limited():
    assert trials.affordable(HEALTHY) is HEALTHY
    for setting, most in (
        ("loss.num_iterations", trials.MOST_UPDATES),
        ("sampling.max_completion_length", trials.MOST_TOKENS),
    ):
        assert trials.affordable(HEALTHY.with_(f"{setting}={most}"))
        with pytest.raises(ConfigError, match=rf"{setting} = {most + 1}: at most {most}"):
            trials.affordable(HEALTHY.with_(f"{setting}={most + 1}"))


@pytest.fixture
def lessons(monkeypatch):
    """`lessons((before, after), ...)`: the finding about runs that bring these rewards, one after the other."""

    def learn(*rewards):
        kept = {"survived": True, "updates": 12, "fate": "", "finished": 12, "refused": 0}
        runs = iter([SimpleNamespace(before=one, after=two, gained=two - one, **kept) for one, two in rewards])
        monkeypatch.setattr(trials, "run", lambda config, seed: seed)
        monkeypatch.setattr(trials, "judged", lambda session: next(runs))
        return next(trials.learns(HEALTHY, 1))

    return learn


@pytest.mark.parametrize(
    ("rewards", "right", "got", "why"),
    [
        # A gain of 0.0375 is not shown as 0.31 to 0.35 against a limit of 0.04.
        (
            [(0.3125, 0.35), (0.29, 0.32)],
            False,
            "0.3125 to 0.35, 0.0375 more; 12 updates; in another run 0.29 to 0.32, 0.03 more; 0.0338 more in the mean",
            "hardly",
        ),
        # 124 and 140 of 400 answers: 0.35 - 0.31 is 0.03999999999999998.
        ([(0.31, 0.35), (0.31, 0.35)], False, "0.31 to 0.35, 0.04 more; 12 updates", "hardly"),
        ([(0.31, 0.3525)], True, "0.31 to 0.3525, 0.0425 more; 12 updates", ""),
        ([(0.3, 0.32), (0.3, 0.44)], True, "0.3 to 0.32, 0.02 more; 12 updates; in another run 0.3 to 0.44", ""),
        ([(0.3, 0.02), (0.3, 0.02)], False, "0.3 to 0.02, -0.28 more", "fell"),
    ],
)
def test_a_lesson_that_brings_little_is_given_once_more_and_its_numbers_lead_to_the_verdict(
    lessons, rewards, right, got, why
):
    found = lessons(*rewards)
    assert found.right is right and found.got.startswith(f"held-out reward {got}")
    assert right or (why in found.why and "refused" not in found.why)


def test_a_cosine_is_shown_on_its_side_of_the_limit(monkeypatch):
    gradients = iter([torch.tensor([1.0, 0.0]).double(), torch.tensor([1.0, 0.0448]).double()])
    monkeypatch.setattr(trials, "first_gradient", lambda config: next(gradients))
    found = trials.leaves_gradient(HEALTHY, 1)
    assert not found.right and found.got.startswith("cosine 0.998998, norm 1 times")


def test_a_setting_whose_name_is_a_number_is_no_setting():
    with pytest.raises(ConfigError, match=r"unknown setting .*3"):
        trials.run(preset("plain").with_guards(trials.guards_of({"warm_up": {3: 1}})), seed=1)
