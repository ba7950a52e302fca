"""Code that several tests use."""
