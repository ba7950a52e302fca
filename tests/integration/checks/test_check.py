"""``otel-fr check`` and the processes of its checks: real mounts, sockets, servers and signals."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest

from otel_fr.checks import runner
from otel_fr.checks.model import NODE_FAILED, Result, Status, Task
from tests.support import mounts, node_health_server
from tests.support.commands import OTEL_FR, otel_fr
from tests.support.http_servers import Handler, http_server
from tests.support.otlp_sink import grpc_sink
from tests.support.waiting import PATIENCE, until, wait_for

LIMIT = 2.0
"""Time limit of a check that hangs, in seconds. Without a limit it takes forever."""
LONGER_LIMIT = 6.0
"""Time limit if another check must end in time: a busy machine takes seconds to start its process."""


def one(kind: str, limit: float = PATIENCE, **arguments: object) -> Result:
    (result,) = runner.run([Task(kind, "it", limit, arguments)])
    return result


def test_the_command_lists_what_it_found_and_names_what_failed(tmp_path: Path) -> None:
    done = otel_fr("check", OTEL_FR_CHECK_PATHS=f"{tmp_path}:{tmp_path}/none", OTEL_FR_CHECK_SPACE="none")
    assert done.returncode == NODE_FAILED
    assert done.stdout.splitlines()[0].split() == ["check", "of", "result", "took", "found"]
    assert done.stderr == f"otel-fr: this node failed a check: paths {tmp_path}/none: No such file or directory\n"


def test_json_for_programs(tmp_path: Path) -> None:
    done = otel_fr("check", "--json", "--conf", f"check_paths={tmp_path},checks=paths")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    (check,) = found["checks"]
    assert found["failed"] is False
    assert check.pop("seconds") > 0
    assert check == {"kind": "paths", "target": str(tmp_path), "status": "ok", "text": "a folder, 0 entries read"}


def test_an_option_that_cannot_be_used_is_a_usage_error() -> None:
    done = otel_fr("check", OTEL_FR_CHECK_TIMEOUT="soon")
    assert done.returncode == 2
    assert done.stderr.startswith("otel-fr check: OTEL_FR_CHECK_TIMEOUT='soon' is not a number")


def test_a_mount_that_never_answers_is_named_in_time(tmp_path: Path) -> None:
    """The check's process sleeps uninterruptibly and ignores SIGKILL, as on a dead NFS server. Nothing waits for it."""
    with mounts.silent(tmp_path / "data") as data:
        done = otel_fr(
            "check",
            OTEL_FR_CHECK_PATHS=f"{data}:{tmp_path}",
            OTEL_FR_CHECK_SPACE=f"{data}=1M",
            OTEL_FR_CHECK_TIMEOUT=str(LONGER_LIMIT),
        )
    assert done.returncode == NODE_FAILED
    first, second = done.stderr.splitlines()
    assert first.startswith(f"otel-fr: this node failed a check: paths {data}: no answer in 6 s")
    assert second.startswith(f"otel-fr: this node failed a check: space {data}: no answer in 6 s")
    assert f"paths    {tmp_path} " in done.stdout, "the other path was read all the same"


def test_the_command_may_stand_in_a_folder_that_never_answers(tmp_path: Path) -> None:
    with mounts.silent(tmp_path / "data") as data:
        result = one("paths", limit=LIMIT, path=str(data))
        assert result.status is Status.FAILED
        left = list(runner._left_behind)
        assert [process.poll() for process in left] == [None], "SIGKILL has no effect yet"
    # The mount is gone, so the process ends, and the next checks reap it.
    assert wait_for(lambda: one("paths", path="/").status is Status.OK and not runner._left_behind)


def test_a_pipe_that_nobody_writes_is_no_answer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "health_check")
    result = one("mounts", limit=LIMIT, lustre=str(tmp_path / "health_check"))
    assert result.status is Status.FAILED
    assert result.text.startswith("no answer in 2 s")
    assert not runner._left_behind


def test_an_advisory_check_that_hangs_only_warns(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    task = Task("mounts", "it", LIMIT, {"lustre": str(tmp_path / "fifo")}, is_advisory=True)
    assert runner.run([task])[0].status is Status.WARNING


def test_more_tasks_than_processes_at_a_time(tmp_path: Path) -> None:
    count = runner.MAX_AT_ONCE + 4
    wanted = [Task("paths", str(i), PATIENCE, {"path": str(tmp_path / str(i))}) for i in range(count)]
    for i in range(0, count, 2):
        (tmp_path / str(i)).touch()
    found = runner.run(wanted)
    assert [result.target for result in found] == [str(i) for i in range(count)]
    assert [result.status is Status.OK for result in found] == [i % 2 == 0 for i in range(count)]


def test_a_check_that_fails_itself_is_told_apart() -> None:
    assert one("paths").text.startswith("the check itself failed: TypeError")
    result = one("space", path="/", needed="much")
    assert result.status is Status.FAILED


def test_the_processes_end_with_the_command(tmp_path: Path) -> None:
    """Ctrl-C ends the command and its checks' processes."""
    os.mkfifo(tmp_path / "fifo")
    code = (
        "import sys; from otel_fr.checks import runner; from otel_fr.checks.model import Task;"
        "runner.run([Task('mounts', 'it', 1000.0, {'lustre': sys.argv[1]})])"
    )
    command = [OTEL_FR[0], "-c", code, str(tmp_path / "fifo")]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)

    def children() -> list[int]:
        found = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        return [int(pid) for pid in found if b"checks.child" in Path(f"/proc/{pid}/cmdline").read_bytes()]

    (child,) = until(children)
    process.send_signal(2)
    process.wait(PATIENCE)
    assert wait_for(lambda: not Path(f"/proc/{child}").exists())


def test_the_node_health_service_is_asked_as_nvidia_resiliency_ext_asks_it(tmp_path: Path) -> None:
    path = tmp_path / "nvhcd.sock"
    asked: dict[str, Any] = {"socket_path": str(path), "arguments": ["--no-slurm"], "timeout": PATIENCE}
    good = node_health_server.response(success=True, output='{"fail_count": 0}')
    with node_health_server.running(path, good) as requests:
        assert one("node_health", **asked).status is Status.OK
        assert requests == [b"\x0a\x0a--no-slurm"]
    bad = node_health_server.response(success=False, exit_code=42, output="{}", error="GPU 3 has fallen off the bus")
    with node_health_server.running(path, bad):
        result = one("node_health", **asked)
        assert (result.status, result.text) == (Status.FAILED, "exit status 42: GPU 3 has fallen off the bus")
    with node_health_server.running(path, good, delay=3.0):
        result = one("node_health", **{**asked, "timeout": 1.0})
        assert (result.status, result.text) == (Status.FAILED, "no answer in 1 s")


def test_a_node_health_service_that_is_not_there_is_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "nvhcd.sock"
    done = otel_fr("check", OTEL_FR_CHECK_NODE_HEALTH=f"unix://{path}", OTEL_FR_CHECKS="node_health")
    assert done.returncode == 0
    assert (
        done.stderr == f"otel-fr: warning: node_health {path}: no such socket: the node health service is not running\n"
    )
    path.touch()
    done = otel_fr("check", OTEL_FR_CHECK_NODE_HEALTH=str(path), OTEL_FR_CHECKS="node_health")
    assert done.returncode == 0
    assert "cannot ask" in done.stderr


@contextlib.contextmanager
def clock(ahead: float) -> Iterator[str]:
    """Run an HTTP server with a clock that is so many seconds ahead."""

    class Clock(Handler):
        def date_time_string(self, timestamp: float | None = None) -> str:
            return formatdate(time.time() + ahead, usegmt=True)

        def do_HEAD(self) -> None:
            self.reply(401)

    with http_server(Clock) as server:
        yield f"http://127.0.0.1:{server.server_port}"


@pytest.mark.parametrize(("ahead", "words"), [(0.0, ""), (-60.0, "ahead of its clock"), (60.0, "behind its clock")])
def test_the_clock_is_compared_with_the_collectors(ahead: float, words: str) -> None:
    with clock(ahead) as url:
        found = one("clock", url=url, allowed=5.0, timeout=PATIENCE)
    assert found.status is (Status.FAILED if words else Status.OK)
    assert words in found.text


@pytest.mark.parametrize(
    ("protocol", "words"),
    [("grpc", ""), ("http/protobuf", "speaks gRPC, not HTTP: write http://127.0.0.1:4318, or set")],
)
def test_a_mistake_in_an_endpoint_is_told_as_ranks_tell_it(
    protocol: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with grpc_sink() as sink:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", sink.address)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
        found = one("collector", url=sink.address, timeout=PATIENCE)
    assert found.status is (Status.FAILED if words else Status.OK)
    assert words in found.text


def test_a_failed_check_is_an_otlp_event(tmp_path: Path) -> None:
    with grpc_sink() as sink:
        done = otel_fr(
            "check",
            OTEL_EXPORTER_OTLP_ENDPOINT=sink.address,
            OTEL_FR_CHECK_PATHS=str(tmp_path / "none"),
            OTEL_FR_JOB_ID="llama",
        )
        assert done.returncode == NODE_FAILED
        (event,) = sink.events
    assert event.name == "otel_fr.check_failed"
    assert event.resource["torch.job.id"] == "llama"
    assert event.attributes["otel_fr.check.target"] == str(tmp_path / "none")


def test_an_endpoint_that_does_not_answer_delays_the_end_by_seconds_only(tmp_path: Path) -> None:
    with grpc_sink() as sink:
        sink.mode, sink.delay = "slow", PATIENCE
        done = otel_fr("check", OTEL_EXPORTER_OTLP_ENDPOINT=sink.address, OTEL_FR_CHECK_PATHS=str(tmp_path / "none"))
    assert done.returncode == NODE_FAILED
    last = done.stderr.splitlines()[-1]
    assert last.startswith("otel-fr: could not send this as an OTLP event: no answer in 5 s")
