"""Tests with real processes, sockets and files."""
