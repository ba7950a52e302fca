"""OTLP's encodings: signals, statuses, the JSON encoding and partial decoding."""
