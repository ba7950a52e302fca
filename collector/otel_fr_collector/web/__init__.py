"""The page, the JSON API and /metrics."""
