"""Speed against TRL and the price of watching and guarding, measured in turns within one process."""

import os

# Before torch loads OpenMP: on a busy machine a thread that spins while it waits for another, which is not running,
# makes a step last seconds instead of a tenth. The same for every contender.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
