"""``otel-fr doctor``: whether a rank would record here, with which engine, what is missing, if the endpoint answers."""

from __future__ import annotations

import argparse
import importlib
import itertools
import os
import platform
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

from otel_fr._version import __version__
from otel_fr.capture import engines
from otel_fr.capture.dispatcher import operators_of, reduce_ops_are_readable
from otel_fr.checks.collector import check_endpoint
from otel_fr.checks.model import Status
from otel_fr.config import (
    ENDPOINTS,
    EXPORTERS,
    MAX_INHERITED_BUFFER_SIZE,
    RECORDER_SIZES,
    VARIABLES,
    Config,
    disabled_by,
    has_endpoint,
    is_enabled,
)
from otel_fr.dumps.places import runs_folder
from otel_fr.monitor.process import native_stacks
from otel_fr.operations import OPERATORS
from otel_fr.option_names import misspelt, unknown_variables
from otel_fr.printable import one_line
from otel_fr.redaction import hide_password
from otel_fr.ring import RingReader
from otel_fr.ring.files import ring_files, ring_folders
from otel_fr.ring.layout import Layout, RingFormatError

_CONNECT_SECONDS: Final = 3.0

_AUTOLOAD: Final = "TORCH_DEVICE_BACKEND_AUTOLOAD"

_MAX_RINGS: Final = 256
"""Rings whose errors are read: more than a node has ranks."""

Line = tuple[str, str, bool]
"""Topic, what was found, and whether it lets a rank record, write its files and send."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to its subcommand."""
    parser.epilog = (
        "Exit status: 0 a rank would record here, write its files, and reach its endpoints, if any are set; 1 something"
        " prevents that; 2 usage error."
    )


def run(_: argparse.Namespace) -> int:
    """Print what was found."""
    good = True
    for topic, text, fine in findings(os.environ):
        good = good and fine
        print(f"{topic + ':':15}{one_line(text)}")
    return 0 if good else 1


def findings(env: Mapping[str, str]) -> Iterator[Line]:
    """Yield what a rank with this environment would find here."""
    yield "otel-fr", f"{__version__}, Python {platform.python_version()}", True
    config = Config.from_env(env)
    try:
        torch: Any = importlib.import_module("torch")
        importlib.import_module("torch.distributed")
    except Exception as error:  # noqa: BLE001 - a broken installation raises anything
        yield "torch", f"cannot be imported: {error}", False
    else:
        yield "torch", str(torch.__version__), True
        yield from _of_torch(torch, config)
    is_off = config.native_stacks == "off"
    yield "native stacks", "none: OTEL_FR_NATIVE_STACKS=off" if is_off else native_stacks.outlook(), True
    yield _enabled(env)
    if unknown := unknown_variables(env, VARIABLES):
        yield "variables", unknown, True
    if meant := misspelt(env, ENDPOINTS):
        yield "variables", f"nothing reads {meant}", True
    yield _ring(config)
    yield _files(config, env)
    faults = list(_faults(config))
    if errors := [f"{one.rank}: {one.errors}" for one in faults if one.errors]:
        yield "errors", f"recording failed; these ranks are ignored when judging: {'; '.join(errors)}", True
    if misuses := [f"{one.rank}: {one.misuses}" for one in faults if one.misuses]:
        yield "wrong calls", f"heartbeats, sections or steps that were ignored: {'; '.join(misuses)}", True
    yield from _sending(config, env)


def _sending(config: Config, env: Mapping[str, str]) -> Iterator[Line]:
    """Yield which signals a variable switches off, and whether the endpoints answer."""
    off = {signal: name for signal, name in EXPORTERS.items() if env.get(name, "").strip().lower() == "none"}
    if has_endpoint(env) and off:
        what = ", ".join(off) if config.export else "everything"
        yield "not sent", f"{what}: {', '.join(f'{name}=none' for name in off.values())}", True
    for name in ENDPOINTS if config.export else ():
        if url := env.get(name, "").strip():
            outcome = check_endpoint(url, _CONNECT_SECONDS, env)
            yield "endpoint", hide_password(f"{url}: {outcome.text}"), outcome.status is Status.OK


def _enabled(env: Mapping[str, str]) -> Line:
    text = "yes"
    if name := disabled_by(env):
        text = f"no: {name}={env[name]}"
    elif not is_enabled(env):
        text = "no: set OTEL_EXPORTER_OTLP_ENDPOINT, or OTEL_FR_ENABLED=1 to record without sending"
    elif (autoload := env.get(_AUTOLOAD, "1")) != "1":  # as torch reads it
        text = (
            f"no: {_AUTOLOAD}={autoload} keeps PyTorch from loading otel-fr; unset it, call otel_fr.instrument(), or"
            " start the program with opentelemetry-instrument"
        )
    return "enabled", text, text == "yes"


def _of_torch(torch: ModuleType, config: Config) -> Iterator[Line]:
    engine = engines.choose(config.capture_engine, torch)
    yield "engine", f"{engine.name} ({engine.reason})", True
    found = [operator.name for operator, _ in operators_of(torch)]
    text = f"{len(found)} recorded"
    if unknown := [name for name in found if name not in OPERATORS]:
        text += f"; unknown to this otel-fr, read by their schemas: {', '.join(unknown)}"
    if not reduce_ops_are_readable(torch) and engine.name == engines.PYTHON:
        text += "; reduce ops are not recorded: the Python engine cannot read them in this torch"
    yield "operators", text, bool(found)


class _Faults(NamedTuple):
    """A rank's recording errors, and its wrong calls of heartbeats, sections and steps."""

    rank: str
    errors: int
    misuses: int


def _faults(config: Config) -> Iterator[_Faults]:
    """Yield the faults of this user's ranks that record here, or died here, from the first `_MAX_RINGS` rings."""
    for path in itertools.islice(ring_files(ring_folders(config.ring_dir)), _MAX_RINGS):
        try:
            ring = RingReader.open(path)
        except (OSError, RingFormatError):  # the ring was just removed, or this is the file of stacks beside a ring
            continue
        misuses = 0 if ring.activity is None else ring.activity.misuses
        errors, meta = ring.counters["hook_errors"], ring.meta
        ring.close()
        yield _Faults(f"rank {meta.get('rank')}, process {meta.get('pid')}", errors, misuses)


def _ring(config: Config) -> Line:
    need = Layout.of(config.buffer_size).file_size
    folders = ring_folders(config.ring_dir)
    for folder in folders:
        place = _writable(folder)
        if place is None:
            continue
        free = shutil.disk_usage(place).free
        if free >= need:
            text = f"{folder}: {free >> 20} MiB free, a rank needs {need >> 20} for {config.buffer_size} calls"
            if config.buffer_size == MAX_INHERITED_BUFFER_SIZE:
                text += f", the most that {' or '.join(RECORDER_SIZES)} gives it (they count entries, not bytes)"
            return "ring folder", text, True
    return "ring folder", f"none of {', '.join(map(str, folders))} has {need >> 20} MiB for a rank", False


def _files(config: Config, env: Mapping[str, str]) -> Line:
    """Say where a rank that fails leaves its file."""
    prefix = None if config.dump_prefix is None else Path(config.dump_prefix).parent
    folder = config.dump_dir or prefix or runs_folder(env)
    if _writable(folder) is not None:
        return "file folder", str(folder), True
    return "file folder", f"{folder} cannot be written", False


def _writable(folder: Path) -> Path | None:
    """Return the folder, or its parent if a rank would create the folder; None: neither can be written."""
    place = next((path for path in (folder, *folder.absolute().parents) if os.path.exists(path)), folder)
    return place if place.is_dir() and os.access(place, os.W_OK | os.X_OK) else None
