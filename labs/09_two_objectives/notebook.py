# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # Lab 9. Two objectives
#
# A report describes a trainer with two objectives, F ("fairness") and H ("hallucination"). Its log said *KL: F = 0.032,
# H = 0.000*, and later *F = 0.318*. The bands were F 0.02 to 0.06 and H 0.08 to 0.15. This lab adds a second objective
# to the course that ended with lab 8: you train the tiny model for two objectives that pull apart, cause H = 0.000 and
# find its reason, keep both KLs in their bands, and take the conflict out of the gradients.

# %% [markdown] tags=["instructor"]
# **Minutes.** Introduction and first run 5, each objective alone and the cosine 9, prediction, overwriting and
# `set_grads` 12, controller 9, PCGrad 6, the colleague's log 4. If time is short, leave out the cosine exercise: later
# cells do not need it.
#
# **Say.** "Two objectives share every weight. So ask of each number: which of the two does it belong to? A mean hides
# what you are looking for."
#
# **Misconceptions to listen for.**
# - *KL H = 0.000 means that H has no gradient.* H has rewards, advantages, a loss and a gradient. The update drops it.
# - *If the weights move, every KL moves.* Only as far as the prompts have something in common.
# - *A KL in its band on the mean is in its band.* A mean of 0.1 is also 0.01 and 0.19.
# - *PCGrad ends a conflict.* It changes the direction of a step. The rewards ask for the same as before.

# %%
from pathlib import Path

import grpo_lab as gl
import matplotlib.pyplot as plt
import pandas as pd

lab = gl.Lab("09_two_objectives")
brief = "def brief(prompts, completions, **columns):\n    return [1 / max(1, len(each)) for each in completions]\n"
_ = Path("brief.py").write_text(brief)

# %% [markdown]
# ## 1. Two objectives that pull apart
#
# | objective | prompt | reward |
# |---|---|---|
# | F | `45+77=` | 1 for the right sum |
# | H | `15+18?` | `brief`: 1 for one character, ½ for two, ⅓ for three |
#
# The judge of H was made against long, invented answers. But a sum may have three digits. The next cell takes the
# preset `dual`, leaves out its SFT stage, and gives H this judge.

# %%
pair = gl.preset("dual").with_("run.stages=grpo", "run.num_steps=48", "run.num_eval=200")
pair = pair.with_("objectives.F.num_prompts=16", "objectives.H.num_prompts=32", "optimizer.learning_rate=1e-4")
pair = pair.with_("objectives.H.rewards=brief.py:brief", "guards.adaptive_beta=off")
panel = lab.panel(pair, controls=("learning_rate",))
panel

# %% tags=["slow"]
await panel.run()

# %% [markdown]
# Each metric exists for each objective, and `gradients/cosine` is the cosine of the angle between their gradients. The
# rows of the table are means of a quarter of the run.

# %%
log = {"both": panel.session.records}
rows = ["reward/F", "reward/H", "kl/F", "kl/H", "gradients/cosine", "completions/mean_length/F"]
quarter = pd.cut(log["both"].index, 4, labels=["1st", "2nd", "3rd", "4th"])
log["both"][rows].groupby(quarter, observed=True).mean().round(3)

# %% [markdown]
# Compare with two runs that train one objective alone. A weight of 0 keeps its prompts and its metrics, and takes away
# its gradient.

# %% tags=["slow"]
for name, other in {"F alone": "H", "H alone": "F"}.items():
    log[name] = lab.run(pair.with_(f"objectives.{other}.weight=0"), name.replace(" ", "-")).records
pd.DataFrame({name: records[rows].tail(12).mean() for name, records in log.items()}).round(3)

# %% [markdown]
# <details><summary>Our measurement: open it after your runs</summary>
#
# Held-out reward, on 200 problems each:
#
# | | at the start | both | F alone | H alone |
# |---|---|---|---|---|
# | F | 0.35 | 0.45 | 0.60 | 0.01 |
# | H | 0.42 | 0.64 | 0.42 | 0.99 |
#
# H alone ends with one character in nearly every completion, and F is lost. F alone leaves H as it was. Trained
# together, each objective costs the other one some of its reward. The cosine is below 0 in nearly nine of ten steps, and both KLs leave their bands: their
# means over the second half are 0.37 and 1.8.
#
# </details>
#
# A cosine below 0 means: a small step along the gradient of one objective makes the other one worse. Write this
# number. A gradient is a list with one tensor for each parameter, or `None` for a parameter that the objective does not use.

# %%
# %%exercise cosine
import math


def cosine(first, second):
    """Cosine of the angle between two gradients, as a float; None counts as 0. 0.0 where one of them is 0."""
    # BEGIN SOLUTION
    product = sum((a * b).sum() for a, b in zip(first, second, strict=True) if a is not None and b is not None)
    lengths = []
    for gradients in (first, second):
        lengths.append(math.sqrt(sum(g.square().sum() for g in gradients if g is not None)))
    if lengths[0] * lengths[1] == 0:
        return 0.0
    return float(product / (lengths[0] * lengths[1]))
    # END SOLUTION


# %%
BANDS = {"F": (0.02, 0.06), "H": (0.08, 0.15)}


def draw(records, title):
    figure, axes = plt.subplots(1, 3, figsize=(11, 3), layout="constrained")
    for (name, band), color, line in zip(BANDS.items(), ("#0072B2", "#D55E00"), ("-", "--"), strict=True):
        axes[0].plot(records["step"], records[f"reward/{name}"], line, color=color, label=name)
        axes[1].semilogy(records["step"], records[f"kl/{name}"].clip(lower=1e-4), line, color=color)
        axes[1].axhspan(*band, color=color, alpha=0.2)
    axes[2].bar(records["step"], records["gradients/cosine"], color="#595959")
    for axis, what in zip(axes, ("reward", "KL, with bands", "cosine of the gradients"), strict=True):
        axis.set(title=what, xlabel="step")
    figure.suptitle(title), axes[0].legend()


# %%
draw(log["both"], "Two objectives, no controller")

# %% [markdown]
# ## 2. H = 0.000
#
# The report's trainer computes one gradient vector for each objective and writes it into `.grad`:
#
# ```python
# def _set_grads_from_vec(params, vec):
#     ...
#         if p.grad is None:
#             p.grad = g.clone()
#         else:
#             p.grad.copy_(g)
# ```
#
# It is called for H first, and then for F. So the gradient of F replaces the gradient of H. In the scenario
# `dual-overwrite` the two objectives have little in common: H adds numbers, and F gets letters (`ps+vt=`), and its right
# answer is an empty one.

# %%
# %%exercise forecast
# How does its log look?
#   a  No weight moves. Both KLs are 0.000.
#   b  H looks dead: no spread in its groups, a loss of 0, and KL 0.000.
#   c  H looks alive in every row but one: rewards with spread, a gradient, and KL 0.000.
#   d  The KL of H is about as large as that of F, because they share all weights.
# BEGIN SOLUTION
answer = "c"
# END SOLUTION

# %% tags=["slow"]
overwrite = gl.scenario("dual-overwrite").config()
changes = {"overwrite": (), "H ten times": ("objectives.H.weight=10",), "separate": ("loss.combination=separate",)}
runs = {name: lab.run(overwrite.with_(*change), name.replace(" ", "-")) for name, change in changes.items()}
rows = ["kl/F", "kl/H", "reward/F", "reward/H", "frac_reward_zero_std/H", "loss/H", "gradients/cosine", "grad_norm"]
pd.DataFrame({name: run.records[rows].tail(5).mean() for name, run in runs.items()}).round(4)

# %% [markdown]
# <details><summary>Our measurement: open it after your run</summary>
#
# The KL of H is 0.0001, which a log prints as 0.000, and the KL of F is above 0.01. The groups of H have spread
# (19 of 20), its loss is not 0, and the cosine is not 0, so that H has a gradient. The answer is **c**.
#
# Why is the KL 0.000? With ten times the weight the loss of H is ten times as large, and no other row changes by a
# digit. A small gradient would have grown; this one is lost between `backward` and the step. With `separate` the KL of
# H is 0.02 after 16 steps, and rises. `gl.diagnose(runs["overwrite"])` names the cause, too. The report adds that *the
# parameters do not change*: this cannot be true, because the KL of F was 0.032.
#
# </details>
#
# Now write the function of the report without its bug. The vector holds the entries of all parameters, one after
# another. The function is called once for each objective, with its weight.


# %%
# %%exercise set_grads
def set_grads(parameters, vector, weight):
    """Add weight x its part of the flat vector to .grad of each parameter; .grad may be None. Do not change `vector`."""
    # BEGIN SOLUTION
    start = 0
    for p in parameters:
        part = weight * vector[start : start + p.numel()].view_as(p)
        start += p.numel()
        if p.grad is None:
            p.grad = part
        else:
            p.grad.add_(part)
    # END SOLUTION


# %% [markdown]
# The same bug in the first pair of this lab, where F is computed first and H last:

# %% tags=["slow"]
log["overwrite"] = lab.run(pair.with_("loss.combination=overwrite"), "pair-overwrite").records
rows = ["kl/F", "kl/H", "reward/F", "reward/H", "gradients/cosine"]
pd.DataFrame({name: log[name][rows].tail(12).mean() for name in ("both", "H alone", "overwrite")}).round(3)

# %% [markdown]
# F gets no gradient, and its KL is far above 0: the update of H moves the answers of F too. The columns `H alone` and
# `overwrite` tell the same story. So KL 0.000 is a sign of this bug only where objectives share little. A test of
# `set_grads` with two vectors always finds it.

# %% [markdown] tags=["instructor"]
# **Ask.** "Which number in the log proves that H had a gradient?" `gradients/cosine`, which is computed before the
# vectors are written into `.grad`: for a gradient of 0 it would be 0 in every step. **Then ask** for a number that
# proves that it was dropped. There is none in one log: `grad_norm` is the norm of what is left. It takes a second run
# with another weight of H, or a test of `set_grads`.
#
# **The report's length F = 1.0** has another cause. In the scenario the right completion for F is empty, one token with
# its end. With `objectives.F.beta=0.02` every completion of F has that length, with `overwrite` and with `separate`: it
# is what the reward asks for.

# %% [markdown]
# ## 3. A band for each KL
#
# In the first run both KLs left their bands. The remedy of the report is a beta that adapts, one for each objective.
# Write the controller: each beta moves by a tenth of the relative error of its own KL. The target is the geometric
# middle of the band, $\sqrt{\text{low} \cdot \text{high}}$. A KL may be NaN, inf, or absent (in a step without prompts
# of this objective).

# %%
# %%exercise next_betas
import math


def next_betas(betas, kls, bands):
    """{name: beta x (1 + 0.1 x error)}, error: kl / sqrt(low x high) - 1 within ±0.2; each beta from 0.002 to 4.
    A beta stays if its KL is absent or not finite. betas and kls: {name: number}, bands: {name: (low, high)}."""
    # BEGIN SOLUTION
    moved = dict(betas)
    for name, beta in betas.items():
        kl = kls.get(name, math.nan)
        if math.isfinite(kl):
            low, high = bands[name]
            error = max(-0.2, min(0.2, kl / math.sqrt(low * high) - 1))
            moved[name] = max(0.002, min(4.0, beta * (1 + 0.1 * error)))
    return moved
    # END SOLUTION


# %% [markdown]
# The guard `adaptive_beta` contains this controller. In 48 steps such small moves come too late, so `gain` is 0.3 here,
# and `proportional` adds a factor that answers at once.

# %% tags=["slow"]
controller = "guards.adaptive_beta"
on = (f"{controller}=on", f"{controller}.gain=0.3", f"{controller}.proportional=2")
on += (f"{controller}.lowest=0.002", f"{controller}.highest=4", "objectives.F.beta=0.5", "objectives.H.beta=0.4")
log["adaptive"] = lab.run(pair.with_(*on), "adaptive").records
draw(log["adaptive"], "A controller for each objective")


# %%
def inside(records):
    late = records.tail(len(records) // 2)
    return {name: late[f"kl/{name}"].between(*band).mean() for name, band in BANDS.items()}


pd.DataFrame({name: inside(log[name]) for name in ("both", "adaptive")}).round(2)

# %% [markdown]
# The table shows the share of steps, in the second half of the run, in which the KL is in its band.
#
# <details><summary>Our measurement: open it after your run</summary>
#
# Without the guard both KLs are outside of their bands in every step of the second half. With it F is inside in 0.88 of
# the steps and H in about 0.6, on each of two seeds, and a KL that leaves its band comes back. Part of this is the higher beta at the
# start: fixed at 0.5 and 0.4, the betas hold F in 0.83 and H in 0.42 of the steps (one seed). The price is reward of H:
# 0.44 instead of 0.64, held out.
#
# </details>
#
# ## 4. What if there were no conflict in the gradients?
#
# PCGrad (Yu et al., 2020) changes a gradient only where it conflicts: where $f \cdot h < 0$, $f$ loses its part along
# $h$, that is $\frac{f \cdot h}{h \cdot h} h$, and $h$ loses its part along the original $f$. The step is their sum.


# %%
# %%exercise without_conflict
def without_conflict(f, h):
    """Sum of two flat gradients by PCGrad; the plain sum where f · h is not below 0, which holds for NaN too."""
    # BEGIN SOLUTION
    product = f @ h
    if product < 0:
        return f - product / (h @ h) * h + h - product / (f @ f) * f
    return f + h
    # END SOLUTION


# %%
import torch

f, h = torch.tensor([1.0, 0.2]), torch.tensor([-0.5, 0.3])
pcgrad = lab.answer("without_conflict").without_conflict
for what, step in {"plain sum": f + h, "PCGrad": pcgrad(f, h)}.items():
    print(f"{what:10} {step.tolist()}: along F {float(step @ f):+.2f}, along H {float(step @ h):+.2f}")

# %% [markdown]
# The plain sum goes against H here; the step of PCGrad helps both. What does it change in a whole run? Guess before you
# run the cell.

# %% tags=["slow"]
log["pcgrad"] = lab.run(pair.with_("loss.combination=pcgrad"), "pcgrad").records
rows = ["reward/F", "reward/H", "kl/F", "kl/H", "gradients/cosine", "grad_norm"]
pd.DataFrame({name: log[name][rows].tail(12).mean() for name in ("both", "pcgrad", "adaptive")}).round(3)

# %% [markdown]
# <details><summary>Our measurement: open it after your run</summary>
#
# On two seeds the held-out rewards differ from those of the plain sum by at most 0.05, which is noise for 200 problems,
# and the cosine is below 0 as often as before. PCGrad changes the direction of each step to one that hurts neither, to
# first order. It does not change the aims: H still wants one character, and weights and bands decide how far each one
# gets. AdamW also rescales the step of every weight.
#
# </details>
#
# ## 5. A colleague's log
#
# A colleague trains the same pair with `adaptive_beta`. She expects both KLs in their bands and sends you this log; each
# column is a mean over six steps, and the target of her guard is 0.1.
#
# | steps | 0 to 5 | 6 to 11 | 12 to 17 | 18 to 23 | 24 to 29 | 30 to 35 | 36 to 41 | 42 to 47 |
# |---|---|---|---|---|---|---|---|---|
# | `kl` | 0.018 | 0.067 | 0.113 | 0.144 | 0.131 | 0.118 | 0.139 | 0.119 |
# | `kl/F` | 0.015 | 0.046 | 0.064 | 0.104 | 0.081 | 0.062 | 0.063 | 0.057 |
# | `kl/H` | 0.020 | 0.088 | 0.161 | 0.184 | 0.181 | 0.173 | 0.215 | 0.181 |
# | `beta/F` | 0.10 | 0.12 | 0.25 | 0.64 | 0.70 | 0.60 | 1.23 | 0.72 |
# | `beta/H` | 0.08 | 0.10 | 0.20 | 0.52 | 0.56 | 0.48 | 1.03 | 0.57 |
# | `frac_reward_zero_std/H` | 0.48 | 0.49 | 0.48 | 0.56 | 0.53 | 0.40 | 0.40 | 0.46 |
# | `reward/F` | 0.33 | 0.38 | 0.41 | 0.40 | 0.40 | 0.45 | 0.49 | 0.47 |
# | `reward/H` | 0.43 | 0.44 | 0.44 | 0.45 | 0.46 | 0.43 | 0.44 | 0.47 |
#
# What is the cause?
#
# - **a** The gradient of H is overwritten, so H does not learn.
# - **b** The judge of H gives all completions of a group the same reward.
# - **c** The controller follows the mean of the two KLs, and moves both betas alike.
# - **d** One KL was NaN, and the controller has stopped since.

# %%
# %%exercise cause
# BEGIN SOLUTION
answer = "c"
# END SOLUTION

# %% [markdown]
# Her run in your notebook, with one setting changed back:

# %% tags=["slow"]
deaf = pair.with_(*on, f"{controller}.by_objective=off")
log["one for both"] = lab.run(deaf, "one-for-both").records
rows = ["kl", "kl/F", "kl/H", "beta/F", "beta/H"]
pd.DataFrame({name: log[name][rows].tail(12).mean() for name in ("one for both", "adaptive")}).round(3)

# %% [markdown]
# ## 6. Try other settings
#
# Keep the run in the plot and change one thing:
#
# 1. `objectives.H.weight=0.2`. How much reward of H does F cost? How much of F does H cost?
# 2. `loss.combination=normalize_then_sum`: every objective scores the completions of all, so that F's prompts are
#    judged for length too.
# 3. A band of your own: `objectives.H.kl_low=0.2` and `objectives.H.kl_high=0.4`. Does H get its reward back?

# %%
panel = lab.panel(pair.with_(*on), controls=("learning_rate",))
panel

# %% tags=["slow"]
await panel.run()
panel.keep("both bands")
panel.set("objectives.H.kl_low=0.2", "objectives.H.kl_high=0.4")
await panel.run()

# %%
panel.session.records[["reward/F", "reward/H", "kl/F", "kl/H", "beta/H"]].tail(12).mean().round(3)

# %% [markdown]
# ## 7. Ask yourself

# %%
lab.questions()

# %% [markdown]
# **Next:** `grpo-lab train --preset dual` trains two objectives for longer, after a stage of SFT, in about three minutes.
# docs/objectives.md describes every way to combine objectives.

# %%
lab.export()
