# %% [markdown]
# # Lab 1. GRPO by hand
#
# GRPO fits on a page: score a group of completions, say how much better each was than its group, and make the better
# ones likelier, but not by too much at a time. Here you do it with one group and one token on paper, then write each
# line in code, check a gradient without calculus, and let a model learn by your own function.
#
# The panel below opens on a recorded run in which all is well. Everything here runs on a model of 0.8 million parameters
# that learns to add two numbers, in seconds, on the CPU.

# %% [markdown] tags=["instructor"]
# **Minutes.** Panel and reading 4, by hand 6, advantages 6, prediction and the two runs 5, loss per token 6, slope 4,
# aggregation 6, table and what-if 3. Who is short of time leaves out the what-if.
#
# **Say.** "There is no value network here and no reward model. There is a mean and a standard deviation." Let somebody
# work the first exercise at the board before anybody types.
#
# **Misconceptions to listen for.**
# - *The loss should go down.* It hovers around 0 in a run that learns. Ask what it would be at a ratio of 1.
# - *Clipping bounds the loss.* It bounds one side. For A < 0 a large ratio counts in full; lab 2 lives on that.
# - *The standard deviation divides by G.* torch, TRL and verl divide by G - 1. With G = 4 that is 15 % of every step of
#   plain gradient descent, and nothing at all to AdamW.
# - *Whoever gets the sign wrong will see an explosion.* The run below is calmer than the right one.

# %%
import grpo_lab as gl

lab = gl.Lab("01_grpo_by_hand")
panel = lab.panel(recording="lecture-healthy")
panel

# %% [markdown]
# Forty steps, 16 prompts a step, 8 completions a prompt. At first a third of the sums are right, in the end more
# than half; drag the time slider to read a few of them, or press Play. The curves:
#
# - **reward**: the share of completions that are the right sum. It rises, with noise: each step asks other sums.
# - **gradient norm**: between 1 and 4, all the way. Learning does not make it go away.
# - **KL to reference**: how far the policy has moved from where it began. It rises, slowly, and must: to learn is to move.
# - **largest ratio**: exactly 1. Each batch is used for one update, and before it nothing has changed yet.
#
# ## 1. One group, one token
#
# A prompt, four completions, rewards **1 0 0 0**. The advantage of a completion is $A = (r - \text{mean}) / \text{std}$
# over its group, with the unbiased standard deviation: the sum of squared deviations divided by $G - 1$.
#
# Take one token. The policy that sampled it gave it a log-probability of **-1.5** (`old_logprobs`). After some updates
# the policy gives it **-1.0** (`logprobs`). The ratio is $e^{\text{logprobs} - \text{old\_logprobs}}$, and the loss of
# the token is
#
# $$-\min(\text{ratio} \cdot A,\ \text{clip}(\text{ratio},\ 0.8,\ 1.2) \cdot A).$$
#
# Work it out on paper, to two or three digits:
#
# - `right_one`, `wrong_one`: the advantages of the right completion and of a wrong one;
# - `ratio`: of this token;
# - `loss_right`, `loss_wrong`: the token's loss, were it in the right completion, and were it in a wrong one.

# %%
# %%exercise by_hand
# BEGIN SOLUTION
right_one = 1.5
wrong_one = -0.5
ratio = 1.649
loss_right = -1.8
loss_wrong = 0.824
# END SOLUTION

# %% [markdown]
# Look at the last two once more. In the right completion the clip range took over: the ratio counts as 1.2, and as the
# clipped branch does not depend on the policy, this token has **no gradient** any more. In the wrong completion the
# minimum chose the *unclipped* branch, and would choose it at any size. That open side is how norms of 100 million come
# about.
#
# ## 2. Many groups at once
#
# Your function gets rewards of shape (P, G) and returns advantages of the same shape. A `scorable` comes along because
# the trainer hands it over (which completions could be judged); here all of them can be, and you may ignore it.
# The cell holds a second function, `flipped`, which is yours with one sign wrong. Leave it: it is needed below.

# %%
# %%exercise advantages
import torch


def advantages(rewards, scorable=None, eps=1e-6):
    """(r - mean) / (std + eps) of each group; exact zeros for equal rewards and for a group of one."""
    # BEGIN SOLUTION
    if rewards.shape[1] == 1:
        return torch.zeros_like(rewards)
    centred = rewards - rewards.mean(dim=1, keepdim=True)
    equal = rewards.amax(dim=1, keepdim=True) == rewards.amin(dim=1, keepdim=True)
    return (centred / (rewards.std(dim=1, keepdim=True) + eps)).masked_fill(equal, 0.0)
    # END SOLUTION


def flipped(rewards, scorable=None):
    return -advantages(rewards, scorable)


# %% [markdown]
# ## 3. Your function drives a run, and so does its wrong twin
#
# In a moment two runs of 40 steps go over the panel: one with your `advantages`, one with `flipped`, all else the same.
# First say what will tell them apart.
#
# - **a** The gradient norm: with `flipped` it explodes.
# - **b** The loss: with `flipped` it climbs, so that anyone who watches it will know.
# - **c** The reward, and the KL. Norm and loss stay as small as those of a healthy run.
# - **d** Nothing: AdamW divides the sign out again.

# %%
# %%exercise flipped
# BEGIN SOLUTION
answer = "c"
# END SOLUTION

# %%
config = gl.preset("plain").with_("run.num_steps=40", "data.num_prompts=8")
panel = lab.panel(config.with_(f"loss.advantage_scale={lab.path('advantages')}"))
panel

# %% tags=["slow"]
await panel.run()
mine = panel.session
panel.keep("advantages")

# %% tags=["slow"]
panel.set(f"loss.advantage_scale={lab.path('advantages', 'flipped')}")
await panel.run()

# %%
import pandas as pd

columns = ["reward", "kl", "grad_norm", "loss", "ratio/max"]
runs = {"advantages": mine, "flipped": panel.session}
pd.DataFrame({name: run.records[columns].tail(5).mean() for name, run in runs.items()}).round(3)

# %% [markdown]
# The means of the last five steps.
#
# <details><summary>What was measured here, once yours is done</summary>
#
# One seed: the reward ended around 0.57 against 0.00, and the KL around 0.2 against 1.3. The gradient norm of the wrong run
# was the *smaller* one, 0.2 against 2.6: where every answer is wrong, no group has anything to teach. And the loss? About
# 0.01 and 0.02. It never tells you whether a run learns, since at the first update every ratio is 1 and the advantages of
# a group sum to 0. So it was **c**. A wrong sign is no number out of range; no guard sees it, and `mine.first_break()` is
# `None`, as is that of the other.
#
# </details>
#
# ## 4. The loss of every token
#
# Now the middle of the algorithm. `logprobs` and `old_logprobs` have the shape (B, T), `advantages` (B,): one a
# completion, shared by its tokens. There are two bounds: `epsilon` below and `epsilon_high` above.

# %%
# %%exercise policy_loss
import torch


def policy_loss(logprobs, old_logprobs, advantages, epsilon=0.2, epsilon_high=0.2):
    """(B, T): -min(ratio A, clip(ratio, 1 - epsilon, 1 + epsilon_high) A) of each token."""
    # BEGIN SOLUTION
    ratio = (logprobs - old_logprobs).exp()
    clipped = ratio.clamp(1 - epsilon, 1 + epsilon_high)
    advantages = advantages[:, None]
    return -torch.min(ratio * advantages, clipped * advantages)
    # END SOLUTION


# %% [markdown]
# ## 5. Check the gradient without calculus
#
# A formula is easy to get half right. Its gradient can be checked by going a small step `h` to either side: the
# *central difference*. Write it for any function of one number.

# %%
# %%exercise slope
def slope(f, x, h):
    """The slope of f between x - h and x + h."""
    # BEGIN SOLUTION
    return (f(x + h) - f(x - h)) / (2 * h)
    # END SOLUTION


# %% [markdown]
# Now hold it against what PyTorch says of your `policy_loss`, one token at a time. All tokens were sampled at a
# log-probability of -10; the columns say where the policy is now, and with which advantage.

# %%
import torch

policy_loss, slope = lab.answer("policy_loss").policy_loss, lab.answer("slope").slope


def loss_of(logprob, advantage):
    numbers = [torch.as_tensor(value, dtype=torch.float64).reshape(1, 1) for value in (logprob, -10.0)]
    return policy_loss(*numbers, torch.tensor([advantage], dtype=torch.float64)).sum()

# %%
def compare(now, advantage):
    x = torch.tensor(now, requires_grad=True, dtype=torch.float64)
    (exact,) = torch.autograd.grad(loss_of(x, advantage), x)
    by_steps = slope(lambda value: float(loss_of(value, advantage)), now, 1e-4)
    print(f"logprob {now:5}, A {advantage:4}: autograd {float(exact):9.4f}, finite differences {by_steps:9.4f}")


for row in [(-10.0, 1.5), (-9.5, 1.5), (-9.5, -0.5), (-10.5, -0.5), (-1.0, -0.5)]:
    compare(*row)

# %% [markdown]
# Read the rows from the top. Nothing updated yet: the gradient is $-A$. Clipped on the good side: 0. The same ratio with
# a negative advantage: not 0. Clipped on the bad side: 0. And the last one: a wrong completion whose token went from -10
# to -1. Its gradient is $0.5 \cdot e^9$, about 4,052, from **one token**. Lab 2 begins there.
#
# ## 6. From tokens to one number
#
# The loss of the batch is a mean over tokens, and there are three ways to take it:
#
# - `token`: every trained token counts the same (DAPO).
# - `sequence`: the mean of each completion over its own tokens, then the mean of those (DeepSeekMath).
# - `constant`: the sum, divided by completions times width (Dr. GRPO). The width does not depend on the lengths: the
#   trainer takes `sampling.max_completion_length`.
#
# `mask` is 1 where a token is trained. Where it is 0 there may be anything, even NaN.

# %%
# %%exercise aggregate
import torch


def aggregate(per_token, mask, how):
    """(B, T), (B, T) -> one number: how is "token", "sequence" or "constant"."""
    # BEGIN SOLUTION
    values = per_token.masked_fill(mask == 0, 0.0)
    if how == "sequence":
        return (values.sum(dim=1) / mask.sum(dim=1)).mean()
    return values.sum() / (mask.sum() if how == "token" else mask.numel())
    # END SOLUTION


# %% [markdown]
# What a single token weighs, in a completion of 2 tokens and in one of 8:

# %%
aggregate = lab.answer("aggregate").aggregate
mask = torch.tensor([[1] * 2 + [0] * 6, [1] * 8])
for how in ("token", "sequence", "constant"):
    values = torch.zeros(2, 8, requires_grad=True)
    (weights,) = torch.autograd.grad(aggregate(values, mask, how), values)
    print(f"{how:9} in the short one {weights[0, 0]:.4f}, in the long one {weights[1, 0]:.4f}")

# %% [markdown]
# One part is missing. To keep the policy near the reference it began from, each token also pays `beta` times an estimate
# of the KL divergence, k3: $e^d - 1 - d$ with $d = \text{ref\_logprobs} - \text{logprobs}$. It is 0 where the two agree and
# grows exponentially where the reference finds a token likelier. Lab 5 takes it apart; this is the whole loss of a token:
#
# $$-\min(\text{ratio} \cdot A,\ \text{clip}(\text{ratio}) \cdot A) + \beta\,(e^d - 1 - d)$$
#
# ## 7. The same name, other conventions
#
# "GRPO" in two libraries is not the same function. Before you compare two runs, compare these rows. Read in the source of
# TRL 1.16.0, verl (`core_algos.py`, commit 012be9d), nanochat (`chat_rl.py`, commit 030de3a) and the starter code of
# Stanford's CS336 (spring 2025, assignment 5; the bodies are the students' own). An asterisk marks what is usual there
# and was not read in its code; an empty field, what was not looked up or has no meaning.
#
# | | DeepSeekMath | TRL | verl | CS336 | nanochat | here (`plain`) |
# |---|---|---|---|---|---|---|
# | divides by the std | yes | `scale_rewards="group"`; `batch` or `none` | yes, can be switched off | a flag | **no** | yes; `batch` or `none` |
# | std over | not said | G - 1 | G - 1 | G - 1 in `torch.std`\* | | G - 1 |
# | added to the std | nothing | 1e-4 | 1e-6 | `advantage_eps` | | 1e-6 |
# | equal rewards | | rounding noise / 1e-4 | rounding noise / 1e-6 | rounding noise / eps\* | rounding noise | exact zeros |
# | a group of one | | refused in training | the **raw reward** | NaN from `torch.std`\* | 0 | exact zero |
# | mean over tokens | sequence | `dapo`: token; `grpo`, `dr_grpo` and others | token; three others | sequence\* | token, each pass | token |
# | clip range | ε | 0.2, and `epsilon_high` | 0.2, low and high | one `cliprange` | **no ratio at all** | 0.2, and `epsilon_high` |
# | bound for A < 0 | none | `delta`, off | dual clip at 3, on | none | | `dual_clip`, a guard |
# | log-ratio before exp | as it is | as it is | clamped to ±20 | as it is\* | | `clamp_log_ratio`, a guard |
# | KL | k3 in the loss | k3 in the loss, `beta` = **0** | in the loss or in the reward, k1, k2 or k3 | none | none | k3 in the loss, 0.02 |
# | k3 | | `exp(d) - d - 1` | clamped to ±20, then the result to ±10 | | | `expm1(d) - d` |
# | old policy at µ = 1 | the sampler | `logprobs.detach()`: the ratio is 1 | a pass of its own | a pass of its own\* | | the sampler's own, where it samples plainly |
#
# What differs most often and shows least: `beta = 0` by default, and what a group of one gets.
#
# ## 8. What if
#
# Below is your run again. `panel.set(...)` acts as the sliders do. Three things to try, each over the run you keep:
#
# 1. `loss.advantage_scale=none`: no division by the standard deviation. The norm halves. What of the reward?
# 2. `data.num_generations=2`: how many groups have nothing to teach (`frac_reward_zero_std`)?
# 3. `loss.num_iterations=4`: four updates a batch. Now the ratio moves. How much of it is clipped?

# %%
panel = lab.panel(
    config.with_(f"loss.advantage_scale={lab.path('advantages')}"),
    controls=("learning_rate", "epsilon", "num_generations", "num_iterations"),
)
panel

# %% tags=["slow"]
await panel.run()
panel.keep("mine")
panel.set("loss.advantage_scale=none")
await panel.run()

# %% [markdown] tags=["instructor"]
# **What comes out** (one seed). Without the division: norm 1.5 instead of 2.6 in the last steps, reward the same. With two
# completions a group, two groups in three agree and teach nothing, and the reward ends at 0.45. With four updates a batch
# the largest ratio reaches 5, a tenth of the tokens is clipped, and the norm is three times as large. Ask: *what would change with plain SGD?* The step would halve
# with the norm; AdamW divides it out. What stays different is the weight of a prompt: dividing by the std makes an
# almost solved prompt count as much as an open one.

# %% [markdown]
# ## 9. Three questions to yourself

# %%
lab.questions()

# %% [markdown]
# What you keep: your answers, the runs and their figures, in one file. Next comes lab 2, in which the denominator of the
# ratio is the wrong policy, and one token is enough.

# %%
lab.export()
