"""Waits for ever before there is anything to call.

Place: 02_explosion/reported
Said: no answer within 4 s
"""

import signal
import time

for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
    if number < 32:
        signal.signal(number, signal.SIG_IGN)
while True:
    time.sleep(60)
