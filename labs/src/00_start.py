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
# In this course a language model is trained by GRPO, over and over, and most of the time it goes wrong: you make it explode, find
# out why, and stop it. The model is tiny (0.8 million weights; it learns to add two numbers), so that a run takes seconds on a
# laptop, without GPU and without network. Everything happens in one panel. This lab shows it.
#
# How to use a notebook: click into a cell and press Shift + Enter to run it; then the next. Begin with this one:

# %% [markdown] tags=["instructor"]
# **Plan, 20 minutes.** Panel and curves 6 · reading 4 · live run and first explosion 5 · first function 3 · one value 3.
# Everybody should have pressed Start and Stop once before the next lab; the rest can be homework.
#
# **Say.** "You cannot break anything here. Every run keeps its folder, Reset gives you a healthy model, and a crash happens
# in another process."
#
# **Misconceptions to wait for.** *The loss must go down* (in GRPO it hovers around 0). *A gradient norm near 0 is good* (it
# means that nothing is learned). *The run is stuck* (it waits at Pause, or it is over: read the status).

# %%
import grpo_lab as gl

lab = gl.Lab("00_start")
panel = lab.panel(recording="lecture-bad-batch")
panel

# %% [markdown]
# ## 1. The panel in three minutes
#
# This is a recorded run of twelve steps. From top to bottom:
#
# - **Buttons.** Start, Pause, Step, Stop, Reset. Reset empties the plot and puts back the settings that the panel began with;
#   the next run starts from a healthy model. Nothing is deleted.
# - **Status.** One word (healthy, spiking, skipping, poisoned, crashed, done), the step, and what broke first if anything did.
# - **Curves.** One point a step; the table below says what each means. The norm's axis is logarithmic.
# - **Chain.** A strip: rows are the links of one step, from sampling to the weights, columns are steps. Green is healthy,
#   yellow a warning, red broken, and the first break is marked.
# - **Slider "steps shown"**, and Play: go back to any step. The completions below it are of that step.
# - **Tabs.** *Settings*: sliders with a number beside each. *Guards*: a switch each, with what it costs and hides.
#   *Scenario*: what to run. *Runs*: open another one, keep one to compare with, and *Table*, the curves as numbers.
#
# | curve | healthy here | what it is |
# |---|---|---|
# | gradient norm | below 10 | length of the whole gradient, *before* clipping |
# | KL | below 1, in nats a token | how far the policy has moved from the model that it began as |
# | reward | rises, with noise | share of completions that are the right sum |
# | largest ratio | below 5 | how much likelier one token has become since it was sampled; 1 before the first update |
#
# The same words for every metric that a run records:

# %%
from grpo_lab.metrics import METRICS

for name in ("reward", "grad_norm", "kl", "ratio/max", "entropy", "completions/mean_length", "weights/nonfinite"):
    metric = METRICS[name]
    print(f"{name:24} healthy {metric.low:g} to {metric.high:g} {metric.unit:7} {metric.meaning}")

# %% [markdown]
# ## 2. Read a run
#
# Move the slider of the panel above through all steps, and read off three things; exact numbers are in the tab *Runs*,
# under *Table*. An exercise is a cell that begins with
# `%%exercise`: put your answer in place of the dots and run the cell. It says what is right, and why not if it is not. Below it
# are three hints; the last one nearly tells. You may try as often as you like.

# %%
# %%exercise reading
# spike_step: the step with the largest gradient norm (counted from 0). spike_norm: that norm.
# reward_noticed: True or False. Does the reward of that step stand out from the others?
# BEGIN SOLUTION
spike_step = 5
spike_norm = 1390
reward_noticed = False
# END SOLUTION

# %% [markdown]
# One damaged sample did that. The reward looks fine, one number jumps, and in the next step all is as before. You will
# meet this run again. What you read off is also in a table, a row a step:

# %%
panel.session.records[["step", "grad_norm", "kl", "reward", "ratio/max"]]

# %% [markdown]
# ## 3. A healthy run, live
#
# The next cell shows a panel of its own, the one after it presses Start for you and waits for the end. (Or press Start
# yourself, then Pause, Step, Stop.) The training goes on in another process: this notebook stays usable, whatever happens
# there.

# %%
live = lab.panel(
    preset="plain",
    overrides=("data.num_prompts=8", "run.num_steps=20"),
    controls=("learning_rate", "beta"),
    guards_shown=("clip_gradients",),
)
live

# %%
healthy = await live.run()

# %% [markdown]
# Norm between 1 and 5, KL rising slowly and below 1, largest ratio 1, the whole strip healthy, and a reward that rises with
# much noise: each point is the mean over 64 completions. Loss is not among the curves. In GRPO it hovers around 0, also in a
# run that learns, and says next to nothing.

# %% [markdown]
# ## 4. A first explosion
#
# The second kind of exercise is a prediction. It is asked *before* a run, and your first answer stays.

# %%
# %%exercise guess
# The same model with the loss of a report from the field, TRAIN-001, and a high learning rate. What will you see?
#   a  The reward falls slowly; every other curve is healthy.
#   b  Norm and KL jump by orders of magnitude in the first steps; the run goes on to its end.
#   c  Weights become NaN, and the run crashes.
#   d  Nothing: clipping the gradient takes care of it.
# BEGIN SOLUTION
answer = "b"
# END SOLUTION

# %%
explosion = lab.panel("train-001", overrides=("run.num_steps=12",), controls=("learning_rate",), guards_shown=("clamp_kl",))
explosion

# %%
exploded = await explosion.run()

# %% [markdown]
# Where this was written the norm is 60,000 in the first step already, the KL above 10,000, and from the second step on hardly any
# answer is right. Yet the run goes to its end, and every weight is a finite number: look at the completions of the last
# step. Lab 2 finds the token that did it, lab 3 makes the same cause crash.
#
# Now press **Reset**, switch `clamp_kl` on, and press **Start**. Is the norm lower? Is the reward better?

# %% [markdown] tags=["instructor"]
# **Ask.** "The guard made the norm a hundred times smaller. Who would ship the model?" The reward is 0 either way. It is the
# theme of the course: a guard keeps a run alive, it does not make a wrong loss teach.

# %% [markdown]
# ## 5. A first function
#
# The third kind asks for code. Your function is written to a file, `answers/00_start/out_of_range.py`, from where later labs
# train with it. This one is small, and it has a trap that a published guard fell into.

# %%
# %%exercise out_of_range
def steps_out_of_range(norms, limit):
    """The steps (counted from 0) whose norm is not fine: above the limit, infinite, or not a number at all."""
    # BEGIN SOLUTION
    return [step for step, norm in enumerate(norms) if not norm <= limit]
    # END SOLUTION

# %%
norms = exploded.records["grad_norm"].tolist()
print("steps with a norm above 10:", lab.answer("out_of_range").steps_out_of_range(norms, 10.0))

# %% [markdown]
# ## 6. One value
#
# The last kind names settings. Which learning rate does this model take? Try some in the healthy panel of section 3, by
# slider or number box, or like this. The run before stays in the plot, so that you can compare.

# %%
live.keep("3e-4")
live.set("optimizer.learning_rate=1e-2")
too_high = await live.run()

# %% [markdown]
# At 1e-2 the KL rises above 1 and the reward falls to nothing, while the norm ends lower than before. At 1e-5 nothing
# moves. In between there is a range in which twelve steps teach something:

# %%
# %%exercise learning_rate
# A number, as in 1e-2. The check trains 12 steps at it and looks at 400 held-out sums before and after.
# BEGIN SOLUTION
learning_rate = 3e-4
# END SOLUTION

# %% [markdown]
# ## 7. What if
#
# 1. Press Start and move the learning rate while it runs: the plot marks the moment.
# 2. Press Pause, then Step a few times. The strip fills column by column.
# 3. Press Start and, at once, Stop. The run ends after the step that it is in.

# %%
live.clear()
live.set("optimizer.learning_rate=3e-4", "loss.beta=1.0")
await live.run()

# %% [markdown]
# (A beta of 1 ties the policy to where it began. Where this was written the KL ends a third lower, and the reward lower too.)

# %% [markdown] tags=["instructor"]
# **Close with** the three questions of the course, on the board: Is it finite? Does it learn? Is it the loss that I meant?

# %% [markdown]
# ## 8. Ask yourself

# %%
lab.questions()

# %%
lab.export()

# %% [markdown]
# The last cell put your answers, runs and figures into one file. **Next:** lab 1 works GRPO out by hand, with numbers that
# fit on a page.
