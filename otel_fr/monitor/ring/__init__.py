"""Follows the rank's ring: new and ended calls, fingerprints, and what the program tells of its progress."""
