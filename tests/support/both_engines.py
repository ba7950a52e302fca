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
    """What is equal for equal calls: of the times, only whether they are known."""
    values = record._asdict()
    values["ended_ns"] = values["ended_ns"] is not None
    values["waited_ns"] = "waited" if (record.waited_ns or 0) > POSTED else record.waited_ns
    del values["issued_ns"]
    if not reduce_ops_are_readable(torch):  # by the Python engine
        values["signature"] = dataclasses.replace(record.signature, reduce_op=None)
    return values


def _settle(reader: RingReader) -> None:
    """Wait until no call is in flight: threads of gloo record the ends."""
    deadline = time.monotonic() + PATIENCE
    while any(record.state == RecordState.IN_FLIGHT for record in reader.records()) and time.monotonic() < deadline:
        time.sleep(0.001)


def recorded(engine: capture_engines.Engine, capacity: int, groups: list[Any], run: Callable[[Recorder], None]) -> Any:
    """The records, progress and counters of what ``run`` did under an engine, once all its calls have ended.

    Args:
        run: given the recorder.
    """
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
    """The engine of that name, with the kernel of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(engines.CACHE))
        engine = capture_engines.choose(name, torch)
    assert engine.name == name, engine.reason
    return engine


def both(capacity: int, groups: list[Any], run: Callable[[Recorder], None]) -> tuple[Any, Any]:
    """`recorded` under the Python engine and under the compiled one."""
    # On one line, for the call sites name it.
    python, compiled = (recorded(engine_of(name), capacity, groups, run) for name in ("python", "compiled"))
    return python, compiled
