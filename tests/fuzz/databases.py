"""Mutated database files, and a collector that starts with them."""

from __future__ import annotations

import base64
import contextlib
import functools
import random
import re
import shutil
import signal
import sqlite3
from pathlib import Path

import grpc

from tests.fuzz.cases import Case
from tests.fuzz.mutate import FLOATS, NUMBERS, TEXTS, mutate_bytes
from tests.support.collector_process import Collector, running
from tests.support.grpc_calls import TRACES
from tests.support.otlp_messages import spans
from tests.support.played_job import Job
from tests.support.waiting import wait_for

NO_BACKEND = "http://127.0.0.1:9/v1/traces"
FILES = ("incidents.db", "forward.sqlite3", "ends.sqlite3")
PAGE = 4_096
_NEWER = re.compile(r"was written by (?:a newer|another) otel-fr \(version \d+")


def options(data: Path) -> tuple[str, ...]:
    """Return the options of a collector that uses the folder."""
    return ("--data", str(data), "--forward", NO_BACKEND, "--forward-queue-size", "32MiB", "--quiet")


def make_databases(folder: Path) -> dict[str, bytes]:
    """Return the files of a killed collector, by name: two incidents, waiting requests, and the databases' logs."""
    data = folder / "data"
    folder.mkdir(parents=True, exist_ok=True)
    with running(folder / "run", *options(data)) as collector:
        for name in ("fuzz/one", "fuzz/two"):
            with Job(collector, 2, name) as job:
                job.step()
                job.skip(1)
                assert wait_for(functools.partial(_has_incident, collector, job.id))
        for number in range(1, 6):
            collector.send(TRACES, spans(number))
        with Job(collector, 2, "fuzz/three") as job:
            job.ranks[1].exit(signal=9)
            collector.kill()  # before the verdict
    return {path.name: path.read_bytes() for path in sorted(data.iterdir()) if path.name.startswith(FILES)}


def _has_incident(collector: Collector, job: str) -> bool:
    return any(one["job"] == job for one in collector.causes())


def make_case(rnd: random.Random, files: dict[str, bytes], folder: Path) -> Case:
    """Return the files with one or two of them changed by bytes or SQL, or lost. ``folder``: for temporary files."""
    changed = dict(files)
    if rnd.random() < 0.5:
        changed = _change_rows(rnd, changed, folder)
    for _ in range(rnd.choice((1, 1, 2)) if changed == files or rnd.random() < 0.2 else 0):
        name = rnd.choice(list(changed))
        match rnd.randrange(6):
            case 0:
                del changed[name]
            case 1:
                changed[name] = changed[name][: rnd.randrange(len(changed[name]) + 1)]
            case 2:
                changed[name] = mutate_bytes(rnd, changed[name], changed[rnd.choice(list(changed))])
            case _:
                changed[name] = _change_in_place(rnd, changed[name])
        if not changed:
            break
    encoded = {name: base64.b64encode(data).decode() for name, data in changed.items()}
    return Case("database", b"", {"files": encoded})


def _change_in_place(rnd: random.Random, data: bytes) -> bytes:
    """Change bytes of some pages, as broken disks or memory do."""
    changed = bytearray(data)
    for _ in range(rnd.choice((1, 3, 30, 300)) if changed else 0):
        at = rnd.randrange(len(changed))
        if rnd.random() < 0.1:
            page = at // PAGE * PAGE
            changed[page : page + PAGE] = rnd.choice((bytes(PAGE), rnd.randbytes(PAGE)))[: len(changed) - page]
        else:
            changed[at] = rnd.choice((0, 0xFF, changed[at] ^ 1 << rnd.randrange(8), rnd.randrange(256)))
    return bytes(changed)


def _change_rows(rnd: random.Random, files: dict[str, bytes], folder: Path) -> dict[str, bytes]:
    """Change values, tables or the version of one database, as another program might."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    with contextlib.closing(sqlite3.connect(folder / rnd.choice(FILES))) as db:
        for _ in range(rnd.choice((1, 1, 5, 20))):
            with contextlib.suppress(sqlite3.Error, OverflowError):
                db.execute(*_statement(rnd, db))
        db.commit()
        if rnd.random() < 0.5:  # the change is in the log, as after SIGKILL
            return {path.name: path.read_bytes() for path in folder.iterdir()}
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def _statement(rnd: random.Random, db: sqlite3.Connection) -> tuple[str, tuple[object, ...]]:
    tables = [row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    if not tables:
        return "SELECT 1", ()
    table = rnd.choice(tables)
    columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
    column = rnd.choice(columns)
    row = f"rowid = (SELECT rowid FROM {table} ORDER BY random() LIMIT 1)"
    match rnd.randrange(8):
        case 0:
            return rnd.choice(
                (f"DROP TABLE {table}", f"ALTER TABLE {table} ADD COLUMN odd", f"DELETE FROM {table}")
            ), ()
        case 1:
            return f"PRAGMA user_version = {rnd.choice((-1, 0, 2, 99, 5_000))}", ()
        case 2:
            return f"UPDATE {table} SET {column} = CAST(? AS TEXT) WHERE {row}", (_text(rnd),)
        case 3:  # within the JSON of a row
            new = rnd.choice(("null", "-1", "1e999", '"x"', "[]", "{}", "9" * 30))
            return f"UPDATE {table} SET {column} = replace({column}, ?, ?) WHERE {row}", (str(rnd.randrange(10)), new)
        case _:
            value = rnd.choice((None, rnd.choice(NUMBERS), rnd.choice(FLOATS), _text(rnd), rnd.randbytes(20)))
            return f"UPDATE {table} SET {column} = ? WHERE {row}", (value,)


def _text(rnd: random.Random) -> bytes:
    return rnd.choice(TEXTS).encode("utf-8", "surrogatepass")


def start_with(case: Case, folder: Path) -> str:
    """Start a collector with the files, use it and end it. Returns what is wrong; "": nothing."""
    shutil.rmtree(folder, ignore_errors=True)
    data = folder / "data"
    data.mkdir(parents=True)
    for name, content in case.more["files"].items():
        (data / name).write_bytes(base64.b64decode(content))
    log = folder / "run" / "err.txt"
    try:
        with running(folder / "run", *options(data)) as collector:
            wrong = _use(collector)
    except AssertionError:
        text = log.read_text(errors="replace")
        return "" if _NEWER.search(text) else f"the collector did not start:\n{text[-3_000:]}"
    text = log.read_text(errors="replace")
    return wrong or (f"its log:\n{text[-3_000:]}" if "Traceback" in text else "")


def _use(collector: Collector) -> str:
    for path in ("/healthz", "/metrics", "/api/v1/incidents", "/api/v1/incidents/0123456789abcdef", "/api/v1/jobs"):
        status = collector.fetch(path).status
        if status not in (200, 404):
            return f"{path} is answered with {status}"
    try:
        collector.send(TRACES, spans(77))
    except grpc.RpcError as error:
        return f"a request is refused: {error}"
    status = collector.stop(signal.SIGTERM)
    return f"it ended with status {status}" if status else ""
