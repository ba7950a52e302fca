"""A mutation fuzz of all that otel-fr reads from others, with real processes: ``make fuzz SECONDS=300``."""
