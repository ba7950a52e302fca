"""The rank monitor: one small process per rank that watches it, reports to the collector, and outlives it.

It reads the rank's ring file, never its memory; it imports no torch. Start it with
``python -m otel_fr.monitor --ring PATH --fd N``.
"""
