"""The otel-fr collector: OTLP in, live correlation of all ranks, incidents out. Needs no torch."""

import os

# gRPC's C library writes lines about what clients send, past the collector's log and its bounds. It reads this as it is
# imported.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
# gRPC would start its threads anew in a child, which only computes (`otel_fr_collector.aside`).
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
