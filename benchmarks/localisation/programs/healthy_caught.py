"""Rank 1 catches an exception in every tenth step and repeats its work; another of its threads ends by one."""

import threading
import time

from benchmarks.localisation.job import end, rank, step

TRUTH = {"kind": "healthy", "culprits": [], "world": 3}


def fail() -> None:
    raise ValueError("a metric that nobody reads")


for number in range(150):
    if rank == 1 and number % 10 == 0:
        try:
            raise OSError("the file server was slow")
        except OSError:
            time.sleep(0.1)
    if rank == 1 and number == 50:
        threading.Thread(target=fail).start()
    step()
end()
