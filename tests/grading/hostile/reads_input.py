"""Waits for a line that the grader might send to another answer.

Place: 01_grpo_by_hand/aggregate
"""

import os
import sys

assert not os.read(0, 1)
assert not sys.stdin.read()
