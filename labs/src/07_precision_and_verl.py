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
# Two texts about verl, a trainer for large models. In one, all answers turn into `!!!!!!!!` from one step to the next, and
# `old_log_prob` and `kl_loss` read NaN. In the other, KL and gradient norm spike while the reward looks fine, and a table
# lists remedies: clip harder, lower the rate, raise the precision, warm up, larger batches. In this lab you find out
# what number formats have to do with it, and measure which remedy cures what.

# %% [markdown] tags=["instructor"]
# **Plan, 45 minutes.** Recording, prediction, four formats 9 · `largest` 4 · loss scaling and `scaler` 10 · `!!!!!!!!` and
# workarounds 6 · `masked` 6 · `remedy` 5 · spikes and `cures` 5. If you are late, demonstrate `scaler` instead of having
# it written.
#
# **Misconceptions to wait for.** *16 bits are 16 bits* (range and digits are different things). *Loss scaling protects from
# large gradients* (it protects small ones, and detects large ones). *NaN times a small coefficient is small.* *A mask
# removes a NaN.* *A remedy that is in a table was measured.*

# %%
import math

import torch

import grpo_lab as gl

lab = gl.Lab("07_precision_and_verl")

# %% [markdown]
# ## 1. A recorded run
#
# Addition on the small model, healthy for some steps, then dead. Move the time slider to the last healthy step. Is there
# a sign in the curves of what comes next?

# %%
lab.panel(recording="lecture-verl-nan-logprob")

# %% [markdown]
# <details><summary>What there is to see, once you have looked</summary>
#
# None that anybody would act on: a norm of 3, a KL of half a nat, every ratio 1. "Sudden, in any step", says the text, and
# so it is.
#
# </details>
#
# We come back to it in part 5. First a question that the second text raises: is it the precision?

# %% [markdown]
# ## 2. Four formats
#
# | format | bits | digits | largest | smallest normal |
# |---|---|---|---|---|
# | fp32 | 32 | 7 | 3.4 · 10³⁸ | 1.2 · 10⁻³⁸ |
# | bf16 | 16 | 2–3 | 3.4 · 10³⁸ | 1.2 · 10⁻³⁸ |
# | fp16 | 16 | 3–4 | 65,504 | 6.1 · 10⁻⁵ |
#
# You will run lab 3's cause four times: with fp32 weights, with fp16 weights, with bf16 weights, and with fp32 weights
# under fp16 autocast, as mixed precision is meant to be used.

# %%
# %%exercise forecast
# Which of the four end in a crash?
#   a  all four
#   b  fp16 weights only
#   c  fp16 and bf16 weights, because 16 bits are too few
#   d  all but fp32
# BEGIN SOLUTION
answer = "b"
# END SOLUTION

# %% tags=["slow"]
config = gl.scenario("cuda-001").config().with_("run.num_steps=2")
four = {}
for precision in ("fp32", "bf16_pure", "fp16_pure", "fp16"):
    four[precision] = lab.run(config.with_(f"model.precision={precision}"), precision)

# %%
for precision, run in four.items():
    norm, broken = run.records[["grad_norm", "weights/nonfinite"]].max()
    print(f"{precision:10} {run.status:8} norm up to {norm:9,.0f}   broken weights {broken:9,.0f}")

# %% [markdown]
# (`_pure` means that the weights themselves have that format. `fp16` is fp32 weights under autocast.)

# %% [markdown]
# <details><summary>Our measurement: open it after your run</summary>
#
# What kills this run is an overflow, so range decides, not digits. bf16 reaches as far as fp32, and its norm is as large
# as that of fp32. And the last one met an inf too: its norm says so. It lives because somebody looked before stepping; that
# is part 4.
#
# </details>

# %% [markdown] tags=["instructor"]
# **Ask.** "Which one is healthy?" None: where it does not crash, the reward is 0 after a few rounds. **Say.** "Precision decides *how* a
# wrong loss shows itself: as a crash, or as a model that has forgotten everything."

# %% [markdown]
# ## 3. How far may a log-ratio go?

# %%
# %%exercise largest
import math
import torch

def largest_log_ratio(dtype):
    """The largest x for which e^x is finite in a dtype, given by its name, say "float16"."""
    # BEGIN SOLUTION
    return math.log(torch.finfo(getattr(torch, dtype)).max)
    # END SOLUTION

# %%
for dtype in ("float16", "bfloat16", "float32"):
    limit = lab.answer("largest").largest_log_ratio(dtype)
    x = torch.tensor([0.99 * limit, 1.01 * limit], dtype=getattr(torch, dtype))
    print(f"{dtype:9} {limit:6.2f} nats    exp a little below and above: {x.exp().tolist()}")

# %% [markdown]
# Eleven nats in fp16: lab 2's explosion was at 13. This is why a loss is computed in fp32 even where the model is not. In the
# run that crashed it was, too; what overflowed was the gradient on its way back through fp16 layers.

# %% [markdown]
# ## 4. Loss scaling
#
# fp16 also ends *below*: its smallest number is 6 · 10⁻⁸, and what is smaller becomes 0. Mixed precision multiplies the loss by 65,536 before backward and
# divides the gradients by it before the optimizer. Multiplied too far they overflow; then the update is left out and the
# scale is halved. After 2,000 good updates in a row it is doubled again.

# %%
small = torch.tensor(2e-8)
scaled = (small * 65536).half()
print("2e-8 in fp16:", small.half().item())
print("scaled:", scaled.item(), "  and divided again, in fp32:", scaled.float().item() / 65536)

# %%
# %%exercise scaler
def scales(overflowed, scale, interval):
    """The scale after each update. `overflowed`, say "..x.", has an x where gradients were inf.

    That halves the scale. `interval` good updates in a row double it; then the count begins again.
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
# Here is torch's own at work, in the run of part 2 that lived.

# %%
for event in four["fp16"].events[1:-1]:
    print(f"step {event.step}: {event.updates} of 4 updates made")
    for action in event.actions:
        if action.name == "grad_scaler":
            print(f"    update {action.update}: {action.reason}")

# %% [markdown]
# The scaler is a guard like `skip_nonfinite`: it refuses what is inf. It does not mend the cause, and if the cause stays
# it halves for ever: a scale that falls and falls is a symptom to watch. One more thing can go wrong: the scale is not
# divided out before somebody reads the norm.

# %%
config = gl.scenario("lost-unscale").config().with_("run.num_steps=4")
lost = lab.run(config, "lost_unscale").records
refused = lab.run(config.with_("guards.skip_spikes=on"), "lost_unscale_guarded").records
print("norms", lost["grad_norm"].round().tolist())
print("updates made:", lost["updates"].sum(), "  with a threshold of 10:", refused["updates"].sum())

# %% [markdown]
# A norm of a hundred thousand in *every* step, from the first, is no explosion. AdamW does not care for the scale and
# learns; a threshold on the norm refuses every step.

# %% [markdown] tags=["instructor"]
# **Ask.** "Where must `max_grad_norm` be applied?" After `unscale_`. Before it, 1.0 means 0.000015.
#
# **Common mistake in `scales`.** Doubling at every good update after the interval: the count must begin again.

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
# The sampler draws from all tokens; the trainer's passes keep the ten likeliest. Sooner or later a sampled token is not
# among them. Its log-probability is −inf in the pass that computes `old_log_prob`, and −inf in the pass that trains:

# %%
inf = torch.tensor(math.inf)
print("log-ratio: -inf - (-inf) =", (-inf - -inf).item())
print("times a coefficient of 0.001:", (0.001 * (-inf - -inf)).item())
print("times 0:", (0 * (-inf - -inf)).item())

# %% [markdown]
# One NaN in the loss, and after one update every weight is NaN. With sampling the run dies in `multinomial`. A server
# that decodes greedily goes on, because `argmax` of NaN is an answer like any other:

# %%
from grpo_lab.models import loading

_, tokenizer = loading.load("tiny")
token = torch.full((1, tokenizer.vocab_size), math.nan).argmax().item()
print("argmax of a row of NaN:", token, "  as text:", 8 * tokenizer.decode([token]))

# %% [markdown]
# So `!!!!!!!!` means: the weights are NaN, since some step in the past. Now the three workarounds that are passed around.

# %%
workarounds = ("loss.beta=0", "loss.beta=0.001", "loss.kl_estimator=k3")
{override: lab.run(filtered.with_(override), "workaround").status for override in workarounds}

# %% [markdown]
# None helps: the NaN is in the ratio too. Write a log-ratio that has none. It is 0 (a ratio of 1) where a token is not
# trained or its log-ratio is no finite number, and it must be so *before* exp.

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
# With the KL term on, the run dies as before, because the KL estimate takes a difference of its own. Without it, your
# log-ratio saves the run. There were two doors; the workaround closed one, your formula the other, and neither is enough
# alone.
#
# </details>

# %% [markdown]
# ## 6. A remedy that keeps learning
#
# Now without touching formulas or coefficients. The check runs the worst case: with eight tokens kept, nearly every
# step has a filtered token in one or two of its 32 completions. These are the guards, and the stage of the step at which
# each of them looks. `help(gl.GUARDS["warm_up"])` says what that one stops, costs and hides.

# %%
for name, guard in gl.GUARDS.items():
    print(f"{guard.stage:14} {name}")

# %%
# %%exercise remedy
# Guards under which that run
#   - leaves every weight finite after 12 steps,
#   - makes at least 10 updates, so that it learns,
#   - and logs a loss that is a number.
# The check trains with them. A single name needs a comma behind it: ("warm_up",)
# BEGIN SOLUTION
guards = ("drop_nonfinite_samples",)
# END SOLUTION

# %% [markdown]
# Have you tried `skip_nonfinite`? It keeps every weight finite, and makes two or three updates in twelve steps. Or both
# clamps, `("clamp_log_ratio", "clamp_kl")`? That is the strangest result of this lab: the loss reads NaN, and the
# gradient is finite, for backward of a clamp passes nothing on where its input was not inside the limits. The mirror image
# of lab 3.

# %%
panel.keep("unguarded")
panel.switch(lab.answer("remedy").guards[0], True)
remedied = await panel.run()

# %% [markdown] tags=["instructor"]
# **Say.** "Alive is not the goal. `skip_nonfinite` is the fuse, `drop_nonfinite_samples` takes the broken row out while there
# is no gradient yet. And the cause is still there: sampler and trainer disagree about the vocabulary. Mend that."

# %% [markdown]
# ## 7. A spike, while the reward looks fine

# %%
spike = lab.panel("bad-batch", controls=("learning_rate",), guards_shown=("skip_spikes", "clamp_kl"))
spike

# %%
spiked = await spike.run()

# %% [markdown]
# One completion of 32 was damaged on its way from the sampler to the trainer. KL and norm rise by factors of thousands, for
# one step; the reward was computed before, and shows nothing. Now the remedies of the table, each alone.

# %%
from grpo_lab.course.labs.lab_07_precision_and_verl.cases import REMEDIES

bad = gl.scenario("bad-batch").config().with_("run.num_steps=7")
tried = {}
for letter, override in REMEDIES.items():
    tried[letter] = lab.run(bad.with_(override), f"remedy-{letter}").records

# %%
print(f"{'':40} largest norm   ... of an update that was made")
for letter, override in REMEDIES.items():
    norms, made = tried[letter]["grad_norm"], tried[letter]["updates"] > 0
    print(f"{letter}  {override:37} {norms.max():12,.1f} {norms[made].max():15,.1f}")

# %%
# %%exercise cures
# Which of the eight keep the corrupt sample out of the weights? Letters, as in ("a", "b").
# BEGIN SOLUTION
cures = ("h",)
# END SOLUTION

# %% [markdown]
# The other seven are not useless: a tenth of the rate cures a rate that is too high, a warm-up cures a rate that is too high
# at first, a larger batch cures noise (`grpo-lab scenarios` has each with its cause). A remedy belongs to a cause.
# And the clip does have a use here: it bounds what the spike leaves behind in Adam's second moment.

# %% [markdown]
# ## 8. What if
#
# 1. `guards.clamp_kl.limit=2` in the last panel: another cure. What does it do to the KL that is logged?
# 2. `faults.corrupt_sample.at_step=0`: the spike in the first step. Does a warm-up help now?
# 3. `model.precision=fp16_pure` with `optimizer.adam_eps=1e-4`: does one corrupt sample kill fp16 weights?

# %%
spike.keep("unguarded")
spike.set("guards.clamp_kl.limit=2")
clamped = await spike.run()

# %% [markdown] tags=["instructor"]
# Measured, one seed. 1: the spike is gone from KL and norm alike (0.26 and 3.0); only `log_ratio/max`, noted before the clamp,
# still shows 12 nats. A cure, and it hides. 2: norm 3,963 in step 0, with the warm-up and without. 3: no weight breaks, the
# norm is 21; but the reward is gone, and without the corrupt sample as well: fp16 weights with an eps of 1e-4 do not learn
# here.

# %% [markdown]
# ## 9. Ask yourself

# %%
lab.questions()

# %%
lab.export()

# %% [markdown]
# **Next:** lab 8, eight anonymous runs. You have seen all their causes.
