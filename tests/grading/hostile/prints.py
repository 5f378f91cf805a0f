"""Prints a gigabyte on each of its two outputs.

Place: 01_grpo_by_hand/slope
"""

import os
import sys

LINES = b"x" * (1 << 26)
for _ in range(16):
    os.write(1, LINES)
    os.write(2, LINES)
print("100 of 100", file=sys.__stdout__, flush=True)
