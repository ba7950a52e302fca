"""Turns findings of the match engine into incidents, which open, change and resolve."""
