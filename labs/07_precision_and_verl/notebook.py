# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # Lab 7. Precision, and verl's remedies
#
# Two reports are about verl, a trainer for large models. In the first, all answers turn into `!!!!!!!!` from one step
# to the next, and `old_log_prob` and `kl_loss` are NaN. In the second, KL and gradient norm spike while the reward
# looks fine, and a table lists remedies: clip harder, lower the rate, raise the precision, warm up, use larger batches.
# In this lab you learn how number formats matter, and measure which remedy cures which cause.

# %% [markdown] tags=["instructor"]
# **Plan, 45 minutes.** Recording, prediction, four formats 9 · `largest` 4 · loss scaling and `scaler` 10 · `!!!!!!!!`
# and workarounds 6 · `masked` 6 · `remedy` 5 · spikes and `cures` 5. If you are late, demonstrate `scaler` instead of
# letting learners write it.
#
# **Misconceptions to wait for.** *All 16-bit formats are alike* (range and digits are different things). *Loss scaling
# protects from large gradients* (it protects small ones, and detects large ones). *NaN times a small coefficient is
# small.* *A mask removes a NaN.* *A remedy in a published table was measured.*

# %%
import math

import torch

import grpo_lab as gl

lab = gl.Lab("07_precision_and_verl")

# %% [markdown]
# ## 1. A recorded run
#
# This recorded run learns addition on the small model. It is healthy for some steps, then it crashes. Move the time
# slider to the last healthy step. Do the curves show a sign of the crash?

# %%
lab.panel(recording="lecture-verl-nan-logprob")

# %% [markdown]
# <details><summary>The answer: open it after you have looked</summary>
#
# No alarming sign: the norm is 2, the KL is below 0.15, every ratio is 1. The report says "sudden, in any step", and
# this is right.
#
# </details>
#
# Part 5 returns to this run. First comes a question from the second report: is precision the cause?

# %% [markdown]
# ## 2. Four formats
#
# | format | bits | digits | largest | smallest normal |
# |---|---|---|---|---|
# | fp32 | 32 | 7 | 3.4 · 10³⁸ | 1.2 · 10⁻³⁸ |
# | bf16 | 16 | 2–3 | 3.4 · 10³⁸ | 1.2 · 10⁻³⁸ |
# | fp16 | 16 | 3–4 | 65,504 | 6.1 · 10⁻⁵ |
#
# You will run lab 3's loss four times: with fp32 weights, with fp16 weights, with bf16 weights, and with fp32 weights
# under fp16 autocast. The last one is the usual form of mixed precision. The rate is 2e-2, seventy times higher than in
# lab 3: within the first step, tokens move many nats away in each format.

# %%
# %%exercise forecast
# Which of the four runs end in a crash?
#   a  all four
#   b  fp16 weights only
#   c  fp16 and bf16 weights, because 16 bits are too few
#   d  all but fp32
# BEGIN SOLUTION
answer = "b"
# END SOLUTION

# %% tags=["slow"]
config = gl.scenario("cuda-001").config().with_("run.num_steps=2", "optimizer.learning_rate=2e-2", "data.num_prompts=4")
four = {}
for precision in ("fp32", "bf16_pure", "fp16_pure", "fp16"):
    four[precision] = lab.run(config.with_(f"model.precision={precision}"), precision)

# %%
for precision, run in four.items():
    norm, broken = run.records[["grad_norm", "weights/nonfinite"]].max()
    print(f"{precision:10} {run.status:8} norm up to {norm:9,.0f}   broken weights {broken:9,.0f}")

# %% [markdown]
# (`_pure` means that the weights themselves have this format. `fp16` means fp32 weights under autocast.)

# %% [markdown]
# <details><summary>Our measurement: open it after your run</summary>
#
# An overflow kills this run, so the range of the format decides, not its digits. bf16 has the same range as fp32, and
# like fp32 it survives, with a huge norm (1,000 in bf16, 1,700 in fp32). The run under autocast had gradients that are not
# finite. The table leaves them out, but the run's closing message names `grad_scaler`: the loss scaler checks the gradients
# before the update. So this run survives; part 4 explains it.
#
# </details>

# %% [markdown] tags=["instructor"]
# **Ask.** "Which one is healthy?" None: each run without a crash has reward 0 after the first step. **Say.** "Precision
# decides *how* a wrong loss shows itself: as a crash, or as a model that forgot everything."

# %% [markdown]
# ## 3. How large may a log-ratio be?

# %%
# %%exercise largest
import math
import torch

def largest_log_ratio(dtype):
    """The largest x for which e^x is finite in a dtype, given by name, such as "float16"."""
    # BEGIN SOLUTION
    return math.log(torch.finfo(getattr(torch, dtype)).max)
    # END SOLUTION

# %%
for dtype in ("float16", "bfloat16", "float32"):
    limit = lab.answer("largest").largest_log_ratio(dtype)
    x = torch.tensor([0.99 * limit, 1.01 * limit], dtype=getattr(torch, dtype))
    print(f"{dtype:9} {limit:6.2f} nats    exp a little below and above: {x.exp().tolist()}")

# %% [markdown]
# The limit in fp16 is eleven nats, and lab 3's token was at 42. So trainers compute the loss in fp32 even if the
# model is fp16. Lab 3's crashed run did so, too; there the gradient overflowed on its way back through fp16 layers. In
# the run of part 2, at a much higher rate, the next forward pass already overflowed: its first break is in the logits.

# %% [markdown]
# ## 4. Loss scaling
#
# fp16 also has a lower limit: its smallest number is 6 · 10⁻⁸, and smaller values become 0. Mixed precision multiplies
# the loss by 65,536 before backward and divides the gradients by it before the optimizer. If the scaled gradients
# overflow, the update is skipped and the scale is halved. After 2,000 good updates in a row the scale is doubled again.

# %%
small = torch.tensor(2e-8)
scaled = (small * 65536).half()
print("2e-8 in fp16:", small.half().item())
print("scaled:", scaled.item(), "  and divided again, in fp32:", scaled.float().item() / 65536)

# %%
# %%exercise scaler
def scales(overflowed, scale, interval):
    """The scale after each update. `overflowed`, such as "..x.", has an x for each update with inf gradients.

    An x halves the scale. `interval` good updates in a row double it; then the count starts again.
    """
    found, good = [], 0
    for mark in overflowed:
        # BEGIN SOLUTION
        scale, good = (scale / 2, 0) if mark == "x" else (scale, good + 1)
        if good == interval:
            scale, good = scale * 2, 0
        # END SOLUTION
        found.append(scale)
    return found

# %% [markdown]
# Here are the actions of torch's own scaler, in the surviving run of part 2.

# %%
for event in four["fp16"].events[1:-1]:
    print(f"step {event.step}: {event.updates} of 4 updates made")
    for action in event.actions:
        if action.name == "grad_scaler":
            print(f"    update {action.update}: {action.reason}")

# %% [markdown]
# The scaler is a guard like `skip_nonfinite`: it refuses inf gradients. It does not fix the cause. If the cause stays,
# the scaler halves again and again, so a scale that keeps falling is a symptom to watch. Another mistake is possible:
# the code reads the norm without dividing by the scale.

# %%
config = gl.scenario("lost-unscale").config().with_("run.num_steps=4")
lost = lab.run(config, "lost_unscale").records
refused = lab.run(config.with_("guards.skip_spikes=on"), "lost_unscale_guarded").records
print("norms", lost["grad_norm"].round().tolist())
print("updates made:", lost["updates"].sum(), "  with a threshold of 10:", refused["updates"].sum())

# %% [markdown]
# A norm of a hundred thousand in *every* step, from the first one, is no explosion. AdamW ignores the scale and learns;
# a threshold on the norm refuses every step.

# %% [markdown] tags=["instructor"]
# **Ask.** "Where must `max_grad_norm` be applied?" After `unscale_`. Before it, 1.0 means 0.000015.
#
# **Common mistake in `scales`.** Doubling at every good update after the interval: the count must start again.

# %% [markdown]
# ## 5. `!!!!!!!!`

# %%
config = gl.scenario("verl-nan-logprob").config()
filtered = config.with_("faults.filter_logits.keep=10", "run.num_steps=12")
guards_shown = ("drop_nonfinite_samples", "skip_nonfinite", "clamp_kl", "clamp_log_ratio")
panel = lab.panel(filtered, controls=("learning_rate", "beta"), guards_shown=guards_shown)
panel

# %%
run = await panel.run()

# %%
print(run.first_break())

# %% [markdown]
# The sampler draws from all tokens, but the trainer's passes keep only the ten likeliest. After some steps a sampled
# token is not among them. Then both passes of the trainer give it a log-probability of −inf: the one that computes
# `old_log_prob`, and the one that is trained:

# %%
inf = torch.tensor(math.inf)
print("log-ratio: -inf - (-inf) =", (-inf - -inf).item())
print("times a coefficient of 0.001:", (0.001 * (-inf - -inf)).item())
print("times 0:", (0 * (-inf - -inf)).item())

# %% [markdown]
# With one NaN in the loss, every weight is NaN after one update. A run that samples crashes in `multinomial`. A server
# that decodes greedily continues, because `argmax` of NaN returns an index:

# %%
from grpo_lab.models import loading

_, tokenizer = loading.load("tiny")
token = torch.full((1, tokenizer.vocab_size), math.nan).argmax().item()
print("argmax of a row of NaN:", token, "  as text:", 8 * tokenizer.decode([token]))

# %% [markdown]
# So `!!!!!!!!` means that the weights have been NaN since an earlier step. Now test the three common workarounds.

# %%
workarounds = ("loss.beta=0", "loss.beta=0.001", "loss.kl_estimator=k3")
{override: lab.run(filtered.with_(override), "workaround").status for override in workarounds}

# %% [markdown]
# None helps, because the NaN is in the ratio, too. Write a log-ratio without NaN. It is 0 (a ratio of 1) for a token
# that is not trained or whose log-ratio is not finite. Replace these values *before* exp.

# %%
# %%exercise masked
def log_ratio(logprobs, batch):
    """logprobs - batch.old_logprobs; 0 where it is not finite or batch.completion_mask is False."""
    # BEGIN SOLUTION
    difference = logprobs - batch.old_logprobs
    keep = difference.isfinite() & batch.completion_mask
    return difference.masked_fill(~keep, 0.0)
    # END SOLUTION

# %%
masked = filtered.with_(f"loss.log_ratio={lab.path('masked')}")
{beta: lab.run(masked.with_(f"loss.beta={beta}"), "masked").status for beta in (0.02, 0)}

# %% [markdown]
# <details><summary>Our measurement: open it after your run</summary>
#
# With the KL term the run crashes as before, because the KL estimate computes its own difference. Without the KL term
# your log-ratio saves the run. The NaN had two ways into the loss: the workaround closed one, your formula closed the
# other, and neither is enough alone.
#
# </details>

# %% [markdown]
# ## 6. A remedy that keeps learning
#
# Now solve it without changing formulas or coefficients. The check runs the worst case: only eight tokens are kept, so
# in nearly every step one or two of the 32 completions contain a filtered token. This list shows the guards and the
# stage of each. `help(gl.GUARDS["warm_up"])` describes what that guard stops, costs and hides.

# %%
for name, guard in gl.GUARDS.items():
    print(f"{guard.stage:14} {name}")

# %%
# %%exercise remedy
# Choose guards so that this run
#   - leaves every weight finite after 12 steps,
#   - makes at least 10 updates, so that it learns,
#   - and logs a finite loss.
# The check trains with them. A single name needs a comma after it: ("warm_up",)
# BEGIN SOLUTION
guards = ("drop_nonfinite_samples",)
# END SOLUTION

# %% [markdown]
# Did you try `skip_nonfinite`? It keeps every weight finite, but makes only one to four updates in twelve steps. Did
# you try both clamps, `("clamp_log_ratio", "clamp_kl")`? They give the strangest result of this lab: the loss is NaN
# and the gradient is finite. A clamp passes a gradient back only for inputs inside its limits, and NaN is not inside.
# (In lab 3 the loss was finite, and the gradient NaN.)

# %%
panel.keep("unguarded")
panel.switch(lab.answer("remedy").guards[0], True)
remedied = await panel.run()

# %% [markdown] tags=["instructor"]
# **Say.** "Survival is not the goal. `skip_nonfinite` protects the weights. `drop_nonfinite_samples` removes the broken
# row before a gradient exists. The cause is still there: sampler and trainer use different vocabularies. Fix that."

# %% [markdown]
# ## 7. A spike while the reward looks fine

# %%
spike = lab.panel("bad-batch", controls=("learning_rate",), guards_shown=("skip_spikes", "clamp_kl"))
spike

# %%
spiked = await spike.run()

# %% [markdown]
# One completion of 32 was damaged between sampler and trainer. For one step the KL is tens of thousands of times as large
# as before, and the norm hundreds of times. The reward was computed earlier and shows nothing. Now test each remedy of
# the table alone.

# %%
remedies = {
    "a": "guards.clip_gradients.max_norm=0.5",
    "b": "optimizer.learning_rate=*0.1",
    "c": "loss.epsilon=0.1",
    "d": "model.precision=bf16",
    "e": "guards.warm_up=on",
    "f": "data.num_prompts=8",
    "g": "guards.skip_nonfinite=on",
    "h": "guards.skip_spikes=on",
}
bad = gl.scenario("bad-batch").config().with_("run.num_steps=7")
tried = {name: lab.run(bad.with_(each), f"remedy-{name}").records for name, each in remedies.items()}

# %%
print(f"{'':40} largest norm   ... of an update made")
for letter, override in remedies.items():
    norms, made = tried[letter]["grad_norm"], tried[letter]["updates"] > 0
    print(f"{letter}  {override:37} {norms.max():12,.1f} {norms[made].max():15,.1f}")

# %%
# %%exercise cures
# Which of the eight remedies keep the corrupt sample out of the weights? Letters, as in ("a", "b").
# BEGIN SOLUTION
cures = ("h",)
# END SOLUTION

# %% [markdown]
# The other seven are useful elsewhere: a tenth of the rate cures a rate that is too high, a warm-up cures a rate that
# is too high at first, and a larger batch cures noise (`grpo-lab scenarios` lists each with its cause). A remedy helps
# only against its own cause. The clip also has a use here: it limits the effect of the spike on Adam's second moment.

# %% [markdown]
# ## 8. Try other settings
#
# 1. `guards.clamp_kl.limit=2` in the last panel: another cure. How does it change the logged KL?
# 2. `faults.corrupt_sample.at_step=0`: the spike comes in the first step. Does a warm-up help now?
# 3. `model.precision=fp16_pure` with `optimizer.adam_eps=1e-4`: does one corrupt sample kill fp16 weights?

# %%
spike.keep("unguarded")
spike.set("guards.clamp_kl.limit=2")
clamped = await spike.run()

# %% [markdown] tags=["instructor"]
# **Results** (one seed). 1: the spike disappears from KL and norm (0.26 and 3.0). Only `log_ratio/max`, recorded before
# the clamp, still shows 12 nats. The guard cures the spike and hides it. 2: the norm is 3,963 in step 0, with and
# without warm-up. 3: no weight breaks and the norm is 21, but the reward is gone, also without the corrupt sample: fp16
# weights with an eps of 1e-4 do not learn here.

# %% [markdown]
# ### What if: another algorithm (optional)
#
# The report on `!!!!!!!!` says that REINFORCE++ shows it too. Run part 5 with other algorithms;
# `gl.algorithm_names()` lists all. Is there one that survives?

# %%
mine = "cispo"
{name: lab.run(filtered.with_algorithm(name), name).status for name in ("reinforce_plus_plus", mine)}

# %% [markdown]
# In part 5, sampler and trainer disagreed about which tokens exist. In `temperature-ignored` they disagree about their
# probabilities: the sampler draws at temperature 1, and the trainer computes at 0.5. Truncated importance sampling
# (`tis`) weights each token by trainer / sampler, at most 2. Compare it with one temperature for both. Which number do you
# expect to change?

# %% tags=["slow"]
gap = gl.scenario("temperature-ignored").config().with_("run.num_steps=40", "data.num_prompts=8", "run.threads=1")
ways = {"as it is": gap, "tis": gap.with_algorithm("tis"), "one temperature": gap.with_("sampling.temperature=1")}
rows = ["sampling/sampling_logp_difference/mean", "kl", "reward"]
{name: lab.run(way, name.replace(" ", "-")).records[rows].tail(8).mean().round(2).to_dict() for name, way in ways.items()}

# %% [markdown]
# <details><summary>Our measurement, over eight seeds</summary>
#
# Every algorithm that we tried crashes in part 5: the NaN is in the log-probability that each of them reads. In the
# second table `tis` lowers the KL on most seeds (0.3 to 2.1 instead of 0.9 to 2.6), because it no longer follows tokens
# as if the trainer's policy had drawn them. It does not close the gap, which is 0.5 nats instead of 0.3: the weight corrects the
# gradient, not the sampler. The rewards are of samples at temperature 1, and `tis` trains the policy at 0.5: they stay
# lower. With one temperature for both the gap is 0, and the KL is 0.1 to 0.3.
#
# </details>

# %% [markdown]
# ## 9. Ask yourself

# %%
lab.questions()

# %%
lab.export()

# %% [markdown]
# **Next:** lab 8 has eight anonymous runs. You know all their causes.
