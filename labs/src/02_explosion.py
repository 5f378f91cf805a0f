# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # Lab 2. The explosion
#
# The field report TRAIN-001 describes a first round of GRPO on GPT-2 that seems to end well, with a gradient norm of
# **113,818,385**. The report's remedy is a list of eight changes. In this lab you make a norm explode yourself and find
# the one token that caused it. Then you make the necessary change: two lines.
#
# You need from lab 1: advantage, ratio, clip, and the KL estimate k3 of a token, $e^d - 1 - d$ with $d$ = reference
# log-probability − policy log-probability.

# %% [markdown] tags=["instructor"]
# **Plan, 45 minutes.** Recording and prediction 5 · run and trace 8 · `gradient` and `reported` 10 · `culprit` 8 ·
# `log_ratio` and `bounded` with their A/B 9 · clip and `in_words` 5. Leave "what if" to the fast learners.
#
# **Say.** "Every number in the config is reasonable. The loss is PPO's, every formula is in a paper, and the norm is a
# hundred million."
#
# **Misconceptions to wait for.** *Clipping protects PPO from large ratios* (on one side only). *A large norm ruins
# weights* (not in fp32). *The ratio must have exploded* (here the KL estimate exploded, and the record shows it).
# *Smaller numbers in the config make it safe* (none of the report's four smaller settings does).

# %%
import grpo_lab as gl

lab = gl.Lab("02_explosion")

# %% [markdown]
# ## 1. A recorded run
#
# This is a recorded run of SmolLM2-135M with the loss of the report. Look first at the gradient norm (log scale), then
# at the reward, then at the sampled text below. Move the time slider from the first step to the last.

# %%
lab.panel(recording="train-001-smollm2")

# %% [markdown]
# One token had become $e^{33.5}$ times less likely than under the reference. The norm was 9 · 10¹³ in the first round.
# How did the sampled text change after it?

# %% [markdown]
# ## 2. Predict
#
# Now you run the same loss on a model that trains in seconds: 0.8 million weights, in fp32, adding two numbers. Each
# batch gets four updates, and gradients are clipped to a norm of 0.5. The learning rate is 2000 times the report's,
# because this model is 150 times smaller than GPT-2 and trains for only eight rounds; at 1e-5 it would hardly move.

# %%
# %%exercise forecast
# You train eight rounds. What will you see?
#   a  The logged norm stays near 0.5, because gradients are clipped to 0.5.
#   b  The norm passes 10,000, weights become NaN, and the next sampling crashes.
#   c  The norm passes 10,000, every weight stays finite, and the reward falls to 0.
#   d  The norm rises slowly; eight rounds are too few to see anything.
# BEGIN SOLUTION
answer = "c"
# END SOLUTION

# %% [markdown]
# ## 3. Cause it
#
# Run the next two cells. (The second one does the same as the Start button and waits for the end.)

# %%
panel = lab.panel(
    "train-001",
    overrides=("run.num_steps=8",),
    controls=("learning_rate", "beta", "epsilon", "max_grad_norm"),
    guards_shown=("clip_gradients", "clamp_log_ratio", "clamp_kl", "dual_clip"),
)
panel

# %%
run = await panel.run()

# %%
columns = ["grad_norm", "kl", "ratio/max", "log_ratio/max", "reward"]
run.records[["step", *columns, "weights/nonfinite", "weights/max_move"]]

# %% [markdown]
# <details><summary>Our measurement: open it after your run</summary>
#
# Read the table from the left. The log shows the norm *before* clipping, as in every framework, so clipping hides
# nothing here. No weight is broken. The reward falls to 0 after one round and stays there; look at the model's answers
# in the panel.
#
# </details>

# %% [markdown] tags=["instructor"]
# **Ask.** "Who predicted b?" Most do. fp32 reaches 3.4 · 10³⁸, so a norm of 60,000 is harmless. Lab 3 runs the same
# cause in fp16, and there b is right.
#
# **Say.** "The largest move is 0.08 in every round: four updates of 0.02, the learning rate. AdamW divides by the
# gradient's own size. The norm does not tell how far the weights moved."

# %% [markdown]
# ## 4. Trace it
#
# Which token caused it? For every link of the loss and every update, the run records the largest magnitude and its
# position. Here is the step with the largest norm.

# %%
from grpo_lab.events import Stepped

print("first link that was not finite:", run.first_break())
steps = [event for event in run.events if isinstance(event, Stepped)]
step = steps[run.records["grad_norm"].idxmax()]
print(f"step {step.step}:")
for note in step.links:
    if note.link in ("log_ratio", "ratio", "loss", "log_ratio_gradient", "gradients"):
        print(f"update {note.update}  {note.link:19} {note.magnitude:10.3g}  {note.where}")

# %% [markdown]
# On our machine it is step 0, and the step begins healthy: in update 0 the log-ratio is 0.000002 (rounding) and the
# norm is 2.3. One update later a token is 6 nats from the reference, and after another update 13 nats. Then the norm is
# 60,000.
#
# `log_ratio … [4, 3]` is row 4, token 3. Rows are completions, four per prompt, so row 4 is the first completion of the
# second prompt: the second of the samples below. Token 3 comes after three other tokens, so after a three-digit answer
# it is the end token. (The run keeps only every fourth completion as a sample; your row may be missing.)

# %%
for prompt, completion, reward in step.samples:
    print(f"{prompt!r} -> {completion!r}, reward {reward:g}")

# %% [markdown]
# <details><summary>Was it the ratio? First read the numbers of that update, then open this</summary>
#
# The report overlooked this. The largest *ratio* of that update is about 5, although a token is 13 nats away. So the
# log-ratio of that token is −13, not +13: the policy has nearly unlearned the token, and its ratio is $e^{-13}$,
# almost 0. The gradient at the log-ratio is small, too. The ratio is not the cause.
#
# </details>
#
# Two terms of the loss take exp of this distance. To distinguish them you need the gradient of each term for one token.

# %% [markdown]
# ## 5. The side that min leaves open
#
# The clipped surrogate of one token is $-\min(rA,\ \mathrm{clip}(r, 1-\epsilon, 1+\epsilon)\,A)$ with
# $r = e^{\text{log-ratio}}$. Work out its derivative with respect to the log-ratio on paper. Which
# branch does min pick in each of the four cases (A above or below 0, r above or below the range)?

# %%
# %%exercise gradient
import math

def gradient(log_ratio, advantage, epsilon=0.2):
    """Derivative of -min(r A, clip(r) A) with respect to the log-ratio, for one token: a number."""
    ratio = math.exp(log_ratio)
    # BEGIN SOLUTION
    clipped_above = advantage > 0 and ratio > 1 + epsilon
    clipped_below = advantage < 0 and ratio < 1 - epsilon
    return 0.0 if clipped_above or clipped_below else -ratio * advantage
    # END SOLUTION

# %%
gradient = lab.answer("gradient").gradient
print("log-ratio      A = +1             A = -1")
for nats in (0.0, 0.5, 5.0, 10.0, 15.0):
    print(f"{nats:9} {gradient(nats, +1.0):11,.2f} {gradient(nats, -1.0):18,.2f}")

# %% [markdown]
# With A > 0 the clip works: beyond $1 + \epsilon$ the gradient is 0. With A < 0 nothing bounds the ratio. One token
# with three properties is enough for an explosion: it is very unlikely under the denominator, the policy now likes it,
# and its completion has a negative advantage.

# %%
# %%exercise reported
# A token on the open side, A = -1, has a gradient of 113,818,385. How many nats away is it?
# BEGIN SOLUTION
nats = 18.55
# END SOLUTION

# %% [markdown]
# So one token is enough; the explosion needs no accumulation of small errors. And 18.55 nats are not far if you measure
# from the *reference*: training moves the policy away from it in every round.

# %% [markdown] tags=["instructor"]
# **Say.** "Eighteen nats: the reference gives the token one chance in a hundred million. After training, the policy
# often samples such tokens; that is learning."
#
# **Common mistake.** Returning 0 on both sides ("clip is clip"). Let learners evaluate min(9·(−1), 1.2·(−1)).

# %% [markdown]
# ## 6. Which token, through which exp?
#
# The other term is $\beta\,(e^d - 1 - d)$ with $d = -\text{log-ratio}$ (here both are measured from the reference). It
# explodes on the *other* side: for a token that the policy has unlearned. Write a function that names the culprit. The
# part for the ratio is given; add the part for the KL estimate.

# %%
# %%exercise culprit
import torch

def culprit(log_ratio, advantages, beta, epsilon=0.2):
    """(row, token, "ratio" or "kl") of the largest gradient with respect to log_ratio, (B, T)."""
    ratio, a = log_ratio.exp(), advantages[:, None]
    clipped = ((a > 0) & (ratio > 1 + epsilon)) | ((a < 0) & (ratio < 1 - epsilon))
    of_ratio = (ratio * a).abs().masked_fill(clipped, 0.0)
    # BEGIN SOLUTION
    of_kl = beta * (torch.exp(-log_ratio) - 1).abs()
    term, pull = ("ratio", of_ratio) if of_ratio.max() > of_kl.max() else ("kl", of_kl)
    row, token = divmod(int(pull.argmax()), pull.shape[1])
    return row, token, term
    # END SOLUTION

# %% [markdown]
# Test it with the numbers of the trace: a token at −13.2, and one at +1.6 with A = −1.

# %%
import torch

log_ratio = torch.tensor([[0.0, 0.1, 0.0, -13.2], [1.6, 0.0, 0.0, 0.0]])
print(lab.answer("culprit").culprit(log_ratio, torch.tensor([0.5, -1.0]), beta=0.05))

# %% [markdown]
# ## 7. The right denominator
#
# Start with the ratio, although it was not the cause this time. In the rounds after the collapse it reaches a million
# (see `ratio/max` in the table). It does no harm there only because all rewards are equal by then, so A = 0. Why is the
# reference the wrong denominator? The completions were drawn by the policy as it was before the updates of this round.
# The ratio corrects for these updates and for nothing else.

# %%
# %%exercise log_ratio
def log_ratio(logprobs, batch):
    """The log-ratio as PPO and GRPO define it, (B, T). A run calls it in every update."""
    # BEGIN SOLUTION
    return logprobs - batch.old_logprobs
    # END SOLUTION

# %% [markdown]
# Your function is now in a file, and the config gets its path. The plot keeps the first run behind the new one.

# %%
panel.keep("as reported")
panel.set(f"loss.log_ratio={lab.path('log_ratio')}")
second = await panel.run()

# %%
second.records[["grad_norm", "kl", "ratio/max", "reward"]].agg(["max", "mean"])

# %% [markdown]
# <details><summary>Our measurement: open it after your run</summary>
#
# The largest ratio is now in the tens instead of millions. The norm still passes 10,000.
#
# </details>

# %% [markdown]
# ## 8. Bound the input of exp
#
# The KL estimate is correctly measured from the reference, and it has its own exp. Where does a bound belong? Try both
# places at 100 nats:

# %%
x = torch.tensor([100.0, 100.0], requires_grad=True)
after, before = x[0].exp().clamp(max=148), x[1].clamp(max=5).exp()
(after + before).backward()
print(f"clamped after exp:  value {after.item():g}, gradient {x.grad[0].item():g}")
print(f"clamped before exp: value {before.item():g}, gradient {x.grad[1].item():g}")

# %% [markdown]
# Both values are fine. But with the clamp after exp, backward multiplies the clamp's 0 by exp's inf: $0 \cdot \infty$ =
# NaN. Write the safe version:

# %%
# %%exercise bounded
import torch

def k3(delta, limit=10.0):
    """k3 of delta = ref_logprobs - logprobs, delta bounded to +-limit before anything else.

    Value and gradient are finite for any delta.
    """
    # BEGIN SOLUTION
    delta = delta.clamp(-limit, limit)
    return torch.expm1(delta) - delta
    # END SOLUTION

# %%
panel.keep("right denominator")
panel.set(f"loss.kl_estimator={lab.path('bounded')}")
third = await panel.run()

# %% [markdown]
# <details><summary>Our measurement: open it after your run</summary>
#
# The norm is below 10,000 for the first time, around 5,000 on our machine. $e^{10}$ is still 22,026, so a bound of 10
# limits the damage and does not remove the cause. The reward is as low as before. Both lines were necessary, but at
# this learning rate the model still learns nothing.
#
# </details>
#
# One cause remains: the learning rate is 2000 times the report's. Lower it:

# %%
panel.keep("both right")
panel.set("optimizer.learning_rate=3e-4")
fourth = await panel.run()

# %% [markdown]
# <details><summary>Our measurement: open it after your run</summary>
#
# The norm is about ten, and the reward moves up and down instead of staying at 0. (With sixteen completions per round
# you cannot see it rise.)
#
# </details>

# %% [markdown] tags=["instructor"]
# **Ask.** "Which of the two lines was the cure?" Neither alone. With only the right ratio, the KL explodes. With only
# the bound, the ratio explodes at the next batch with A < 0.
#
# **Say.** "A guard keeps a run alive. It does not make a wrong setting teach. Always look at the reward too."

# %% [markdown]
# ## 9. Does a harder clip help?
#
# The report lowers `max_grad_norm` from 0.5 to 0.3. Here are three very different clips with the loss of the report.

# %%
import pandas as pd

config = gl.scenario("train-001").config().with_("run.num_steps=4")
clips = ("clip_gradients.max_norm=0.05", "clip_gradients.max_norm=0.5", "clip_gradients=off")
clipped = {clip: lab.run(config.with_(f"guards.{clip}"), "clip").records for clip in clips}
columns = ["grad_norm", "weights/max_move"]
pd.DataFrame({clip: records[columns].max() for clip, records in clipped.items()}).T

# %% [markdown]
# <details><summary>Our measurement: open it after your run</summary>
#
# The largest move is nearly the same without any clip. AdamW divides each gradient by a running average of its own
# size, so a common factor cancels. Clipping limits a length that AdamW does not use, and it keeps the direction set by
# one token.
#
# </details>

# %% [markdown]
# A colleague's run shows a norm of 60,000; its ratio has the reference in the denominator, as in the report. The
# colleague writes: "I have set `max_grad_norm` to 0.05, that should do." Answer in three to five sentences: why does
# the clip not help, what should change instead, and why?

# %%
# %%exercise in_words
# Write a text in quotes. For several lines use parentheses or triple quotes.
# BEGIN SOLUTION
answer = (
    "The clip scales the whole gradient by one factor. AdamW divides by the gradient's own recent size, so the factor "
    "cancels: the step is as long as before, and one token sets its direction. The clip does not remove a NaN either. "
    "The ratio corrects for the updates since the batch was sampled. Its denominator must be the policy that sampled the "
    "batch; then it is 1 at the first update. Against the reference it grows with training, and for A < 0 min leaves it "
    "unbounded. The KL is correctly measured from the reference, but it has its own exp: bound the difference before exp. "
    "Then check the reward: does the learning rate let the model learn?"
)
# END SOLUTION

# %% [markdown] tags=["instructor"]
# **Marking,** 2 points. *Full:* a common factor cancels in AdamW (or: the clip keeps the direction, and the direction
# is wrong); the ratio corrects for updates since sampling, so the sampling policy belongs in the denominator; the KL
# has its own exp, and its input must be bounded. *Half (1):* two of the three; or all three as commands without a
# reason. *None:* "a smaller clip", "a smaller rate", "clipping makes gradients vanish".

# %% [markdown]
# ## 10. What if
#
# Move a slider of the panel above or use the cell below, then run again. Four things to try:
#
# 1. `guards.dual_clip=on` with the loss of the report. This guard closes the open side of min. Does the norm fall?
# 2. `guards.clamp_log_ratio=on` alone, the report's own clamp. Which of the two exps does it bound?
# 3. `optimizer.learning_rate=1e-3` with the loss of the report. Is the explosion gone? What about the reward?
# 4. Your own `k3` with `limit=5.0` in its cell, and both of your functions set again. How does the smaller limit change
#    the norm?

# %%
panel.reset()
panel.clear()
panel.set("guards.dual_clip=on")
tried = await panel.run()

# %% [markdown] tags=["instructor"]
# **Results** (one seed). 1 and 2: the first explosion stays (norm 60,000), because it comes through the KL. 3: norms
# below 100 in twenty rounds, a ratio of a million, and the reward still falls to 0. 4: the largest norm is 50.

# %% [markdown]
# ## 11. Ask yourself

# %%
lab.questions()

# %%
lab.export()

# %% [markdown]
# **Next:** in lab 3 the same cause runs with fp16 weights. There the run crashes.
