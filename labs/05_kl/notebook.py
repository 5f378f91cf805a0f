# %% [markdown]
# # Lab 5. KL: the number and the pull
#
# A KL penalty is two things under one name. It is a **number** in the log that should show how far the policy has moved
# from the reference. It is also a **pull** in the loss that should keep the policy near it. The number can be right
# while the pull is missing, and the number can fall while the policy moves away. Here you study both, and a code change
# that only made the log look better.
#
# In this lab $\delta = \text{ref\_logprobs} - \text{logprobs}$ in nats, of one sampled token:
#
# | k1 | k2 | k3 | hinge |
# |---|---|---|---|
# | $-\delta$ | $\delta^2 / 2$ | $e^\delta - 1 - \delta$ | $\min(\max(\delta, 0), 10)$ |

# %% [markdown] tags=["instructor"]
# **Minutes.** Recording and report 4, prediction and run 6, k3 6, expected gradients and matching 13, live comparison
# 4, overflow 7, adaptive beta 5, review 5. The gradients are the hard part: give learners time, and let pairs work.
#
# **Say.** "When a metric improves because its formula changed, nothing has improved." Write KL 0.318 → 0.035 on the
# board and ask what follows from it. The answer is: nothing. Come back to it after the first run.
#
# **Misconceptions to listen for.**
# - *k3 is a wrong formula that explodes.* It is the estimator that is unbiased and never negative. It overflows above
#   88 nats.
# - *An unbiased estimate has an unbiased gradient.* k1 is the counterexample: its value is right and its mean pull is
#   zero.
# - *A bounded loss term is a safe one.* A clamped value has no gradient, so the token that moved furthest gets no pull.
# - *The KL is in the reward, so it must be in the loss.* In the reward k1 works, because the reward is not
#   differentiated.

# %%
import grpo_lab as gl
import pandas as pd
import torch

lab = gl.Lab("05_kl")
panel = lab.panel(recording="kl-explosion-smollm2")
panel

# %% [markdown]
# The KL is 9 · 10¹¹ in the first step. A token became $e^{33.5}$ times less likely than under the reference, and k3
# takes the exponential of this distance. A report of such a run (a two-objective trainer with a KL of 0.318; the target
# was 0.02 to 0.06) called the formula wrong and replaced it:
#
# ```python
# delta = (ref_lp - cur_lp).clamp(-10, 10)
# kl = delta.clamp(0, 10)                    # before: torch.exp(delta) - delta - 1
# ```
#
# The logged KL fell to 0.035, and the authors closed the case.
#
# ## 1. What did the change do?
#
# The scenario `kl-hinge` uses this estimator in an otherwise right loss, at a learning rate ten times too high for this
# model. Besides the logged estimate it measures the **exact** KL(policy ‖ reference), summed over the whole vocabulary.

# %%
# %%exercise forecast
# What will you find after 20 steps?
#   a  Both are small: the change works, and the policy stays near the reference.
#   b  The logged KL is small and the exact one is above 1: the policy has moved away, and the log does not show it.
#   c  The logged KL is large and the exact one small: the hinge exaggerates.
#   d  Both are above 1: no estimator can correct a learning rate.
# BEGIN SOLUTION
answer = "b"
# END SOLUTION

# %%
panel = lab.panel("kl-hinge")
panel

# %% tags=["slow"]
await panel.run()

# %%
hinge = panel.session.records
hinge.loc[::3, ["step", "kl", "kl/exact", "reward", "entropy", "grad_norm"]].round(3)

# %% [markdown]
# <details><summary>Our measurement and its explanation: open it after your run</summary>
#
# The logged KL stayed below 0.2 in every step. The exact KL passed 1 within three steps and rose to between 2 and 5.
# The reward fell to almost 0. The answer is **b**. The panel's KL curve is the logged one, and it looks like success.
#
# The tokens were sampled from the policy, so the policy usually gives them a higher probability than the reference
# does. Then $\delta$ is negative, and the clamp returns 0. The hinge sees only the few tokens that the policy finds
# *less* likely than the reference; a collapsed policy hardly ever samples them. `panel.session.first_break()` is
# `None`: every number is finite, and no guard acts.
#
# </details>
#
# ## 2. The right formula, also near 0
#
# The report replaced k3. Write k3, and take care with small numbers: in a healthy run most $\delta$ are tiny.

# %%
# %%exercise k3
import torch


def k3(delta):
    """e^delta - 1 - delta of each token: never below 0, and also accurate for delta near 0."""
    # BEGIN SOLUTION
    return torch.expm1(delta) - delta
    # END SOLUTION


# %%
from grpo_lab.kl import ESTIMATORS

delta = torch.tensor([-5.0, -1.0, -3e-4, 0.0, 1e-4, 1.0, 5.0, 15.0, 89.0])
rows = {"k3, with exp": delta.exp() - delta - 1, "k3, yours": lab.answer("k3").k3(delta)}
rows |= {name: ESTIMATORS[name](delta) for name in ("k1", "k2", "hinge")}
pd.DataFrame(rows, index=[f"{value:g}" for value in delta.tolist()])

# %% [markdown]
# Each line of the table is a value of $\delta$. With `exp`, the results at -0.0003 and 0.0001 are rounding noise: the
# first is several times too large, the second is 0, and at some other $\delta$ they are negative. Your results are right:
# 4.5e-8 and 5e-9. At 89 nats k3 is inf in either form: e⁸⁹ exceeds the largest fp32 number (in fp16 the limit is 11.1
# nats). Look at -5: the policy finds the token $e^5$ times as likely as the reference does, and the hinge returns 0.
#
# ## 3. Which quantity does the loss pull on?
#
# Training adds `beta * estimate` of the sampled tokens to the loss and differentiates it. Sampling is not
# differentiated, because the tokens exist before the loss. Take a vocabulary of seven tokens. The mean over all draws is
# then a sum of seven terms, so you can compute the pull without noise: **multiply probability and estimate, add up, and
# differentiate with the probability held fixed.**

# %%
# %%exercise expected_gradient
import torch


def expected_gradient(theta, log_ref, estimator):
    """Mean gradient of estimator(log_ref - log_p) with respect to the logits theta (V,) that the tokens are drawn from."""
    # BEGIN SOLUTION
    log_p = theta.log_softmax(0)
    loss = (log_p.exp().detach() * estimator(log_ref - log_p)).sum()
    (gradient,) = torch.autograd.grad(loss, theta)
    return gradient
    # END SOLUTION


# %% [markdown]
# The table shows one policy and one reference over seven tokens (columns). The first four rows are your function's
# results for the estimators. The last four rows are gradients of four quantities that one could minimise.

# %%
theta, ref = torch.randn(2, 7, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
theta.requires_grad_()
log_ref, pull = ref.log_softmax(0), lab.answer("expected_gradient").expected_gradient
table = {name: pull(theta, log_ref, function) for name, function in ESTIMATORS.items()}
log_p = theta.log_softmax(0)
wanted = {
    "KL(policy || ref)": (log_p.exp() * (log_p - log_ref)).sum(),
    "KL(ref || policy)": (log_ref.exp() * (log_ref - log_p)).sum(),
    "nothing": 0 * theta.sum(),
    "total variation": (log_ref.exp() - log_p.exp()).clamp(min=0).sum(),
}
table |= {name: torch.autograd.grad(value, theta, retain_graph=True)[0] for name, value in wanted.items()}
pd.DataFrame({name: row.tolist() for name, row in table.items()}).T.round(4)

# %% [markdown]
# Match each row of the upper half with a row of the lower half. The letters: **a** KL(policy ‖ ref), **b** KL(ref ‖
# policy), **c** nothing, **d** total variation (half the sum of the absolute differences of the probabilities). Give
# each name its letter, in quotes.

# %%
# %%exercise pulls
# BEGIN SOLUTION
k1 = "c"
k2 = "a"
k3 = "b"
hinge = "d"
# END SOLUTION

# %% [markdown]
# So the value of an estimator and its pull are different things. Now see the same in training: a learning rate three
# times too high drives the policy away, and a strong penalty of 0.3 works against it. You run five runs of 20 steps
# each.

# %% tags=["slow"]
drifting = gl.preset("plain").with_("run.num_steps=20", "data.num_prompts=4", "run.exact_kl=true")
drifting = drifting.with_("optimizer.learning_rate=1e-3", "loss.beta=0.3")
runs = {"no penalty": lab.run(drifting.with_("loss.beta=1e-9"), "no-penalty")}
for name in ("k1", "k2", "k3", "hinge"):
    runs[name] = lab.run(drifting.with_(f"loss.kl_estimator={name}"), name)
rows = ["kl", "kl/exact", "reward"]
pd.DataFrame({name: run.records[rows].tail(8).mean() for name, run in runs.items()}).round(2)

# %% [markdown]
# The table shows means of the last eight steps.
#
# <details><summary>Our measurement, over eight seeds</summary>
#
# The exact KL: no penalty 1.2 to 1.6, **k1 1.2 to 3.7**, k2 0.5 to 1.0, k3 0.7 to 1.1, **hinge 0.8 to 1.6, with a
# logged KL of 0.1**. The *value* of k1 is the KL, but k1 works no better than no penalty: its pull has mean 0 and is
# only noise. The value of k2 is biased, but it pulls on KL(policy ‖ ref), the intended quantity. k3 pulls on the other
# direction, KL(ref ‖ policy). Both hold the policy near the reference.
#
# </details>
#
# ### What if: another algorithm (optional)
#
# REINFORCE++, RLOO and PPO subtract k1 from the *reward* (`loss.kl_place=reward`). The reward is not differentiated: k1
# reaches the gradient through the advantage. What do you expect of the same k1 there? Then put your own choice into
# `mine`: `gl.algorithm_names()` lists all, and `grpo-lab algorithms` says what differs from GRPO.

# %% tags=["slow"]
mine = "gspo"
others = {"k1 in the loss": drifting.with_("loss.kl_estimator=k1")}
others |= {"k1 in the reward": drifting.with_("loss.kl_place=reward")}
others |= {name: drifting.with_algorithm(name) for name in ("reinforce_plus_plus", mine)}
moved = {name: lab.run(config, name.replace(" ", "-")).records[rows].tail(8).mean() for name, config in others.items()}
pd.DataFrame(moved).round(2)

# %% [markdown]
# <details><summary>Our measurement, over eight seeds</summary>
#
# The exact KL: k1 in the loss 1.2 to 3.7, **k1 in the reward 0.5 to 0.9**, REINFORCE++ 0.4 to 0.8, GSPO, whose k3 stays
# in the loss, 0.7 to 1.1. So k1 pulls in the reward, and not in the loss. The reward stays low in all of them: the rate
# is too high, and no algorithm changes that.
#
# </details>
#
# ## 4. Overflow, and the token that a clamp ignores
#
# The scenario `kl-overflow` makes one token 100 nats less likely than under the reference:

# %%
run = lab.run(gl.scenario("kl-overflow").config(), "overflow")
print(run.status)
print(run.first_break())

# %% [markdown]
# The usual remedy clamps $\delta$ at 10 before the exponential (the guard `clamp_kl`; verl clamps at 20, and clamps the
# value at 10 as well). It saves the run. But the gradient of a clamped token is **0**: the token that is furthest away
# gets no pull. Continue in a straight line instead: k3 up to `limit`, and beyond it the tangent at `limit`. (The Huber
# loss in statistics is built the same way.)

# %%
# %%exercise straight
import math

import torch


def straight(delta, limit=5.0):
    """k3(delta) up to limit; beyond it a straight line with the value and slope of k3 at limit."""
    # BEGIN SOLUTION
    inside = delta.clamp(max=limit)
    return torch.expm1(inside) - inside + math.expm1(limit) * (delta - inside)
    # END SOLUTION


# %%
overflow = gl.scenario("kl-overflow").config()
ways = {
    "clamp_kl": overflow.with_("guards.clamp_kl=on"),
    "straight": overflow.with_(f"loss.kl_estimator={lab.path('straight')}"),
}
runs = {name: lab.run(config, name) for name, config in ways.items()}
pd.concat({name: run.records[["kl", "grad_norm"]].head(4) for name, run in runs.items()}, axis=1).round(2)

# %% [markdown]
# Both runs survive. In step 1, the step of the broken token, the clamped loss is large, but its gradient contains
# nothing from that token. The norm with your function is a little larger, because your function pulls on the token, by
# at most $e^5 - 1$.
#
# ## 5. A beta that adapts
#
# Ziegler et al. (2019) adjust beta to keep the KL near a target: each step changes beta by a tenth of the relative
# error, bounded at ±0.2. A naive version has a weakness. Try it on four KLs; the second is broken:

# %%
def by_min_and_max(error):
    return max(-0.2, min(error, 0.2))


def by_clamp(error):
    return float(torch.tensor(error).clamp(-0.2, 0.2))


for bounded in (by_min_and_max, by_clamp):
    beta, betas = 0.02, []
    for kl in (0.3, float("nan"), 0.3, 0.3):
        beta = beta * (1 + 0.1 * bounded(kl / 0.1 - 1))
        betas.append(round(beta, 5))
    print(f"{bounded.__name__:15} {betas}")

# %% [markdown]
# Both versions use the same formula with a different bound. Python's `min` and `max` silently turn the NaN into an
# error of -0.2; with swapped arguments they return another number. `clamp`, like numpy's `clip` in verl's controller,
# keeps the NaN, and every later beta is NaN. Write a correct version: a KL that is not finite carries no information,
# so beta stays unchanged.

# %%
# %%exercise next_beta
import math


def next_beta(beta, kl, target):
    """beta x (1 + 0.1 x error); error: kl / target - 1 within ±0.2. Unchanged if kl is not finite."""
    # BEGIN SOLUTION
    if not math.isfinite(kl):
        return beta
    error = max(-0.2, min(0.2, kl / target - 1))
    return beta * (1 + 0.1 * error)
    # END SOLUTION


# %% [markdown]
# The guard `adaptive_beta` contains this function. Here is a whole run with it (with gain 1 instead of 0.1, so that
# forty steps show an effect):

# %% tags=["slow"]
steady = gl.preset("plain").with_("run.num_steps=40", "data.num_prompts=8")
adaptive = steady.with_("guards.adaptive_beta.target=0.05", "guards.adaptive_beta.gain=1")
runs = {"fixed": lab.run(steady, "fixed"), "adaptive": lab.run(adaptive, "adaptive")}
rows = ["kl", "beta", "reward"]
pd.DataFrame({name: run.records[rows].tail(5).mean() for name, run in runs.items()}).round(3)

# %% [markdown]
# On our machine the KL ended at 0.12 instead of 0.22, with a beta of 1 instead of 0.02, and the reward did not suffer.
# It took thirty steps. The guard corrects a slow drift; it does nothing against a spike.
#
# ## 6. Try other settings
#
# Run the first scenario again, keep it in the plot, and change one thing:
#
# 1. `loss.kl_estimator=k3`, all else equal. The logged KL is now honest. Does the policy stay near the reference?
# 2. `optimizer.learning_rate=*0.1`, the cure of this scenario.
# 3. `loss.beta=1` with the hinge. How strong must a pull be if it acts on few tokens?

# %%
panel = lab.panel("kl-hinge", controls=("learning_rate", "beta"))
panel

# %% tags=["slow"]
await panel.run()
panel.keep("hinge")
panel.set("optimizer.learning_rate=*0.1")
await panel.run()

# %%
panel.session.records[["kl", "kl/exact", "reward"]].tail(5).mean().round(3)

# %% [markdown] tags=["instructor"]
# **Results** (one seed). With k3 at the high rate: logged KL 2.8, exact KL 2.4 in the last steps, reward 0.01. The
# number is honest, but the policy is far away: beta is 0.02, and no estimator can correct the learning rate. At a tenth
# of the rate: exact KL 0.2, reward 0.4. Tell the class: the estimator measured the problem; the learning rate caused
# it.

# %% [markdown]
# Back to the first report: `kl = delta.clamp(0, 10)` replaces k3, the logged KL falls from 0.318 to 0.035, and the case
# is closed. Now you review this change. Write your comment in three to six sentences. Why does the number fall? What
# does it hide? What did the penalty lose? Which numbers do you want to see before you agree?

# %%
# %%exercise review
# Write a text in quotes. For several lines use parentheses or triple quotes.
# BEGIN SOLUTION
answer = (
    "The logged KL fell because its formula changed; it says nothing about the policy. Tokens come from the policy, so "
    "the policy is usually the likelier of the two. Then delta is below 0 and the clamp returns 0, however far apart "
    "they are. So the number hides drift and collapse; k3 shows them. The penalty is also weaker: a clamped token has no "
    "gradient on either side. Most tokens get no pull, and neither does the token that moved furthest. Please log the "
    "exact KL over the vocabulary, or at least k1 and k3, before and after the change, with held-out reward and some "
    "samples. If k3 overflows, bound delta before exp or continue in a straight line; if the policy drifts, lower the "
    "rate or raise beta."
)
# END SOLUTION

# %% [markdown] tags=["instructor"]
# **Marking,** 2 points. *Full:* another formula, not another policy; the reason why it is 0 on most sampled tokens (the
# policy is the likelier one, delta is below 0); no gradient where it is clamped; a measurement that would decide: the
# exact KL, or k1 and k3 with reward or samples. *Half (1):* says that the metric changed and how to see it, without the
# reason; or gives the reason without a measurement. *None:* "the KL is lower, so it works"; "k3 is biased"; "clamping
# is bad".

# %% [markdown]
# ## 7. Ask yourself

# %%
lab.questions()

# %% [markdown]
# **Next:** in lab 6 the KL is 0.000, and this value is the symptom.

# %%
lab.export()
