"""The version of otel-fr. Modules that ``otel_fr`` itself imports can read it here."""

__version__ = "0.1.0"
