"""``otel-fr collector``: receive the ranks' telemetry and report incidents live."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import fcntl
import functools
import logging
import os
import resource
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

from otel_fr.urls import without_password
from otel_fr.waits.blocks import StragglerLimits
from otel_fr_collector import event_loop, loading, logs, output
from otel_fr_collector.ending import leave
from otel_fr_collector.forward.backends import Tls, make_backend, read_headers
from otel_fr_collector.forward.forwarder import Forwarder
from otel_fr_collector.forward.jaeger import look_for_page
from otel_fr_collector.forward.queues import Queues
from otel_fr_collector.forward.selection import Selection
from otel_fr_collector.given_files import read_bytes, read_text
from otel_fr_collector.incidents.links import GRAFANA_DASHBOARD, Links
from otel_fr_collector.loading import SettingsError
from otel_fr_collector.metrics import Metrics
from otel_fr_collector.network.tls import ServerTls
from otel_fr_collector.network.tokens import Tokens, tenant_of
from otel_fr_collector.otlp.signals import TRACES
from otel_fr_collector.outlets.alertmanager import Alertmanager
from otel_fr_collector.outlets.changes import Changes, Receiver
from otel_fr_collector.outlets.file import IncidentsFile
from otel_fr_collector.outlets.grafana import Grafana
from otel_fr_collector.outlets.log import LogLines
from otel_fr_collector.outlets.outlet import Outlet, TenantOf
from otel_fr_collector.outlets.outlets import Outlets
from otel_fr_collector.outlets.terminal import Terminal
from otel_fr_collector.outlets.webhook import Webhook, read_secret
from otel_fr_collector.output import Unblocked
from otel_fr_collector.process import CollectorProcess, Ports
from otel_fr_collector.receive.intake import Limits
from otel_fr_collector.service import Service
from otel_fr_collector.settings import Settings
from otel_fr_collector.storage.journal import Journal
from otel_fr_collector.storage.opening import open_store
from otel_fr_collector.storage.retention import Retention
from otel_fr_collector.storage.store import Store

_log = logging.getLogger(__name__)

add_arguments = loading.add_arguments


def run(args: argparse.Namespace) -> int:
    """Serve until a signal arrives, or check the settings.

    Returns:
        the process's exit status: 0 after a signal, 1 after an internal error, 2 if a setting, an address
        or a file cannot be used.
    """
    try:
        effective = loading.load(vars(args), os.environ)
        if args.check:
            check(effective)
            print(loading.show(effective), end="")
            return 0
        metrics = Metrics()
        out, err = Unblocked(sys.stdout, "stdout", metrics), Unblocked(sys.stderr, "stderr", metrics)
        logs.set_up(effective.log_format, effective.log_level, err)
        _warn(effective)
        _raise_file_limit()
        with _locked_folder(effective.data):
            event_loop.run(_serve(effective, metrics, None if effective.quiet else out, err))
    except SettingsError as error:
        output.drain()
        for line in str(error).splitlines():
            print(f"otel-fr collector: {line}", file=sys.stderr)
        return 2
    except (OSError, ValueError) as error:
        output.drain()
        print(f"otel-fr collector: {error}", file=sys.stderr)
        return 2
    raise AssertionError("serving ends the process")


def check(effective: Settings) -> None:
    """Read every file that the settings name, without serving.

    Raises:
        SettingsError: a file cannot be used.
    """
    problems = []
    checks: list[Callable[[], object]] = [
        lambda: _tls(effective),
        lambda: _tokens(effective),
        lambda: _forward_headers(effective),
        lambda: _backend_tls(effective).context(),
    ]
    checks += [lambda: _webhook_secret(effective), lambda: _grafana_token(effective), lambda: _store_url(effective)]
    folders = (effective.data, effective.incidents and effective.incidents.parent)
    checks += [functools.partial(_check_folder, folder) for folder in folders if folder is not None]
    for one in checks:
        try:
            one()
        except (OSError, ValueError) as error:
            problems.append(str(error))
    if problems:
        raise SettingsError("\n".join(problems))


async def _serve(effective: Settings, metrics: Metrics, out: Unblocked | None, err: Unblocked) -> NoReturn:
    """Serve until a signal, then end the process with the exit status.

    Args:
        out: where incidents are printed. None: nowhere.
        err: where the addresses of the ports are printed.
    """
    tls = _tls(effective)
    if tls is not None:
        metrics.watch_certificate(lambda: tls.expires.timestamp())
    links = links_of(effective)
    retention = Retention(effective.retention_days * 86_400.0, effective.retention_size)
    store = open_store(effective.data, _store_url(effective), metrics, retention)
    tokens = _tokens(effective)
    whose = tenant_of if tokens is None else tokens.tenant_of
    outlets = Outlets(
        metrics,
        terminal=Terminal(out),
        file=_incidents_file(effective, metrics),
        others=_others(effective, metrics, links, store, whose),
    )
    forwarder = _forwarder(effective, metrics) if effective.forward else None
    ports = _ports(effective, tls, tokens)
    service = Service(
        metrics,
        outlets,
        forwarder=forwarder,
        store=store,
        retention=retention,
        links=links,
        tenant_of=whose,
        straggler_limits=StragglerLimits(effective.straggler_seconds),
        job_memory=effective.job_memory,
        alert_after=effective.alert_after,
    )
    process = CollectorProcess(service, outlets, forwarder, ports, effective.stop_seconds)
    await process.start()
    scheme = "http" if tls is None else "https"
    second = "" if process.ports.otlp_http is None else f"OTLP/HTTP on {scheme}://{process.ports.otlp_http}; "
    print(
        f"otel-fr collector: {second}OTLP/gRPC on {process.ports.grpc}, HTTP on {scheme}://{process.ports.http}",
        file=err,
    )
    looking = None  # asyncio keeps no reference to a task
    if effective.forward and "trace" not in dict(effective.link) and TRACES in effective.forward_signals:
        looking = asyncio.create_task(look_for_page(links, effective.forward))
    status = 0 if await process.serve() else 1
    if looking is not None:
        looking.cancel()
    leave(status)


def links_of(effective: Settings) -> Links:
    """The links of incidents, from the options. By default, they lead to pages that this collector knows."""
    page = (effective.external_url or _own_url(effective)).rstrip("/")
    grafana = without_password(effective.grafana or "").rstrip("/")
    given = dict(effective.link)
    return Links(
        page=page,
        runbook=given.get("runbook", f"{page}/runbooks/{{category}}" if page else ""),
        trace=given.get("trace", ""),
        dashboard=given.get("dashboard", grafana + GRAFANA_DASHBOARD if grafana else ""),
        alertmanager=without_password(next(iter(effective.alertmanager), "")).rstrip("/"),
    )


def _own_url(effective: Settings) -> str:
    """The page's URL, as far as the options show it. Browsers may need another URL (``--external-url``)."""
    if not effective.http.port:
        return ""  # any free port
    scheme = "http" if effective.tls_cert is None else "https"
    return f"{scheme}://{effective.http.from_elsewhere()}"


def _incidents_file(effective: Settings, metrics: Metrics) -> IncidentsFile | None:
    if effective.incidents is None:
        return None
    with _naming("incidents", effective.incidents):
        return IncidentsFile(effective.incidents, metrics)


def _ports(effective: Settings, tls: ServerTls | None, tokens: Tokens | None) -> Ports:
    return Ports(
        grpc=effective.grpc,
        http=effective.http,
        otlp_http=effective.otlp_http_address,
        # An OpenTelemetry Collector may use 4318. Only a port that the user has set must be free.
        needs_otlp_http="otlp_http" in effective.given,
        tls=tls,
        tokens=tokens,
        limits=Limits(max_queue_size=effective.max_queue_size, client_queue_size=effective.max_queue_size // 2),
    )


def _forwarder(effective: Settings, metrics: Metrics) -> Forwarder:
    headers = _forward_headers(effective)
    tls = _backend_tls(effective)
    backends = [make_backend(url, tls, headers.get(url, {})) for url in effective.forward]
    journal = None if effective.data is None else Journal(effective.data / "forward.sqlite3", metrics)
    return Forwarder(
        Queues(effective.forward, effective.forward_queue_size, journal),
        backends,
        metrics,
        signals=effective.forward_signals,
        selection=None if effective.forward_mode == "all" else Selection(),
    )


def _others(
    effective: Settings, metrics: Metrics, links: Links, store: Store | None, tenant_of: TenantOf
) -> list[Outlet]:
    """The outlets other than the terminal, the file and the event stream.

    Raises:
        OSError, ValueError: a file with a secret cannot be read or used.
    """
    others: list[Outlet] = [LogLines()] if effective.quiet else []
    if effective.alertmanager:
        labels = dict(effective.alert_label)
        others.append(Alertmanager(effective.alertmanager, metrics, links=links, labels=labels, tenant_of=tenant_of))
    secret = _webhook_secret(effective)
    receivers: list[Receiver] = [Webhook(url, secret) for url in dict.fromkeys(effective.webhook)]
    if effective.grafana is not None:
        receivers.append(Grafana(effective.grafana, _grafana_token(effective)))
    others += [Changes(one, metrics, links=links, store=store, tenant_of=tenant_of) for one in receivers]
    return others


def _webhook_secret(effective: Settings) -> bytes | None:
    path = effective.webhook_secret_file
    if path is None:
        return None
    with _naming("webhook-secret-file", path):
        text = read_text(path)
    if not effective.webhook:
        raise ValueError("--webhook-secret-file needs --webhook")
    with _naming("webhook-secret-file", path):
        return read_secret(text)


def _tokens(effective: Settings) -> Tokens | None:
    if effective.tokens is None:
        return None
    with _naming("tokens", effective.tokens):
        return Tokens(effective.tokens)


def _forward_headers(effective: Settings) -> dict[str, dict[str, str]]:
    if effective.forward_headers is None:
        return {}
    with _naming("forward-headers", effective.forward_headers):
        return read_headers(effective.forward_headers, effective.forward)


def _store_url(effective: Settings) -> str | None:
    if not isinstance(effective.store, Path):
        return effective.store
    with _naming("store", effective.store):
        return effective.store_url()


def _grafana_token(effective: Settings) -> str:
    if effective.grafana_token_file is None:
        return ""
    with _naming("grafana-token-file", effective.grafana_token_file):
        return read_text(effective.grafana_token_file).strip()


@contextlib.contextmanager
def _naming(option: str, path: Path) -> Iterator[None]:
    """Name the option in the error if its file cannot be used.

    Raises:
        SettingsError: the file cannot be read, or its content cannot be used.
    """
    try:
        yield
    except OSError as error:
        raise SettingsError(f"--{option} {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise SettingsError(f"--{option} {path}: {error}") from error


def _check_readable(**files: Path | None) -> None:
    """Raise SettingsError if a file cannot be read. Each argument is named like the field of the option."""
    for field, path in files.items():
        if path is not None:
            with _naming(field.replace("_", "-"), path):
                read_bytes(path)


def _tls(effective: Settings) -> ServerTls | None:
    if effective.tls_cert is None or effective.tls_key is None:
        return None
    _check_readable(tls_cert=effective.tls_cert, tls_key=effective.tls_key, tls_client_ca=effective.tls_client_ca)
    return ServerTls(effective.tls_cert, effective.tls_key, effective.tls_client_ca)


def _backend_tls(effective: Settings) -> Tls:
    _check_readable(
        forward_ca=effective.forward_ca, forward_cert=effective.forward_cert, forward_key=effective.forward_key
    )
    return Tls(effective.forward_ca, effective.forward_cert, effective.forward_key)


def _warn(effective: Settings) -> None:
    """Warn if other machines can reach the collector without TLS or without authentication."""
    addresses = {"--grpc": effective.grpc, "--otlp-http": effective.otlp_http_address, "--http": effective.http}
    wide = [f"{name} {found}" for name, found in addresses.items() if found is not None and not found.is_loopback]
    if wide and effective.tls_cert is None:
        _log.warning(
            "%s: reachable from other machines without TLS: anyone on the network can read the traffic", ", ".join(wide)
        )
    if wide and effective.tokens is None and effective.tls_client_ca is None:
        _log.warning(
            "%s: reachable from other machines without --tokens or --tls-client-ca: anyone there can read and write",
            ", ".join(wide),
        )


def _raise_file_limit() -> None:
    """Raise the limit of open files. Each connection is a file, and the usual 1,024 are too few for large jobs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65_536 if hard == resource.RLIM_INFINITY else min(65_536, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@contextlib.contextmanager
def _locked_folder(folder: Path | None) -> Iterator[None]:
    """Make the data folder, readable by this user only, and lock it against other collectors.

    Raises:
        SettingsError: the folder cannot be used, or another collector is using it.
    """
    if folder is None:
        yield
        return
    path = folder / "lock"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.exists() and not path.is_file():  # opening a pipe would wait for a reader
            raise OSError(errno.EINVAL, f"{path.name} is not a regular file")
        lock = path.open("a")
    except OSError as error:
        if error.errno != errno.EROFS or not path.exists():
            raise SettingsError(f"--data {folder}: {_why_unusable(folder, error)}") from error
        lock = path.open()  # the disk has become read-only: the collector finds hangs without it
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise SettingsError(f"--data {folder} is in use by another collector") from error
        except OSError as error:  # some file systems have no locks, such as Lustre mounted without its option flock
            raise SettingsError(f"--data {folder} cannot be locked: {error.strerror}") from error
        yield


def _check_folder(folder: Path) -> None:
    """Raise OSError if no file can be created in the folder. This creates one without a name."""
    try:
        with tempfile.TemporaryFile(dir=_nearest(folder)):  # os.access does not notice a failed file system
            pass
    except OSError as error:
        raise OSError(f"cannot write to the folder {folder}: {_why_unusable(folder, error)}") from error


def _why_unusable(folder: Path, error: OSError) -> str:
    nearest = _nearest(folder)
    if not nearest.is_dir():  # "File exists" does not say what to do
        return f"{nearest} is not a folder: name another one, or remove it"
    return error.strerror or str(error)


def _nearest(folder: Path) -> Path:
    """The folder, or the nearest path above it that exists, which may be a file."""
    return next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path))
