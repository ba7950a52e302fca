"""Tests of the whole chain: real torchrun jobs and the programs around otel-fr."""
