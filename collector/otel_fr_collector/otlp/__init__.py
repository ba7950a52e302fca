"""OTLP's own forms: signals, envelopes and partial decoding."""
