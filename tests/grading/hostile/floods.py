"""Sends a gigabyte where answers go.

Place: 02_explosion/log_ratio
Said: it sent more than 256 kB
"""

import os


def attack(*_, **__):
    for number in map(int, os.listdir("/proc/self/fd")):
        try:
            is_pipe = os.readlink(f"/proc/self/fd/{number}").startswith("pipe:")
        except OSError:
            continue  # of the listing itself
        for _ in range(1 << 10 if is_pipe else 0):
            os.write(number, b"x" * (1 << 20))
