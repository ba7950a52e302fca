"""An OTLP receiver that only decodes: ``sink.py grpc | http/protobuf``. It prints its port like a collector."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2 as logs
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2_grpc as logs_grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as metrics_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as trace
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as trace_grpc


class Servicer:
    """OTLP's Export service of one signal."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def Export(self, request: object, context: object) -> Any:  # noqa: N802
        return self._answer


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def tell(port: int) -> None:
    print(f"gRPC on 127.0.0.1:{port},", file=sys.stderr, flush=True)


def main() -> None:
    if sys.argv[1] != "grpc":
        web = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        tell(web.server_port)
        web.serve_forever()
    server = grpc.server(ThreadPoolExecutor(4), options=[("grpc.max_receive_message_length", 64 << 20)])
    add_trace: Any = trace_grpc.add_TraceServiceServicer_to_server
    add_logs: Any = logs_grpc.add_LogsServiceServicer_to_server
    add_metrics: Any = metrics_grpc.add_MetricsServiceServicer_to_server
    add_trace(Servicer(trace.ExportTraceServiceResponse()), server)
    add_logs(Servicer(logs.ExportLogsServiceResponse()), server)
    add_metrics(Servicer(metrics.ExportMetricsServiceResponse()), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    tell(port)
    server.wait_for_termination()


if __name__ == "__main__":
    main()
