"""Records of the same program under each capture engine, in one process."""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
import torch
import torch.distributed as dist

from otel_fr.capture import engines as capture_engines
from otel_fr.capture import groups as capture_groups
from otel_fr.capture.dispatcher import reduce_ops_are_readable
from otel_fr.capture.recorder import Recorder
from otel_fr.ring import POSTED, Record, RecordState, RingReader
from tests.support import engines
from tests.support.waiting import PATIENCE

LIBRARIES: Final = (f"{Path(str(torch.__file__)).parent}/", f"{Path(capture_engines.__file__).parent}/")


def fields_of(record: Record) -> dict[str, Any]:
    """Return the fields that are equal for equal calls. Of times, these say only whether they are known."""
    values = record._asdict()
    values["ended_ns"] = values["ended_ns"] is not None
    values["waited_ns"] = "waited" if (record.waited_ns or 0) > POSTED else record.waited_ns
    del values["issued_ns"]
    if not reduce_ops_are_readable(torch):  # the Python engine cannot read them
        values["signature"] = dataclasses.replace(record.signature, reduce_op=None)
    return values


def _settle(reader: RingReader) -> None:
    """Wait until no call is in flight. gloo's threads record the ends."""
    deadline = time.monotonic() + PATIENCE
    while any(record.state == RecordState.IN_FLIGHT for record in reader.records()) and time.monotonic() < deadline:
        time.sleep(0.001)


def recorded(engine: capture_engines.Engine, capacity: int, groups: list[Any], run: Callable[[Recorder], None]) -> Any:
    """Call ``run`` with a recorder, and return the records, progress and counters once all calls have ended."""
    capture_groups.forget_created()
    with tempfile.TemporaryDirectory() as folder:
        writer = engine.create_ring([Path(folder)], "ring", capacity, {"rank": 0})
        recorder, kernels = engine.start(dist.distributed_c10d, torch, writer, LIBRARIES)
        try:
            for group in groups:
                recorder.group_created(group.group_name, group)
            run(recorder)
        finally:
            kernels.remove()
        reader = RingReader.open(writer.path)
        _settle(reader)
        progress = [dataclasses.astuple(row)[:6] for row in reader.groups()]
        found = ([fields_of(record) for record in reader.records()], progress, reader.counters)
        reader.close()
        recorder.close()
        return found


def engine_of(name: str) -> capture_engines.Engine:
    """Return the engine of that name, with the tests' kernel."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(engines.CACHE))
        engine = capture_engines.choose(name, torch)
    assert engine.name == name, engine.reason
    return engine


def both(capacity: int, groups: list[Any], run: Callable[[Recorder], None]) -> tuple[Any, Any]:
    """Return `recorded` under the Python engine and under the compiled engine."""
    # On one line, because call sites contain the line number.
    python, compiled = (recorded(engine_of(name), capacity, groups, run) for name in ("python", "compiled"))
    return python, compiled
