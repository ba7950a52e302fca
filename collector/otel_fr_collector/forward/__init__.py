"""Telemetry sent on to OTLP backends, through a bounded queue."""
