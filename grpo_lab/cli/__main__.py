"""`python -m grpo_lab.cli`."""

from grpo_lab.cli import main

main()
