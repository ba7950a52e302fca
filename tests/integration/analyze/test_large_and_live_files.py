"""Large folders, reading in several processes, and files of real jobs."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from otel_fr.analyze import HEALTHY
from otel_fr.analyze import load as analyze
from otel_fr.analyze.output.overview import View
from otel_fr.analyze.output.page import to_html
from otel_fr.analyze.output.text import to_text
from otel_fr.analyze.output.timeline import MAX_CALLS, timeline
from otel_fr.dumps.read import load
from tests.support.paths import DUMPS
from tests.support.torch_files import entry, write
from tests.support.waiting import PATIENCE


def test_many_large_files_read_in_processes_say_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        shutil.copytree(DUMPS / "nvrx_lock_gil_2nd", tmp_path / "files", dirs_exist_ok=True)
        (tmp_path / "files" / f"notes{number}").write_text("none")
    monkeypatch.setattr("otel_fr.dumps.read.PARALLEL_BYTES", 0)
    alone, together = analyze(tmp_path / "files"), analyze(tmp_path / "files", workers=2)
    assert together.findings == alone.findings
    assert sorted(p.path for p in together.problems) == sorted(p.path for p in alone.problems)


@pytest.mark.long
def test_the_page_is_bounded_and_the_culprit_comes_first(tmp_path: Path) -> None:
    ranks = {rank: [entry(n, "all_reduce", n + 1) for n in range(100 if rank != 777 else 99)] for rank in range(1100)}
    for rank, calls in ranks.items():
        if rank != 777:
            calls[-1] = entry(99, "all_reduce", 100, state="scheduled")
    report = analyze(write(tmp_path, ranks))
    data = timeline(report, View())
    assert data["rows"][0]["rank"] == 777
    assert data["leftOut"] == 1100 - 1024
    assert sum(len(row["calls"]) for row in data["rows"]) <= MAX_CALLS + 1024
    assert len(to_html(report, View())) < 4_000_000


LIVE = """
import sys, torch, torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace, _dump_fr_trace_json
rank, folder, store = int(sys.argv[1]), sys.argv[2], sys.argv[3]
dist.init_process_group("gloo", rank=rank, world_size=2, store=dist.FileStore(store, 2))
for _ in range(3):
    dist.all_reduce(torch.ones(3, 4))
dist.all_gather([torch.ones(2), torch.ones(2)], torch.ones(2))
with dist._coalescing_manager():
    dist.all_gather_into_tensor(torch.ones(8), torch.ones(4))
    dist.all_gather_into_tensor(torch.ones(12), torch.ones(6))
sub = dist.new_group([0, 1])
dist.barrier(sub)
work = dist.broadcast(torch.ones(5), 0, async_op=True) if rank == 0 and len(sys.argv) > 4 else None
open(f"{folder}/pickle_{rank}", "wb").write(_dump_fr_trace(True, True, False))
text = _dump_fr_trace_json(True, False)
open(f"{folder}/json_{rank}.json", "wb").write(text if isinstance(text, bytes) else text.encode())
dist.monitored_barrier()
"""


@pytest.mark.long
def test_files_of_pytorchs_own_recorder_on_gloo(tmp_path: Path) -> None:
    """In these files pg_config has no facts, every state is "scheduled", and the JSON has neither frames nor times."""
    pytest.importorskip("torch")
    (tmp_path / "job.py").write_text(LIVE)
    folder = tmp_path / "files"
    folder.mkdir()
    command = [sys.executable, str(tmp_path / "job.py")]
    jobs = [subprocess.Popen([*command, str(rank), str(folder), str(tmp_path / "store")]) for rank in range(2)]
    assert [job.wait(PATIENCE) for job in jobs] == [0, 0]
    # A busy machine may write them long after the last call, which then may be blocked or running.
    created = max(pickle.loads((folder / f"pickle_{r}").read_bytes())["entries"][-1]["time_created_ns"] for r in (0, 1))
    for path in folder.iterdir():
        os.utime(path, ns=(created, created))
    for prefix in ("pickle_", "json_"):
        report = analyze(folder, prefix)
        assert report.status == HEALTHY, to_text(report)
        assert report.run is not None
        (world, pair) = sorted(report.run.evidence.groups.values(), key=lambda group: group.name)
        assert (world.ranks, world.description, pair.ranks) == ((0, 1), "default_pg", (0, 1))
        assert len(report.run.dumps[0].entries) == 6
    dump = load(folder / "pickle_1")
    assert [entry.signature.operation for entry in dump.entries] == ["all_reduce"] * 3 + [
        "all_gather",
        "all_gather_coalesced",
        "barrier",
    ]
    assert {entry.site.partition(":")[0] for entry in dump.entries} == {str(tmp_path / "job.py")}
