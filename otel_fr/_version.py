"""The version of otel-fr; here so that modules which ``otel_fr`` itself imports can read it."""

__version__ = "0.1.0"
