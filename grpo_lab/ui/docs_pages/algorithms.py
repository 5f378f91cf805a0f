"""docs/algorithms.md: every algorithm with what differs from GRPO, its settings and its paper."""

from grpo_lab.analysis.markdown import render
from grpo_lab.config.algorithms import Algorithm, algorithm, algorithm_names


def page() -> str:
    """The page on algorithms, GRPO first."""
    found = sorted(map(algorithm, algorithm_names()), key=lambda each: each.name != "grpo")
    head = ["algorithm", "what differs from GRPO", "settings of `loss`", "paper"]
    return render("algorithms", rows=[head, *map(_row, found)])


def _row(each: Algorithm) -> list[str]:
    settings = ", ".join(f"`{name}={value}`" for name, value in each.loss.items())
    return [f"`{each.name}`", f"{each.title}. {each.differs}", settings, f"[paper]({each.paper})"]
