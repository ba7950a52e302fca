"""What both HTTP ports and the gRPC port share: addresses, TLS, tokens, the HTTP server."""
