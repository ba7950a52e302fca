"""What flight-recorder files are called, and which are never touched."""

from __future__ import annotations

import errno
import itertools
import os
import threading
import time
from pathlib import Path
from queue import Empty
from types import SimpleNamespace
from typing import Any

import pytest

from otel_fr.config import Config
from otel_fr.dumps.write import DumpContents, is_ours, write_dump
from otel_fr.monitor import dumping
from otel_fr.monitor.rank_identity import RankIdentity
from tests.support.followed_ring import FollowedRing
from tests.support.waiting import PATIENCE


def who(rank: int = 3, **meta: Any) -> RankIdentity:
    return RankIdentity.of({"rank": rank, "job_id": "job/7", **meta}, Config(), 1)


def names(config: Config, backends: tuple[str, ...] = ("gloo",), rank: int = 3) -> list[str]:
    return [str(path) for path, _ in dumping.paths(config, who(rank), backends)]


def test_a_folder_holds_one_file_per_rank(tmp_path: Path) -> None:
    assert names(Config(dump_dir=tmp_path)) == [f"{tmp_path}/otel_fr_rank_3"]


@pytest.mark.parametrize(("fmt", "endings"), [("pickle", ["3"]), ("json", ["3.json"]), ("both", ["3", "3.json"])])
def test_json_has_an_ending_of_its_own(tmp_path: Path, fmt: str, endings: list[str]) -> None:
    found = names(Config(dump_dir=tmp_path, dump_format=fmt))
    assert found == [f"{tmp_path}/otel_fr_rank_{ending}" for ending in endings]


def test_without_a_folder_the_cache_is_used_by_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert names(Config()) == [f"{tmp_path}/otel-fr/job_7/otel_fr_rank_3"]
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/user")
    assert names(Config()) == ["/home/user/.cache/otel-fr/job_7/otel_fr_rank_3"]


@pytest.mark.parametrize("job", ["..", ".", "", "../../etc", "a b\nc"])
def test_a_job_id_cannot_lead_out_of_the_cache(job: str) -> None:
    folder = dumping.default_folder(who(job_id=job, nonce="n1"), {"XDG_CACHE_HOME": "/cache"})
    assert folder.parent == Path("/cache/otel-fr")
    assert folder.name not in ("", ".", "..")


@pytest.mark.parametrize("letter", ["j", "日"])
def test_a_job_with_a_long_name_has_a_folder_of_its_own(tmp_path: Path, letter: str) -> None:
    jobs = [letter * 300 + end for end in "ab"]
    one, other = (dumping.default_folder(who(job_id=job), {"XDG_CACHE_HOME": str(tmp_path)}) for job in jobs)
    one.mkdir(parents=True)
    assert not other.exists()


def test_pytorch_s_prefix_names_the_file_when_pytorch_writes_none(tmp_path: Path) -> None:
    config = Config(dump_prefix=str(tmp_path / "trace_"))
    assert names(config) == [f"{tmp_path}/trace_3"]
    assert names(config, ("gloo", "fake", "cpu:gloo")) == [f"{tmp_path}/trace_3"]


@pytest.mark.parametrize("backend", ["nccl", "cpu:gloo,cuda:nccl", "xccl", "undefined", "my_backend"])
def test_a_file_that_pytorch_may_write_itself_is_left_to_it(tmp_path: Path, backend: str) -> None:
    config = Config(dump_prefix=str(tmp_path / "trace_"))
    assert names(config, ("gloo", backend)) == [f"{tmp_path}/otel_fr_trace_3"]


@pytest.mark.parametrize("prefix", ["trace_", "trace_quorum_-1/0"])
@pytest.mark.parametrize(("backend", "begin"), [("gloo", ""), ("nccl", "otel_fr_")])
def test_each_quorum_has_its_own_file(tmp_path: Path, prefix: str, backend: str, begin: str) -> None:
    config = Config(dump_prefix=str(tmp_path / prefix))
    for quorum in (4, 5):
        found = dumping.paths(config, who(quorum_id=quorum), [backend])
        assert found == [(tmp_path / f"{begin}trace_quorum_{quorum}_3", "pickle")]


def test_a_file_of_another_program_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "trace_3").write_bytes(b"\x80\x02}q\x00X\x07\x00\x00\x00entries")
    assert names(Config(dump_prefix=str(tmp_path / "trace_"))) == [f"{tmp_path}/otel_fr_trace_3"]


def test_a_pipe_of_that_name_is_not_opened(tmp_path: Path) -> None:
    """Other users may create one in /tmp. To open it would wait for a writer, without end."""
    os.mkfifo(tmp_path / "trace_3")
    found: list[str] = []
    naming = threading.Thread(target=lambda: found.extend(names(Config(dump_prefix=f"{tmp_path}/trace_"))), daemon=True)
    naming.start()
    naming.join(10.0)
    assert found == [f"{tmp_path}/otel_fr_trace_3"]


def test_a_whole_name_has_no_rank_added(tmp_path: Path) -> None:
    config = Config(dump_prefix=str(tmp_path / "trace_of_me"), dump_whole_name=True)
    assert names(config) == [f"{tmp_path}/trace_of_me"]


class Rank(FollowedRing):
    """A ring with one call in it and a dumper of it. ``meta``: of the ring."""

    def __init__(self, folder: Path, pid: int = 1, started_at: int = 1_000, attempt: int = 1, **meta: Any) -> None:
        super().__init__(folder, 10, {"rank": 3, "pid": pid, "attempt": attempt, **meta})
        self.append(self.add_group(1), time.monotonic_ns())
        self.dumper = dumping.Dumper(self.writer.path, started_at, lambda: None)
        self.info = {"host": "n1", "attempt": attempt}

    def dump(self, path: Path, reason: str = "signal", fmt: dumping.Format = "pickle") -> dumping.Result:
        def names(number: int) -> list[tuple[Path, dumping.Format]]:
            return [(path if number == 1 else beside(path, number), fmt)]

        self.dumper.request(dumping.Request(reason, self.info, names, urgent=True))
        try:
            return self.dumper.results.get(timeout=PATIENCE)
        except Empty:
            raise AssertionError("no file was written and no error reported") from None


def beside(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}_{number}")


@pytest.mark.parametrize("fmt", ["pickle", "json"])
def test_the_file_of_another_process_that_had_the_rank_is_kept(tmp_path: Path, fmt: dumping.Format) -> None:
    """Whichever of them writes first; each replaces its own."""
    path = tmp_path / "dumps" / "otel_fr_rank_3"
    one, two, three = (Rank(tmp_path, pid) for pid in (1, 2, 3))
    own = {one: path, two: beside(path, 2), three: beside(path, 3)}
    for rank, expected in own.items():
        assert rank.dump(path, "stall", fmt) == dumping.Result("stall", expected)
    kept = {rank: file.read_bytes() for rank, file in own.items()}
    for rank, expected in own.items():
        assert rank.dump(path, "crash", fmt) == dumping.Result("crash", expected)
        assert expected.read_bytes() != kept[rank]
    assert sorted(path.parent.iterdir()) == sorted(own.values())


@pytest.mark.parametrize("fmt", ["pickle", "json"])
def test_a_process_replaces_files_from_before_its_start_and_of_earlier_attempts(
    tmp_path: Path, fmt: dumping.Format
) -> None:
    path = tmp_path / "otel_fr_rank_3"
    assert Rank(tmp_path).dump(path, fmt=fmt).path == path
    later = Rank(tmp_path, 2, started_at=path.stat().st_mtime_ns)
    assert later.dump(path, fmt=fmt).path == path
    restarted = Rank(tmp_path, 3, attempt=2)
    assert restarted.dump(path, fmt=fmt).path == path
    assert later.dump(path, fmt=fmt).path == beside(path, 2), "what it wrote is gone, and this is a later attempt's"


@pytest.mark.parametrize("fmt", ["pickle", "json"])
def test_a_monitor_that_replaces_a_killed_one_replaces_the_file_of_its_process(
    tmp_path: Path, fmt: dumping.Format
) -> None:
    path = tmp_path / "otel_fr_rank_3"
    Rank(tmp_path, 7).dump(path, fmt=fmt)
    assert Rank(tmp_path, 7).dump(path, fmt=fmt).path == path
    assert Rank(tmp_path, 7, pid_namespace="pid:[2]").dump(path, fmt=fmt).path == beside(path, 2), "a container"


def test_of_two_that_choose_a_name_at_once_each_has_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "otel_fr_rank_3"
    one, two = Rank(tmp_path, 1), Rank(tmp_path, 2)

    def after_the_other(*arguments: Any, **options: Any) -> None:
        monkeypatch.undo()
        assert two.dump(path).path == path
        write_dump(*arguments, **options)

    monkeypatch.setattr(dumping, "write_dump", after_the_other)
    assert one.dump(path) == dumping.Result("signal", beside(path, 2))
    assert [dumping.writer_of(file)["pid"] for file in (path, beside(path, 2))] == [2, 1]
    assert not list(tmp_path.glob(".*")), "no temporary file is left"


def test_on_a_file_system_without_links_files_are_written_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    folder = tmp_path / "dumps"
    assert Rank(tmp_path).dump(folder / "f") == dumping.Result("signal", folder / "f")
    assert [file.name for file in folder.iterdir()] == ["f"]


def test_after_an_unexpected_error_files_are_written(tmp_path: Path) -> None:
    def no_names(number: int) -> list[tuple[Path, dumping.Format]]:
        raise RuntimeError("no home directory")

    rank = Rank(tmp_path)
    rank.dumper.request(dumping.Request("signal", rank.info, no_names, urgent=True))
    assert "no home directory" in rank.dumper.results.get(timeout=PATIENCE).error
    assert not rank.dump(tmp_path / "file").error
    assert not rank.dumper.busy()


def test_files_beside_others_have_names_that_pytorch_s_analyzer_leaves_out(tmp_path: Path) -> None:
    def second(**config: Any) -> list[str]:
        found = dumping.paths(Config(dump_format="both", **config), who(), ("gloo",), 2)
        return [str(path.relative_to(tmp_path)) for path, _ in found]

    assert second(dump_dir=tmp_path) == ["otel_fr_process_2_rank_3.pickle", "otel_fr_process_2_rank_3.json"]
    prefix = str(tmp_path / "trace_")
    assert second(dump_prefix=prefix) == ["trace_process_2_3.pickle", "trace_process_2_3.json"]
    assert second(dump_prefix=prefix, dump_whole_name=True) == second(dump_prefix=prefix)


def test_a_later_dump_of_the_same_rank_replaces_the_earlier(tmp_path: Path) -> None:
    rank, path = Rank(tmp_path), tmp_path / "file"
    assert not rank.dump(path, "stall").error
    first = path.read_bytes()
    assert not rank.dump(path, "crash").error
    assert path.read_bytes() != first
    assert is_ours(path)


@pytest.mark.parametrize(
    ("path", "error"), [("mine", "not written by otel-fr"), ("mine/otel_fr_rank_3", "mine"), ("file", "cannot be read")]
)
def test_a_file_that_cannot_be_written_is_an_error(tmp_path: Path, path: str, error: str) -> None:
    """In the way are a file of another program, that file in place of a folder, and a ring that is gone."""
    rank = Rank(tmp_path)
    (tmp_path / "mine").write_text("mine")
    if path == "file":
        rank.writer.unlink()
    assert error in rank.dump(tmp_path / path).error
    assert (tmp_path / "mine").read_text() == "mine"


def test_requests_that_wait_are_one_and_come_a_second_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(dumping, "time", SimpleNamespace(monotonic=lambda: now[0], thread_time=lambda: 0.0))
    rank, path = Rank(tmp_path), tmp_path / "file"
    rank.dump(path)
    for number in range(50):
        rank.dumper.request(dumping.Request(f"reason {number}", rank.info, lambda _: [(path, "pickle")]))
    assert rank.dumper.busy()
    assert rank.dumper.results.empty()
    now[0] += dumping.MIN_SECONDS
    result = rank.dumper.results.get(timeout=PATIENCE)
    assert result.reason == "reason 49"
    assert rank.dumper.results.empty()


def test_files_of_a_program_that_catches_failed_calls_for_ever_take_little_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, cpu = [100.0], itertools.count()
    clock = SimpleNamespace(monotonic=lambda: now[0], thread_time=lambda: float(next(cpu)))
    monkeypatch.setattr(dumping, "time", clock)
    rank, path = Rank(tmp_path), tmp_path / "file"

    def request(reason: str, *, patient: bool = False) -> dumping.Request:
        return dumping.Request(reason, rank.info, lambda _: [(path, "pickle")], patient=patient)

    written = 0
    for _ in range(600):
        now[0] += dumping.MIN_SECONDS
        if rank.dumper._due(request("collective failed", patient=True)):
            rank.dump(path)
            written += 1
    assert written == pytest.approx(dumping.PATIENT_SECONDS + 600 * dumping.PATIENT_SHARE, abs=2)
    rank.dump(path)
    rank.dumper.request(request("stall"))
    rank.dumper.request(request("collective failed", patient=True))  # the file of the stall is not put off
    now[0] += dumping.MIN_SECONDS
    assert rank.dumper.results.get(timeout=PATIENCE).reason == "collective failed"


def test_when_a_foreign_file_is_asked_for_its_writer_nothing_is_said(tmp_path: Path) -> None:
    for data in (b"", b"{}", b"\x80\x02}", b"\x80\x05garbage" * 10, b"\xff" * 100):
        (tmp_path / "f").write_bytes(data)
        assert dumping.writer_of(tmp_path / "f") == {}
    assert dumping.writer_of(tmp_path / "none") == {}


def test_the_writer_is_found_whatever_the_other_facts_are(tmp_path: Path) -> None:
    ring = FollowedRing(tmp_path, 10, {"a": "x" * 2_000, "pid_namespace": "pid:[1]", "memory": {"pid": 3}})
    info = {"b": "y" * 20_000, "stack": "pid", "pid": 70_000, "host": 'n\u00f6"1', "attempt": 0}
    snapshot = DumpContents.from_ring(ring.reader, reason="signal", rank_info=info)
    for fmt in ("pickle", "json"):
        write_dump(tmp_path / fmt, snapshot, fmt)
        assert dumping.writer_of(tmp_path / fmt) == {
            "attempt": 0,
            "host": 'n\u00f6"1',
            "pid_namespace": "pid:[1]",
            "pid": 70_000,
        }
