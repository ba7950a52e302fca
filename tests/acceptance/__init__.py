"""Tests of the complete chain: real torchrun jobs, and real programs around otel-fr."""
