"""The nonce that the ranks of a run share over their store, in the first run and in later runs."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch.distributed as dist

from otel_fr.capture.runs import run_of, share_nonce


def make(kind: str, folder: Path) -> Any:
    if kind == "tcp":
        return dist.TCPStore("127.0.0.1", 0, world_size=1, is_master=True, timeout=timedelta(seconds=20))
    return dist.HashStore() if kind == "hash" else dist.FileStore(str(folder / "store"), 4)


@pytest.mark.parametrize("kind", ["tcp", "hash", "file"])
@pytest.mark.parametrize("reused", [True, False])
def test_all_ranks_of_a_run_find_one_nonce_and_those_of_the_next_another(
    kind: str, reused: bool, tmp_path: Path
) -> None:
    store = make(kind, tmp_path)

    def shared(run: int, before: str = "") -> str:
        keys = dist.PrefixStore("same" if reused else f"run-{run}", store)
        c10d = cast("Any", SimpleNamespace(_world=SimpleNamespace(pg_map={"group": ("gloo", keys)})))
        return share_nonce(c10d, "group", before)

    first = shared(0)
    assert len(first) == 16
    assert [shared(0) for _ in range(3)] == [first] * 3
    second = shared(1, first)
    assert second != first
    joining = shared(1)  # a process that joins for the first time
    assert [shared(1, first), shared(1, first), joining] == [second] * 3
    third = shared(2, second)
    assert third not in (first, second)
    assert shared(2, second) == third


def test_where_nodes_count_attempts_differently_the_first_says_which_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "False")
    store = dist.HashStore()
    c10d = cast("Any", SimpleNamespace(_world=SimpleNamespace(pg_map={"group": ("gloo", store)})))
    nonces = [share_nonce(c10d, "group", attempt=attempt) for attempt in (2, 0, 1)]
    group = SimpleNamespace(rank=lambda: 0, size=lambda: 4)
    runs = [run_of(group, "job-7", attempt, nonce) for attempt, nonce in zip((2, 0, 1), nonces, strict=True)]
    assert runs == [runs[0]] * 3
    assert runs[0]["attempt"] == 2
