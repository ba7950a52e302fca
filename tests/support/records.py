"""Records of a ring as a monitor reads them: one collective of four ranks a second."""

from __future__ import annotations

from typing import Any

from otel_fr.ring import KIND_COLLECTIVE, Activity, GroupDef, Record, RecordState, SignatureDef, SiteDef

GROUP = GroupDef("a1", "0", "default_pg", (0, 1, 2, 3), "gloo", 0)
SITE = SiteDef((("train.py", 1, "step"),))


def made_record(number: int, seconds: float | None, signature: SignatureDef, /, **more: Any) -> Record:
    """Return a call enqueued at second ``number``. ``seconds``: how long it took; None: it has not ended."""
    issued = number * 10**9
    record = Record(
        record_id=number,
        issued_ns=issued,
        waited_ns=None,
        ended_ns=None if seconds is None else issued + round(seconds * 1e9),
        state=RecordState.COMPLETED,
        coll_seq=number,
        p2p_seq=0,
        op_id=number,
        pair_index=0,
        kind=KIND_COLLECTIVE,
        flags=0,
        timeout_ms=1_000,
        thread="MainThread",
        group=GROUP,
        signature=signature,
        site=SITE,
    )
    return record._replace(**more)


def made_activity(number: int, began: int, ended: int | None = None, **more: Any) -> Activity:
    """Return a section ``load`` of a thread with the native id 700, except for ``more``. Times are in ns."""
    given = {"is_step": False, "name": "load", "thread": 1, "native_id": 700, "timeout_ms": 0, "parent": 0, "step": -1}
    return Activity(**{**given, "number": number, "began_ns": began, "ended_ns": ended, "root": number, **more})
