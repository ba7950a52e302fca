"""The host of ranks 2 and 3 is gone with all its processes. Nobody hears of their end."""

from benchmarks.localisation.job import lose_host, rank, step

TRUTH = {"kind": "lost host", "culprits": [[2, 3]], "world": 4, "needs": "plain start"}

for number in range(50):
    if rank >= 2 and number == 20:
        lose_host()
    step()
