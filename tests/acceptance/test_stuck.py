"""Real torchrun jobs with a stuck rank: the incident and the files contain the kernel's facts about it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from otel_fr.dumps.read import load
from otel_fr.monitor.process import native_stacks
from otel_fr.stacks import NATIVE_HEADING
from tests.support import torchrun
from tests.support.waiting import PATIENCE, until
from tests.support.whole_text import whole_text

pytestmark = torchrun.needed

NATIVE = "read (libc"
"""Text of native stacks, where py-spy is installed."""


def native_part(stack: str) -> str:
    return stack.partition(NATIVE_HEADING)[2]


def ranks_in(incident: dict[str, Any]) -> list[list[int]]:
    return [group["ranks"] for group in incident["stack_groups"]]


def test_the_incident_says_what_the_stuck_rank_is_doing(tmp_path: Path) -> None:
    told = f"reading {tmp_path}/samples"
    with torchrun.collector(tmp_path / "collector") as running:
        (tmp_path / "job").mkdir()
        job = torchrun.start(tmp_path / "job", "stuck.py", "fifo", str(tmp_path), env=torchrun.endpoint(running))
        incident = running.wait_cause(lambda one: told in whole_text(one))
        groups = running.wait_cause(lambda one: ranks_in(one) == [[0, 2], [1]])["stack_groups"]
        if native_stacks.executable():
            running.wait_cause(lambda one: NATIVE in native_part(one["stacks"]["1"]))
        (tmp_path / "end").touch()
        job.communicate(timeout=PATIENCE)
    assert (incident["category"], incident["culprit_ranks"]) == ("missing_rank", [1]), incident["summary"]
    assert "stuck.py" in groups[1]["frames"][-1]
    (found,) = [load(path) for path in (tmp_path / "job" / "dumps").glob("otel_fr_rank_1")]
    assert found.text("doing").split(" (")[0] in whole_text(incident)
    if native_stacks.executable():
        assert NATIVE in native_part(found.text("stack"))


@pytest.mark.long
def test_a_rank_whose_host_gives_it_no_processor_is_late_and_not_stuck(tmp_path: Path) -> None:
    with torchrun.collector(tmp_path / "collector") as running:
        env = {**torchrun.endpoint(running), "OTEL_FR_STALL_SECONDS": "4"}
        job = torchrun.start(tmp_path, "stuck.py", "starved", str(tmp_path), env=env)
        incident = running.wait_cause()
        os.kill(int(until((tmp_path / "other").read_text)), signal.SIGKILL)
        running.wait_cause(lambda one: one["state"] == "resolved")
        assert job.wait(PATIENCE) == 0
        job.communicate()
    assert incident["culprit_ranks"] == [1], incident["summary"]
    assert " s for a processor; " in incident["summary"]
    assert {(one["category"], one["severity"]) for one in running.lines()} == {("straggler", "warning")}


HIDDEN = (
    "mount -t proc -o hidepid=2 proc /proc && exec setpriv --reuid=65534 --regid=65534 --clear-groups"
    ' --inh-caps=+dac_read_search --ambient-caps=+dac_read_search "$@"'
)
"""Runs a program as a user who sees only their own processes. They may read all files, even Python in root's folder."""


@pytest.mark.long
def test_a_stuck_rank_is_named_where_the_processes_of_others_are_hidden(tmp_path: Path) -> None:
    unshare = ("unshare", "--mount", "sh", "-c", HIDDEN, "sh")
    tried = subprocess.run([*unshare, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"cannot mount a /proc of our own here: {tried.stderr.strip()}")
    folder = tmp_path / "job"
    folder.mkdir()
    os.chown(folder, 65534, 65534)
    with torchrun.collector(tmp_path / "collector") as running:
        env = {**torchrun.endpoint(running), "HOME": str(folder), "TMPDIR": str(folder)}
        program = (*unshare, *torchrun.FRESH)
        job = torchrun.start(folder, "stuck.py", "fifo", str(folder), env=env, program=program)
        told = f"reading {folder}/samples"
        incident = until(lambda: [one for one in running.causes() if told in whole_text(one)])[0]
        (folder / "end").touch()
        job.communicate(timeout=PATIENCE)
    assert (incident["category"], incident["culprit_ranks"]) == ("missing_rank", [1]), incident["summary"]


def made_cgroup() -> Path | None:
    """Make a memory cgroup with a limit of 700 MiB; None: this user may not make cgroups here."""
    for top, limit in (("memory", "memory.limit_in_bytes"), ("", "memory.max")):
        folder = Path("/sys/fs/cgroup", top, f"otel-fr-test-{os.getpid()}")
        try:
            folder.mkdir()
            (folder / limit).write_text(str(700 << 20))
        except OSError:
            with contextlib.suppress(OSError):
                folder.rmdir()
        else:
            return folder
    return None


@pytest.fixture
def cgroup() -> Iterator[Path]:
    folder = made_cgroup()
    if folder is None:
        pytest.skip("no cgroup with a memory limit can be made here")
    yield folder
    until(lambda: not (folder / "cgroup.procs").read_text())
    folder.rmdir()


def test_a_rank_that_the_kernel_killed_for_its_memory_is_said_to_be(tmp_path: Path, cgroup: Path) -> None:
    with torchrun.collector(tmp_path / "collector") as running:
        env = torchrun.endpoint(running)
        job = torchrun.start(tmp_path, "stuck.py", "memory", str(tmp_path), str(cgroup), env=env)
        # A busy machine may need more than the stall time to fill the memory. Until then, the rank is only missing.
        incident = running.wait_cause(lambda one: one["category"] == "rank_dead")
        job.communicate(timeout=PATIENCE)
    assert incident["culprit_ranks"] == [1], incident["summary"]
    assert "out of memory (cgroup limit 700.0 MiB)" in whole_text(incident)
    (found,) = [load(path) for path in (tmp_path / "dumps").glob("otel_fr_rank_1")]
    assert found.facts["exit"]["reason"] == "out of memory (cgroup limit 700.0 MiB)"


@pytest.mark.long
def test_an_exception_that_only_torchelastic_has_seen_is_told(tmp_path: Path) -> None:
    with torchrun.collector(tmp_path / "collector") as running:
        torchrun.run(tmp_path / "job", "stuck.py", "hidden", str(tmp_path), env=torchrun.endpoint(running))
        (incident,) = until(running.causes)
    assert (incident["category"], incident["culprit_ranks"]) == ("rank_dead", [1]), incident["summary"]
    assert "ValueError: bad sample 4711" in whole_text(incident)
    assert incident["call_sites"]["1"].endswith(" load")
