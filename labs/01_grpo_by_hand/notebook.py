# %% [markdown]
# # Lab 1. GRPO by hand
#
# GRPO, Group Relative Policy Optimization, fits on a page. Score a group of completions, compare each with the mean of
# its group, and make the better ones likelier, but only by a limited amount at a time. Here you first do it on paper
# with one group and one token. Then you write each line in code, check a gradient without calculus, and train a model
# with a trainer of your own, in about fifty lines.
#
# Three words first. A *completion* is the text that the model writes after a prompt. The *policy* is the model that is
# trained, taken as a distribution over the next token. The *reference* is a frozen copy of it, from before the
# training.
#
# The panel below opens on a recorded healthy run. Everything here runs on a model of 0.8 million parameters that learns
# to add two numbers, in seconds, on the CPU.

# %% [markdown] tags=["instructor"]
# **Minutes.** Panel and reading 4, by hand 6, advantages 6, prediction and the two runs 5, loss per token 6, slope 4,
# aggregation 6, table and other settings 3, log-probabilities 6, step 8, the runs of sections 9 and 10 6. If you are
# short of time, leave out *Try other settings*.
#
# **Say.** "There is no value network here and no reward model. There is a mean and a standard deviation." Let a learner
# work the first exercise at the board before anybody types.
#
# **Misconceptions to listen for.**
# - *The loss should go down.* It hovers around 0 in a run that learns. Ask for its value at a ratio of 1.
# - *Clipping bounds the loss.* It bounds one side. For A < 0 a large ratio counts in full; lab 2 is about this case.
# - *The standard deviation divides by G.* torch, TRL and verl divide by G - 1. With G = 4 the difference is 15 % of
#   every step of plain gradient descent; AdamW removes it completely.
# - *A wrong sign makes the run explode.* The run below with the wrong sign is calmer than the right one.

# %%
import grpo_lab as gl

lab = gl.Lab("01_grpo_by_hand")
panel = lab.panel(recording="lecture-healthy")
panel

# %% [markdown]
# The run has forty steps, 16 prompts per step and 8 completions per prompt. At first a third of the sums are right, at
# the end more than half. Drag the slider *steps shown* to read a few of them, or press Play. The curves:
#
# - **reward**: the share of completions that are the right sum. It rises, with noise: each step asks for other sums.
# - **gradient norm**: between 1 and 4 in every step. It does not shrink as the model learns.
# - **KL to reference**: the distance of the policy from the model it started as. It rises slowly, and it has to: a
#   policy that learns moves.
# - **largest ratio**: 1, but for rounding. Each batch is used for one update, and before that update the policy has not changed.
#
# ## 1. One group, one token
#
# Take one prompt and four completions with rewards **1 0 0 0**. The advantage of a completion is
# $A = (r - \text{mean}) / \text{std}$ over its group. The standard deviation is the unbiased one:
# the sum of squared deviations is divided by $G - 1$, where $G$ is the number of completions in the group, here 4.
#
# Now take one token. The policy that sampled it gave it a log-probability of **-1.5** (`old_logprobs`). After some
# updates the policy gives it **-1.0** (`logprobs`). The ratio is $e^{\text{logprobs} - \text{old\_logprobs}}$, and the
# loss of the token is
#
# $$-\min(\text{ratio} \cdot A,\ \text{clip}(\text{ratio},\ 0.8,\ 1.2) \cdot A).$$
#
# Work out these values on paper, to two decimals:
#
# - `right_one`, `wrong_one`: the advantage of the right completion and of a wrong one;
# - `ratio`: the ratio of this token;
# - `loss_right`, `loss_wrong`: the loss of this token in the right completion, and in a wrong one.

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
# Look at the last two values again. In the right completion the clip range takes over: the ratio counts as 1.2. The
# clipped branch does not depend on the policy, so this token has **no gradient**. In the wrong completion the minimum
# picks the *unclipped* branch, and it does so for any larger ratio. This open side causes norms of 100 million.
#
# In a run, the clip takes effect from the second update of a batch on: at the first, every ratio is 1. The default is
# one update (`loss.num_iterations`, the µ of the paper, is 1), so the clip never takes effect; it takes µ ≥ 2, and
# section 8 sets µ = 4.
#
# ## 2. Many groups at once
#
# Your function gets rewards of shape (P, G), of P prompts with G completions each, and returns advantages of the same
# shape. Two kinds of group have nothing to compare: one whose rewards are all equal, and one of a single completion.
# Their advantages are exact zeros.
#
# The trainer also passes `scorable`: it marks the completions that have a reward. Here all of them have one, so you may
# ignore it. The cell holds a second function, `flipped`: your function with the wrong sign. Leave it in; a later cell
# needs it.

# %%
# %%exercise advantages
import torch


def advantages(rewards, scorable=None, eps=1e-6):
    """(r - mean) / (std + eps) of each group; exact zeros where nothing can be compared."""
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
# ## 3. Two runs: your function, and the same with a wrong sign
#
# Next come two runs of 40 steps: one with your `advantages`, one with `flipped`, and all else equal.

# %%
# %%exercise flipped
# Which curves will distinguish the two runs?
#   a  The gradient norm: with `flipped` it explodes.
#   b  The loss: with `flipped` it climbs, so the loss curve shows the mistake.
#   c  The reward and the KL. Norm and loss stay as small as in a healthy run.
#   d  Nothing: AdamW cancels the sign.
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
# The table shows the means of the last five steps.
#
# <details><summary>Our measurement: open it after your run</summary>
#
# One seed: the reward ended around 0.57 against 0.00, and the KL around 0.2 against 1.3. The gradient norm of the wrong
# run was *smaller*, 0.2 against 2.6: when every answer is wrong, all rewards of a group are equal and give no gradient.
# The loss was about 0.01 and 0.02. It never shows whether a run learns: at the first update every ratio is 1 and the
# advantages of a group sum to 0. So the answer is **c**. Every number stays finite, and no norm or ratio is large, so
# no guard acts. Only the KL leaves its healthy range, which ends at 1. `first_break()` of a run returns the first link
# of the chain that was not finite: here it is `None` for both runs.
#
# </details>
#
# ## 4. The loss of every token
#
# This is the core of the algorithm. `logprobs` and `old_logprobs` have the shape (B, T): B completions, in rows of T
# tokens. `advantages` has the shape (B,): one per completion, shared by its tokens. There are two bounds: `epsilon`
# below and `epsilon_high` above.

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
# It is easy to get a formula half right. You can check its gradient with a small step `h` to either side: the *central
# difference*. Write it for any function of one number.

# %%
# %%exercise slope
def slope(f, x, h):
    """The slope of f between x - h and x + h."""
    # BEGIN SOLUTION
    return (f(x + h) - f(x - h)) / (2 * h)
    # END SOLUTION


# %% [markdown]
# Now compare it with PyTorch's gradient of your `policy_loss`, one token at a time. All tokens were sampled at a
# log-probability of -10. Each row gives the current log-probability and the advantage.

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
# Read the rows from the top. Row 1, before any update: the gradient is $-A$. Row 2, a token of a right completion that
# is already more than 1.2 times as likely: clipped, 0. Row 3, the same ratio with a negative advantage: not clipped,
# not 0. Row 4, a token of a wrong completion that is already less than 0.8 times as likely: clipped, 0. Row 5, a token
# of a wrong completion that went from -10 to -1: its gradient is $0.5 \cdot e^9$, about 4,052, from **one token**. Lab
# 2 starts from this row.
#
# ## 6. From tokens to one number
#
# The loss of the batch is a mean over tokens. There are three ways to take it:
#
# - `token`: every trained token has the same weight (DAPO).
# - `sequence`: take the mean of each completion over its own tokens, then the mean of these means (DeepSeekMath).
# - `constant`: divide the sum by B · T, the number of completions times the width of `mask`; the lengths do not matter
#   (Dr. GRPO). The trainer takes `sampling.max_completion_length` for T.
#
# `mask` is 1 for trained tokens. Where it is 0, `per_token` may hold anything, even NaN.

# %%
# %%exercise aggregate
import torch


def aggregate(per_token, mask, how):
    """(B, T), (B, T) -> one number, as a tensor for autograd.

    how is "token", "sequence" or "constant".
    """
    # BEGIN SOLUTION
    values = per_token.masked_fill(mask == 0, 0.0)
    if how == "sequence":
        return (values.sum(dim=1) / mask.sum(dim=1)).mean()
    return values.sum() / (mask.sum() if how == "token" else mask.numel())
    # END SOLUTION


# %% [markdown]
# The weight of a single token, in a completion of 2 tokens and in one of 8:

# %%
aggregate = lab.answer("aggregate").aggregate
mask = torch.tensor([[1] * 2 + [0] * 6, [1] * 8])
for how in ("token", "sequence", "constant"):
    values = torch.zeros(2, 8, requires_grad=True)
    (weights,) = torch.autograd.grad(aggregate(values, mask, how), values)
    print(f"{how:9} in the short one {weights[0, 0]:.4f}, in the long one {weights[1, 0]:.4f}")

# %% [markdown]
# One part is missing. To keep the policy near its reference, each token also pays `beta` times an estimate of the KL
# divergence, k3: $e^d - 1 - d$ with $d = \text{ref\_logprobs} - \text{logprobs}$. k3 is 0 where the two agree, and
# grows exponentially where the reference finds a token likelier. Lab 5 studies it. This is the complete loss of a
# token:
#
# $$-\min(\text{ratio} \cdot A,\ \text{clip}(\text{ratio}) \cdot A) + \beta\,(e^d - 1 - d)$$
#
# ## 7. The same name, other conventions
#
# "GRPO" in two libraries is not the same function. Before you compare two runs, compare these rows. We read them in the
# source of TRL 1.16.0, verl (`core_algos.py`, commit 012be9d), nanochat (`chat_rl.py`, commit 030de3a) and the starter
# code of Stanford's CS336 (spring 2025, assignment 5; students write the function bodies). An asterisk marks usual
# behaviour that we did not read in that code. An empty field means: not looked up, or not applicable.
#
# | | DeepSeekMath | TRL | verl | CS336 | nanochat | here (`plain`) |
# |---|---|---|---|---|---|---|
# | divides by the std | yes | `scale_rewards="group"`; `batch` or `none` | yes, can be switched off | a flag | **no** | yes; `batch` or `none` |
# | std over | not said | G - 1 | G - 1 | G - 1 in `torch.std`\* | | G - 1 |
# | added to the std | nothing | 1e-4 | 1e-6 | `advantage_eps` | | 1e-6 |
# | equal rewards | | rounding noise, divided by 1e-4 | rounding noise, divided by 1e-6 | rounding noise, divided by eps\* | rounding noise | exact zeros |
# | a group of one | | refused in training | the **raw reward** | NaN from `torch.std`\* | 0 | exact zero |
# | mean over tokens | sequence | `dapo`: token; `grpo`, `dr_grpo` and others | token; three others | sequence\* | token mean of each pass | token |
# | clip range | ε | 0.2, and `epsilon_high` | 0.2, low and high | one `cliprange` | **no ratio at all** | 0.2, and `epsilon_high` |
# | bound for A < 0 | none | `delta`, off | dual clip at 3, on | none | | `dual_clip`, a guard |
# | log-ratio before exp | as it is | as it is | clamped to ±20 | as it is\* | | `clamp_log_ratio`, a guard |
# | KL | k3 in the loss | k3 in the loss, `beta` = **0** | in the loss or in the reward, k1, k2 or k3 | none | none | k3 in the loss, 0.02 |
# | k3 | | `exp(d) - d - 1` | clamped to ±20, then the result to ±10 | | | `expm1(d) - d` |
# | old policy at µ = 1 | the sampler | `logprobs.detach()`: the ratio is 1 | a separate pass | a separate pass\* | | the sampler's log-probabilities, if it has no filter and no penalty |
#
# Two differences are common and hard to notice: `beta = 0` by default, and the advantage of a group of one.
#
# ## 8. Try other settings
#
# Below is your run again. `panel.set(...)` does the same as the sliders. Try three things and compare each with the run
# you keep; the next cells do the first. Press Reset between two of them.
#
# 1. `loss.advantage_scale=none`: no division by the standard deviation. The norm halves. What happens to the reward?
# 2. `data.num_generations=2`: how many groups have equal rewards and give no gradient (`frac_reward_zero_std`)?
# 3. `loss.num_iterations=4`: four updates per batch. Now the ratio moves. What share of the tokens is clipped (`clip_ratio/region_mean`)?

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
# **Results** (one seed). Without the division: norm 1.5 instead of 2.6 in the last steps, same reward. With two
# completions per group, two groups in three have equal rewards and give no gradient; the reward ends at 0.45. With four
# updates per batch the largest ratio reaches 12, a tenth of the tokens is clipped, and the norm is 5.3 instead of 2.6.
# Ask: *what would change with plain SGD?* The step would halve with the norm; AdamW divides that factor out. One
# difference remains, the weight of a prompt: dividing by the std gives an almost solved prompt the same weight as an
# open one.

# %% [markdown]
# ## 9. Write it first: your own GRPO
#
# Two pieces are missing: the log-probabilities, and the step that puts everything together. Sampling is given: `batch`
# holds P prompts and B = P · G completions of up to T tokens.
#
# | field | shape | |
# |---|---|---|
# | `prompt_ids`, `prompt_mask` | (P, S) | padded on the left |
# | `group` | (B,) | the prompt of each completion |
# | `completions`, `completion_mask` | (B, T) | padded on the right |
# | `old_logprobs`, `ref_logprobs` | (B, T) | of the policy that sampled, and of the reference |
#
# S is the number of tokens to which the prompts are padded, and V is the number of tokens in the vocabulary. A language
# model returns logits of shape (B, S + T, V). The logits at a position belong to the token **after** it. Which
# positions do the T tokens of a completion need?

# %%
# %%exercise logprobs
import torch


def logprobs(policy, batch):
    """(B, T): the policy's log-probability of each token of the completions, for autograd."""
    ids = torch.cat([batch.prompt_ids[batch.group], batch.completions], dim=1)
    mask = torch.cat([batch.prompt_mask[batch.group], batch.completion_mask], dim=1)
    positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
    logits = policy(input_ids=ids, attention_mask=mask, position_ids=positions).logits
    # BEGIN SOLUTION
    width = batch.completions.shape[1]
    scores = logits[:, -width - 1 : -1].log_softmax(dim=-1)
    return scores.gather(-1, batch.completions[:, :, None])[:, :, 0]
    # END SOLUTION


# %% [markdown]
# Now the step. Call your functions by name: `advantages(rewards)`, `logprobs(policy, batch)`, `policy_loss(...)` and
# `aggregate(...)` with `"token"`. Give the results other names than the functions have. The completions stand in the
# order of `rewards`, row by row: `flatten()` turns (P, G) into (B,). Each update needs new log-probabilities, the loss
# of section 6 with its KL part, and three calls of PyTorch: `optimizer.zero_grad()`, `loss.backward()`,
# `optimizer.step()`. In the check of this cell the four names call our solutions, so that each exercise is judged by
# itself; the run below uses yours.

# %%
# %%exercise step
import torch


def step(policy, optimizer, batch, rewards, beta, num_iterations):
    """Make `num_iterations` updates from one batch; rewards are (P, G)."""
    # BEGIN SOLUTION
    weights = advantages(rewards).flatten()
    for _ in range(num_iterations):
        now = logprobs(policy, batch)
        d = batch.ref_logprobs - now
        losses = policy_loss(now, batch.old_logprobs, weights) + beta * (d.exp() - 1 - d)
        loss = aggregate(losses, batch.completion_mask, "token")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    # END SOLUTION


# %% [markdown]
# Your five answers are a whole trainer. This cell joins them in one file:

# %%
parts = ("advantages", "policy_loss", "aggregate", "logprobs", "step")
mine = lab.answers / "grpo.py"
mine.write_text("\n\n".join((lab.answers / f"{part}.py").read_text(encoding="utf-8") for part in parts), encoding="utf-8")
code = [line for line in mine.read_text(encoding="utf-8").splitlines() if line.strip() and not line.startswith("#")]
print(mine, "has", len(code), "lines of code")

# %% [markdown]
# `loss.step` takes the name of a function in a file: the package samples, scores and draws the curves, and your step
# does the rest. First the package's own trainer runs, then yours, with the same seed. How far apart will the two curves
# be?
#
# The panel cannot look inside your `step`. In the chain of your run the rows of the advantages, the ratio and the loss
# stay empty; there are no tokens to open, and no largest ratio.

# %% tags=["slow"]
settings = ("run.num_steps=40", "run.num_eval=200", "run.seed=2")
panel = lab.panel(gl.preset("plain").with_(*settings), controls=("learning_rate", "beta", "num_iterations"))
packaged = await panel.run()
panel.keep("package")

# %% tags=["slow"]
panel.set(f"loss.step={mine.as_posix()}:step")
own = await panel.run()

# %%
columns = ["reward", "grad_norm", "kl"]
both = pd.concat({"package": packaged.records[columns], "yours": own.records[columns]}, axis=1)
table = both.swaplevel(axis=1).sort_index(axis=1).round(4)
table[(table.index % 5 == 0) | (table.index == table.index[-1])]

# %% [markdown]
# Do you see only one curve? Then your trainer is right: the two lie on each other.
#
# <details><summary>Our measurement: open it after your run</summary>
#
# Held out, the reward rose from 0.285 to 0.595 with either trainer. Each batch had the same rewards, and the gradient
# norms agreed to five digits in every step but the last. The package sums the same numbers in another order,
# because it runs a prompt once for its eight completions; so the last digits differ.
#
# In the last step norm and KL jump in both runs, to 24 and 2.3. The policy had made one sampled token almost 900 times
# less likely than it is under the reference, and k3 takes exp of this distance. Lab 5 is about such tokens.
#
# </details>
#
# ## 10. Break it: one word
#
# Change one word of your file, and you have the loss of the report TRAIN-001 (lab 2): `old_logprobs` becomes
# `ref_logprobs`. The ratio then compares with the reference, and not with the policy that sampled. In the first step
# both are the same model. What do you expect of the gradient norm, and of the reward? Decide before you run. Both runs
# have four updates a batch (`loss.num_iterations=4`), the first with `old_logprobs`, the second with `ref_logprobs`.

# %%
source = mine.read_text(encoding="utf-8")
broken = mine.with_name("train_001.py")
broken.write_text(source.replace("batch.old_logprobs", "batch.ref_logprobs"), encoding="utf-8")
print([line.strip() for line in broken.read_text(encoding="utf-8").splitlines() if line not in source.splitlines()])

# %% tags=["slow"]
settings = ("run.num_steps=24", "run.num_eval=200", "run.seed=2", "data.num_prompts=8", "loss.num_iterations=4")
reused = gl.preset("plain").with_(*settings, f"loss.step={mine.as_posix()}:step")
panel = lab.panel(reused, controls=("learning_rate", "beta"))
await panel.run()
panel.keep("old")

# %% tags=["slow"]
panel.set(f"loss.step={broken.as_posix()}:step")
exploded = await panel.run()

# %%
exploded.records.loc[exploded.records["grad_norm"].nlargest(5).index, ["step", "reward", "grad_norm", "kl"]]

# %% [markdown]
# <details><summary>Our measurement: open it after your run</summary>
#
# With `old` the largest norm was 8, and the held-out reward rose from 0.285 to 0.48 in 24 steps. With `ref` the norm
# reached 182 in step 5, the reward of the last five steps was 0.07, and held out it fell to 0.085. The first norms are
# close. From the second update on, the clip measures from the start of the run, and a token that has become likelier
# since then is out of its range for good: where its advantage is negative, it is pushed down with a weight that nothing
# bounds.
#
# </details>
#
# Other failures of this course are one line of your file, too: lab 2 bounds the ratio, lab 5 replaces the KL, lab 6
# moves `zero_grad` and the mask. Keep the file, and try each change in it.

# %% [markdown]
# ## 11. Ask yourself

# %%
lab.questions()

# %% [markdown]
# The next cell puts your answers, the runs and their figures into one file. In lab 2 the ratio has the wrong policy in
# its denominator, and one token is enough for an explosion.

# %%
lab.export()
