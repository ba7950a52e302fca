"""Tests of otel-fr: see CONTRIBUTING.md."""
