"""The protocol of attribution, generated from ``proto/`` and never edited (docs/attribution.md)."""
