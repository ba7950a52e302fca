"""OTLP in: gRPC and HTTP, limits, decompression."""
