"""Certificates of a CA that exists for one test."""

from __future__ import annotations

import ssl
from datetime import datetime, timedelta, timezone
from pathlib import Path

import grpc
import trustme


class Certificates:
    """A CA, a server's certificate for localhost and a client's certificate, as PEM files."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.ca = trustme.CA()
        self.ca_file = folder / "ca.pem"
        self.cert, self.key = folder / "server.pem", folder / "server.key"
        self.client_cert, self.client_key = folder / "client.pem", folder / "client.key"
        self.ca.cert_pem.write_to_path(self.ca_file)
        self.renew_server()
        write_certificate(self.ca.issue_cert("rank@job"), self.client_cert, self.client_key)

    def renew_server(self, days: float = 1.0) -> None:
        """Replace the server's certificate. With ``days`` below 0 the new one has expired."""
        now = datetime.now(timezone.utc)
        start, end = now - timedelta(days=3), now + timedelta(days=days)
        issued = self.ca.issue_cert("localhost", "127.0.0.1", not_before=start, not_after=end)
        write_certificate(issued, self.cert, self.key)

    def server_options(self, *, clients: bool = False) -> tuple[str, ...]:
        options = ("--tls-cert", str(self.cert), "--tls-key", str(self.key))
        return (*options, "--tls-client-ca", str(self.ca_file)) if clients else options

    def context(self, *, client: bool = False) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.ca_file)
        if client:
            context.load_cert_chain(self.client_cert, self.client_key)
        return context

    def channel(self, address: str, *, client: bool = False) -> grpc.Channel:
        pair = (self.client_key.read_bytes(), self.client_cert.read_bytes()) if client else (None, None)
        return grpc.secure_channel(address, grpc.ssl_channel_credentials(self.ca_file.read_bytes(), *pair))


def write_certificate(issued: trustme.LeafCert, cert: Path, key: Path) -> None:
    """Write a certificate with its chain, and its key. Each file replaces the old one by renaming, as in a renewal."""
    chain = b"".join(blob.bytes() for blob in issued.cert_chain_pems)
    for path, data in ((key, issued.private_key_pem.bytes()), (cert, chain)):
        fresh = path.with_suffix(".new")
        fresh.write_bytes(data)
        fresh.rename(path)
