"""Spans, metrics and rank reports: made from the ring, queued and sent."""
