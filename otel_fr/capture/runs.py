"""The run that this process is a rank of, and its earlier runs."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Mapping
from types import ModuleType
from typing import Any, Final

from otel_fr import identity
from otel_fr.ring import EARLIER_RUNS

_log = logging.getLogger("otel_fr")

MAX_EARLIER: Final = 8
"""How many earlier runs the ring's meta lists. Each takes about 0.25 kB of its 4 kB. The monitor reads them ten times a
second, and starts within one or two seconds after the first run begins."""
_NONCE_KEY: Final = "otel_fr/nonce"
_AGENT_STORE: Final = "TORCHELASTIC_USE_AGENT_STORE"


class Runs:
    """The runs of one process, one after the other. ``first`` is the ring's meta in the first run."""

    def __init__(self, first: Mapping[str, object]) -> None:
        own = ("rank", "world_size", "job_id", "attempt", "nonce", "run_id", "replica_id", "quorum_id", "replicas")
        self._present = {key: first[key] for key in own if key in first}
        self._present |= {"session": 0, "first_record": 0}
        self._earlier: list[dict[str, object]] = []
        self._count = 0

    def following(self, run: Mapping[str, object], head: int, errors: int | None) -> dict[str, object]:
        """Begin the next run. Return the keys of the meta that change (docs/reference/ring-format.md).

        Args:
            run: identifies this process as a rank of the run.
            head: the number of the next record.
            errors: the ring's number of recording errors; None: groups of the run before continue, and the numbers of
                their calls may be wrong since an error.
        """
        self._count += 1
        self._earlier = [*self._earlier, self._present][-MAX_EARLIER:]
        before = self._present.get("errors_before") if errors is None else errors
        self._present = {**run, "session": self._count, "first_record": head}
        if before:
            self._present["errors_before"] = before
        return {**self._present, EARLIER_RUNS: self._earlier}


def run_of(default: Any, job_id: str, attempt: int, nonce: str) -> dict[str, object]:
    """Return the keys that identify this process as a rank of a run. ``attempt`` is used if the nonce contains none."""
    job_id = job_id or nonce
    shared = nonce.rpartition("-")[2]
    attempt = int(shared) if "-" in nonce and shared.isdecimal() else attempt
    return {
        "attempt": attempt,
        "rank": default.rank(),
        "world_size": default.size(),
        "job_id": job_id,
        "nonce": nonce,
        "run_id": identity.run_id(job_id, attempt, nonce),
    }


def share_nonce(c10d: ModuleType, group: Any, before: str = "", attempt: int = 0) -> str:
    """Return the random text that all ranks of this run share, or "" if the store cannot share one.

    The first rank to arrive sets it.

    Args:
        before: the nonce of the earlier run, which a reused store still has. The first rank to arrive replaces it.
        attempt: the attempt as this rank's launcher counts it. torchrun's agents count only failures on their own node.
            So if the ranks' store is new in each attempt, the nonce also contains the attempt, after a "-".
    """
    try:
        store = c10d._world.pg_map[group][1]
        own = secrets.token_hex(8)
        if os.environ.get(_AGENT_STORE) == str(False):
            own += f"-{attempt}"
        found = bytes(store.compare_set(_NONCE_KEY, before, own)).decode()
        if before and found == before:  # a store without a value returns `before` (TCPStore::compareSet)
            found = bytes(store.compare_set(_NONCE_KEY, "", own)).decode()
        return found
    except Exception as error:  # noqa: BLE001 - a third-party store
        _log.debug("otel-fr: the store cannot share a value: %s", error)
        return ""
