"""Who the monitor talks to: the collector, the rank, the other monitors of its machine."""
