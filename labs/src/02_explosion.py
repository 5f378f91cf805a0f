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
# A report from the field, TRAIN-001: the first round of GRPO on GPT-2 seems to end well, and the gradient norm reads
# **113,818,385**. The report's remedy is a list of eight changes. In this lab you make a norm explode yourself, find the
# one token that did it, and change what has to be changed: two lines.
#
# You need from lab 1: advantage, ratio, clip, and that the KL estimate k3 of a token is $e^d - 1 - d$ with
# $d$ = reference log-probability − policy log-probability.

# %% [markdown] tags=["instructor"]
# **Plan, 45 minutes.** Recording and prediction 5 · run and trace 8 · `gradient` and `reported` 10 · `culprit` 8 ·
# `log_ratio` and `bounded` with their A/B 9 · clip and `in_words` 5. Leave "what if" for those who are early.
#
# **Say.** "Nobody typed a wrong number. The loss is PPO's, every formula is in a paper, and the norm is a hundred million."
#
# **Misconceptions to wait for.** *Clipping protects PPO from large ratios* (one side only). *A large norm ruins weights*
# (not in fp32). *The ratio must have exploded* (here it is the KL estimate, and the record says so). *Smaller numbers in
# the config make it safe* (none of the four reported ones does).

# %%
import grpo_lab as gl

lab = gl.Lab("02_explosion")

# %% [markdown]
# ## 1. A recorded run
#
# SmolLM2-135M, with the loss of the report, recorded beforehand. Look at the gradient norm first (log scale), then at
# the reward, then at the sampled text below. Move the time slider from the first step to the last.

# %%
lab.panel(recording="train-001-smollm2")

# %% [markdown]
# One token had become $e^{33.5}$ times less likely than under the reference: norm 9 · 10¹³ in the first round. What
# became of the text after it?

# %% [markdown]
# ## 2. Predict
#
# Now the same loss on a model that trains in seconds: 0.8 million weights, in fp32, adding two numbers. Four updates on
# each batch, gradients clipped to a norm of 0.5. The learning rate is the report's times 2000, because this model is 150
# times smaller than GPT-2 and gets eight rounds only; at 1e-5 it would hardly move.

# %%
# %%exercise forecast
# Eight rounds of it. What will you see?
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
# Run the next two cells. (The second one does what the Start button does, and waits for the end.)

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
# <details><summary>What was measured here, once yours is done</summary>
#
# Read the table from the left. The norm in the log is the one *before* clipping, as in every framework: clipping hides
# nothing here. No weight is broken. The reward is gone after one round and never comes back; look at the samples in the
# panel to see what the model says instead.
#
# </details>

# %% [markdown] tags=["instructor"]
# **Ask.** "Who predicted b?" Most do. fp32 ends at 3.4 · 10³⁸, a norm of 60,000 is nothing to it. Lab 3 runs the same
# cause in fp16, and then b is right.
#
# **Say.** "Largest move 0.08, in every round: four updates of 0.02, the learning rate. AdamW divides by the gradient's own
# size. The norm says how loud it was, not how far we went."

# %% [markdown]
# ## 4. Trace it
#
# Which token was it? The run keeps, for every link of the loss and every update, the largest magnitude and the place
# where it is. Here is the step with the largest norm.

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
# On the machine where this was written it is step 0, and it begins healthy: in update 0 the log-ratio is
# 0.000002 (rounding) and the norm 2.3. One update later some token is 6 nats from the reference, and one more update
# later 13 nats. Then the norm is 60,000.
#
# `log_ratio … [4, 3]` is row 4, token 3. Rows are completions, four for each prompt, so row 4 is the first completion of
# the second prompt: the second of the samples below. Token 3 comes after three others, so behind a three-digit answer
# it is the end token. (Only every fourth completion is kept as a sample; your row may not be among them.)

# %%
for prompt, completion, reward in step.samples:
    print(f"{prompt!r} -> {completion!r}, reward {reward:g}")

# %% [markdown]
# <details><summary>Was it the ratio? Read the numbers of that update first, then this</summary>
#
# This is what the report overlooked. The largest *ratio* of that update is about 5, although a token is 13 nats
# away. So the log-ratio of that token is −13, not +13: the policy has all but unlearned it, and its ratio is
# $e^{-13}$, next to nothing. The gradient at the log-ratio is small, too. It was not the ratio.
#
# </details>
#
# Two terms of the loss take exp of this distance. To tell them apart we need the gradient of each, for one token.

# %% [markdown]
# ## 5. The side that min leaves open
#
# The clipped surrogate of one token is $-\min(rA,\ \mathrm{clip}(r, 1-\epsilon, 1+\epsilon)\,A)$ with
# $r = e^{\text{log-ratio}}$. Work out its derivative by the log-ratio on paper: which branch does min pick, in each of the
# four corners (A above or below 0, r above or below the range)?

# %%
# %%exercise gradient
import math

def gradient(log_ratio, advantage, epsilon=0.2):
    """Derivative of -min(r A, clip(r) A) by the log-ratio, for one token: a number."""
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
# With A > 0 the clip works: nothing beyond $1 + \epsilon$. With A < 0 nothing bounds the ratio. A token that the
# denominator finds hopeless and the policy now likes, in a completion that went badly: that is all it takes.

# %%
# %%exercise reported
# A token on the open side, A = -1, has a gradient of 113,818,385. How many nats away is it?
# BEGIN SOLUTION
nats = 18.55
# END SOLUTION

# %% [markdown]
# So one token is enough; no accumulation of small errors is needed. And 18.55 nats is not far when the distance is
# measured from the *reference*, from which the policy moves away in every round of training.

# %% [markdown] tags=["instructor"]
# **Say.** "Eighteen nats: the reference gives the token one chance in a hundred million. After training, the policy
# samples such tokens all the time; that is what learning is."
#
# **Common mistake.** Returning 0 on both sides ("clip is clip"). Let them evaluate min(9·(−1), 1.2·(−1)).

# %% [markdown]
# ## 6. Which token, through which exp?
#
# The other term is $\beta\,(e^d - 1 - d)$ with $d = -\text{log-ratio}$ (here both are taken against the reference). It
# explodes on the *other* side: where the policy has unlearned a token. Write what names the culprit. The part of the
# ratio is there; add that of the KL estimate.

# %%
# %%exercise culprit
import torch

def culprit(log_ratio, advantages, beta, epsilon=0.2):
    """(row, token, "ratio" or "kl"): the largest gradient by a token of log_ratio, (B, T)."""
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
# Put the numbers of the trace in: a token at −13.2, one at +1.6 with A = −1.

# %%
import torch

log_ratio = torch.tensor([[0.0, 0.1, 0.0, -13.2], [1.6, 0.0, 0.0, 0.0]])
print(lab.answer("culprit").culprit(log_ratio, torch.tensor([0.5, -1.0]), beta=0.05))

# %% [markdown]
# ## 7. The right denominator
#
# First the ratio, although it was innocent this time: in the rounds after the collapse it reaches a million (look at
# `ratio/max` in the table), and only because all rewards are equal by then, so that A = 0, does nothing explode. Why
# is the reference the wrong denominator? The ratio corrects for one thing: the completions were drawn by the policy as it
# was before this round's updates, not as it is now.

# %%
# %%exercise log_ratio
def log_ratio(logprobs, batch):
    """The log-ratio that PPO and GRPO mean, (B, T). A run calls it in every update."""
    # BEGIN SOLUTION
    return logprobs - batch.old_logprobs
    # END SOLUTION

# %% [markdown]
# Your function is in a file now, and the run is told its name. The first run is kept, and drawn behind the new one.

# %%
panel.keep("as reported")
panel.set(f"loss.log_ratio={lab.path('log_ratio')}")
second = await panel.run()

# %%
second.records[["grad_norm", "kl", "ratio/max", "reward"]].agg(["max", "mean"])

# %% [markdown]
# <details><summary>What was measured here, once yours is done</summary>
#
# The largest ratio is now some tens instead of some millions. And the norm still passes 10,000.
#
# </details>

# %% [markdown]
# ## 8. Bound what goes into exp
#
# The KL estimate is measured from the reference, as it has to be, and has an exp of its own. Where does a bound belong? Try
# both places at 100 nats:

# %%
x = torch.tensor([100.0, 100.0], requires_grad=True)
after, before = x[0].exp().clamp(max=148), x[1].clamp(max=5).exp()
(after + before).backward()
print(f"clamped after exp:  value {after.item():g}, gradient {x.grad[0].item():g}")
print(f"clamped before exp: value {before.item():g}, gradient {x.grad[1].item():g}")

# %% [markdown]
# Both values are fine. After exp, backward multiplies the clamp's 0 by the inf of exp: $0 \cdot \infty$ = NaN. So:

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
# <details><summary>What was measured here, once yours is done</summary>
#
# Below 10,000 now, for the first time; around 5,000 where this was written. $e^{10}$ is still 22,026, so a bound of 10 is
# a fuse, not a cure. Compare the reward: it is as dead as before. Both lines were needed, and they are not enough to
# teach anything at this learning rate.
#
# </details>
#
# What is left is the rate, 2000 times the report's. Take that away as well:

# %%
panel.keep("both right")
panel.set("optimizer.learning_rate=3e-4")
fourth = await panel.run()

# %% [markdown]
# <details><summary>What was measured here, once yours is done</summary>
#
# A norm of some ten, and a reward that goes up and down instead of lying at 0. (Sixteen completions a round are too few to
# see it rise.)
#
# </details>

# %% [markdown] tags=["instructor"]
# **Ask.** "Which of the two lines was the cure?" Neither alone: with the right ratio only, the KL explodes; with the bound
# only, the ratio waits for a batch with A < 0.
#
# **Say.** "A guard keeps a run alive. It does not make a wrong setting teach. Always look at the reward too."

# %% [markdown]
# ## 9. Does a harder clip help?
#
# The report lowers `max_grad_norm` from 0.5 to 0.3. Here are three very different clips, on the loss as reported.

# %%
import pandas as pd

config = gl.scenario("train-001").config().with_("run.num_steps=4")
clips = ("clip_gradients.max_norm=0.05", "clip_gradients.max_norm=0.5", "clip_gradients=off")
clipped = {clip: lab.run(config.with_(f"guards.{clip}"), "clip").records for clip in clips}
columns = ["grad_norm", "weights/max_move"]
pd.DataFrame({clip: records[columns].max() for clip, records in clipped.items()}).T

# %% [markdown]
# <details><summary>What was measured here, once yours is done</summary>
#
# The largest move is nearly the same without any clip: AdamW divides each gradient by a running average of its own size,
# and a common factor cancels. Clipping bounds a length that AdamW does not use, and keeps the direction that one
# token chose.
#
# </details>

# %% [markdown]
# A colleague's run shows a norm of 60,000, with the reference in the ratio's denominator as in the report. They write: "I
# have set `max_grad_norm` to 0.05, that should do." Answer them in three to five sentences: why it will not, and what to change
# instead, and why.

# %%
# %%exercise in_words
# A text in quotes; several lines in parentheses, or between three quotes.
# BEGIN SOLUTION
answer = (
    "The clip scales the whole gradient by one factor, and AdamW divides by the gradient's own recent size, so that the "
    "factor cancels: the step stays as long as before and goes where one token points. Nor does it undo a NaN. The ratio "
    "is to correct for the updates since the batch was sampled, so its denominator is the policy that sampled it: then it "
    "is 1 at the first update. Against the reference it contains all that was ever learned, grows with training, and for "
    "A < 0 min leaves it unbounded. The KL has to be measured from the reference, and has an exp of its own: bound the "
    "difference before exp. And then look whether the rate lets it learn."
)
# END SOLUTION

# %% [markdown] tags=["instructor"]
# **Marking,** 2 points. *Full:* a common factor cancels in AdamW (or: the clip keeps the direction, and the direction is what is
# wrong); the ratio corrects for updates since sampling, so that policy belongs in the denominator; the other exp, of the KL, has to be
# bounded before exp. *Half (1):* two of the three; or all three as commands without a reason. *None:* "a smaller clip", "a
# smaller rate", "clipping makes gradients vanish".

# %% [markdown]
# ## 10. What if
#
# Move a slider of the panel above, or use the cell below, and run again. Four things to try:
#
# 1. `guards.dual_clip=on` with the loss as reported. It closes the open side of min. Does the norm fall?
# 2. `guards.clamp_log_ratio=on` alone: the report's own clamp. Which of the two exps does it bound?
# 3. `optimizer.learning_rate=1e-3` with the loss as reported. Is the explosion gone? And the reward?
# 4. Your own `k3` with `limit=5.0` in its cell, and both of your functions set again. What does the smaller fuse do to the
#    norm?

# %%
panel.reset()
panel.clear()
panel.set("guards.dual_clip=on")
tried = await panel.run()

# %% [markdown] tags=["instructor"]
# Measured, one seed: 1 and 2 leave the first explosion as it was (norm 60,000), because it comes through the KL. 3: norms
# below 100 in twenty rounds, a ratio of a million, and the reward gone all the same. 4: the largest norm is 50.

# %% [markdown]
# ## 11. Ask yourself

# %%
lab.questions()

# %%
lab.export()

# %% [markdown]
# **Next:** in lab 3 the same cause runs in fp16 weights. There the run does not just go bad: it dies.
