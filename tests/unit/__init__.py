"""Tests of one part, in this process, without servers and other programs."""
