# %% [markdown]
# # Lab 6. Silent failures
#
# In the earlier labs something exploded. Here nothing explodes: every number is finite, no guard acts, and the run
# learns nothing or the wrong thing. The best-known case is a log that shows `KL = 0.000` for hours. You cause nine
# such failures, learn which column of the log reveals each one, and write the three pieces of code that prevent most of
# them.

# %% [markdown] tags=["instructor"]
# **Minutes.** Recording and prediction 7, the three loops 5, accumulation 10, mask 8, mismatch 6, the table and `which`
# 12, recent reports 6, questions 2. If time is short, do `which` together at the board, column by column.
#
# **Say.** "A guard cannot see these failures. A guard asks whether a number is too large, and here no number is too
# large." And: "Test your accumulation with *unequal* micro-batches. With equal ones nearly every bug passes."
#
# **Misconceptions to listen for.**
# - *KL = 0.000 means that the penalty works.* It means that policy and reference have the same weights.
# - *Overwriting the gradient makes KL 0.* A report says so, but our measurement disagrees: the model still learns from
#   the last micro-batch.
# - *A step inside the loop freezes the model.* The model moves once per micro-batch, and faster than it should.
# - *The ratio shows a mismatch.* It compares two passes of the trainer. Neither pass includes the sampler.
# - *A flat reward means that nothing is trained.* Here the weights move in every step; the sampler never gets them.
# - *Equal rewards are always harmless.* Here nothing moves. In an earlier version of this trainer AdamW turned a
#   rounding error into a step of nearly ordinary length.

# %%
import grpo_lab as gl
import pandas as pd

lab = gl.Lab("06_silent_failures")
panel = lab.panel(recording="lecture-accumulation-zeroed")
panel

# %% [markdown]
# Find the error in this recording. The reward moves up and down around 0.3, as in the first steps of any run. The
# gradient norm is 0. The KL seems to jump, but read its axis: $10^{-13}$ is rounding. A log prints 0.000. No link of
# the chain is broken, and no step is skipped. This run could continue for weeks without an alarm.
#
# A report of a two-objective trainer describes this failure (*KL H = 0.000, the weights do not change*) and names three
# bugs in the accumulation of micro-batches. In short form, where `loss(part)` is the loss of one micro-batch:
#
# ```python
# # 1 overwrite                     # 2 step inside                  # 3 zeroed
# for part in parts:                for part in parts:               for part in parts:
#     optimizer.zero_grad()             loss(part).backward()            loss(part).backward()
#     loss(part).backward()             optimizer.step()                 optimizer.zero_grad()
# optimizer.step()                      optimizer.zero_grad()        optimizer.step()
# ```
#
# ## 1. Which bug causes KL = 0.000?

# %%
# %%exercise forecast
# Which of the three?
#   a  All three.
#   b  1 and 3: both throw gradients away.
#   c  2 alone: the optimizer never sees the whole batch.
#   d  3 alone: with the other two, some gradient reaches the optimizer.
# BEGIN SOLUTION
answer = "d"
# END SOLUTION

# %% tags=["slow"]
base = gl.preset("plain").with_("run.num_steps=8", "data.num_prompts=4", "sampling.top_p=0.9999")
parts = base.with_("data.micro_batch_prompts=1")
runs = {}
for name in ("add", "overwrite", "step_inside", "zeroed"):
    runs[name] = lab.run(parts.with_(f"loss.accumulation={name}"), name)
rows = ["kl", "grad_norm", "ratio/max", "weights/max_move", "reward"]
pd.DataFrame({name: run.records[rows].tail(4).mean() for name, run in runs.items()}).round(4)

# %% [markdown]
# The table shows means of the last four steps; each batch is four prompts in four micro-batches.
#
# <details><summary>Our measurement, compared with the report: open it after your run</summary>
#
# - **overwrite** moves, but only by the last micro-batch: the norm is about half, and three quarters of the work is
#   lost. Its record looks like that of a run with small gradients. Only a comparison of gradients shows the bug.
# - **step_inside** moves *more* than the right loop: it makes four updates instead of one, and no guard sees them. The
#   log shows the gradient after `zero_grad`: 0. The ratio is not 1 at the supposed first update.
# - **zeroed** has KL 0.000. No weight moved. So the answer is **d**.
#
# </details>
#
# ## 2. Accumulation that equals one batch
#
# Write the loop. `parts` are the micro-batches. `loss_of(part)` returns the losses of its tokens, shape (b, T).
# `part.mask` is 1 for trained tokens. The update must be **the same as one update on the whole batch**: it uses the
# mean over all trained tokens. The micro-batches have different numbers of tokens, and an old gradient may still be
# set.

# %%
# %%exercise one_update
def one_update(parts, loss_of, optimizer):
    """One optimizer step on the mean loss of all trained tokens of all parts."""
    # BEGIN SOLUTION
    total = sum(part.mask.sum() for part in parts)
    optimizer.zero_grad()
    for part in parts:
        loss = (loss_of(part) * part.mask).sum() / total
        loss.backward()
    optimizer.step()
    # END SOLUTION


# %% [markdown]
# Did your first attempt divide by the number of micro-batches? The `Trainer` of transformers did the same until
# October 2024. With micro-batches of equal length the bug has no effect.
#
# ## 3. Which tokens are trained
#
# Padding follows a short completion. The mask marks the sampled tokens: **every token up to the first end token, and
# the end token itself.** Many models use the same token for the end and for padding. A mask by token (`tokens != pad`)
# then also drops the real end token, and the model never learns to stop. Without a mask the model learns to produce
# padding.

# %%
# %%exercise completion_mask


def completion_mask(tokens, end):
    """(B, T) token ids -> (B, T) bool: True up to and including the first end token."""
    # BEGIN SOLUTION
    ends = tokens == end
    before = ends.cumsum(dim=1) - ends.int()
    return before == 0
    # END SOLUTION


def of_the_batch(batch, pad):
    return completion_mask(batch.completions, end=256)


# %% [markdown]
# `of_the_batch` has the signature that the trainer expects; 256 is the end token of the tiny model. Here is a run with
# your mask, next to a run that trains its padding:

# %%
mine = lab.path("completion_mask", "of_the_batch")
runs["yours"] = lab.run(base.with_(f"loss.completion_mask={mine}"), "mask-yours")
runs["padding"] = lab.run(base.with_("loss.completion_mask=all"), "mask-all")
gap = ["sampling/sampling_logp_difference/mean", "sampling/sampling_logp_difference/max"]
rows = ["completions/mean_length", "ratio/max", "kl", *gap]
pd.DataFrame({name: runs[name].records[rows].mean() for name in ("yours", "padding")}).round(3)

# %% [markdown]
# The ratio is 1 in both runs, because it compares two passes with the same mistake. Two numbers reveal the mistake: all
# completions have the same length, and sampler and trainer differ by 12.5 nats at the worst token of a step (a mean over
# the steps), because the sampler never drew the padding.
#
# ## 4. The sampler's own log-probabilities
#
# Many trainers do not log the difference between sampler and trainer, although it is very useful. The sampler knows the
# log-probability with which it drew each token (`sampling_logprobs`). The trainer computes its own (`old_logprobs`).
# The two must agree.

# %%
# %%exercise mismatch
def mismatch(old_logprobs, sampling_logprobs, mask):
    """Mean and largest absolute difference in nats over trained tokens (mask is bool): two numbers."""
    # BEGIN SOLUTION
    gaps = (old_logprobs - sampling_logprobs)[mask].abs()
    return float(gaps.mean()), float(gaps.max())
    # END SOLUTION


# %% [markdown]
# The next run has a temperature that never reaches the sampler. The trainer computes every log-probability at the
# configured 0.5. The sampler does not read this setting (transformers printed a warning about this) and draws completions
# at temperature 1.

# %%
panel = lab.panel("temperature-ignored")
panel

# %%
await panel.run()
panel.session.records[["ratio/max", *gap, "kl", "reward"]].tail(3).T.round(3)

# %% [markdown]
# The ratio is 1, nothing is clipped, and sampler and trainer differ by half a nat. The KL does not reveal it: it rises,
# as in runs that learn. vLLM and SGLang return the sampler's log-probabilities; TRL logs the same two numbers, and verl
# has `training/rollout_probs_diff_mean`.
#
# ## 5. Two more failures, then all together
#
# **Dropout** is on in one pass and off in the other (`model.train()` before the loss, `model.eval()` for sampling): the
# ratio compares two networks. **No spread**: all completions of a group get the same reward, because the reward
# function is broken, the task is too easy, or the group has one member. Equal rewards give no gradient.
#
# First look at a group of one. The textbook formula divides 0 by 0; a careful formula returns 0:

# %%
alone = gl.scenario("single-generation").config()
for scale in ("group_naive", "group"):
    run = lab.run(alone.with_(f"loss.advantage_scale={scale}"), scale)
    print(f"{scale}: {run.status}. {run.first_break() or 'No link broke.'}")
run.records[["frac_reward_zero_std", "grad_norm", "kl", "reward"]].tail(3).round(4)

# %% [markdown]
# The careful formula is right, but it turned a loud failure into a silent one. Now start the remaining runs. A reward
# function can also come from a file:

# %% tags=["slow"]
from pathlib import Path

equal = "def all_one(completions, **columns):\n    return [1.0] * len(completions)\n"
Path("equal_rewards.py").write_text(equal)
others = {
    "temperature": ("sampling.temperature=0.5", "faults.ignore_temperature=on"),
    "dropout": ("model.prompt_pass=plain", "faults.dropout_on=on"),
    "no_spread": ("data.rewards=equal_rewards.py:all_one",),
    "healthy": (),
}
for name, overrides in others.items():
    runs[name] = lab.run(base.with_(*overrides), name)

# %%
rows = ["frac_reward_zero_std", "kl", "grad_norm", "ratio/max", "weights/max_move"]
rows += ["completions/mean_length", *gap]
causes = ["healthy", "zeroed", "step_inside", "no_spread", "temperature", "padding", "dropout"]
table = pd.DataFrame({name: runs[name].records[rows].mean() for name in causes})
table.round(4)

# %% [markdown]
# Each column is a run, with means over eight steps. Take your time. In each row, which number differs from the others?
#
# Compare `no_spread` with `zeroed`: **nothing moves in either**. Without spread every advantage is 0, and the KL term has no
# gradient while policy and reference are equal. Only the share of groups without spread tells the two apart. (In an earlier
# version of this trainer the passes of policy and reference were rounded differently. AdamW divides by the size of the
# gradient, so this rounding alone moved the weights four fifths as far as a healthy gradient.)
#
# Write your observations as a function. It gets the record of a run, a dictionary such as `table["dropout"].to_dict()`,
# and returns the name of the cause. The check passes fourteen records that you have not seen.

# %%
# %%exercise which
def which(record):
    """Return healthy, zeroed, step_inside, no_spread, temperature, padding or dropout."""
    # BEGIN SOLUTION
    if record["frac_reward_zero_std"] == 1:
        return "no_spread"
    if record["grad_norm"] < 1e-6:
        return "step_inside" if record["weights/max_move"] > 0 else "zeroed"
    if record["sampling/sampling_logp_difference/mean"] > 0.1:
        return "padding" if record["sampling/sampling_logp_difference/max"] > 8 else "temperature"
    return "dropout" if record["ratio/max"] > 1.1 else "healthy"
    # END SOLUTION


# %%
which = lab.answer("which").which
{name: which(record) for name, record in table.items()}

# %% [markdown]
# With these few lines you can find such a failure after eight steps instead of a week. `grpo-lab diagnose <log>` does
# the same for logs of TRL and verl, with more causes. Neither can see `overwrite`: only a test of the code can, such as
# the check of your loop above.
#
# ## 6. Three reports of 2025 and 2026
#
# **Old weights.** An inference engine samples, a trainer updates, and after each step the new weights must travel from
# one to the other. Users of several frameworks found that they did not: a sleep mode dropped them, adapters were not
# loaded, the synchronisation failed without an error, or a resume began with the base model. The next cells train two
# such runs, one at half the learning rate. In both, the trainer computes `old_logprobs` itself. First predict which
# column shows the failure:

# %%
# %%exercise old_weights
# The sampler keeps the weights of the start. Which column of the log shows it?
#   a  The ratio: it moves away from 1.
#   b  The reward of the samples: it falls.
#   c  The gap between sampler and trainer: it is 0 in the first step, and grows.
#   d  The gradient norm: it is 0, because the samples are old.
# BEGIN SOLUTION
answer = "c"
# END SOLUTION

# %%
old = gl.scenario("sampler-keeps-old-weights").config().with_("run.num_steps=8")
rows = ["reward", "ratio/max", "grad_norm", gap[0]]
tables = {}
for name, rate in (("old-weights", "*1"), ("half-the-rate", "*0.5")):
    run = lab.run(old.with_(f"optimizer.learning_rate={rate}"), name)
    tables[name] = run.records[rows]
pd.concat(tables, axis=1).round(4)

# %% [markdown]
# Compare the two columns `reward`: they are equal to the last digit, although one run learns at half the rate. The
# samples do not depend on the updates, so this reward says nothing about the policy. It stays near its first value for
# ever, while the policy moves away without being sampled. The ratio is 1, because the trainer computes both of its
# passes. Only the gap shows the failure: it is 0 in the first step, and grows. With a wrong temperature it is large from the
# first step on.
#
# **A reward for the format.** Two reward functions are added up: 1 for the right answer, 2 for a completion of two
# digits. The author looked at a few examples, and their answers had two digits. Half of the answers have three. What
# happens to the total reward, and what to the right answers?

# %% tags=["slow"]
run = lab.run(gl.scenario("format-reward").config(), "format")
rows = ["reward", "rewards/two_digit_format/mean", "rewards/exact_match/mean"]
first, last = run.records[rows].head(5).mean(), run.records[rows].tail(5).mean()
pd.DataFrame({"first 5 steps": first, "last 5 steps": last}).round(2)

# %% [markdown]
# The total rises, as in a run that learns. Right answers become fewer within forty steps: a wrong answer of two digits
# gets 2, a right one of three digits gets 1. So log each reward function by itself. The held-out reward is no help, if it is the
# same sum.
#
# **A ratio without its 1/length.** GSPO gives a whole completion one ratio: exp of the *mean* log-ratio of its tokens.
# Some implementations forgot to divide by the length. Here every token has become 1 % likelier (a log-ratio of 0.01):

# %%
import torch
from grpo_lab.algorithm.surrogates import sequence_level

ratios = {}
for length in (4, 40, 400, 2000):
    log_ratio = torch.full((1, length), 0.01)
    mask = torch.ones(1, length, dtype=torch.bool)
    levels = (sequence_level(log_ratio, mask, divided)[0, 0] for divided in (True, False))
    ratios[length] = [f"{float(level.exp()):.3g}" for level in levels]
pd.DataFrame(ratios, index=["mean", "sum"])

# %% [markdown]
# With the mean, the ratio does not depend on the length. With the sum, 2,000 tokens make it 485,000,000, and a policy
# that finds each token 1 % less likely gets the inverse of that. Then almost every completion is outside of a clip
# range of 0.2. Completions of three or four tokens, as in this lab, hardly show it: in the scenario `summed-log-ratio`
# more tokens are clipped than with the mean, and the model learns all the same. So test a loss with long completions.
#
# ## 7. Try other settings
#
# Keep the run with the right accumulation in the plot and change one thing. Watch norm, KL and ratio:
#
# 1. Press Start. During the run, execute `panel.set("loss.accumulation=zeroed")` in a new cell: the KL stands still.
# 2. `optimizer.learning_rate=*100` with `zeroed`. Does a hundred times the rate move the model?
# 3. `loss.accumulation=step_inside`, and then a guard of your choice. Which guard sees it?

# %%
panel = lab.panel(parts.with_("run.num_steps=12"), controls=("learning_rate", "beta"))
panel

# %% tags=["slow"]
await panel.run()
panel.keep("add")
panel.set("loss.accumulation=zeroed", "optimizer.learning_rate=*100")
await panel.run()

# %% [markdown] tags=["instructor"]
# **Results.** A hundred times the rate changes nothing: KL 0.000 and no move. No guard sees `step_inside`, because
# guards look at the gradient after the last `zero_grad`. `skip_spikes`, `clip_gradients`, `check_weights` and
# `clamp_log_ratio` were all tried (they are decoys of the scenario `accumulation-step-inside`).

# %% [markdown]
# ## 8. Ask yourself

# %%
lab.questions()

# %% [markdown]
# **Next:** lab 7 covers numbers that are too small for their type, and a model that answers `!!!!!!!!`.

# %%
lab.export()
