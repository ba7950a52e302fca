"""``otel-fr top`` and ``otel-fr incidents``: the collector's API at a terminal."""
