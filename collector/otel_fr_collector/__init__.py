"""The otel-fr collector: OTLP in, live correlation of all ranks, incidents out. Needs no torch."""

import os

# gRPC's C library prints lines about requests, which bypass the collector's log and its bounds. It reads this variable
# when it is imported.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
# gRPC would restart its threads in a child process, which only computes (`otel_fr_collector.aside`).
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
