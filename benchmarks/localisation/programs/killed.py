"""The kernel kills rank 2, which has used too much memory."""

import os
import signal

from benchmarks.localisation.job import fault, rank, step

TRUTH = {"kind": "killed", "culprits": [[2]], "world": 3, "larger": 8}

for number in range(50):
    if rank == 2 and number == 20:
        fault()
        os.kill(os.getpid(), signal.SIGKILL)
    step()
