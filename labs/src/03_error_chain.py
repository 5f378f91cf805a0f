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
# The field report CUDA-001: the first round of training is fine; in the second round `torch.multinomial` fails and the
# whole process dies. The report concludes that the first probability must not be 0. In this lab you cause the crash,
# walk back from it link by link to a loss that was still finite, and break the chain in two places.

# %% [markdown] tags=["instructor"]
# **Plan, 45 minutes.** Recording, prediction and crash 8 · trace and `order` 8 · `accepts` and `face` 12 · `finite_first`
# with its A/B 8 · fp16 AdamW and `epsilon` 7 · 0 · inf and questions 5 (drop this part if you are late: lab 2 covered
# it).
#
# **Misconceptions to wait for.** *input[0] is the first probability.* *The line in the traceback is the culprit* (CUDA
# reports an error later and at another line). *A NaN gradient needs a NaN loss.* *A healthy norm means a healthy step.*
# *try / except lets the run continue* (the CUDA context is lost).

# %%
import math

import grpo_lab as gl

lab = gl.Lab("03_error_chain")

# %% [markdown]
# ## 1. A recorded run
#
# This is a recorded run of SmolLM2-135M with fp16 weights. Look at the chain strip: each column is a step, and each row
# is a link, in the order in which the step computes them. The frame marks the link that broke first. (Each step has
# four updates, and a column shows the worst of them: rows above the frame broke one update later.) How many steps after
# the first break does the run crash?

# %%
lab.panel(recording="cuda-001-smollm2")

# %% [markdown]
# ## 2. Predict
#
# You will run lab 2's cause again with one difference: the weights are fp16, whose largest number is 65,504.
# Log-probabilities and loss are fp32, as in most trainers.

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
    overrides=("run.num_steps=6",),
    controls=("learning_rate", "beta", "max_grad_norm", "precision"),
    guards_shown=("clip_gradients", "clamp_log_ratio", "skip_nonfinite", "safe_sampling"),
)
panel

# %%
run = await panel.run()

# %%
print(run.status, "after", len(run.records), "steps:", run.crash.text)
print(run.crash.explanation)

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
# Start from the crash and go backwards. The run recorded these links in its first step, in the order of computation.

# %%
print(run.first_break(), "\n")
step = run.events[1]
for note in step.links:
    if note.update == 1:
        share = f"{note.nonfinite:9,.0f} of {note.numel:9,}"
        print(f"update 1   {note.link:18} largest {note.magnitude:9.3g}   not finite {share}")

# %% [markdown]
# <details><summary>Our measurement: open it after your run</summary>
#
# Read the list from the top. One token is tens of nats away from the reference. The loss takes exp of this distance, so
# it is huge: 10¹⁸ on our machine. But it is **finite**, and a log that prints the loss shows a number. The gradient of
# this loss passes 65,504 on its way back through an fp16 network.
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
#   "nan clipped"          clipping divides all gradients by a norm that is NaN
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
# No. Before it draws, `torch.multinomial` makes one check on **all** its numbers together. The result is a tensor with
# **one** boolean. On the GPU the kernel then asserts that this boolean, its `input[0]`, is not 0. Write the check.

# %%
# %%exercise accepts
import math

def accepts(probabilities):
    """Return True if torch.multinomial would draw: no number of the tensor is NaN, inf or below 0."""
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
# The report's guard was `if grad_norm > 10: skip`. Here is the same fp16 run with this guard and the report's other
# guards and values for stable training:

# %%
reported = gl.scenario("nan-passes-threshold").config()
print(reported.guards["skip_spikes"])
under_report = lab.run(reported, "reported_guard")

# %%
print("nan > 10 is", math.nan > 10, "  nan < 10 is", math.nan < 10)

# %% [markdown]
# The guard let through the one update that it should have refused. Rewrite it. The guard acts at the stage of the
# gradients, gets their norm before clipping, and returns `Outcome(value)` (continue) or an outcome with a verdict and a
# reason.

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
mine = reported.with_guards({lab.path("finite_first"): {}} | others)
guarded = lab.panel(mine, controls=("learning_rate",))
guarded

# %%
guarded_run = await guarded.run()

# %%
guarded_run.records[["verdict", "updates", "grad_norm", "reward", "weights/nonfinite"]]

# %% [markdown]
# <details><summary>Our measurement: open it after your run</summary>
#
# No crash and no broken weight. Now count the refused steps and look at the reward: the run is alive and learns
# nothing. Refusing protects the weights, but the loss is still wrong (lab 2 fixed it).
#
# </details>

# %% [markdown] tags=["instructor"]
# **Ask.** "Which is the shorter right version?" `norm <= 10` alone. Every comparison with NaN is False, so test for the
# values that you *accept*. **Say.** "First test for finite, then apply thresholds, then clip."

# %% [markdown]
# ## 8. A healthy norm, and dead weights
#
# Is a finite gradient enough? Here is the report's own learning rate, 1e-5, with fp16 weights and AdamW's default
# settings:

# %%
adam_config = gl.scenario("fp16-adam-epsilon").config()
adam = lab.run(adam_config.with_("guards.skip_nonfinite=on"), "healthy_norm")
adam.records[["step", "grad_norm", "loss", "weights/nonfinite"]]

# %% [markdown]
# The norm is healthy, the loss is 0 to eight digits, and no guard of gradients acts. After **one** update 99.9 % of the
# weights are NaN or inf. AdamW moves a weight by $\text{rate} \cdot m / (\sqrt v + \text{eps})$. In fp16:

# %%
eps, gradient, zero = torch.tensor([1e-8, 1e-4, 0.0], dtype=torch.float16)
print("eps = 1e-8 becomes", eps.item())
print("a gradient of 1e-4 squared becomes", (gradient * gradient).item())
print("0 / 0 is", (zero / zero).item(), "  1e-4 / 0 is", (gradient / zero).item())

# %%
# %%exercise epsilon
# Choose AdamW's eps for fp16 weights, at a learning rate of 1e-5, so that
#   - fp16 does not round eps to 0,
#   - no weight moves by more than 0.001 in the first step (a hundred times the rate),
#   - and the largest move is still at least the rate.
# A power of ten is enough. The check trains one step with it.
# BEGIN SOLUTION
adam_eps = 1e-4
# END SOLUTION

# %% [markdown]
# An eps that only survives rounding is not enough: see how far 1e-7 moves a weight, at a rate of 0.00001. In fp32 and
# bf16 the usual 1e-8 is fine, because their smallest numbers are near 1e-38. Storing the weights in one of these
# formats is the better cure.

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
# ## 10. What if
#
# Keep the crashed run of the first panel, change one thing, and run again. Which of these runs survive, and which link
# makes the difference? Guess before each run.
#
# 1. `guards.safe_sampling=on`: the report's safe generation (temperature, top-p, top-k).
# 2. `guards.clamp_log_ratio=on`: the report's clamp before exp.
# 3. `model.precision=bf16_pure`: half the digits of fp16, and 3 · 10³⁸ as its largest number.

# %%
panel.keep("fp16 weights")
panel.set("model.precision=bf16_pure")
in_bf16 = await panel.run()

# %% [markdown] tags=["instructor"]
# **Results** (one seed). 1 and 2 die in the same round: 1 because NaN survives every change to the distribution, 2
# because the exp of the KL estimate is unbounded. 3 finishes with finite weights, a norm of 170,000 and a reward of 0:
# a wider format hides the failure.

# %% [markdown]
# ## 11. Ask yourself

# %%
lab.questions()

# %%
lab.export()

# %% [markdown]
# **Next:** lab 4 tests the guards one at a time: what each stops, costs and hides.
