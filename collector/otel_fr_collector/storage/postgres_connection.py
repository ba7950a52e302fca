"""Connections to PostgreSQL that end when the server, or the network to it, no longer answers."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from otel_fr.redaction import clean

Connection = psycopg.Connection[tuple[Any, ...]]

ANSWER_SECONDS = 10.0
"""Seconds after which a server that has not completed an operation counts as gone."""
_DEFAULTS: dict[str, Any] = {
    "application_name": "otel-fr",
    "connect_timeout": 3,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
}
"""libpq's parameters, unless the URL sets them (PostgreSQL's documentation, 34.1.2). Times are in seconds."""
_SESSION = "SET statement_timeout = '8s'; SET lock_timeout = '4s'; SET idle_in_transaction_session_timeout = '30s'"
"""A collector that hangs or is cut off must not keep locks that the others need."""

logging.getLogger("psycopg.pool").setLevel(logging.CRITICAL)  # the store logs what fails, and less often


def conninfo(url: str) -> str:
    """Make the parameters of a connection from a URL.

    Raises:
        ValueError: the URL cannot be used.
    """
    try:
        return make_conninfo(**{**_DEFAULTS, **conninfo_to_dict(url)})
    except psycopg.ProgrammingError as error:
        raise ValueError(clean(f"the URL of the database cannot be used: {error}".strip())) from None


def configure(connection: Connection) -> None:
    """Prepare a new connection for use.

    Raises:
        psycopg.Error: the connection cannot be used.
    """
    connection.autocommit = True
    connection.prepare_threshold = None  # PgBouncer passes a transaction on to any connection
    connection.execute(_SESSION)


def connect(url: str) -> Connection:
    """Connect to the database.

    Raises:
        psycopg.Error: there is no connection. The text gives the reason, without the password.
    """
    connection: Connection = psycopg.connect(conninfo(url), autocommit=True)
    try:
        with answering(connection):
            configure(connection)
    except BaseException:
        connection.close()
        raise
    return connection


@contextlib.contextmanager
def answering(connection: Connection, seconds: float | None = None) -> Iterator[None]:
    """End the connection if the context lasts too long: the operation in it then raises psycopg.Error.

    The server's own timeout does not help if its machine, or the network, has stopped.

    Args:
        seconds: the limit. None: `ANSWER_SECONDS`.
    """
    descriptor = os.dup(connection.fileno())
    watch = threading.Timer(ANSWER_SECONDS if seconds is None else seconds, _shut_down, (descriptor,))
    watch.daemon = True
    watch.start()
    try:
        yield
    finally:
        watch.cancel()
        watch.join()
        os.close(descriptor)


def _shut_down(descriptor: int) -> None:
    """Shut the socket down, so that libpq, which waits in another thread, reads the end of the stream."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as one:
        one.shutdown(socket.SHUT_RDWR)
