"""Addresses to listen on."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from urllib.parse import urlsplit


class BindError(OSError):
    """The collector cannot listen on an address."""


@dataclass(frozen=True)
class Address:
    """HOST:PORT. Port 0 means any free port."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """Parse ``127.0.0.1:4317``, ``[::1]:4317`` or ``:4317`` (all interfaces).

        Raises:
            ValueError: the text has another form.
        """
        host, colon, port = text.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not colon or not port.isdecimal() or int(port) > 65_535:
            raise ValueError(f"{text!r} is not HOST:PORT")
        return cls(host or "0.0.0.0", int(port))  # noqa: S104  an empty host means all interfaces

    @property
    def is_loopback(self) -> bool:
        return self.host in ("localhost", "::1") or self.host.startswith("127.")

    def from_elsewhere(self) -> Address:
        """The address for clients on other machines: if it means all interfaces, it becomes the host's name."""
        return Address(socket.gethostname(), self.port) if self.host in ("0.0.0.0", "::") else self  # noqa: S104

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def port_of(url: str) -> int | None:
    """The port of a URL. None: it has none.

    Raises:
        ValueError: the port is not a number up to 65535.
    """
    try:
        return urlsplit(url).port
    except ValueError:
        raise ValueError(f"{url!r} has no valid port") from None


def listen(address: Address) -> socket.socket:
    """Open a socket that listens on an address.

    Raises:
        BindError: this is not possible.
    """
    try:
        family, kind, protocol, _, endpoint = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(endpoint)
            listener.listen(1024)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise BindError(f"cannot listen on {address}: {error}") from error
    return listener
