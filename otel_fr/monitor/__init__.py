"""The rank monitor: one small process per rank that watches it, reports to the collector, and outlives it.

It reads the rank's ring file, and imports no torch. The rank starts it with
``python -m otel_fr.monitor --ring PATH --fd N``.
"""
