# %% [markdown]
# # Lab 9. A sample
#
# What a lab looks like.

# %% [markdown] tags=["instructor"]
# **Say.** It is a sample.

# %%
import grpo_lab as gl

lab = gl.Lab("sample")

# %%
# %%exercise guess
# a: it grows, b: it shrinks, c: neither
# BEGIN SOLUTION
answer = "a"
# END SOLUTION

# %%
# %%exercise double
import torch


def double(x: torch.Tensor) -> torch.Tensor:
    """(n,) -> (n,): every number twice."""
    # BEGIN SOLUTION
    twice = x + x
    return twice
    # END SOLUTION


# %%
print(lab.answer("double").double(3), lab.path("double"))

# %%
# %%exercise guards
# BEGIN SOLUTION
guards = ("warm_up",)
# END SOLUTION

# %%
# %%exercise letter
# BEGIN SOLUTION
answer = "b"
# END SOLUTION

# %%
# %%exercise words
# BEGIN SOLUTION
answer = "two times two"
# END SOLUTION

# %% tags=["slow"]
run = lab.run(gl.preset("smoke").with_("run.threads=1"), "short")
print(run.status, len(run.records))

# %%
lab.questions()

# %%
print(lab.export())
