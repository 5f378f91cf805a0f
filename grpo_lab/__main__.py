"""`python -m grpo_lab`: the command line."""

from grpo_lab.cli import main

main()
