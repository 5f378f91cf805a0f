"""Set-up that must happen before any module of the package is imported."""

from importlib.util import find_spec

# Shapes are checked here and only here: users pay nothing. tests/gpu also runs where none of this is installed.
if find_spec("jaxtyping") and find_spec("beartype"):
    from jaxtyping import install_import_hook

    tensor_modules = ["grpo_lab.advantages", "grpo_lab.losses", "grpo_lab.kl", "grpo_lab.logprobs"]
    install_import_hook(tensor_modules, "beartype.beartype")

if find_spec("hypothesis"):
    from hypothesis import settings

    # The same examples everywhere, and no verdict that depends on how busy the machine is.
    settings.register_profile("grpo_lab", derandomize=True, deadline=None)
    settings.load_profile("grpo_lab")
