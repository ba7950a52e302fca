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
"""libpq's parameters, where the URL has no others (PostgreSQL's documentation, 34.1.2). Times in seconds."""
_SESSION = "SET statement_timeout = '8s'; SET lock_timeout = '4s'; SET idle_in_transaction_session_timeout = '30s'"
"""A collector that hangs, or is cut off, must not keep locks that the others need."""

logging.getLogger("psycopg.pool").setLevel(logging.CRITICAL)  # the store says what fails, and not each second


def conninfo(url: str) -> str:
    """The parameters of a connection.

    Raises:
        ValueError: the URL cannot be used.
    """
    try:
        return make_conninfo(**{**_DEFAULTS, **conninfo_to_dict(url)})
    except psycopg.ProgrammingError as error:
        raise ValueError(clean(f"the URL of the database cannot be used: {error}".strip())) from None


def configure(connection: Connection) -> None:
    """Make a new connection ready for use.

    Raises:
        psycopg.Error: it cannot be used.
    """
    connection.autocommit = True
    connection.prepare_threshold = None  # PgBouncer passes a transaction on to any connection
    connection.execute(_SESSION)


def connect(url: str) -> Connection:
    """A connection.

    Raises:
        psycopg.Error: there is none; its text says why, without the password.
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
    """End the connection if what is done in the context takes longer: the operation in it then raises psycopg.Error.

    Args:
        seconds: None: `ANSWER_SECONDS`.

    The server's own timeout does not help if its machine, or the network, has stopped.
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
    """Libpq, which waits for an answer in another thread, then reads the end of the stream."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as one:
        one.shutdown(socket.SHUT_RDWR)
