"""Follows the rank's ring: new and ended calls, fingerprints, and the program's heartbeats, sections and steps."""
