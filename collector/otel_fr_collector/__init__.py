"""The otel-fr collector: OTLP in, live correlation of all ranks, incidents out. Needs no torch."""
