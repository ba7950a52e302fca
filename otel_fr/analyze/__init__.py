"""The offline analyzer: flight-recorder files -> evidence -> the match engine -> a report."""
