"""Connections of the monitor to the collector, to the rank, and to the other monitors of its machine."""
