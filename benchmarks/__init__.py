"""Speed against TRL, and the cost of guards, recorder and panel, measured in turns within one process."""

import os

# Set before torch loads OpenMP: on a busy machine, threads that spin while they wait make a step last seconds and not a
# tenth. The same setting holds for every contender.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
