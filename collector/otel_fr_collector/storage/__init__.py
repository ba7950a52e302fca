"""Incidents on disk."""
