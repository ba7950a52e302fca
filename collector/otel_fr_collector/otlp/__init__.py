"""OTLP's own forms: signals, statuses, the JSON encoding and partial decoding."""
