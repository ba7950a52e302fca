"""Tests of the complete chain: real torchrun jobs and the programs around otel-fr."""
