# %% [markdown]
# # Lab 5. KL: the number and the pull
#
# A KL penalty is two things under one name: a **number** in the log, which is to say how far the policy has moved from
# the reference, and a **pull** in the loss, which is to keep it near. The number can be right and the pull missing, and
# the number can fall while the policy runs away. Here you meet both, and the change that made a log look mended.
#
# Throughout, $\delta = \text{ref\_logprobs} - \text{logprobs}$ in nats, of one sampled token:
#
# | k1 | k2 | k3 | hinge |
# |---|---|---|---|
# | $-\delta$ | $\delta^2 / 2$ | $e^\delta - 1 - \delta$ | $\min(\max(\delta, 0), 10)$ |

# %% [markdown] tags=["instructor"]
# **Minutes.** Recording and report 4, prediction and run 6, k3 6, expected gradients and matching 13, live comparison 4,
# overflow 7, adaptive beta 5, review 5. The gradients are the hard part: give them time, and let pairs work.
#
# **Say.** "When a metric improves because its formula changed, nothing has improved." Write KL 0.318 → 0.035 on the
# board and ask what follows. Nothing does; come back to it after the first run.
#
# **Misconceptions to listen for.**
# - *k3 is a wrong formula that explodes.* It is the unbiased one that is never negative. It overflows past 88 nats.
# - *An unbiased estimate has an unbiased gradient.* k1 is the counterexample: its value is right and its pull is zero.
# - *A bounded loss term is a safe one.* What is clamped has no gradient: the token that has gone furthest is let go.
# - *The KL is in the reward, so it must be in the loss.* In the reward k1 works, since there nobody differentiates it.

# %%
import grpo_lab as gl
import pandas as pd
import torch

lab = gl.Lab("05_kl")
panel = lab.panel(recording="lecture-train-001")
panel

# %% [markdown]
# A KL of about 13,000 in the first step: some token had become $e^{15}$ times less likely than under the reference, and
# k3 takes the exponential of that. A report of such a run (a two-objective trainer, KL 0.318 where 0.02 to 0.06 was
# wanted) called the formula wrong and put another in its place:
#
# ```python
# delta = (ref_lp - cur_lp).clamp(-10, 10)
# kl = delta.clamp(0, 10)                    # before: torch.exp(delta) - delta - 1
# ```
#
# The logged KL fell to 0.035, and the case was closed.
#
# ## 1. What did the change do?
#
# The scenario `kl-hinge` has that estimator in an otherwise right loss, at a learning rate ten times too high for this
# model. Besides the logged estimate it measures the **exact** KL(policy ‖ reference), summed over the whole vocabulary.
# After 20 steps you will find
#
# - **a** both small: the change works, and the policy stays near the reference;
# - **b** the logged KL small, the exact one above 1: the policy has left, and the log does not say so;
# - **c** the logged KL large, the exact one small: the hinge exaggerates;
# - **d** both above 1: no estimator changes what a learning rate does.

# %%
# %%exercise forecast
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
# <details><summary>What was measured here, and why, once yours is done</summary>
#
# The logged KL stayed below 0.2 in every step, the exact one went above 1 within three steps and to 2 to 5, and the reward
# to almost nothing: **b**. The panel's KL curve is the logged one. It looks like success.
#
# The tokens were sampled from the policy, so that the policy is as a rule the likelier one of the two. Then $\delta$ is
# negative, and the clamp says 0. The hinge sees only those few tokens that the policy finds *less* likely than the
# reference, which a collapsed policy hardly ever samples. `panel.session.first_break()` is `None`: every number is finite,
# and no guard has anything to say.
#
# </details>
#
# ## 2. The right formula, also near 0
#
# k3 is what was thrown out. Write it, and mind the small numbers: in a healthy run most $\delta$ are tiny.

# %%
# %%exercise k3
import torch


def k3(delta):
    """e^delta - 1 - delta of each token: never below 0, and right for delta near 0 as well."""
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
# Rows are $\delta$. With `exp` the values at -0.0003 and 0.0001 are rounding noise: several times too large, and 0. (It goes
# below 0 too, for other numbers.) Yours are 4.5e-8 and 5e-9, as they should be. At 89 nats k3 is inf, in either form: e⁸⁹ is more than fp32 can hold (in fp16 that is so from
# 11.1 nats on). And look at -5: the policy likelier by $e^5$, and the hinge says 0.
#
# ## 3. What does the loss pull on?
#
# Training adds `beta * estimate` of the sampled tokens to the loss and differentiates it. Sampling itself is not
# differentiated: the tokens are there before the loss is. With seven tokens the mean over all draws is a sum of seven
# terms, so that the pull can be computed without noise: **probability times estimate, added up, and differentiated with
# the probability held fixed.**

# %%
# %%exercise expected_gradient
import torch


def expected_gradient(theta, log_ref, estimator):
    """Mean gradient by the logits theta (V,) of estimator(log_ref - log_p), tokens drawn from theta."""
    # BEGIN SOLUTION
    log_p = theta.log_softmax(0)
    loss = (log_p.exp().detach() * estimator(log_ref - log_p)).sum()
    (gradient,) = torch.autograd.grad(loss, theta)
    return gradient
    # END SOLUTION


# %% [markdown]
# One policy and one reference over seven tokens, the columns. The first four rows are what your function says of the estimators, the
# last four are gradients of quantities that one might want to shrink.

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
# Which row of the upper half is which of the lower? The letters: **a** KL(policy ‖ ref), **b** KL(ref ‖ policy),
# **c** nothing, **d** total variation, half the sum of the differences of the probabilities. Give each name its letter, in
# quotes.

# %%
# %%exercise pulls
# BEGIN SOLUTION
k1 = "c"
k2 = "a"
k3 = "b"
hinge = "d"
# END SOLUTION

# %% [markdown]
# What an estimator measures and what it pulls on are different matters, then. Now the same in training: a learning rate three times too high, which drives the policy
# away, and a strong penalty of 0.3 against it. Five runs, 20 steps each.

# %% tags=["slow"]
drifting = gl.preset("plain").with_("run.num_steps=20", "data.num_prompts=4", "run.exact_kl=true")
drifting = drifting.with_("optimizer.learning_rate=1e-3", "loss.beta=0.3")
runs = {"no penalty": lab.run(drifting.with_("loss.beta=1e-9"), "no-penalty")}
for name in ("k1", "k2", "k3", "hinge"):
    runs[name] = lab.run(drifting.with_(f"loss.kl_estimator={name}"), name)
rows = ["kl", "kl/exact", "reward"]
pd.DataFrame({name: run.records[rows].tail(8).mean() for name, run in runs.items()}).round(2)

# %% [markdown]
# Means of the last eight steps.
#
# <details><summary>What was measured here, over three seeds</summary>
#
# The exact KL: no penalty 1.2 to 1.6, **k1 1.2 to 2.9**, k2 0.7 to 1.0, k3 0.7 to 0.8, **hinge 0.8 to 1.6, with a logged KL
# of 0.1**. k1, whose *value* is the KL, is no better than no penalty: its pull has mean 0 and is nothing but noise. k2, whose
# value is biased, pulls on the very KL that one means, k3 on the other direction; both hold on.
#
# </details>
#
# ## 4. Overflow, and what a clamp lets go
#
# One token, 100 nats less likely than under the reference (put there by the scenario `kl-overflow`):

# %%
run = lab.run(gl.scenario("kl-overflow").config(), "overflow")
print(run.status)
print(run.first_break())

# %% [markdown]
# The usual remedy is to clamp $\delta$ at 10 before the exponential (the guard `clamp_kl`; verl clamps at 20, and the
# value at 10 once more). It saves the run. But the gradient of a clamped token is **0**: the one token that is furthest
# away is not pulled at all. Go on in a straight line instead: k3 up to `limit`, beyond it the tangent at `limit`. (The
# statisticians' Huber loss is made in this way.)

# %%
# %%exercise straight
import math

import torch


def straight(delta, limit=5.0):
    """k3(delta) up to limit, beyond it a straight line that goes on with the slope k3 has there."""
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
# Both live. In step 1, the step of the broken token, the clamped loss is large and its gradient knows nothing of that
# token; yours has a norm that is a little larger, since it pulls, by at most $e^5 - 1$.
#
# ## 5. A beta that adapts
#
# Ziegler et al. (2019) move beta so that the KL stays near a target: by a tenth of the relative error, which is bounded at
# ±0.2, a step. Written plainly it has a weakness. Try three KLs, of which the second is broken:

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
# The same formula, bounded in two ways. Python's `min` and `max` turn the NaN into an error of -0.2 without a word, and
# with their arguments the other way round into another number. `clamp`, like numpy's `clip` in verl's controller, keeps
# the NaN, and so does every beta after it. Write one that is right: a KL that is not finite says nothing, so beta stays as
# it is.

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
# The guard `adaptive_beta` is this function. A whole run with it (the gain set to 1 in place of 0.1, so that forty steps
# are enough to see something):

# %% tags=["slow"]
steady = gl.preset("plain").with_("run.num_steps=40", "data.num_prompts=8")
adaptive = steady.with_("guards.adaptive_beta.target=0.05", "guards.adaptive_beta.gain=1")
runs = {"fixed": lab.run(steady, "fixed"), "adaptive": lab.run(adaptive, "adaptive")}
rows = ["kl", "beta", "reward"]
pd.DataFrame({name: run.records[rows].tail(5).mean() for name, run in runs.items()}).round(3)

# %% [markdown]
# Measured here: the KL ended at 0.12 instead of 0.22, with a beta of 1 instead of 0.02, and the reward did not suffer. It
# took thirty steps to get there. It steers a drift; against a spike it does nothing.
#
# ## 6. What if
#
# The scenario of the beginning again, kept as an overlay, with something changed:
#
# 1. `loss.kl_estimator=k3`, all else the same. The logged KL is honest now. Does the policy stay?
# 2. `optimizer.learning_rate=*0.1`, which is the scenario's cure.
# 3. `loss.beta=1` with the hinge. How strong must a pull be that acts on few tokens?

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
# **What comes out** (one seed). With k3 at the high rate: logged KL 2.8, exact 2.4 in the last steps, reward 0.01. The
# number is honest and the policy is gone: beta is 0.02, and no estimator makes up for a learning rate. At a tenth of the
# rate: exact KL 0.2, reward 0.4. Say plainly that the estimator was not the disease; it was the thermometer.

# %% [markdown]
# Back to the report of the beginning: `kl = delta.clamp(0, 10)` in place of k3, logged KL from 0.318 to 0.035, case closed.
# That change is now on your desk for review. Write the comment in three to six sentences: why does the number fall, what does it
# hide, what has the penalty lost, and which numbers do you want to see before you agree?

# %%
# %%exercise review
# A text in quotes; several lines in parentheses, or between three quotes.
# BEGIN SOLUTION
answer = (
    "The KL that is logged fell because its formula changed; about the policy it says nothing. Tokens are sampled from "
    "the policy, which is as a rule the likelier of the two: there delta is below 0 and the clamp gives 0, however far "
    "apart the two are. So it hides drift and collapse, which k3 shows. The penalty is weaker, too: where the clamp "
    "holds, on either side, there is no gradient, so that most tokens, and the one that went furthest, are not pulled "
    "back. Please log the exact KL over the vocabulary, or at least k1 and k3, before and after, beside held-out reward "
    "and some samples. If k3 overflows, bound delta before exp or go on in a straight line; if the policy drifts, lower "
    "the rate or raise beta."
)
# END SOLUTION

# %% [markdown] tags=["instructor"]
# **Marking,** 2 points. *Full:* another formula, not another policy; why it is 0 on most sampled tokens (the policy is
# the likelier one, delta is below 0); no gradient where it is clamped; a measurement that would tell: the exact KL, or k1 and
# k3 beside it, reward or samples. *Half (1):* says that the metric changed and how to see it, without why; or why, without a
# measurement. *None:* "the KL is lower, so it works"; "k3 is biased"; "clamping is bad".

# %% [markdown]
# ## 7. Three questions to yourself

# %%
lab.questions()

# %% [markdown]
# Next comes lab 6, in which the KL is 0.000, and that is the bad news.

# %%
lab.export()
