"""A mutation fuzz of what otel-fr reads from others, against real processes: ``make fuzz SECONDS=300``."""
