# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # Lab 0. Start here
#
# In this course you train a language model with GRPO many times. Most of these runs go wrong: you make a run explode,
# find the cause, and stop it. The model is tiny (0.8 million weights; it learns to add two numbers), so a run takes
# seconds on a laptop. You need no GPU and no network. One panel shows everything; this lab introduces it.
#
# To run a cell, click into it and press Shift + Enter. Then run the next one. Begin with this cell:

# %% [markdown] tags=["instructor"]
# **Plan, 25 minutes.** Panel and curves 6 · reading 4 · live run and first explosion 5 · first function 3 · one value 3 ·
# the saved run 4. Every learner should have pressed Start and Stop once, and saved one run, before lab 1; the rest can be
# homework.
#
# **Say.** "You cannot break anything here. Every run keeps its folder, Reset gives you a healthy model, and a crash
# happens in another process."
#
# **Misconceptions to wait for.** *The loss must go down* (in GRPO it hovers around 0). *A gradient norm near 0 is good*
# (it means that the model learns nothing). *The run is stuck* (it is paused or finished: read the status).

# %%
import grpo_lab as gl

lab = gl.Lab("00_start")
panel = lab.panel(recording="lecture-bad-batch")
panel

# %% [markdown]
# ## 1. The panel in three minutes
#
# The panel shows a recorded run of sixty steps. From top to bottom:
#
# - **Buttons.** Start, Pause, Step, Stop, Reset. Reset empties the plot and restores the settings that the panel began
#   with; the next run starts from a healthy model. Reset deletes nothing. The menu *pace* slows a live run down, so that
#   you can act while it goes on.
# - **Status.** One word (healthy, spiking, skipping, poisoned, crashed, done), what a run that is done has learned, the
#   step, and the first broken link, if there is one.
# - **Curves.** One point per step; the table below explains each curve. The axis of the norm is logarithmic.
#   A dashed line with a name marks a guard that acted.
# - **Chain.** A strip of cells beside the curves (below them on a narrow page). Rows are the links of one step, from
#   sampling to the weights; columns are steps. Green is healthy, yellow is a warning, red is broken. A frame marks the
#   first break.
# - **Slider "steps shown"**, and Play: go back to any step. The completions below the slider belong to that step.
# - **Tabs.** *Settings*: sliders, each with a number box. *Guards*: one switch per guard, with its cost and the
#   symptoms that it hides. *Scenario*: choose a scenario to run. *Runs*: open another run, keep one for comparison, or
#   show the curves as a *Table*.
#
# | curve | healthy here | meaning |
# |---|---|---|
# | gradient norm | below 10 | length of the whole gradient, *before* clipping |
# | KL | below 1, in nats per token | distance of the policy from the model it started as |
# | reward | rises, with noise | share of completions that are the right sum |
# | largest ratio | below 5 | how many times as likely a token is now as when it was sampled: the largest of all tokens; 1 before the first update |
#
# `METRICS` holds such a description for every metric in the record of a run:

# %%
from grpo_lab.metrics import METRICS, meaning

for name in ("reward", "grad_norm", "kl", "ratio/max", "entropy", "completions/mean_length", "weights/nonfinite"):
    metric = METRICS[name]
    print(f"{name:26} {metric.low:5g} … {metric.high:<5g} {metric.unit:7} {meaning(name)}")

# %% [markdown]
# ## 2. Read a run
#
# Move the slider of the panel above through all steps and read off three values. Exact numbers are in the tab *Runs*,
# under *Table*. An exercise is a cell that begins with `%%exercise`. Replace the dots with your answer and run the
# cell. The cell marks each part as right or wrong and explains every mistake. Three hints are below it; the last hint
# nearly gives the answer. You may try as often as you like.

# %%
# %%exercise reading
# spike_step: the step with the largest gradient norm (counted from 0). spike_norm: that norm.
# reward_noticed: True or False. Does the reward of that step stand out from the others?
# BEGIN SOLUTION
spike_step = 5
spike_norm = 906
reward_noticed = False
# END SOLUTION

# %% [markdown]
# One damaged sample caused this jump. The reward looks fine, one number jumps, and the next step looks normal again.
# You will meet this run again. The record of the run holds the same numbers, one row per step:

# %%
panel.session.records[["step", "grad_norm", "kl", "reward", "ratio/max"]]

# %% [markdown]
# ## 3. A healthy run, live
#
# The next cell shows a new panel, presses Start for you, and waits for the end. (You can also use the buttons yourself.)
# Training runs in another process, so this notebook stays usable even if the run crashes.

# %%
live = lab.panel(
    preset="plain",
    overrides=("data.num_prompts=8", "run.num_steps=20"),
    controls=("learning_rate", "beta"),
    guards_shown=("clip_gradients",),
)
healthy = await live.run()

# %% [markdown]
# The norm stays between 1 and 5, the KL rises slowly and stays below 1, the largest ratio is 1, and the whole strip is
# healthy. The reward rises with much noise: each point is the mean of 64 completions. The panel has no curve for the
# loss. In GRPO the loss hovers around 0 even in a run that learns, so it tells you almost nothing.

# %% [markdown]
# ## 4. A first explosion
#
# The second kind of exercise is a prediction. You make it *before* the run, and your first answer is kept.

# %%
# %%exercise guess
# The same model, with the loss of the field report TRAIN-001 and a rate 2000 times as high. What will you see?
#   a  The reward falls slowly; every other curve is healthy.
#   b  Norm and KL jump by orders of magnitude in the first steps; the run still reaches its end.
#   c  Weights become NaN, and the run crashes.
#   d  Nothing unusual: gradient clipping prevents it.
# BEGIN SOLUTION
answer = "b"
# END SOLUTION

# %%
too_fast = ("run.num_steps=12", "data.num_prompts=4", "loss.num_iterations=4", "optimizer.learning_rate=0.02")
explosion = lab.panel(preset="original", overrides=too_fast, controls=("learning_rate",), guards_shown=("clamp_kl",))
exploded = await explosion.run()

# %% [markdown]
# On our machine the norm is 70,000 in the first step and the KL is above 10,000. From the second step on, almost no
# answer is right. Yet the run reaches its end and every weight is finite: look at the completions of the last step. In
# lab 2 the same loss explodes at a rate at which a right loss learns, and you find the token that caused it. In lab 3 the
# same cause crashes the run.
#
# Now press **Reset**, switch `clamp_kl` on, and press **Start**. Is the norm lower? Is the reward better?

# %% [markdown] tags=["instructor"]
# **Ask.** "The guard made the largest norm more than ten times smaller. Who would ship the model?" The reward is 0 either way. This
# is the theme of the course: a guard keeps a run alive, but it does not make a wrong loss teach.

# %% [markdown]
# ## 5. A first function
#
# The third kind asks for code. The cell writes your function to a file, `answers/00_start/out_of_range.py`; later labs
# train with such files. This function is small, but it has a trap: a published guard fell into it.

# %%
# %%exercise out_of_range
def steps_out_of_range(norms, limit):
    """The steps (counted from 0) whose norm is above the limit, infinite, or NaN. The limit itself is in range."""
    # BEGIN SOLUTION
    return [step for step, norm in enumerate(norms) if not norm <= limit]
    # END SOLUTION

# %%
norms = exploded.records["grad_norm"].tolist()
print("steps with a norm above 10:", lab.answer("out_of_range").steps_out_of_range(norms, 10.0))

# %% [markdown]
# ## 6. One value
#
# The last kind asks for settings. Which learning rate suits this model? Try some in the panel of section 3, by slider
# or number box, or in code as below. `keep` leaves the previous run in the plot for comparison.

# %%
live.keep("3e-4")
live.set("optimizer.learning_rate=1e-2")
too_high = await live.run()

# %% [markdown]
# At 1e-2 the KL rises above 1 and the reward falls to nearly 0, while the norm ends lower than before. At 1e-5 nothing
# moves. In between is a range in which twelve steps teach the model something:

# %%
# %%exercise learning_rate
# A number, as in 1e-2. The check trains 12 steps at this rate and tests 400 held-out sums before and after.
# BEGIN SOLUTION
learning_rate = 3e-4
# END SOLUTION

# %% [markdown]
# ## 7. Save a run
#
# The last run of this lab is healthy except for one number. In step 20 one of its 128 rewards is NaN ("not a number"),
# as from a judge that timed out. The guard `sanitize_rewards` leaves a completion out if its reward is not a number.
# Predict first:

# %%
# %%exercise rescue
# One run goes without the guard, one with it. What will you see?
#   a  Without it the model learns a little less; with it nothing changes.
#   b  Without it every weight is lost and the run crashes; with it the run goes on, but its reward rises no more.
#   c  Without it every weight is lost and the run crashes; with it the reward rises as if nothing had happened.
#   d  Both runs crash: one NaN is enough.
# BEGIN SOLUTION
answer = "c"
# END SOLUTION

# %%
rescue = lab.panel(
    preset="plain",
    overrides=("run.num_steps=60", "run.num_eval=200", "faults.nan_reward.at_step=20"),
    controls=("learning_rate",),
    guards_shown=("sanitize_rewards",),
    pace=2,
)
doomed = await rescue.run()

# %% [markdown]
# One NaN among 128 rewards made the advantages of its group NaN, then the gradient, then every weight. In the next step
# sampling crashed. The two diamonds of a run that ends well show its *held-out reward*, on 200 sums that it never
# trains on, before and after; this run has only the first.
#
# Now it is your turn. The next cell keeps this run in the plot and starts another with the same seed, at two steps a
# second. **While it runs, and before step 20, switch `sanitize_rewards` on in the tab *Guards* of the panel.** Then
# choose full speed in the menu *pace*.

# %%
rescue.keep("no guard")
saved = await rescue.run()

# %% [markdown]
# Were you too late? Then the run crashed again, and the next cell does the same in code. If your run was saved, the cell
# only prints its summary.

# %%
from grpo_lab.runs.summary import summary

if saved.crash:
    rescue.start()
    rescue.switch("sanitize_rewards", True)
    saved = await rescue.run()

print(summary(saved.events))

# %%
# %%exercise saved
# Read four values off your run: its end in one word, the guard that saved it, the step in which this guard acted, and
# the held-out reward after the run.
# BEGIN SOLUTION
ended = "done"
guard = "sanitize_rewards"
acted = 20
held_out = 0.645
# END SOLUTION

# %% [markdown]
# Two runs with the same seed were equal up to step 20. One is dead. The other one lost a single completion and kept
# everything that it had learned: on five seeds its held-out reward rises from 0.22–0.31 to 0.60–0.66, as much as in runs
# without the NaN (0.58–0.68). In this run everything else was right. In section 4 the loss itself was wrong, and the
# guard only made the curves look better. You will often have to tell these two cases apart.

# %% [markdown] tags=["instructor"]
# **Show.** Let the class call out the moment for the switch. Then do it too late, during step 20: the update has made
# every weight NaN, and the next sampling crashes before the guard can act. **Say.** "A guard protects the next update. It
# brings no weight back."

# %% [markdown]
# ## 8. Try other settings
#
# 1. Press Start and move the learning rate during the run: the plot marks the moment.
# 2. Press Pause, then Step a few times. The strip fills column by column.
# 3. Press Start and then Stop immediately. The run finishes its current step and ends.

# %%
live.clear()
live.set("optimizer.learning_rate=3e-4", "loss.beta=1.0")
await live.run()

# %% [markdown]
# (A beta of 1 ties the policy to its starting point. On our machine the KL ends a third lower, and the reward is lower
# too.)

# %% [markdown] tags=["instructor"]
# **Close with** the three questions of the course, on the board: Is it finite? Does it learn? Is it the loss that I
# meant?

# %% [markdown]
# ## 9. Ask yourself

# %%
lab.questions()

# %% [markdown]
# The next cell lists every exercise of the course: passed, attempted or open. You can add such a cell to any lab, or run
# `grpo-lab labs progress` in a terminal.

# %%
lab.progress()

# %%
lab.export()

# %% [markdown]
# The last cell put your answers, runs and figures into one file. **Next:** in lab 1 you work GRPO out by hand, with
# numbers that fit on a page.
