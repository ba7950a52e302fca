"""The protocol of attribution, generated from ``proto/`` and never edited (docs/guide/fault-tolerance.md)."""
