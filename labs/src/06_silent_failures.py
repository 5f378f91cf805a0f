# %% [markdown]
# # Lab 6. Silent failures
#
# So far something exploded. Now nothing does: every number is finite, every guard is content, and the run is worth
# nothing. The most famous of them ends in a log that says `KL = 0.000` for hours. You will cause seven such failures,
# learn which column of the log gives each away, and write the three pieces of code that prevent most of them.

# %% [markdown] tags=["instructor"]
# **Minutes.** Recording and prediction 7, the three loops 5, accumulation 10, mask 8, mismatch 6, the table and `which` 12,
# questions 2. If time is short, do `which` together at the board, column by column.
#
# **Say.** "No guard in the world can see these. A guard asks whether a number is too large. Here no number is." And:
# "Test your accumulation with *unequal* micro-batches. With equal ones nearly every bug passes."
#
# **Misconceptions to listen for.**
# - *KL = 0.000 means that the penalty works.* It means that policy and reference are the same weights.
# - *Overwriting the gradient makes KL 0.* One report says so. Measured, it does not: the last micro-batch still teaches.
# - *A step inside the loop makes the model stand still.* It moves once a micro-batch, and faster than it should.
# - *The ratio shows a mismatch.* It compares two passes of the trainer. What the sampler did is in neither.
# - *Equal rewards are harmless, they have no gradient.* AdamW makes a step of ordinary length out of a rounding error.

# %%
import grpo_lab as gl
import pandas as pd

lab = gl.Lab("06_silent_failures")
panel = lab.panel(recording="lecture-accumulation-zeroed")
panel

# %% [markdown]
# Look for what is wrong in this recording. The reward goes up and down around 0.3, as it does in the first steps of any
# run. The gradient norm is 0. The KL seems to jump about: read its axis, it is $10^{-13}$, rounding. A log says 0.000. No
# link of the chain is broken, nothing is skipped, and it would go on like this for weeks.
#
# A report of a two-objective trainer describes it (*KL H = 0.000, the weights do not change*) and names three bugs in how
# micro-batches were accumulated. Stripped down, with `loss` that of one micro-batch:
#
# ```python
# # 1 overwrite                     # 2 step inside                  # 3 zeroed
# for part in parts:                for part in parts:               for part in parts:
#     optimizer.zero_grad()             loss(part).backward()            loss(part).backward()
#     loss(part).backward()             optimizer.step()                 optimizer.zero_grad()
# optimizer.step()                      optimizer.zero_grad()        optimizer.step()
# ```
#
# ## 1. Who makes KL = 0.000?
#
# - **a** All three.
# - **b** 1 and 3: in both, gradients are thrown away.
# - **c** 2 alone: the optimizer never sees the whole batch.
# - **d** 3 alone: in the other two some gradient reaches the optimizer.

# %%
# %%exercise forecast
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
# Means of the last four steps; each batch is four prompts in four micro-batches.
#
# <details><summary>What was measured here, against the report, once yours is done</summary>
#
# - **overwrite** learns, from the last micro-batch alone: the norm is about half, and three quarters of the work is thrown
#   away. From its record you cannot tell it from a run with small gradients. Only comparing gradients shows it.
# - **step_inside** moves *more* than the right one: four updates in place of one, which no guard has seen. What is logged
#   afterwards is the gradient after `zero_grad`: 0. And the ratio is not 1 at what should be the first update.
# - **zeroed** is the one with KL 0.000. No weight has moved. So it was **d**.
#
# </details>
#
# ## 2. Accumulation that equals one batch
#
# Write the loop. `parts` are the micro-batches, `loss_of(part)` gives the losses of its tokens, shape (b, T), and
# `part.mask` is 1 where a token is trained. The update must be **the same as that of the whole batch in one**: the mean
# over all trained tokens. The micro-batches have different numbers of tokens, and a gradient may be left over from before.

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
# If your first attempt divided by the number of micro-batches, you are in good company: the `Trainer` of transformers did
# so until October 2024. With micro-batches of equal length nobody notices.
#
# ## 3. Which tokens are trained
#
# After a short completion there is padding. The mask says what was sampled: **everything up to the first end token, and
# the end token itself.** Many models use one and the same token for the end and for padding. Then a mask by token
# (`tokens != pad`) drops the real end too, and the model never learns to stop; no mask at all trains it to say padding.

# %%
# %%exercise completion_mask


def completion_mask(tokens, end):
    """(B, T) token ids -> (B, T) bool: True up to the first end token, and for it."""
    # BEGIN SOLUTION
    ends = tokens == end
    before = ends.cumsum(dim=1) - ends.int()
    return before == 0
    # END SOLUTION


def of_the_batch(batch, pad):
    return completion_mask(batch.completions, end=256)


# %% [markdown]
# `of_the_batch` has the signature that the trainer asks for; 256 is the end token of the tiny model. Your mask in a run,
# beside a run that trains its padding:

# %%
mine = lab.path("completion_mask", "of_the_batch")
runs["yours"] = lab.run(base.with_(f"loss.completion_mask={mine}"), "mask-yours")
runs["padding"] = lab.run(base.with_("loss.completion_mask=all"), "mask-all")
gap = ["sampling/sampling_logp_difference/mean", "sampling/sampling_logp_difference/max"]
rows = ["completions/mean_length", "ratio/max", "kl", *gap]
pd.DataFrame({name: runs[name].records[rows].mean() for name in ("yours", "padding")}).round(3)

# %% [markdown]
# The ratio is 1 in both: it compares two passes that make the same mistake. Two rows tell. Every completion seems to
# have the same length; and the sampler disagrees with the trainer by 13 to 15 nats at worst, because it never sampled those tokens.
#
# ## 4. The sampler's own word
#
# That difference is the most useful number that many trainers do not log. The sampler knows the log-probability with
# which it drew each token (`sampling_logprobs`). The trainer computes its own (`old_logprobs`). They must agree.

# %%
# %%exercise mismatch
def mismatch(old_logprobs, sampling_logprobs, mask):
    """Mean and largest distance of the two, in nats, over trained tokens (mask is bool): two numbers."""
    # BEGIN SOLUTION
    gaps = (old_logprobs - sampling_logprobs)[mask].abs()
    return float(gaps.mean()), float(gaps.max())
    # END SOLUTION


# %% [markdown]
# Now a temperature that never arrives: 0.5 is configured and used for every log-probability, but passed to the sampler in
# a place that does not read it (transformers said so in a warning). Completions are drawn at temperature 1.

# %%
panel = lab.panel("temperature-ignored")
panel

# %%
await panel.run()
panel.session.records[["ratio/max", *gap, "kl", "reward"]].tail(3).T.round(3)

# %% [markdown]
# Ratio 1, nothing clipped, and half a nat between sampler and trainer. Do not wait for the KL to tell: it rises, but so it
# does in runs that learn. vLLM and SGLang return the sampler's log-probabilities; TRL logs the same two numbers, and verl
# has `training/rollout_probs_diff_mean`.
#
# ## 5. Two more, and then all together
#
# **Dropout** that is on in one pass and off in the other (`model.train()` before the loss, `model.eval()` for sampling):
# the ratio compares two networks. **No spread**: all completions of a group get the same reward, because the reward
# function is broken, the task too easy, or the group has one member. There is nothing to compare, and so no gradient.
#
# A group of one is worth a look by itself. The textbook formula divides 0 by 0; a careful one returns 0:

# %%
alone = gl.scenario("single-generation").config()
for scale in ("group_naive", "group"):
    run = lab.run(alone.with_(f"loss.advantage_scale={scale}"), scale)
    print(f"{scale}: {run.status}. {run.first_break() or 'No link broke.'}")
run.records[["frac_reward_zero_std", "grad_norm", "kl", "reward"]].tail(3).round(4)

# %% [markdown]
# The careful formula is right, and it turned a loud failure into a silent one. Now the remaining runs; a reward function
# can be a file too:

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
# One column a run, means over eight steps. Take your time. Which number is unlike the others of its row?
#
# One pair of numbers deserves a second look: in `no_spread` the gradient norm is a hundredth of the healthy one, and **the weights
# move four fifths as far**. AdamW divides by the size of the gradient. What it follows there is rounding and the KL term.
#
# Write what you see as a function. It gets the record of a run, a dictionary such as `table["dropout"].to_dict()`, and
# returns the name of the cause. The check hands it fourteen records that you have not seen.

# %%
# %%exercise which
def which(record):
    """healthy, zeroed, step_inside, no_spread, temperature, padding or dropout."""
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
# A few lines, and no run of yours has to be wrong for a week. `grpo-lab diagnose <log>` does the same for logs of TRL and
# verl, with more suspects. What neither can see is `overwrite`: that takes a test of the code, such as yours above.
#
# ## 6. What if
#
# The right accumulation, kept, and one thing changed. Watch norm, KL and ratio:
#
# 1. Press Start, and while it runs execute `panel.set("loss.accumulation=zeroed")` in a cell of your own: the KL stands still.
# 2. `optimizer.learning_rate=*100` under `zeroed`. A hundred times nothing?
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
# **What comes out.** A hundred times nothing is nothing: KL 0.000 and no move. No guard sees `step_inside`, since guards
# look at the gradient that the last `zero_grad` has left: `skip_spikes`, `clip_gradients`, `check_weights` and
# `clamp_log_ratio` were all tried (they are decoys of the scenario `accumulation-step-inside`).

# %% [markdown]
# ## 7. Three questions to yourself

# %%
lab.questions()

# %% [markdown]
# Next comes lab 7: numbers that are too small for their type, and a model that answers `!!!!!!!!`.

# %%
lab.export()
