"""`python -m benchmarks.outcomes`: what the outcome says of runs that learn, and of runs that cannot (rate 0).

For each batch and length it prints how many of the seeds are said to have learned, to have learned nothing, to have
lost, and to be too short to say. `8 20` is the first live run of lab 0, `4 16` is that of lab 4's own guard.
"""

import argparse
from collections import Counter

from rich.progress import track

from grpo_lab.config.catalog import preset
from grpo_lab.runs.outcome import outcome
from grpo_lab.training.trainer import train

RUNS = ((8, 20), (4, 16), (16, 40))


def main() -> None:
    """Train and count."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--only", type=int, nargs=2, metavar=("PROMPTS", "STEPS"), action="append")
    args = parser.parse_args()
    for prompts, steps in args.only or RUNS:
        for rate in ("", "optimizer.learning_rate=0"):
            settings = (f"data.num_prompts={prompts}", f"run.num_steps={steps}", "run.threads=1", *filter(None, [rate]))
            config = preset("plain").with_(*settings)
            found = Counter(
                outcome([*train(config.with_(f"run.seed={seed}"))]).learned.value
                for seed in track(range(args.seeds), transient=True)
            )
            said = ", ".join(f"{count} {name}" for name, count in found.most_common())
            print(f"{prompts} prompts, {steps} steps, {'rate 0' if rate else 'learning'}: {said}")


if __name__ == "__main__":
    main()
