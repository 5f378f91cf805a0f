# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # Lab 4. Guards
#
# A guard protects one value at one stage of the step: it clamps it, drops it, or refuses the update. The reports list
# seven guards as the cure. In this lab you run them together and one at a time, write one yourself, and find out how few
# are enough. Of each guard ask three things: what does it *stop*, what does it *cost*, what does it *hide*?
#
# You need from labs 2 and 3: the explosion through the KL, and the chain from a finite loss to NaN weights.

# %% [markdown] tags=["instructor"]
# **Plan, 50 minutes.** Recording and prediction 5 · seven together 7 · one alone 9 · a guard of one's own with its runs 11 ·
# skipping 5 · what a guard hides 5 · the smallest set 13 (let it run into the break) · questions.
#
# **Say.** "Everybody who has seen a run explode adds guards. Few take any away again. Today we ask of each one what
# would happen without it."
#
# **Misconceptions to wait for.** *More guards are safer* (twelve of them kept a run alive that learned nothing).
# *Clipping is a guard against NaN* (it spreads it). *A skipped step costs nothing* (sixteen of them in a row: no
# training). *`zero_grad` is a skip* (AdamW has a memory).

# %%
import grpo_lab as gl

lab = gl.Lab("04_guards")

# %% [markdown]
# ## 1. A recorded run
#
# SmolLM2-135M with the loss of CUDA-001 in fp16 weights, under twelve guards. Without them it died in the second round.
# Look at the guards that acted, step by step, and then at the reward.

# %%
lab.panel(recording="cuda-001-smollm2-twelve-guards")

# %% [markdown]
# Four rounds done, every weight finite. The reward on held-out reviews went from 0.052 to 0.025. Keep that in mind: the
# guards did all that guards can do.

# %% [markdown]
# ## 2. Predict
#
# The reports end with a "stable" configuration: seven guards, half the learning rate, smaller batches. Here it meets
# what it was made for: the cause of CUDA-001 in fp16, on the tiny model. This is the heart of it, as written:
#
# ```python
# grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=0.3)
# if grad_norm > 10:
#     optimizer.zero_grad()      # too large: leave this update out
# else:
#     optimizer.step()
# ```

# %%
# %%exercise reported
# Ten rounds of it. What will you see?
#   a  It goes through, and the reward rises.
#   b  It goes through, and the reward does not rise.
#   c  Large norms are skipped. Then one is NaN, that step is made, and the next sampling dies.
#   d  It dies in the first step, as without guards.
# BEGIN SOLUTION
answer = "c"
# END SOLUTION

# %% [markdown]
# ## 3. Seven together
#
# Each of the seven has a switch in this panel, in the tab *Guards*, and says there what it costs and what it hides.

# %%
reported = gl.preset("reported_fix").guards
panel = lab.panel(
    "nan-passes-threshold",
    controls=("learning_rate", "beta", "max_grad_norm"),
    guards_shown=(*reported, "skip_nonfinite", "clamp_kl"),
)
panel

# %%
run = await panel.run()

# %%
print(run.first_break())
run.records[["step", "verdict", "updates", "grad_norm", "kl", "reward", "weights/nonfinite"]]

# %% [markdown]
# Where this was written: four steps were skipped (norms of 155, 3,793, 96,665, 3,774), because 155 > 10. Then a norm was
# NaN, `nan > 10` was False, and the update was made. All 834,560 weights were NaN after it.
#
# What did the other six do meanwhile? They say so themselves:

# %%
from grpo_lab.events import Stepped

last = [event for event in run.events if isinstance(event, Stepped)][-2]
for action in last.actions:
    print(f"update {action.update}  {action.name:16} {action.verdict:9} {action.reason}")

# %% [markdown]
# `check_weights`, as reported, *saw* that every weight tensor was broken. It printed a line, and training went on.
# The log-ratio was clamped; it is the KL estimate that exploded, and nothing of the seven bounds that one.

# %% [markdown] tags=["instructor"]
# **Ask.** "Who is to blame, the guard that let NaN through or the check that only printed?" Either one, asked properly,
# ends this crash. **Say.** "A check that changes nothing is a comment."
#
# **Live.** Press Start again and switch `skip_nonfinite` on while it runs: the plot marks the moment, the crash stays away,
# and nothing is learned. Then `clamp_kl`, which is where the number came from.

# %% [markdown]
# ## 4. One at a time
#
# A guard can only stop what passes by it. Here is one failure, a token whose log-ratio is pushed to 100 nats, under
# one guard after the other. (`%%capture` leaves out what each run says at its end. The cell after it has a line for each.)

# %%
# %%capture
names = ("clip_gradients", "dual_clip", "clamp_log_ratio", "skip_nonfinite", "check_weights")
tried = {name: lab.run(gl.scenario("zero-times-infinity").config(guards=(name,)), name) for name in names}

# %%
for name, run in tried.items():
    broken = run.first_break()
    caught = f"caught by {broken.caught_by or 'nobody'}" if broken else "nothing broke"
    print(f"{name:16} {run.status:8} after {len(run.records):2} steps, {caught}")

# %% [markdown]
# Two of them end in a crash. Clipping divides every gradient by a norm that is NaN. Dual clip bounds the ratio *after*
# `exp`, and backward still multiplies 0 by inf. The other three survive, each at another place: before `exp`, at the
# gradient, at the weights. Here is what one of them says of itself:

# %%
print(gl.GUARDS["clamp_log_ratio"].__doc__)

# %%
# %%exercise alone
# For zero-times-infinity, fp16-adam-epsilon and nan-reward, one guard each that stops it alone (and lets at least
# half of the steps be made), as in {"zero-times-infinity": "warm_up", ...}. All guards: print(list(gl.GUARDS)).
# Run each without a guard first: print(lab.run(gl.scenario("nan-reward").config(guards=())).first_break())
# BEGIN SOLUTION
answer = {
    "zero-times-infinity": "clamp_log_ratio",
    "fp16-adam-epsilon": "representable_epsilon",
    "nan-reward": "sanitize_rewards",
}
# END SOLUTION

# %% [markdown]
# For two of the three there were several right answers. Refusing the update (`skip_nonfinite`) is the general one and
# gives up the whole batch; a guard nearer to the cause saves the rest of it. For fp16 there is one: the gradient is
# healthy, nothing that looks at gradients can see it.

# %% [markdown] tags=["instructor"]
# **Board.** Draw the stages in a row: coefficients, sampling, probabilities, rewards, advantages, logits, batch, log-ratio,
# KL, loss, gradients, weights. Put each guard where it sits, and let the class say what can still go wrong behind it.

# %% [markdown]
# ## 5. A guard of your own
#
# A threshold of 10 knows nothing about your run. In this scenario somebody forgot to divide by fp16's loss scale: the norm
# is a hundred thousand from the first step on, and nothing is wrong with the training, since AdamW does not care for
# scale.

# %%
level = lab.panel("lost-unscale", guards=("skip_spikes",), overrides=("run.num_steps=16",), controls=("learning_rate",))
level

# %%
blocked = await level.run()
print("updates made:", blocked.records["updates"].sum(), "of", len(blocked.records))

# %% [markdown]
# Every step was refused, and every number was finite. So write a guard that needs no threshold: it refuses what is not
# finite, and what is more than 8 times the largest norm that it has accepted so far. A guard is a class with a name and a
# stage; what it remembers from step to step goes into `self.memory`, a dictionary.

# %%
# %%exercise guard
import math
from grpo_lab.interventions import Intervention, Outcome, Stage, Verdict, exceeds

class SkipJumps(Intervention):
    """Outcome(value) accepts; Outcome(value, Verdict.SKIP_STEP, reason) refuses. exceeds("grad norm", 12.0, 8.0) is a reason."""
    name, stage, factor = "skip_jumps", Stage.GRADIENTS, 8.0

    def __call__(self, value, step):
        norm, largest = step.grad_norm, self.memory.get("largest")
        # BEGIN SOLUTION
        if math.isfinite(norm) and (largest is None or norm <= self.factor * largest):
            self.memory["largest"] = max(norm, largest or 0.0)
            return Outcome(value)
        return Outcome(value, Verdict.SKIP_STEP, exceeds("grad norm", norm, self.factor * (largest or 1.0)))
        # END SOLUTION

# %% [markdown]
# Your class is in a file, and a run takes it by its name. First where the threshold refused everything, then against
# a corrupt sample:

# %%
mine = {lab.path("guard"): {}}
free = lab.panel(gl.scenario("lost-unscale").config().with_("run.num_steps=16").with_guards(mine), controls=("learning_rate",))
free

# %%
trained = await free.run()
print("updates made:", trained.records["updates"].sum(), "of", len(trained.records))

# %%
corrupt = lab.run(gl.scenario("bad-batch").config().with_guards(mine), "bad_batch")
corrupt.records[["step", "verdict", "grad_norm", "kl", "reward"]]

# %% [markdown]
# One step refused, the one with a norm above a thousand. The reward of that step shows nothing: it was computed before the
# sample was damaged.
#
# What does your guard hide? A norm that grows slowly carries the bar along; a run that begins with its largest norm is
# never stopped. `skip_outliers` compares with the median of the last fifty instead. Read its docstring if you want to see
# how much care that takes.

# %% [markdown]
# ## 6. What skipping means
#
# In the reported guard the gradient is set to zero. So the update does nothing? Write the part that follows the guard's
# decision, and let the check look at the weights. The optimizer is AdamW, and it has made a step before.

# %%
# %%exercise skip
def update_or_skip(optimizer, norm, limit):
    """Make the update if the norm is fine, else leave it out; return whether it was made. Gradients are in place."""
    # BEGIN SOLUTION
    if norm <= limit:
        optimizer.step()
        return True
    return False
    # END SOLUTION

# %% [markdown]
# (In the reports' own lines nothing moves, because `step` stands in the other branch. It is where people shorten them, zeroing
# the gradient and stepping all the same, that every weight moves by what AdamW's first moment remembers.)

# %% [markdown] tags=["instructor"]
# **Show.** One weight, AdamW at 0.1, one step with gradient 0.5, then one with gradient 0: it moves again, by about two
# thirds of the first step. **Say.** "In this repository an update is a transaction: refused before `step`, it leaves no trace
# in weights, moments or schedule."

# %% [markdown]
# ## 7. What a guard hides
#
# TRAIN-001 in fp32, first as it is (A), then with the KL clamped at 10 nats (B). Both in one plot.

# %%
hiding = lab.panel("train-001", guards=(), overrides=("run.num_steps=8",), guards_shown=("clamp_kl", "skip_spikes"))
hiding

# %%
unguarded = await hiding.run()
hiding.keep("A: no guard")
hiding.switch("clamp_kl", True)
guarded = await hiding.run()

# %%
for name, one in (("no guard", unguarded), ("clamp_kl", guarded)):
    table = one.records
    print(f"{name:9} largest norm {table['grad_norm'].max():10,.0f}   reward at the end {table['reward'].iloc[-1]:.2f}")

# %%
# %%exercise hides
# The largest norm is far smaller under the guard. What is true?
#   a  The guard saved the weights from NaN.
#   b  The failure is mended: norm and reward are healthy now.
#   c  The guard took the explosion out of sight; the loss and the rate are as wrong as before, and nothing is learned.
#   d  The guard hides that it acts.
# BEGIN SOLUTION
answer = "c"
# END SOLUTION

# %% [markdown]
# ## 8. What a guard costs
#
# Most guards here leave a healthy run as it is, bit for bit. Some cannot, and each says why:

# %%
for name, guard in gl.GUARDS.items():
    if guard.changes_healthy_runs:
        print(f"{name:24} {guard.changes_healthy_runs}")

# %% [markdown]
# In the matrix of this project (23 failures, 19 guards, 3 seeds) the guards of the reports cost a healthy run 0.03 of
# the 0.26 of reward that it gains in thirty steps; most of that is safe sampling. The other cost is that of a false alarm:
# a step refused for nothing. You saw sixteen of them.

# %% [markdown]
# ## 9. The smallest set
#
# Now choose. The check runs your guards against three failures with fresh seeds (a corrupt sample, three times; AdamW's
# eps in fp16; a filtered token), and on a healthy run. All of this has to hold:
#
# - at most three guards,
# - no crash, no broken weight, the symptom in no step that counts, and at least half of the steps made,
# - the healthy run learns, no guard acts in it, and its gradient is what it is without guards.
#
# So neither "skip everything" nor "switch on everything" will do. The check trains fifty short steps; it takes about ten
# seconds.

# %% tags=["slow"]
# %%exercise minimal_set
# Names, as in ("warm_up", "clip_gradients"), or names with settings, as in {"clip_gradients": {"max_norm": 0.5}}.
# BEGIN SOLUTION
guards = ("skip_spikes", "representable_epsilon")
# END SOLUTION

# %% [markdown]
# Two are enough here. A threshold, asked the right way round (`norm <= 10`), refuses spikes and NaN alike; and one guard
# mends what happens after the gradient. Preset `stable` has four, because it was made for more failures: a warm-up for
# rates that need one, and `clamp_kl`, since a refused batch teaches nothing. Of the 23 failures in the matrix it stops ten.
# Ten more are out of reach of every guard in it: their numbers are finite and wrong.

# %% [markdown] tags=["instructor"]
# **Typical wrong sets.** *skip_nonfinite, representable_epsilon, clamp_kl* (i.e. `stable` without warm-up): some corrupt
# samples come through a clamp at 10. *The same with `limit` 2 or 5*: acts on the healthy run. *skip_outliers*: judges only
# after ten accepted norms, the bad sample comes in step 5. *All guards*: clipping shrinks the gradient, safe sampling
# turns it.
#
# **Say, to end with.** "A guard keeps the run alive until you have read its reasons. It is not a cure."

# %% [markdown]
# ## 10. What if
#
# 1. In the first panel: `check_weights` with `then=roll_back` in place of the reported `warn`. Does the run end?
# 2. `clip-spreads-nan` in a panel, with and without its clip: how many weights are broken after step 1?
# 3. Your guard with `factor = 2`: on which failures is it better, and when does it refuse a healthy step?

# %%
panel.keep("as reported")
panel.set("guards.check_weights.then=roll_back")
await panel.run()

# %% [markdown] tags=["instructor"]
# Measured, one seed. 1: it goes through; four steps skipped, five rolled back, reward 0. 2: in the record's column
# `weights/nonfinite` all 834,560 with the clip; without it one, and after the next step nearly all.

# %% [markdown]
# ## 11. Ask yourself

# %%
lab.questions()

# %%
lab.export()

# %% [markdown]
# **Next:** lab 5 takes the KL apart, value and gradient.
