# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # Lab 3. The error chain
#
# ```
# RuntimeError: CUDA error: device-side assert triggered
# File "TensorCompare.cu", line 110
# Assertion `input[0] != 0` failed.
# ```
#
# The field report CUDA-001: the first round (its word for a step) of training is fine; in the second
# `torch.multinomial` fails and the whole process dies. The report concludes that the first probability must not be 0.
# In this lab you cause the crash, walk back from it link by link to the first number that broke, break the chain in two
# places, and heal the run.

# %% [markdown] tags=["instructor"]
# **Plan, 60 minutes.** Recording, prediction and crash 7 · trace and `order` 9 · `accepts` and `face` 11 ·
# `finite_first` with its A/B 7 · fp16 AdamW and `epsilon` 6 · the healed run 5 · the walk 12 · 0 · inf and questions 3
# (drop 0 · inf if you are late).
#
# **Misconceptions to wait for.** *input[0] is the first probability.* *The line in the traceback is the culprit* (CUDA
# reports an error later and at another line). *A NaN gradient needs a NaN loss.* *A healthy norm means a healthy step.*
# *try / except lets the run continue* (the CUDA context is lost).

# %%
import math
import textwrap

import grpo_lab as gl

lab = gl.Lab("03_error_chain")

# %% [markdown]
# ## 1. A recorded run
#
# This is a recorded run of SmolLM2-135M with fp16 weights. Look at the chain strip: each row is a link, in the order in
# which a step computes them. A step of this run makes two updates. The run is so short that each update has a column of
# its own, so two columns are one step. The frame marks the link that broke first. How many steps (not columns) after
# the first break does the run crash?

# %%
lab.panel(recording="cuda-001-smollm2-135m-original")

# %% [markdown]
# ## 2. Predict
#
# You will run lab 2's loss again, at the same rate and with batches of the same size (another seed). The weights are
# now fp16, whose largest number is 65,504, and AdamW's eps is 2e-6, because fp16 rounds the usual 1e-8 to 0.
# Log-probabilities and loss are fp32, as in most trainers. The frame of the recorded run is at the gradients, and here
# they break first, too.

# %%
# %%exercise forecast
# The gradients break first again. What is the loss of the same update?
#   a  NaN
#   b  inf
#   c  a huge, finite number
#   d  a usual number, below 10
# BEGIN SOLUTION
answer = "c"
# END SOLUTION

# %% [markdown]
# ## 3. Cause it

# %%
panel = lab.panel(
    "cuda-001",
    overrides=("run.num_eval=200",),
    controls=("learning_rate", "beta", "max_grad_norm", "precision"),
    guards_shown=("clip_gradients", "clamp_log_ratio", "skip_nonfinite", "safe_sampling"),
)
run = await panel.run()

# %%
print(run.status, "after", len(run.records), "steps:", run.crash)

# %% [markdown]
# The crash happened in a child process. This notebook still works, and so does the next run: press Start, or run this
# cell.

# %%
config = gl.preset("stable").with_("run.num_steps=3", "data.num_prompts=4")
healthy = lab.run(config, "after_the_crash")

# %% [markdown]
# On a GPU this separation matters. A device-side assert destroys the CUDA context of its process: every later call
# fails, you cannot even save the weights, and only a new process helps. The report recommends a "reset of the CUDA
# state"; CUDA has no such reset.

# %% [markdown] tags=["instructor"]
# **Ask.** "What would you lose if this had happened in the notebook's own process?" Everything on the GPU, and every
# variable that points there. **Say.** "Train in a process that may die."

# %% [markdown]
# ## 4. Trace it
#
# Start from the crash and go backwards. The run recorded these links in its first step, in the order of computation:
# here is the end of update 0, and update 1.

# %%
from grpo_lab.events import Stepped

print(textwrap.fill(str(run.first_break()), width=100), "\n")
step = next(event for event in run.events if isinstance(event, Stepped))
for note in step.links:
    end = note.link in ("loss", "gradients", "clipped_gradients", "weights")
    if note.update == 1 or (note.update == 0 and end):
        share = f"{note.nonfinite:9,.0f} of {note.numel:9,}"
        print(f"update {note.update}   {note.link:18} largest {note.magnitude:9.3g}   not finite {share}")

# %% [markdown]
# <details><summary>Our measurement: open it after your run</summary>
#
# Read the list from the top. Update 0 looks harmless: the norm is below 2, and clipping brings it to 0.5. After it, one
# token is 42 nats *less* likely than under the reference. (`largest` drops the sign: the log-ratio is −42, and
# `kl_delta`, reference − policy, is +42.) So its ratio is near 0, and the KL estimate takes exp of +42: the loss is
# 10¹⁵ on our machine. But it is **finite**, and a log that prints the loss shows a number. The gradient of this loss
# passes 65,504 on its way back through an fp16 network: fp16 stores inf, and the layers below make NaN of it (inf −
# inf, 0 · inf). `moments` are the two running averages of AdamW. (Why can one update with a healthy norm move a token
# by 42 nats? Section 8 answers this.)
#
# The run crashes one step after its first break, and so did the recorded run of section 1: after the update the
# weights are NaN, and the next sampling refuses them.
#
# </details>
#
# Now put the whole chain in order. What is cause, and what is effect?

# %%
# %%exercise order
# Cause before effect, from the first link to the crash. Put the eight texts into a tuple:
#   "multinomial"          torch.multinomial refuses the row
#   "nan weights"          AdamW has written NaN into every weight
#   "large loss"           the loss is huge, and finite
#   "nan logits"           the next forward pass gives NaN
#   "far token"            a token is tens of nats away from the reference
#   "nan probabilities"    softmax of NaN is NaN
#   "nan gradient"         backward overflows fp16
#   "nan clipped"          clipping multiplies all gradients by max_norm / norm, and the norm is NaN
# BEGIN SOLUTION
order = (
    "far token", "large loss", "nan gradient", "nan clipped",
    "nan weights", "nan logits", "nan probabilities", "multinomial",
)
# END SOLUTION

# %% [markdown]
# Look at `gradients` and `clipped_gradients` again. Before clipping, some gradients were still finite. Clipping
# multiplies all of them by `max_norm / norm`, and the norm was NaN. So clipping spread the damage instead of preventing
# it.

# %%
import torch

weights = [torch.nn.Parameter(torch.zeros(3)) for _ in range(2)]
weights[0].grad = torch.tensor([1.0, math.nan, 2.0])
weights[1].grad = torch.tensor([0.1, 0.2, 0.3])
print("norm returned:", torch.nn.utils.clip_grad_norm_(weights, max_norm=0.5).item())
print(weights[0].grad.tolist(), weights[1].grad.tolist())

# %% [markdown]
# ## 5. The check inside multinomial
#
# Is it true that the first probability must not be 0?

# %%
print(torch.multinomial(torch.tensor([0.0, 1.0]), num_samples=1))

# %% [markdown]
# No. Before it draws, `torch.multinomial` first checks **all** its numbers together. The result is a tensor with
# **one** boolean. On the GPU the kernel then asserts that this boolean, its `input[0]`, is not 0. Write the check.

# %%
# %%exercise accepts
import math

def accepts(probabilities):
    """Return True if this check passes: no number is NaN, inf or below 0. (A row of zeros passes it and fails later.)"""
    # BEGIN SOLUTION
    not_too_large = probabilities.max() < math.inf
    not_too_small = probabilities.min() >= 0
    return bool(not_too_large & not_too_small)
    # END SOLUTION

# %%
accepts = lab.answer("accepts").accepts
for row in ([0.0, 1.0], [3.0, 5.0], [math.nan, 0.5], [math.inf, 0.5], [-0.1, 1.1]):
    print(row, accepts(torch.tensor(row)))

# %% [markdown]
# Can softmax break this rule with finite logits? No: its outputs lie between 0 and 1 and sum to 1. So a refused row
# means that the logits were broken, and the cause lies further back, in the weights.

# %% [markdown] tags=["instructor"]
# **Say.** "The message is about a one-element boolean. The report took it for the first probability; that reading is
# natural." The check is `(max < inf) & (min >= 0)` in PyTorch's Distributions.cpp. The kernel is
# `_assert_async_cuda_kernel` in TensorCompare.cu, so the message names a file about *comparing tensors*.
#
# **Common mistake.** `not (p < 0).any()`: it lets NaN through.

# %% [markdown]
# ## 6. One failure, three faces
#
# The same refusal has a different message on each platform:
#
# | where | message |
# |---|---|
# | CPU | ``RuntimeError: probability tensor contains either `inf`, `nan` or element < 0`` |
# | CUDA, Linux | ``TensorCompare.cu:…: … Assertion `probability tensor contains either `inf`, `nan` or element < 0` failed.`` |
# | CUDA, Windows | ``TensorCompare.cu:…: … Assertion `input[0] != 0` failed.`` |
#
# Microsoft's compiler prints the condition, the other compilers print the text. On CUDA a Python traceback follows,
# `device-side assert triggered`. It names the line that the program had reached by then. Set `CUDA_LAUNCH_BLOCKING=1`
# before you trust that line. Write a function that reads such logs.

# %%
# %%exercise face
def face(text):
    """Return the name of the face that a log shows, or "other"."""
    cpu, linux = "multinomial-cpu", "multinomial-cuda-linux"
    windows = "multinomial-cuda-windows"
    # BEGIN SOLUTION
    if "input[0] != 0" in text:
        return windows
    if "Assertion `probability tensor contains either" in text:
        return linux
    return cpu if "probability tensor contains either" in text else "other"
    # END SOLUTION

# %%
print(lab.answer("face").face(run.crash.text))

# %% [markdown]
# ## 7. Break the chain: a guard that tests for finite values first
#
# The report's guard was `if grad_norm > 10: skip`. Here is the same fp16 run with this guard, the report's six
# other guards, its smaller clip range and its beta. (With `nan_passes` our guard compares as the report's did.)

# %%
reported = gl.scenario("nan-passes-threshold").config()
print(reported.guards["skip_spikes"])
under_report = lab.run(reported, "reported_guard")

# %%
print("nan > 10 is", math.nan > 10, "  nan < 10 is", math.nan < 10)

# %% [markdown]
# The guard let through the one update that it should have refused. Rewrite it. A *stage* is a point of the step at
# which guards may act; this one acts on the gradients. It reads the norm before clipping from `step.grad_norm`.
# `Outcome(value)` means: go on. `Outcome(value, verdict, reason)` refuses, here with the *verdict* `SKIP_STEP`.

# %%
# %%exercise finite_first
import math
from dataclasses import dataclass
from grpo_lab.interventions import Intervention, Outcome, Stage, Verdict

@dataclass(frozen=True)
class FiniteFirst(Intervention):
    """Refuses an update whose norm is above 10, infinite, or NaN."""
    name, stage = "finite_first", Stage.GRADIENTS

    def __call__(self, value, step):
        norm, limit = step.grad_norm, 10.0
        # BEGIN SOLUTION
        if math.isfinite(norm) and norm <= limit:
            return Outcome(value)
        # END SOLUTION
        return Outcome(value, Verdict.SKIP_STEP, f"grad norm {norm:.4g}, limit {limit:g}")

# %% [markdown]
# Now your guard replaces the reported one in the same run:

# %%
others = {name: its for name, its in reported.guards.items() if name != "skip_spikes"}
mine = reported.with_("run.num_steps=8").with_guards({lab.path("finite_first"): {}} | others)
guarded = lab.panel(mine, controls=("learning_rate",))
guarded_run = await guarded.run()

# %%
guarded_run.records[["verdict", "updates", "grad_norm", "reward", "weights/nonfinite"]]

# %% [markdown]
# <details><summary>Our measurement: open it after your run</summary>
#
# No crash and no broken weight. Now count the refused steps and look at the reward: it falls to 0 after the first step
# and stays there. Your guard refused the update with the NaN. The damage was done one update earlier, with a healthy
# norm, and no guard of the gradient can see that. The run is alive and has forgotten everything.
#
# </details>

# %% [markdown] tags=["instructor"]
# **Ask.** "Which is the shorter right version?" `norm <= 10` alone. Every comparison with NaN is False, so test for the
# values that you *accept*. **Say.** "First test for finite, then apply thresholds, then clip."

# %% [markdown]
# ## 8. A healthy norm, and dead weights
#
# Is a finite gradient enough? Here is one update per batch at the report's own learning rate, 1e-5, with the right
# denominator, fp16 weights and AdamW's default settings:

# %%
adam_config = gl.scenario("fp16-adam-epsilon").config().with_("optimizer.learning_rate=1e-5")
adam = lab.run(adam_config.with_("guards.skip_nonfinite=on"), "healthy_norm")
adam.records[["step", "grad_norm", "loss", "weights/nonfinite"]]

# %% [markdown]
# The norm is healthy, the loss is 0 but for rounding, and no guard of gradients acts. After **one** update 99.9 % of
# the weights are NaN or inf. AdamW moves a weight by $\text{rate} \cdot m / (\sqrt v + \text{eps})$. In fp16:

# %%
eps, gradient, zero = torch.tensor([1e-8, 1e-4, 0.0], dtype=torch.float16)
print("eps = 1e-8 becomes", eps.item())
print("a gradient of 1e-4 squared becomes", (gradient * gradient).item())
print("0 / 0 is", (zero / zero).item(), "  1e-4 / 0 is", (gradient / zero).item())

# %%
# %%exercise epsilon
# Choose AdamW's eps for fp16 weights, at a learning rate of 1e-5, so that
#   - fp16 does not round eps to 0,
#   - no weight moves by more than 0.001 in the first update (a hundred times the rate),
#   - and the largest move is still at least the rate.
# A power of ten is enough. The check makes one update with it.
# BEGIN SOLUTION
adam_eps = 1e-4
# END SOLUTION

# %% [markdown]
# An eps that only survives rounding is not enough: see how far 1e-7 moves a weight, at a rate of 0.00001. This is also
# the first link of the crash in section 3: there eps was 2e-6, the squares of most gradients underflowed to 0, and the
# first update moved a weight by 0.8 instead of 0.0003. In fp32 and bf16 the usual 1e-8 is fine, because their smallest
# numbers are near 1e-38. Storing the weights in one of these formats is the better cure.

# %%
import pandas as pd

yours = f"optimizer.adam_eps={lab.answer('epsilon').adam_eps}"
tried = {}
for override in ("optimizer.adam_eps=1e-7", yours, "model.precision=bf16_pure"):
    tried[override] = lab.run(adam_config.with_("run.num_steps=3", override), "eps").records
columns = ["weights/nonfinite", "weights/max_move"]
pd.DataFrame({override: records[columns].max() for override, records in tried.items()}).T

# %% [markdown]
# ## 9. Zero times infinity
#
# There is another way from a finite loss to a NaN gradient, and it also exists in fp32. This run pushes one log-ratio
# to 100 nats (injected: this small model does not drift so far by itself).

# %%
overflow = lab.run(gl.scenario("zero-times-infinity").config(), "zero_times_infinity")

# %%
log_ratio = torch.tensor(100.0, requires_grad=True)
loss = -torch.min(log_ratio.exp() * 1.0, log_ratio.exp().clamp(0.8, 1.2) * 1.0)
loss.backward()
print("loss", loss.item(), "  gradient", log_ratio.grad.item())

# %% [markdown]
# exp gave inf, min took the clipped branch, and the loss is −1.2. Backward multiplies the gradient of the unused
# branch, 0, by the derivative of exp, inf. In the strip the loss is healthy and the gradient at the log-ratio is
# broken.

# %% [markdown]
# ## 10. Heal it
#
# The crash has one cause: AdamW, whose squared gradients underflow in fp16. Without the crash the run would still learn
# nothing, because its ratio compares with the reference. The model learns only when both are repaired. Each scenario
# names the smallest change after which its model learns. `suggest` finds it from the config and the record of a run;
# `grpo-lab suggest RUN` does the same in a terminal and writes the healed config to a file.

# %%
from grpo_lab.analysis.healing import in_words, suggest

found = suggest(run.config, run.events)
print(in_words(found))

# %% [markdown]
# The change named *stop* ends the crash and no more. Here is the change named *heal*, with the same rate, the same
# seed, and the crashed run behind it:

# %% tags=["slow"]
panel.keep("as reported")
panel.set(*found.heal.change)
healed = await panel.run()

# %%
from grpo_lab.runs.summary import summary

print(summary(healed.events))
print("largest norm:", healed.records["grad_norm"].max())

# %% [markdown]
# <details><summary>Our measurement: open it after your run</summary>
#
# The same rate and the same seed: the run makes all forty steps, no norm is above 5.3, and the reward rises to 0.60 in
# the last ten steps. On the 200 held-out sums it goes from 0.285 to 0.58. Both changes are needed: with fp32 weights
# alone it is lab 2's run, with another seed, and with the right denominator alone it crashes in the same step as
# before.
#
# </details>

# %% [markdown] tags=["instructor"]
# **Ask.** "Which guard is on in the healed run?" Only the clipping of the report. **Say.** "In section 7 a guard kept a
# run alive that had lost everything. Here nothing has to be refused. Stop the crash first, then look for the cause."

# %% [markdown]
# ## 11. Walk through the trainer
#
# Every link of the chain is a line of code that you can read: the trainer of this course is the folder `core/` of the
# package, 900 lines. The next cell shows one step of it, with its line numbers.

# %%
import inspect
from pathlib import Path

from grpo_lab.core import train

core = Path(train.__file__).parent
print(*(f"{path.name:15} {len(path.read_text(encoding='utf-8').splitlines()):4} lines" for path in sorted(core.glob("*.py"))), sep="\n")
lines, first = inspect.getsourcelines(train.Trainer.step)
print("\ntrain.py", *(f"{number:4}  {line.rstrip()}" for number, line in enumerate(lines, first)), sep="\n")

# %% [markdown]
# Follow the calls from there. `Trainer.rollout` leads to `sample.py`, `Trainer.backward` to `loss.py`, `Updates.make`
# to `update.py`, and `ctx.apply` to `hooks.py`. Open the files in an editor, or print them: the next cell prints one
# with line numbers. Change its name as you go along.

# %%
file = "hooks.py"
lines = (core / file).read_text(encoding="utf-8").splitlines()
print(*(f"{number:4}  {line}" for number, line in enumerate(lines, 1)), sep="\n")

# %% [markdown]
# Eight questions. Answer each with a file and a line, such as `"train.py:83"`: put the eight into a dictionary named
# `where`. Any line of the statement is right.

# %% tags=["data"]
# %%exercise walk
# In which line ...
#   drawn    is a token drawn from the probabilities?
#   old      are the old log-probabilities computed, or handed on?
#   spread   is the standard deviation of a group computed?
#   ratio    does the log-ratio become the ratio whose gradient is taken?
#   minimum  is the smaller of the two products taken?
#   penalty  is k3 computed, whose exp made the loss of section 4 huge?
#   guards   do guards see the gradients before the optimizer steps?
#   noted    is the value of a stage noted, so that the first NaN has a place and a name?
# The form of the answer, with your files and lines:
# where = {"drawn": "train.py:83", "old": "…", "spread": "…", "ratio": "…",
#          "minimum": "…", "penalty": "…", "guards": "…", "noted": "…"}
# BEGIN SOLUTION
import inspect
from grpo_lab.core import advantages, hooks, loss, sample, train, update

def line(module, text):
    lines = inspect.getsource(module).splitlines()
    return f"{module.__name__.split('.')[-1]}.py:{next(n for n, row in enumerate(lines, 1) if text in row)}"

where = {"drawn": line(sample, ".multinomial("), "old": line(train, "return batch.sampling_logprobs"),
         "spread": line(advantages, ".sqrt() + eps"), "ratio": line(loss, "    ratio = log_ratio.exp()"),
         "minimum": line(loss, "torch.min("), "penalty": line(loss, "return torch.expm1("),
         "guards": line(update, "Stage.GRADIENTS, self"), "noted": line(hooks, "self.recorder.tensor(")}
# END SOLUTION

# %% [markdown]
# Read `noted` once more: it notes every tensor of a stage, before any guard refuses the step, and it does not judge.
# Two observers outside `core/` (`training/observers.py`) note gradients and weights in the same way. That is why
# `first_break()` could name the link of section 4 after the process had died.

# %% [markdown]
# ## 12. Try other settings
#
# Press **Reset**, change one thing, and run again. Which of these runs survive, and which link makes the difference?
# Guess before each run.
#
# 1. `guards.safe_sampling=on`: the report's safe generation (temperature, top-p, top-k).
# 2. `guards.clamp_log_ratio=on`: the report's clamp before exp.
# 3. `model.precision=bf16_pure`: 8 significant bits instead of the 11 of fp16, and 3 · 10³⁸ as its largest number. The
#    loss stays as reported.

# %% tags=["slow"]
panel.reset()
panel.set("model.precision=bf16_pure")
in_bf16 = await panel.run()
print(summary(in_bf16.events))
print("largest norm:", in_bf16.records["grad_norm"].max())

# %% [markdown] tags=["instructor"]
# **Results** (one seed). 1 and 2 die in the same step: 1 because NaN survives every change to the distribution, 2
# because the exp of the KL estimate is unbounded. 3 finishes with finite weights and norms up to 156; the reward falls
# from 0.37 to 0.27, held out from 0.285 to 0.215. It is lab 2's run: a wider format turns the crash into an explosion.

# %% [markdown]
# ## 13. Ask yourself

# %%
lab.questions()

# %%
lab.export()

# %% [markdown]
# **Next:** lab 4 tests the guards one at a time: what each stops, costs and hides.
