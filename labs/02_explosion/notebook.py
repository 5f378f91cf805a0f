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
# The field report TRAIN-001 describes a first round (its word for a step) of GRPO on GPT-2 that seems to end well, with
# a gradient norm of **113,818,385**. The report's remedy is a list of eight changes. In this lab you start a healthy
# run, watch its norm explode, and find the one token that caused it. Then you change one line, and the same run learns.
#
# You need from lab 1: advantage, ratio, clip, and the KL estimate k3 of a token, $e^d - 1 - d$ with $d$ = reference
# log-probability − policy log-probability.

# %% [markdown] tags=["instructor"]
# **Plan, 45 minutes.** Recording and prediction 5 · run and trace 8 · `gradient` and `reported` 8 · `culprit` 8 ·
# `log_ratio` and the healed run 6 · `bounded` 5 · clip and `in_words` 5. Leave *Try other settings* to the fast
# learners. The runs of sections 3 and 7 take about half a minute each on a laptop; let learners read on while they go.
#
# **Say.** "Every number in the config is reasonable. The loss is PPO's, every formula is in a paper, and the norm is a
# hundred million."
#
# **Misconceptions to wait for.** *Clipping protects PPO from large ratios* (on one side only). *A large norm ruins
# weights* (not in fp32). *It must be the KL estimate, as in the recording* (here the ratio exploded, and the record
# shows it). *The rate was too high* (the same rate learns with the right denominator).

# %%
import grpo_lab as gl

lab = gl.Lab("02_explosion")

# %% [markdown]
# ## 1. A recorded run
#
# This is a recorded run of SmolLM2-135M with the loss of the report. Look first at the gradient norm (log scale), then
# at the reward, then at the sampled text below. Move the slider *steps shown* from the first step to the last.

# %%
lab.panel(recording="kl-explosion-smollm2")

# %% [markdown]
# A step of this run has four updates. After the first update of step 0 one token was already $e^{33.5}$ times less
# likely than under the reference, and the norm was 9 · 10¹³. How did the sampled text change in the steps after it?

# %% [markdown]
# ## 2. Predict
#
# Now you run the same loss on a model that trains in seconds: 0.8 million weights, in fp32, adding two numbers. A batch
# has 16 prompts with 8 completions each and gets four updates; gradients are clipped to a norm of 0.5. The learning
# rate is 30 times the report's, because this model is 150 times smaller than GPT-2. With the right loss it learns at
# this rate.

# %%
# %%exercise forecast
# You train forty steps with the loss of the report. What will you see?
#   a  The logged norm stays near 0.5, because gradients are clipped to 0.5, and the reward rises.
#   b  The norm passes 1,000 in the first step, weights become NaN, and the next sampling crashes.
#   c  The run begins healthy; later the norm passes 1,000, every weight stays finite, and the reward falls.
#   d  The run begins healthy; later the norm passes 1,000, and the reward rises on, because clipping bounds each step.
# BEGIN SOLUTION
answer = "c"
# END SOLUTION

# %% [markdown]
# ## 3. Cause it
#
# The next cell shows a panel, presses Start for you, and waits for the end. Before and after the run, the model answers
# 200 held-out sums. In the table below it, `weights/max_move` is the largest change of a single weight in a step.

# %% tags=["slow"]
panel = lab.panel(
    "train-001",
    overrides=("run.seed=2", "run.num_eval=200"),
    controls=("learning_rate", "beta", "epsilon", "max_grad_norm"),
    guards_shown=("clip_gradients", "clamp_log_ratio", "clamp_kl", "dual_clip"),
)
run = await panel.run()

# %%
from grpo_lab.runs.summary import summary

columns = ["reward", "grad_norm", "kl", "ratio/max", "weights/max_move"]
print(summary(run.events))
run.records.loc[run.records["step"] % 3 == 0, ["step", *columns]]

# %% [markdown]
# <details><summary>Our measurement: open it after your run</summary>
#
# The run begins well. Most early steps have a norm between 1 and 5, and the reward rises from 0.29 to 0.50 in step 8.
# But three steps stand out: the norm is 37 in step 4, 59 in step 11, and 2,500 in step 15, where the largest ratio is
# 15,000. From then on the reward falls: its mean is 0.40 over the first ten steps and 0.24 over the last ten. The
# reward on the 200 held-out sums begins at 0.285 and ends at 0.21 with one thread, at 0.27 with two: rounding alone
# changes the last ten steps. Any end from 0.2 to 0.32 is usual, and says that the run learned nothing. The log shows
# the norm *before* clipping, as in every framework, so clipping hides nothing here. No weight is broken.
#
# </details>

# %% [markdown] tags=["instructor"]
# **Ask.** "Who predicted b?" fp32 reaches 3.4 · 10³⁸, so a norm of 2,500 is harmless to a weight. Lab 3 runs the same
# loss in fp16, and there b is right.
#
# **Say.** "The largest move grows slowly, from 0.0012 to 0.0031, and it shows no spike where the norm does. 0.0012 is
# four updates of 0.0003, the learning rate. AdamW divides by the gradient's own size. The norm does not tell how far
# the weights moved."

# %% [markdown]
# ## 4. Trace it
#
# Which token caused it? Click the peak of the norm in the panel above: the tokens of that step open below the curves.
#
# The same in numbers: for every link of the loss and every update, the run records the largest magnitude and its
# position. The next cell prints them for the step with the largest norm.

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
# On our machine it is step 15, and its first update, number 0, is the worst. One token is 9.6 nats from the reference,
# and the norm is 2,500. (A nat is the unit of a natural logarithm: 9.6 nats are a factor of $e^{9.6}$, about 15,000.)
# Three updates later no token is further away than 2.7 nats, and the norm is 2.
#
# The prompt is `68+66=`, and completion 91 is `13414434`. Its first three digits are the right sum, and there it should
# have ended. Its 4th token is another digit, `1`: that is the culprit. (The list says `[91, 3]`, because it counts
# tokens from 0.) The policy gives this digit a probability of 21 %, the reference 0.0014 %. The answer is wrong, so its
# advantage is below 0: A = −0.725.
#
# <details><summary>Was it the ratio? First read the numbers of update 0, then open this</summary>
#
# The largest ratio of this update is about 15,000. So the log-ratio of the token is +9.6: the policy gives it 15,000
# times the probability that the reference gives it. The gradient at the log-ratio has its maximum at the same token.
# And this is update 0: no weight has moved since this batch was sampled. A ratio that measures the updates *since
# sampling* would be exactly 1 here. So the ratio is the suspect: the loss of the report divides by the probability
# under the reference, where lab 1 divides by that of the policy that sampled.
#
# </details>
#
# Two terms of the loss take exp of this distance: the ratio, and the KL estimate, which exploded in the recorded run of
# section 1, at −33.5. To tell which term it is here, sections 5 and 6 compare their gradients for one token.

# %% [markdown]
# ## 5. The side that min leaves open
#
# The *clipped surrogate* is the loss of a token of lab 1 without its KL part:
# $-\min(rA,\ \mathrm{clip}(r, 1-\epsilon, 1+\epsilon)\,A)$ with $r = e^{\text{log-ratio}}$. Work out its derivative
# with respect to the log-ratio on paper.
# Which branch does min pick in each of the four cases (A above or below 0, r above or below the range)?

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
# with three properties is enough for an explosion: it is very unlikely under the reference, the policy now finds it
# likely, and its completion has a negative advantage.
#
# (The number of updates a batch, µ = `loss.num_iterations`, is 4 here.)

# %%
# %%exercise reported
# A token on the open side, A = -1, has a gradient of 113,818,385. How many nats away is it? Give two decimals.
# BEGIN SOLUTION
nats = 18.55
# END SOLUTION

# %% [markdown]
# So one token is enough; the explosion needs no accumulation of small errors. And 18.55 nats are not far if you measure
# from the *reference*: training moves the policy away from it in every step.

# %% [markdown] tags=["instructor"]
# **Say.** "Eighteen nats: the reference gives the token one chance in a hundred million. After training, the policy
# often samples such tokens; that is learning."
#
# **Common mistake.** Returning 0 on both sides ("clip is clip"). Let learners evaluate min(9·(−1), 1.2·(−1)).

# %% [markdown]
# ## 6. Which token, through which exp?
#
# The other term is $\beta\,(e^d - 1 - d)$ with $d = -\text{log-ratio}$ (here both are measured from the reference). The
# ratio explodes for a token that the policy has made far *likelier* than it is under the reference, the KL estimate for
# one that it has made far *less* likely. Write a function that names the culprit. The part for the ratio is given; add
# the part for the KL estimate, compare the two token by token, and return the place and the term of the largest.

# %%
# %%exercise culprit
import torch

def culprit(log_ratio, advantages, beta, epsilon=0.2):
    """The largest gradient by log_ratio of the two terms, as (completion, token, "ratio" or "kl").

    log_ratio is (B, T), advantages is (B,). Completions and tokens count from 0.
    """
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
# Test it with the numbers of both runs: yours with a token at +9.6 and A = −0.725, and the recorded one at −33.5.

# %%
import torch

for name, token in (("your run", 9.6), ("the recorded run", -33.5)):
    log_ratio = torch.tensor([[0.0, 0.1, 0.0, token], [-2.0, 0.0, 0.3, 0.0]])
    print(name, lab.answer("culprit").culprit(log_ratio, torch.tensor([-0.725, 1.0]), beta=0.05))

# %% [markdown]
# ## 7. The right denominator
#
# Why is the reference the wrong denominator? The completions were drawn by the policy as it was before the updates of
# this step. The ratio corrects for these updates and for nothing else. Measured from the reference it also holds
# everything that the model has learned in all steps before, and it leaves the clip range for good. `batch`
# holds `old_logprobs`, `ref_logprobs` and `sampling_logprobs`, each (B, T). Which one do you subtract?

# %%
# %%exercise log_ratio
def log_ratio(logprobs, batch):
    """The log-ratio as PPO and GRPO define it, (B, T). A run calls it in every update."""
    # BEGIN SOLUTION
    return logprobs - batch.old_logprobs
    # END SOLUTION

# %% [markdown]
# Your function is now in a file, and the config gets its path. Rate, seed, batch and clip stay as they are. The plot
# keeps the first run behind the new one.

# %% tags=["slow"]
panel.keep("as reported")
panel.set(f"loss.log_ratio={lab.path('log_ratio')}")
healed = await panel.run()

# %%
import pandas as pd

runs = {"as reported": run, "right denominator": healed}
for name, each in runs.items():
    print(f"{name}\n{summary(each.events)}\n")
pd.DataFrame({name: each.records[["grad_norm", "kl", "ratio/max"]].max() for name, each in runs.items()}).T

# %% [markdown]
# <details><summary>Our measurement: open it after your run</summary>
#
# The same rate, the same seed, and the first step begins with the same batch. Now the norm is below 8 in every step but
# one, which has 18, and no ratio is above 13. The reward of the last ten steps is 0.66 (as reported: 0.24). On the
# held-out sums it goes from 0.285 to 0.63 (as reported it ends between 0.2 and 0.32). The KL is *larger* than before,
# up to 0.56: a model that learns moves away from the reference.
#
# </details>

# %% [markdown] tags=["instructor"]
# **Show** the two curves in one plot, and say what differs between the runs: one word of the config. Rate, seed, first
# batch and guards are the same; the first update of step 0 is, too, because policy and reference are then one model.
#
# **Say.** "Nothing was clamped. The cause is gone, so there is nothing left to guard against."

# %% [markdown]
# ## 8. Bound the input of exp
#
# Your run is healed. The second exp remains: the KL estimate is correctly measured from the reference, and no choice of
# denominator changes that. Where does a bound belong: after exp, or before it? Try both at 100 nats:

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

# %% [markdown]
# Our small model does not drift so far by itself. The scenario `kl-overflow` has the right denominator and one injected
# distance of 100 nats in step 1. Run it as it is, and with your function:

# %%
overflow = lab.panel("kl-overflow", controls=("beta",), guards_shown=("clamp_kl",))
unbounded = await overflow.run()

# %%
overflow.keep("k3")
overflow.set(f"loss.kl_estimator={lab.path('bounded')}")
bounded = await overflow.run()

# %%
print("k3:     ", unbounded.status, "after", len(unbounded.records), "steps; first break:", unbounded.first_break())
print("bounded:", bounded.status, "after", len(bounded.records), "steps; first break:", bounded.first_break())

# %% [markdown]
# <details><summary>Our measurement: open it after your run</summary>
#
# With k3 as it is, the loss is infinite in step 1 and the run crashes in step 2. With your bound it makes all ten
# steps, and the token that is 100 nats away gets no gradient.
#
# </details>

# %% [markdown] tags=["instructor"]
# **Ask.** "Which of the two lines was the cure?" For your run the denominator alone. The bound is a guard: it changes
# nothing while the KL is small, and it keeps the run alive on the day when a token is far away.
#
# **Say.** "A guard keeps a run alive. It does not make a wrong loss teach. Always look at the reward too."

# %% [markdown]
# ## 9. Does a harder clip help?
#
# The report lowers `max_grad_norm` from 0.5 to 0.3. Here are three very different clips with the loss of the report.

# %% tags=["slow"]
config = gl.scenario("train-001").config().with_("run.seed=2", "run.num_steps=18")
clips = ("clip_gradients.max_norm=0.05", "clip_gradients.max_norm=0.5", "clip_gradients=off")
clipped = {clip: lab.run(config.with_(f"guards.{clip}"), "clip").records for clip in clips}
columns = ["grad_norm", "weights/max_move"]
pd.DataFrame({clip: records[columns].max() for clip, records in clipped.items()}).T

# %% [markdown]
# <details><summary>Our measurement: open it after your run</summary>
#
# The norm explodes under each of them (to 97, 2,500 and 990: an explosion is a matter of chance), and the largest move
# is nearly the same, with the clip and without. AdamW divides each gradient by a running average of its own size, so a
# common factor cancels. Clipping limits a length that AdamW does not use, and it keeps the direction set by one token.
#
# </details>

# %% [markdown]
# A colleague's run shows a norm of 2,500; its ratio has the reference in the denominator, as in the report. The
# colleague writes: "I have set `max_grad_norm` to 0.05, that should do." Answer in three to eight sentences: why does
# the clip not help? What should the ratio's denominator be, and why? Which `exp` then remains, and where do you bound
# it?

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
    "Then check the held-out reward: does the model learn?"
)
# END SOLUTION

# %% [markdown] tags=["instructor"]
# **Marking,** 2 points. *Full:* a common factor cancels in AdamW (or: the clip keeps the direction, and the direction
# is wrong); the ratio corrects for updates since sampling, so the sampling policy belongs in the denominator; the KL
# has its own exp, and its input must be bounded. *Half (1):* two of the three; or all three as commands without a
# reason. *None:* "a smaller clip", "a smaller rate", "clipping makes gradients vanish".

# %% [markdown]
# ## 10. Try other settings
#
# Move a slider of the panel of section 3 or use the cell below, then run again. Four things to try:
#
# 1. `guards.dual_clip=on` with the loss of the report. This guard closes the open side of min. Does the norm stay low?
#    Does the model learn?
# 2. `guards.clamp_log_ratio=on` alone, the report's own clamp. Which of the two exps does it bound?
# 3. `guards.clamp_kl=on` alone, a bound for the other exp. Does it change this run?
# 4. `optimizer.learning_rate=1e-4` with the loss of the report. Is the explosion gone? What about the reward?

# %% tags=["slow"]
panel.reset()
panel.clear()
panel.set("guards.dual_clip=on")
tried = await panel.run()
print(summary(tried.events))

# %% [markdown] tags=["instructor"]
# **Results** (one seed; held-out reward before: 0.285; healed: 0.63). 1: norms below 5, reward 0.40 → 0.23, held out
# 0.37: the explosion is gone, the cause is not. 2: norms up to 96, held out 0.23. 3: the same curves, with 2,500 in
# step 15: here the KL estimate takes no part. 4: norms up to 27, held out 0.395: a smaller rate delays the explosion
# and the learning.

# %% [markdown]
# ## 11. Ask yourself

# %%
lab.questions()

# %%
lab.export()

# %% [markdown]
# **Next:** in lab 3 the same loss runs with fp16 weights. There the run crashes.
