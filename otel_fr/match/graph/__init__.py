"""The wait-for graph: who waits for whom, cycles, and what devices and counts of calls say about its ends."""
