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
# A guard protects one value at one stage of the step: it clamps the value, drops it, or refuses the update. The reports
# list seven guards as the cure. In this lab you run them together and one at a time, write a guard yourself, and find a
# small set that is enough. Ask three questions about each guard: what does it *stop*, what does it *cost*, what does it
# *hide*?
#
# You need from labs 2 and 3: the two terms of the loss that take exp of a distance, the ratio and the KL, and the chain
# from a finite loss to NaN weights.

# %% [markdown] tags=["instructor"]
# **Plan, 60 minutes.** Recording and prediction 5 · seven together 6 · one alone 9 · a run saved 5 · your own guard
# with its runs 10 · skipping 4 · hidden failures 4 · the smallest set 12 (it may run into the break) · the guard at
# home 3 · questions 2.
#
# **Say.** "After an explosion people add guards. They rarely remove one. Today we ask of each guard: what happens
# without it?"
#
# **Misconceptions to wait for.** *More guards are safer* (four guards kept a run alive that learned nothing).
# *Clipping is a guard against NaN* (it spreads NaN). *A skipped step costs nothing* (sixteen skipped steps in a row: no
# training). *`zero_grad` is a skip* (AdamW has a memory).

# %%
import textwrap

import grpo_lab as gl

lab = gl.Lab("04_guards")

# %% [markdown]
# ## 1. A recorded run
#
# This is a recorded run of SmolLM2-135M with the loss of CUDA-001, fp16 weights and the four guards of `stable`; it
# answers short questions about reviews in place of sums. With clipping alone it died in the second step. Look step by
# step at the guards that acted, and then at the reward.

# %%
lab.panel(recording="cuda-001-smollm2-135m-stable")

# %% [markdown]
# The run finished ten steps with finite weights. The reward on held-out reviews went from 0.14 to 0.19, which is noise
# for 32 reviews. So the panel says *too short to say*: the change is small enough to be chance, and a longer run
# might still learn. Remember this result: the guards did all that guards can do.
#
# ## 2. Predict
#
# The reports end with a configuration that they call "stable": seven guards, half the learning rate, smaller batches.
# In this course its guards and loss settings are the preset `reported_fix`; the preset `stable` of section 1 is another
# one. Here they face the failure they were made for: the cause of CUDA-001 in fp16, on the tiny model, with the rate
# and the batches of lab 3 (3e-4, and 16 × 8 completions). In lab 3, section 7, this run crashed. These are the central
# lines of the configuration, as published:
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
# `skip_nonfinite` refuses an update whose norm is NaN. You switch it on beside the seven. What will you see?
#   a  The run finishes, and the reward rises.
#   b  The run finishes, and the reward does not rise.
#   c  The update with the NaN is made all the same, and the next sampling crashes.
#   d  Every update is refused, so that the model stays as it was.
# BEGIN SOLUTION
answer = "b"
# END SOLUTION

# %% [markdown]
# ## 3. Seven together
#
# Each of the seven has a switch in the tab *Guards* of this panel, and so have `skip_nonfinite` and `clamp_kl`. The tab
# also names its cost and the symptoms that it hides. Below the panel, the cell prints what each of the seven did in the
# last whole step, and a table of the steps. Then switch `skip_nonfinite` on, press Start, and compare with your
# prediction.
#
# In this run `skip_spikes` has `nan_passes=true`, so it compares as the report did. By default it tests `norm <= 10`
# and refuses NaN.

# %%
from grpo_lab.events import Stepped

reported = gl.preset("reported_fix").guards
panel = lab.panel(
    "nan-passes-threshold",
    controls=("learning_rate", "beta", "max_grad_norm"),
    guards_shown=(*reported, "skip_nonfinite", "clamp_kl"),
)
run = await panel.run()
print(textwrap.fill(str(run.first_break()), width=100))
last = [event for event in run.events if isinstance(event, Stepped)][-2]
for action in last.actions:
    print(f"update {action.update}  {action.name:16} {action.verdict:9} {action.reason}")
run.records[["step", "verdict", "updates", "grad_norm", "kl", "reward", "weights/nonfinite"]]

# %% [markdown] tags=["instructor"]
# **Ask.** "Which one is to blame, the guard that accepted NaN or the check that only printed?" Fixing either one
# prevents this crash. **Say.** "A check that changes nothing is a comment."
#
# **Live.** After that, switch on `clamp_kl`, because the number came from the KL: every norm is finite, and the model
# still learns nothing.

# %% [markdown]
# <details><summary>On our machine</summary>
#
# With the seven alone no step was skipped. The second norm of step 0 was NaN, `nan > 10` was False, and the update was
# made. After it all 834,560 weights were NaN, and the sampling of step 1 crashed. `check_weights` *detected* the broken
# weights: it printed a line, and training went on. By default this guard goes back to the last healthy weights; here it
# has `then=warn`, as in the report. The log-ratio was clamped, but the KL estimate exploded, and none of the seven
# guards bounds it. With `skip_nonfinite` the run made all forty steps, three of them refused, and its reward fell to 0:
# the update before the one with the NaN had done the damage. So the answer is **b**.
# </details>
#
# ## 4. One at a time
#
# A guard can only act on values at its own stage. Here is one failure, a token whose log-ratio is pushed to 100 nats,
# with one guard after the other:

# %%
from IPython.utils.capture import capture_output

for name in ("clip_gradients", "dual_clip", "clamp_log_ratio", "skip_nonfinite", "check_weights"):
    with capture_output():  # hides the closing message of the run
        tried = lab.run(gl.scenario("zero-times-infinity").config(guards=(name,)), name)
    broken = tried.first_break()
    caught = f"caught by {broken.caught_by or 'no guard'}" if broken else "nothing broke"
    print(f"{name:16} {tried.status:8} after {len(tried.records):2} steps, {caught}")

# %% [markdown]
# Two of them end in a crash. Clipping divides every gradient by a norm that is NaN. Dual clip bounds the ratio *after*
# `exp`, and backward still multiplies 0 by inf. The other three survive, each at another stage: before `exp`, at the
# gradient, at the weights. `print(gl.GUARDS["clamp_log_ratio"].__doc__)` shows what a guard stops, costs and hides.

# %%
# %%exercise alone
# For each of zero-times-infinity, fp16-adam-epsilon and nan-reward, name one guard that alone stops it and lets the run
# make at least half of its steps, as in {"zero-times-infinity": "warm_up", ...}. All guards: print(list(gl.GUARDS)).
# First run each without a guard: print(lab.run(gl.scenario("nan-reward").config(guards=())).first_break())
# BEGIN SOLUTION
answer = {
    "zero-times-infinity": "clamp_log_ratio",
    "fp16-adam-epsilon": "representable_epsilon",
    "nan-reward": "sanitize_rewards",
}
# END SOLUTION

# %% [markdown] tags=["instructor"]
# **Board.** Draw the stages in a row: coefficients, sampling, probabilities, rewards, advantages, logits, batch,
# log-ratio, KL, loss, gradients, weights. Put each guard at its stage. Ask the class what can still go wrong after it.

# %% [markdown]
# Two of the three have several right answers. Refusing the update (`skip_nonfinite`) is the general one, but it gives
# up the whole batch; a guard nearer to the cause saves the rest of the batch. For the fp16 failure only
# `representable_epsilon` prevents the damage: its gradient is healthy, so a guard that looks at gradients cannot see
# it. `check_probabilities` only rolls it back one step later, so every second step leaves broken weights.
#
# ## 5. A guard that saves a run
#
# The failures so far were over in a few steps. Now the same fault hits a run that learns: right loss, right rate, 60
# steps, and in step 20 one of its tokens is pushed to a log-ratio of 100 nats. The run begins without
# `clamp_log_ratio`, and you may switch the guard on later.

# %%
# %%exercise rescue
# When must the switch be on, and what does the guard then save?
#   a  At any time: after a crash the guard repairs the weights.
#   b  Before the end of step 20, and the run survives; but a guarded run learns less than one without the fault.
#   c  Before step 20 begins; then the model learns as much as without the fault.
#   d  From the first step on: a guard that comes later does not know the healthy values.
# BEGIN SOLUTION
answer = "c"
# END SOLUTION

# %%
rescue = lab.panel(
    preset="plain",
    overrides=("run.num_steps=60", "run.num_eval=200", "faults.shift_log_ratio.at_step=20"),
    controls=("learning_rate",),
    guards_shown=("clamp_log_ratio", "dual_clip", "skip_nonfinite"),
)
doomed = await rescue.run()

# %% [markdown]
# It crashes in step 21. The run is recorded, so you can go back to any of its steps: **drag *steps shown* to 19, switch
# `clamp_log_ratio` on in the tab *Guards*, and press *Fork*.** The 19 steps shown are steps 0 to 18. The new run
# repeats them, to the bit, and goes on with step 19, with the guard; the dead run stays in the plot as A. Try other
# numbers of steps, too: what does a fork at 20 do, and at 21? The next cell prints what the guard did in your run. If
# no fork has saved it yet, the cell forks at 19 first.

# %%
from grpo_lab.runs.summary import summary

def acted(run):  # without clipping, which acts in nearly every step of a healthy run
    actions = [(event.step, each) for event in run.events if isinstance(event, Stepped) for each in event.actions]
    return [(step, each) for step, each in actions if each.name != "clip_gradients"]

saved = await rescue.wait()
if saved.crash or not any(each.name == "clamp_log_ratio" for _, each in acted(saved)):
    rescue.open(doomed.directory)
    rescue.switch("clamp_log_ratio", True)
    rescue.fork(min(19, len(doomed.records) - 1))
    saved = await rescue.wait()
print(summary(saved.events))
for step, each in acted(saved):
    print(f"step {step}  {each.kind:5}  {each.name:16} {each.verdict:9} {each.reason}")

# %%
# %%exercise saved
# Read four values off your run: its end in one word, the guard that saved it, the step in which this guard acted, and
# the held-out reward after the run.
# BEGIN SOLUTION
ended = "done"
guard = "clamp_log_ratio"
acted = 20
held_out = 0.625
# END SOLUTION

# %% [markdown] tags=["instructor"]
# **Show.** Open the dead run, switch `skip_nonfinite` on instead, and fork at 19: the run is saved too, at the price of
# one batch (0.61 to 0.70 on eight seeds). With `dual_clip` it crashes. Then fork at 21: the sampling crashes before any
# guard can act. **Ask.** "Which one would you leave on?" The clamp costs one token, and knows one failure; the
# skip costs 128 completions, and does not care where the NaN came from.

# %% [markdown]
# On ten seeds the guarded run goes from a held-out reward of 0.22–0.33 to 0.58–0.72, and a run without the fault
# reaches about the same. The answer is **c**: the guard acted once, on one token. At step 20 the curve of the largest
# ratio has a ✕, although the chain is healthy there: the curve shows the ratio before the guard, inf, and the chain the
# values after it.
#
# In the recorded run of section 1 the loss is wrong in every step: no guard can make it teach. Here one value was wrong
# in one step. **A guard saves what a run can learn only if everything else in the run is right.**
#
# ## 6. Your own guard
#
# A threshold of 10 does not fit every run. fp16 rounds very small gradients to 0, so training multiplies the loss by a
# large number, the *loss scale*, before backward. Afterwards it must divide the gradients by the same number. In this
# scenario the code forgets to divide. The norm is 80,000 to 400,000 from the first step on. The training is no worse
# for it, because AdamW ignores the scale of the gradient: without a guard the reward on 200 held-out sums goes from
# 0.285 to 0.325 in sixteen steps, and with a right scale just as far. The panel calls a rise this small *too short to
# say*. Now the run with the guard `skip_spikes`, whose threshold is 10:

# %%
sixteen = ("run.num_steps=16", "run.num_eval=200")
level = lab.panel("lost-unscale", guards=("skip_spikes",), overrides=sixteen, controls=("learning_rate",))
blocked = await level.run()
print("updates made:", blocked.records["updates"].sum(), "of", len(blocked.records))

# %% [markdown]
# The guard refused every step, although every number was finite: the held-out reward stayed at 0.285. So write a guard
# without a threshold. It refuses a norm that is not finite, and a norm more than 8 times the largest norm that it has
# accepted so far. The first finite norm is accepted. A guard is a class with a name and a stage; it stores values
# between steps in the dictionary `self.memory`.

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

# %%
# Your class is in a file, and the config takes its path. First the run in which the threshold refused every step:
mine = {lab.path("guard"): {}}
free = lab.panel(gl.scenario("lost-unscale").config().with_(*sixteen).with_guards(mine), controls=("learning_rate",))
trained = await free.run()
print("updates made:", trained.records["updates"].sum(), "of", len(trained.records))

# Then a run with a corrupt sample:
corrupt = lab.run(gl.scenario("bad-batch").config().with_guards(mine), "bad_batch")
corrupt.records[["step", "verdict", "grad_norm", "kl", "reward"]]

# %% [markdown]
# In the first run your guard let every step through: the held-out reward went from 0.285 to 0.325, as without a guard.
# In the second run it refused one step, the one with a norm above a thousand. (The norm of 906 in lab 0 is the same
# failure in another run.) The reward of that step looks normal: it was computed before the sample was damaged.
#
# What does your guard hide? A slowly growing norm raises the limit step by step, and a run that begins with its largest
# norm is never stopped. `skip_outliers` compares with the median of the last fifty norms instead. Read its docstring to
# see the cases it handles.
#
# ## 7. The effect of a skipped update
#
# In the published lines (section 2) a skip sets the gradient to zero and does not call `step`. Some people shorten
# this: they zero the gradient and call `step` all the same. Does such a step do nothing? Write the function that
# decides, and updates or skips; `norm` may be NaN. The check looks at the weights. The optimizer is AdamW, and it has
# already made one step.

# %%
# %%exercise skip
def update_or_skip(optimizer, norm, limit):
    """Update if the norm is fine, otherwise skip; return whether the update was made.

    A norm that equals the limit is fine. Gradients are already set.
    """
    # BEGIN SOLUTION
    if norm <= limit:
        optimizer.step()
        return True
    return False
    # END SOLUTION

# %% [markdown] tags=["instructor"]
# **Show.** Use one weight, AdamW at 0.1, one step with gradient 0.5, then one with gradient 0: the weight moves again,
# by about two thirds of the first step. **Say.** "In this repository an update is a transaction: an update refused
# before `step` leaves no trace in weights or moments."

# %% [markdown]
# (In the shortened version AdamW's first moment moves every weight, although the gradient is zero.)
#
# ## 8. A guard can hide a failure
#
# You run the loss of TRAIN-001 in fp32 at a rate that is far too high, twice: without a guard, then with the
# distance inside the KL estimate clamped at 10 nats, as in lab 0. One plot shows both.

# %%
too_fast = ("run.num_steps=8", "data.num_prompts=4", "loss.num_iterations=4", "optimizer.learning_rate=0.02")
hiding = lab.panel(preset="original", guards=(), overrides=too_fast, guards_shown=("clamp_kl", "skip_spikes"))
unguarded = await hiding.run()
hiding.keep("no guard")
hiding.switch("clamp_kl", True)
guarded = await hiding.run()
for name, one in (("no guard", unguarded), ("clamp_kl", guarded)):
    table = one.records
    print(f"{name:9} largest norm {table['grad_norm'].max():10,.0f}   reward at the end {table['reward'].iloc[-1]:.2f}")

# %%
# %%exercise hides
# The largest norm is far smaller with the guard. Which statement is true?
#   a  The guard saved the weights from NaN.
#   b  The guard fixed the failure: norm and reward are healthy now.
#   c  The guard hid the explosion; the loss and the rate are as wrong as before, and the model learns nothing.
#   d  The guard acts, but the record does not show it.
# BEGIN SOLUTION
answer = "c"
# END SOLUTION

# %% [markdown]
# ## 9. The cost of a guard
#
# Most guards here leave a healthy run unchanged, bit for bit. Some cannot. Each of these states the reason:

# %%
for name, guard in gl.GUARDS.items():
    if guard.changes_healthy_runs:
        print(f"{name:24} {guard.changes_healthy_runs}")

# %% [markdown]
# In this project's matrix (37 failures, 19 guards, 3 seeds) the guards of the reports cost a healthy run 0.03 of the
# 0.26 of reward that it gains in thirty steps; safe sampling causes most of this cost. The other cost is a false alarm:
# a guard refuses a healthy step. You saw sixteen false alarms in section 6.
#
# ## 10. The smallest set
#
# Now choose a set. The check runs your guards with fresh seeds on a healthy run and on three failures:
#
# - `bad-batch`, the corrupt sample of section 6, in three runs with three seeds,
# - `fp16-adam-epsilon`, AdamW's eps in fp16, in one run,
# - `verl-nan-logprob`, a *filtered token*, in one run: the trainer keeps the likeliest tokens only, and a sampled
#   token is not among them. The trainer gives it −inf under the old policy and under the new one, and −inf − (−inf) is NaN.
#
# All of these must hold. (A *symptom* is a step whose metrics are beyond the limits that the scenario names: with the
# corrupt sample, a KL above 1 together with a norm above 20.)
#
# - at most three guards,
# - no crash, no broken weight and no symptom after an accepted step, and at least half of the steps accepted,
# - the healthy run learns, no guard acts in it, and its gradient is the same as without guards.
#
# The check trains fifty short steps and takes about ten seconds. Each set that you try adds a row to a scoreboard,
# fewest guards first: the failures that it stopped, the steps that it refused, and the held-out reward of the healthy
# run. Begin with `guards = ()`, for a row to compare with. `lab.scoreboard()` shows the scoreboard again.

# %% tags=["slow"]
# %%exercise minimal_set
# Names, as in ("warm_up", "clip_gradients"), or names with settings, as in {"clip_gradients": {"max_norm": 0.5}}.
# BEGIN SOLUTION
guards = ("skip_spikes", "representable_epsilon")
# END SOLUTION

# %% [markdown] tags=["instructor"]
# **Typical wrong sets.** *skip_nonfinite, representable_epsilon, clamp_kl* (`stable` without warm-up): some corrupt
# samples pass a clamp at 10. *The same with `limit` 2 or 5*: acts on the healthy run. *skip_outliers*: judges only
# after ten accepted norms, but the bad sample comes in step 5. *All guards*: clipping shrinks the gradient, and safe
# sampling turns it.
#
# **Say.** "A guard keeps the run alive until you have read its reasons. It is not a cure."
#
# **Results of section 11** (one seed). 1: no. Five steps are rolled back, each because of the same NaN, and the sixth
# stops the run: patience 5. 2: the column `weights/nonfinite` shows all 834,560 with the clip and one without it, and
# the next sampling crashes all the same.

# %% [markdown]
# Two guards are enough here. A threshold written as `norm <= 10` refuses both spikes and NaN. The second guard fixes a
# failure that happens after the gradient. The preset `stable` has four guards, because it covers more failures:
#
# - `representable_epsilon`, as here,
# - `skip_nonfinite` in place of `skip_spikes`: under a threshold, a run whose norms are all large learns nothing, as in
#   section 6,
# - `clamp_kl`, because a refused batch teaches nothing,
# - `warm_up`, for rates that need one.
#
# It stops ten of the 37 failures in the matrix on every seed. No guard there can stop 18 others. In 16 of these the
# numbers are finite and wrong. In the other two every update is NaN: a guard keeps the weights, and the run learns
# nothing.
#
# ## 11. Try other settings
#
# 1. In the panel of section 3: `panel.set("guards.check_weights.then=roll_back")` instead of the reported `warn`, then
#    Start. Does the run reach its end?
# 2. `lab.panel("clip-spreads-nan")`, with and without its clip: how many weights are broken after step 1?
# 3. Your guard with `factor = 2`: on which failures is it better, and when does it refuse a healthy step?
#
# ## 12. Take the guard home
#
# Your own training loop is not this one. Here is a plain one of PyTorch: it teaches a linear layer to sum eight
# numbers. In step 5 one element of its gradient becomes NaN. `update` makes the update.
#
# The second cell runs this loop twice. With `bare`, without a guard, the NaN reaches one weight, then the next loss,
# and through this loss every weight. `guards.step` takes the place of both lines of `bare`: it sees the gradients
# before the update and the weights after it. With `events` it writes a run folder, which `Session.open` reads, and so
# does `grpo-lab trace` in a terminal.

# %%
import torch

def my_loop(update):
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for step in range(10):
        inputs = torch.randn(64, 8)
        loss = (model(inputs) - inputs.sum(dim=1, keepdim=True)).square().mean()
        loss.backward()
        if step == 5:
            model.weight.grad[0, 0] = torch.nan
        update(model, optimizer)
    broken = sum(int(weight.isnan().sum()) for weight in model.parameters())
    print(f"loss {loss.item():.2f}, weights that are NaN: {broken} of 9")

# %%
from grpo_lab.runs.run_folder import new_folder

def bare(model, optimizer):
    optimizer.step()
    optimizer.zero_grad()

home = new_folder(lab.runs / "at_home")
guards = gl.Guards("skip_nonfinite", "check_weights", events=home)
my_loop(bare)
my_loop(guards.step)
guards.close()
at_home = gl.Session.open(home)
print(textwrap.fill(str(at_home.first_break()), width=100))
at_home.records[["step", "verdict", "grad_norm"]]

# %% [markdown] tags=["instructor"]
# **Ask.** "Which guards of this lab can a loop hold that only sees gradients?" Those of the last two stages on the
# board. A guard nearer to the cause must be passed its value: `guards.at("log_ratio", log_ratio)`. **Say.** "TRL's own
# `GRPOConfig(delta=…)` is dual clip: it clamps after `exp`, so section 4 applies to it."

# %% [markdown]
# In TRL it takes one line. A callback holds ten guards in any trainer of transformers: those of gradients and weights,
# and those that change a coefficient, such as `warm_up`:
#
# ```python
# trainer = GRPOTrainer(..., callbacks=[gl.GuardCallback("warm_up", "skip_nonfinite", events="runs/mine")])
# ```
#
# A subclass of GRPOTrainer holds six more, of rewards, advantages, batch and loss, such as `clamp_log_ratio` and
# `clamp_kl`:
#
# ```python
# trainer = gl.guarded(GRPOTrainer)(..., guards="stable", events="runs/mine")
# ```
#
# The page *your-own-trainer* in docs says what each guard can and cannot do in each of these.
#
# ## 13. Ask yourself

# %%
lab.questions()

# %%
lab.export()

# %% [markdown]
# **Next:** lab 5 studies the KL, its value and its gradient.
