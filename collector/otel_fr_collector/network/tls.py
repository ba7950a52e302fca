"""TLS for the collector's ports. The certificate files may be renewed while it runs."""

from __future__ import annotations

import logging
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import cast

import grpc
from cryptography import x509

from otel_fr_collector.given_files import read_bytes, stamp_of
from otel_fr_collector.throttle import Throttle

_log = logging.getLogger(__name__)

CHECK_SECONDS = 1.0
"""Shortest time between two checks of the files for a change. They are checked only when a client connects."""


class TlsError(ValueError):
    """The certificate files cannot be used. The text names the files and the reason."""


@dataclass(frozen=True)
class _Loaded:
    stamp: tuple[object, ...]
    config: grpc.ServerCertificateConfiguration
    context: ssl.SSLContext
    expires: datetime


class ServerTls:
    """Certificate, key and client CAs. If renewed files cannot be used, the old ones stay in use.

    Args:
        client_ca: require a client certificate that one of these CAs has signed.

    Raises:
        TlsError: the files cannot be used, or the certificate has expired.
    """

    def __init__(self, cert: Path, key: Path, client_ca: Path | None = None) -> None:
        self._cert, self._key, self._client_ca = cert, key, client_ca
        self._lock = threading.Lock()
        self._log = Throttle()
        self._checked = time.monotonic()
        self._loaded = self._load()
        self._given_to_grpc = self._loaded.stamp
        if self.expires <= datetime.now(timezone.utc):
            raise TlsError(f"the certificate {cert} expired on {self.expires:%Y-%m-%d %H:%M} UTC")

    @property
    def expires(self) -> datetime:
        """End of the certificate's validity."""
        return self._loaded.expires

    def grpc_credentials(self) -> grpc.ServerCredentials:
        """The credentials of a gRPC port. Each new connection gets the newest certificate."""
        # For gRPC, None means "as before", which its type stubs do not say.
        fetch = cast("Callable[[], grpc.ServerCertificateConfiguration]", self._fetch)
        return grpc.dynamic_ssl_server_credentials(
            self._loaded.config, fetch, require_client_authentication=self._client_ca is not None
        )

    def ssl_context(self) -> ssl.SSLContext:
        """The context of an HTTP port. Each new connection gets the newest certificate and client CAs."""
        context = self._new_context()

        def choose(connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _context: ssl.SSLContext) -> None:
            # Called once in each handshake, with or without a server name. OpenSSL then uses the certificate, the key
            # and the trusted CAs of the context that is assigned here.
            connection.context = self._newest().context

        context.sni_callback = choose
        return context

    def _fetch(self) -> grpc.ServerCertificateConfiguration | None:
        loaded = self._newest()
        with self._lock:
            if loaded.stamp == self._given_to_grpc:
                return None
            self._given_to_grpc = loaded.stamp
        return loaded.config

    def _newest(self) -> _Loaded:
        now = time.monotonic()
        with self._lock:
            if now - self._checked >= CHECK_SECONDS:
                self._checked = now
                try:
                    if self._stamp() != self._loaded.stamp:
                        self._loaded = self._load()
                        _log.info("reloaded the certificate %s", self._cert)
                except (OSError, TlsError) as error:
                    if self._log.allows(str(error)):
                        _log.error("could not reload the certificate; keeping the old one: %s", error)
            return self._loaded

    def _load(self) -> _Loaded:
        try:
            stamp = self._stamp()
            cert, key = read_bytes(self._cert), read_bytes(self._key)
            roots = read_bytes(self._client_ca) if self._client_ca is not None else None
            expires = x509.load_pem_x509_certificates(cert)[0].not_valid_after_utc
            context = self._new_context()
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise TlsError(
                f"TLS cannot use {self._cert}, {self._key}, {self._client_ca or 'no CA'}: {error}"
            ) from error
        return _Loaded(stamp, grpc.ssl_server_certificate_configuration([(key, cert)], roots), context, expires)

    def _new_context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self._cert, self._key)
        if self._client_ca is not None:
            context.load_verify_locations(self._client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _stamp(self) -> tuple[object, ...]:
        paths = [path for path in (self._cert, self._key, self._client_ca) if path is not None]
        return tuple(map(stamp_of, paths))
