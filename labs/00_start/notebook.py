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
# A language model learns to add two numbers, and its training dies. In this course you see many runs die, find out why,
# and save them. The model is tiny, so a run takes seconds on a laptop, without GPU or network.
#
# Click into the cell below and press Shift + Enter. That runs the cell.

# %% [markdown] tags=["instructor"]
# **Plan, 25 minutes.** The first screen 3 · reading 5 · live run and first explosion 6 · first function 3 · one value 3
# · the saved run 5. Every learner should have pressed Start and Stop once, and saved one run, before lab 1; the rest
# can be homework.
#
# **Say.** "You cannot break anything here. Every run keeps its folder, Reset gives you a healthy model, and a crash
# happens in another process."
#
# **Misconceptions to wait for.** *The loss must go down* (in GRPO it hovers around 0). *A gradient norm near 0 is good*
# (it means that the model learns nothing). *The run is stuck* (it is paused or finished: read the status).

# %%
import grpo_lab as gl
from grpo_lab.ui.widgets import Lecture

lab = gl.Lab("00_start")
Lecture(only="verl-nan-logprob")

# %% [markdown]
# ## 1. A run dies, and one is saved
#
# **A** is the run as it happened. For six steps the reward rises: more and more answers are the right sum. In the next
# step one number is the logarithm of 0, and the update makes every weight NaN (*not a number*). One step later the run
# crashes.
#
# Press **B**: the same model, seed and sums, but the cause is repaired, and the guards of the preset `stable` are on (a
# preset is a named set of settings). A *guard* checks or limits one number of each step. **B** runs to the end, and the
# reward goes on rising. The line above the curves names the repair (*heal*) and the reason. It also names a guard
# (*stop*) that would have kept **A** alive without the repair.
#
# **A** goes back. Click into the picture, and the keys ← and → move the run by a step.
#
# The coloured strip is the *chain*: the rows are the parts of a training step, and the columns are steps. A step can
# have several updates of the weights; in a very short run each column is one update. Green is healthy, yellow is a
# warning, red is broken, and a frame marks the first break. These are the questions of every lab: **which number broke
# first, why, what stops it, and does the model then learn?**

# %% [markdown]
# ## 2. Read a run
#
# This recorded run of sixty steps does not crash. Move the slider *steps shown* below the curves to go back to any
# step. The answers of the model to the right of the tabs belong to that step.
#
# You can also look inside a step. Click a point of a curve, and the tokens of that step (here: the characters of some
# answers) open below. Click a cell of the strip, and the numbers of that part of the step open, with the lines of the
# trainer that computed them.

# %%
panel = lab.panel(recording="lecture-bad-batch", controls=("learning_rate",), guards_shown=(), grouped=True)
panel

# %% [markdown]
# | curve | healthy here | meaning |
# |---|---|---|
# | gradient norm | below 10 | length of the whole gradient, *before* clipping; the axis is logarithmic |
# | KL | below 1 | distance of the model from the model it started as |
# | reward | rises, with noise | share of answers that are the right sum |
# | largest ratio | below 5 | how many times as likely a token is now as when it was sampled: the largest of all tokens |
#
# *Clipping* shortens a gradient that is longer than a limit to this limit, before the update.
#
# An exercise is a cell that begins with `%%exercise`. Replace the dots with your answer and run the cell. It marks each
# part as right or wrong and explains every mistake. Three hints are below it; the last one nearly gives the answer. You
# may try as often as you like. Exact numbers are in the tab *Runs*, under *Table*.

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
# One damaged sample caused this jump: click the peak of the norm to see its tokens. The reward looks fine, the norm and
# the KL jump, and the next step looks normal again. You will meet this run again. The record of the run holds the same
# numbers, one row per step:

# %%
panel.session.records[["step", "grad_norm", "kl", "reward", "ratio/max"]]

# %% [markdown]
# ## 3. A healthy run, live
#
# The next cell shows a new panel, presses Start for you, and waits for the end. Training runs in another process, so
# this notebook stays usable even if the run crashes.

# %%
live = lab.panel(
    preset="plain",
    overrides=("data.num_prompts=8", "run.num_steps=20"),
    controls=("learning_rate",),
    guards_shown=("clip_gradients",),
    grouped=True,
)
healthy = await live.run()

# %% [markdown]
# The norm stays between 1 and 5, the KL rises slowly and stays below 1, the largest ratio is 1, and the whole strip is
# healthy. The reward rises with much noise: each point is the mean of 64 answers. The panel has no curve for the loss.
# In GRPO the loss hovers around 0 even in a run that learns, so it tells you almost nothing.
#
# Now use the buttons yourself. Press **Start**, then **Pause**, then **Step** a few times: the strip fills column by
# column. **Stop** ends the run after its current step. **Reset** restores the settings and makes room for the next run,
# which starts from a healthy model. The last run stays as a faint grey curve; the switch *show the last run* in the tab
# *Runs* hides it. Nothing is deleted. At last press **Start** once more and let the run end: section 6 compares with
# it.

# %% [markdown]
# ## 4. A first explosion
#
# The second kind of exercise is a prediction. You make it *before* the run, and your first answer is kept. Run the next
# cell, whose code is folded. Then choose, and press the button. (TRAIN-001 is a field report: somebody's account of a
# training that went wrong. Lab 2 takes it apart.)

# %%
# %%exercise guess
# The same model with the loss of the report TRAIN-001, at a rate of 0.02: 2000 times the report's. What will you see?
#   a  The reward falls slowly; every other curve is healthy.
#   b  Norm and KL jump by orders of magnitude in the first steps; the run still reaches its end.
#   c  Weights become NaN, and the run crashes.
#   d  Nothing unusual: gradient clipping prevents it.
# BEGIN SOLUTION
answer = "b"
# END SOLUTION

# %%
too_fast = ("run.num_steps=12", "data.num_prompts=4", "loss.num_iterations=4", "optimizer.learning_rate=0.02")
first = {"controls": ("learning_rate",), "guards_shown": ("clamp_kl",), "grouped": True}
explosion = lab.panel(preset="original", overrides=too_fast, **first)
exploded = await explosion.run()

# %% [markdown]
# <details><summary>Our measurement: open it after your run</summary>
#
# On our machine the norm is 64,000 in the first step and the KL is above 10,000. From the second step on, almost no
# answer is right. Yet the run reaches its end and every weight is finite: look at the answers of the last step. In lab
# 2 the same loss explodes at a rate at which a right loss learns, and you find the token that caused it. In lab 3 the
# same cause crashes the run.
#
# </details>
#
# The tab *Guards* has a switch for the guard `clamp_kl`, and states its cost. Press **Reset**, switch the guard on, and
# press **Start**. Is the norm lower? Is the reward better?

# %% [markdown] tags=["instructor"]
# **Ask.** "The guard made the largest norm more than ten times smaller. Who would ship the model?" The reward is 0
# either way. This is the theme of the course: a guard keeps a run alive, but it does not make a wrong loss teach.

# %% [markdown]
# ## 5. A first function
#
# The third kind asks for code. The cell writes your function to a file, `answers/00_start/out_of_range.py`; later labs
# train with such files. This function is small, but it has a trap: a published guard fell into it.

# %%
# %%exercise out_of_range
def steps_out_of_range(norms, limit):
    """The steps (counted from 0) whose norm is above the limit, infinite, or NaN.

    The limit itself is in range.
    """
    # BEGIN SOLUTION
    return [step for step, norm in enumerate(norms) if not norm <= limit]
    # END SOLUTION

# %%
norms = exploded.records["grad_norm"].tolist()
print("steps with a norm above 10:", lab.answer("out_of_range").steps_out_of_range(norms, 10.0))

# %% [markdown]
# ## 6. One value
#
# Other exercises ask for settings. Which learning rate suits this model? Run the next cell: it moves the panel of
# section 3 below itself, keeps the run on screen for comparison, and starts another at 1e-2. Then try other rates in
# the panel below, by slider or number box.

# %%
live.keep("3e-4")
live.set("optimizer.learning_rate=1e-2")
too_high = await live.run()

# %% [markdown]
# At 1e-2 the KL rises above 1 and the reward falls to nearly 0, while the norm ends lower than before. At 1e-5 nothing
# moves. In between is a range in which twelve steps teach the model something:

# %%
# %%exercise learning_rate
# A number, as in 1e-2. The check trains 12 steps at this rate and tests 400 sums that it never trains on.
# BEGIN SOLUTION
learning_rate = 3e-4
# END SOLUTION

# %% [markdown]
# ## 7. Save a run
#
# The last run of this lab is healthy except for one number. In step 20 one of its 128 rewards is NaN ("not a number"),
# as from a judge that timed out. The guard `sanitize_rewards` leaves an answer (a *completion*) out if its reward is
# not a number. Predict first:

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
    grouped=True,
)
doomed = await rescue.run()

# %% [markdown]
# <details><summary>What happened: open it after your run</summary>
#
# One NaN among 128 rewards made NaN of all eight answers to that prompt, then of the gradient, then of every weight. In
# the next step sampling crashed. The two diamonds of a run that ends well show its *held-out reward*, on 200 sums that
# it never trains on, before and after; this run has only the first.
#
# </details>
#
# Now it is your turn. The next cell keeps this run in the plot and starts another with the same seed, at two steps a
# second. **While it runs, and before step 20, switch `sanitize_rewards` on in the tab *Guards* of the panel.** Then
# choose full speed in the menu *pace*.

# %%
rescue.keep("no guard")
saved = await rescue.run()

# %% [markdown]
# Were you too late? Then the run crashed again, and the next cell does the same in code. If your run was saved, the
# cell only prints its summary.

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
# everything that it had learned: on five seeds its held-out reward rises from 0.22–0.31 to 0.60–0.66, as much as in
# runs without the NaN (0.58–0.68). In this run everything else was right. In section 4 the loss itself was wrong, and
# the guard only made the curves look better. You will often have to tell these two cases apart.

# %% [markdown] tags=["instructor"]
# **Show.** Let the class call out the moment for the switch. Then do it too late, during step 20: the update has made
# every weight NaN, and the next sampling crashes before the guard can act. **Say.** "A guard protects the next update.
# It brings no weight back."
#
# **Close with** the three questions of the course, on the board: Is it finite? Does it learn? Is it the loss that I
# meant?

# %% [markdown]
# ## 8. Ask yourself

# %%
lab.questions()

# %% [markdown]
# The next cell lists every exercise of the course: passed, attempted or open. The one below it puts your answers, runs
# and figures into one file. **Next:** in lab 1 you work GRPO out by hand, with numbers that fit on a page.

# %%
lab.progress()

# %%
lab.export()
