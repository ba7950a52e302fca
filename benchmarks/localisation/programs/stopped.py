"""Somebody stops rank 1's process."""

import os
import signal

from benchmarks.localisation.job import fault, rank, step

TRUTH = {"kind": "stopped", "culprits": [[1]], "world": 3, "is_timed": True}

for number in range(50):
    if rank == 1 and number == 20:
        fault()
        os.kill(os.getpid(), signal.SIGSTOP)
    step()
