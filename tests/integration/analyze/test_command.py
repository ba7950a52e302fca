"""``otel-fr analyze``, run as a process."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from otel_fr.analyze import load
from otel_fr.cli import main
from otel_fr.ring import pid_namespace
from tests.support.commands import OTEL_FR, otel_fr, python, run
from tests.support.otlp_messages import attributes
from tests.support.otlp_sink import grpc_sink
from tests.support.paths import DUMPS
from tests.support.ports import free_port
from tests.support.rings import RankRing, signature
from tests.support.torch_files import entry, one_missing, write
from tests.support.trace_events import Trace
from tests.support.waiting import PATIENCE


@pytest.mark.parametrize(
    ("folder", "status", "verdict"),
    [
        ("fr01_matched_allreduce_and_singletons", 0, "no_fault"),
        ("tc01_torchcomms_json_hang", 1, "fault"),
        (None, 3, "undecided"),
    ],
)
def test_the_exit_status_shows_whether_there_is_a_fault(
    tmp_path: Path, folder: str | None, status: int, verdict: str
) -> None:
    calls = [entry(0, "all_reduce", 1), entry(1, "all_reduce", 2, state="scheduled")]
    path = write(tmp_path, dict.fromkeys(range(2), calls)) if folder is None else DUMPS / folder
    text, as_json = otel_fr("analyze", path), otel_fr("analyze", path, "--format", "json")
    assert (text.returncode, as_json.returncode) == (status, status)
    assert text.stderr == as_json.stderr == ""
    assert json.loads(as_json.stdout)["verdict"] == verdict


def test_unusable_input_has_its_own_exit_status_and_an_explanation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "trace_0").write_bytes(b"")
    for path in (tmp_path / "trace_0", tmp_path / "none", tmp_path):
        assert main(["analyze", str(path)]) == 2
        said = capsys.readouterr()
        assert str(path) in said.err
    assert "empty" in said.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--transform-ft"], "--group-world-size"),
        (["-j", "--format", "html"], "--output FILE.json"),
        (["-o", "{tmp}/none/db.json"], "its folder does not exist"),
        (["-o", "{tmp}/report.html"], "--format html > "),
        (["-o", "{tmp}/calls.xlsx"], ".xlsx is not written; use .csv, .parquet, .json, .sqlite"),
        (["--mismatch_cap", "0"], "0 is not a positive number"),
        (["--mismatch_cap", "many"], "invalid"),
        (["--format", "pdf"], "invalid choice"),
        *((["--otlp", one], f"--otlp: '{one}' is not an endpoint") for one in ("h:4317", "http://h:no", "http://")),
    ],
)
def test_wrong_flags_are_explained(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status: object = main(["analyze", str(tmp_path), *[argument.format(tmp=tmp_path) for argument in arguments]])
    except SystemExit as ended:
        status = ended.code
    shown = capsys.readouterr()
    assert (status, shown.out) == (2, "")
    assert said in shown.err


def test_every_flag_of_torchfrtrace_is_accepted(tmp_path: Path) -> None:
    """torchfrtrace's own parser lists its flags."""
    config = pytest.importorskip("torch.distributed.flight_recorder.components.config_manager")
    known = {flag for action in config.JobConfig().parser._actions for flag in action.option_strings}
    offered = otel_fr("analyze", "--help").stdout
    assert [flag for flag in sorted(known) if f"{flag}" not in offered] == []
    one_missing(tmp_path / "files")
    flags = ["-p", "trace_", "-o", tmp_path / "db.json", "-v", "--allow-incomplete-ranks", "--mismatch_cap", "3"]
    flags += ["--print_stack_trace", "--selected-ranks", "0", "--pg-filters", "default_pg", "--", tmp_path / "files"]
    done = otel_fr("analyze", *flags)
    assert (done.returncode, done.stderr) == (1, "")
    assert json.loads((tmp_path / "db.json").read_text())["collectives"]


def test_output_that_cannot_be_written_is_reported_and_the_verdict_still_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = one_missing(tmp_path / "files")
    (tmp_path / "db.sqlite").mkdir()
    assert main(["analyze", str(folder), "-o", str(tmp_path / "db.sqlite")]) == 2
    endpoint = f"http://127.0.0.1:{free_port()}"
    done = otel_fr("analyze", folder, "--otlp", endpoint, OTEL_EXPORTER_OTLP_TIMEOUT="1")
    assert done.returncode == 2
    shown = capsys.readouterr()
    assert shown.out.startswith("missing_rank: rank 2")
    assert done.stdout.startswith("missing_rank: rank 2")
    assert f"--output {tmp_path / 'db.sqlite'}: Is a directory; nothing was written" in shown.err
    assert f"otel-fr analyze: --otlp {endpoint}: " in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["db.sqlite", "files"]


def test_a_trace_for_perfetto(tmp_path: Path) -> None:
    done = otel_fr("analyze", one_missing(tmp_path), "--format", "perfetto")
    assert (done.returncode, done.stderr) == (1, "")
    assert len(Trace(done.stdout).arrows) == 3


@pytest.mark.parametrize("name", ["calls.csv", "calls.CSV", "db.json", "db.db", "db.pkl", "db", "db.2026-11-22"])
def test_the_suffix_says_what_is_written(name: str, tmp_path: Path) -> None:
    assert main(["analyze", str(one_missing(tmp_path / "files")), "-o", str(tmp_path / name)]) == 1
    begin = (tmp_path / name).read_bytes()[:9]
    form = {".csv": b"rank,grou", ".json": b'{"format"', ".db": b"SQLite fo"}
    assert begin.startswith(form.get(Path(name).suffix.lower(), b"\x80\x04"))


def test_without_pyarrow_parquet_is_refused_before_the_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['pyarrow'] = None\n")
    files = one_missing(tmp_path / "files")
    done = run(*OTEL_FR, "analyze", files, "-o", "x.parquet", PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    assert "needs pyarrow: pip install 'otel-fr[parquet]'" in done.stderr


def test_the_entries_are_printed_as_torchfrtrace_does(tmp_path: Path) -> None:
    folder = one_missing(tmp_path, world_size=2, culprit=1)
    ours = otel_fr("analyze", "-j", folder).stdout.splitlines()
    call = "all_reduce(input_sizes=[[4, 4]], state=completed)"
    assert ours[2] == f"{call}  {call}"
    assert ours[4].rstrip() == "all_reduce(input_sizes=[[4, 4]], state=scheduled)"
    pytest.importorskip("torch.distributed.flight_recorder")
    done = run(sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", "-j", folder)
    theirs = done.stdout + done.stderr
    assert [line.rstrip() for line in ours] == [line.rstrip() for line in theirs[theirs.index("Rank 0") :].splitlines()]


def test_ranks_of_torchft_are_moved_to_their_replica(tmp_path: Path) -> None:
    """Two replicas of two ranks. In both, the default group is [0, 1]. Rank 3 never joins."""
    write(tmp_path, {rank: [entry(0, "all_reduce", 1)] for rank in range(2)})
    write(tmp_path / "other", {0: [entry(0, "all_reduce", 1, state="scheduled")], 1: []})
    for rank in (0, 1):
        (tmp_path / "other" / f"trace_{rank}").rename(tmp_path / f"trace_{rank + 2}")
    done = otel_fr("analyze", tmp_path, "--transform-ft", "--group-world-size", 2, "--format", "json")
    (incident,) = json.loads(done.stdout)["incidents"]
    assert (incident["culprit_ranks"], incident["waiting_ranks"]) == ([3], [2])
    assert incident["process_group"]["ranks"] == [2, 3]


def on_terminal(*arguments: object, **env: str) -> str:
    """Return the command's output at a terminal of 100 columns."""
    outer, inner = pty.openpty()
    settings = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", **env}
    command = [*OTEL_FR, *map(str, arguments)]
    process = subprocess.Popen(command, stdout=inner, stderr=inner, stdin=inner, env=settings)
    os.close(inner)
    said = b""
    while True:
        try:
            more = os.read(outer, 65536)
        except OSError:  # on Linux: the other side has closed
            break
        if not more:
            break
        said += more
    process.wait(PATIENCE)
    os.close(outer)
    return said.decode().replace("\r\n", "\n")


def test_a_terminal_gets_colours_and_the_table_of_ranks(tmp_path: Path) -> None:
    folder = one_missing(tmp_path, world_size=40, culprit=7)
    shown = on_terminal("analyze", folder)
    assert "\x1b[1;31mmissing_rank: rank 7 " in shown
    assert "0-6, 8-39" in shown
    assert "2/2 -1" in shown
    assert "files" in shown  # the bar of the loading
    plain = on_terminal("analyze", folder, NO_COLOR="1")
    assert "\x1b[31m" not in plain
    assert "\x1b[1;31m" not in plain
    assert "2/2 -1" in plain
    assert "\x1b" not in otel_fr("analyze", folder).stdout


def test_a_verdict_that_cannot_be_written_has_a_status_of_its_own(tmp_path: Path) -> None:
    arguments = (*OTEL_FR, "analyze", one_missing(tmp_path), "--format", "json")
    full = run("sh", "-c", 'exec "$@" > /dev/full', "sh", *arguments)
    assert full.returncode == 74
    assert full.stderr == "otel-fr analyze: cannot write to standard output: No space left on device\n"
    closed = run("sh", "-c", 'exec "$@" >&-', "sh", *arguments)
    assert (closed.returncode, closed.stderr) == (1, "")


def test_without_a_folder_the_newest_run_is_read(tmp_path: Path) -> None:
    for file in one_missing(tmp_path / "otel-fr" / "job").iterdir():
        file.rename(file.with_name(f"otel_fr_{file.name}"))
    done = otel_fr("analyze", XDG_CACHE_HOME=str(tmp_path), OTEL_FR_DUMP_DIR="")
    assert done.returncode == 1
    assert "missing_rank" in done.stdout
    assert done.stderr.startswith(f"otel-fr analyze: the newest run is in {tmp_path / 'otel-fr' / 'job'}, written ")
    none = otel_fr("analyze", XDG_CACHE_HOME=str(tmp_path / "empty"), OTEL_FR_DUMP_DIR="")
    assert (none.returncode, none.stdout) == (2, "")
    assert "name a folder" in none.stderr


def test_analyze_imports_neither_torch_nor_the_collector() -> None:
    code = (
        "import sys; from otel_fr.cli import main; main(['analyze', sys.argv[1]]);"
        " names = ('torch', 'otel_fr_collector', 'grpc', 'opentelemetry', 'rich');"
        " sys.exit(any(name in sys.modules for name in names))"
    )
    done = python(code, DUMPS / "tc01_torchcomms_json_hang")
    assert done.returncode == 0, done.stderr


def waiting_process(*arguments: str) -> subprocess.Popen[bytes]:
    """Start a process that ends with status 7 on SIGUSR1. It is ready when this returns."""
    code = (
        "import signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1});"
        " print(flush=True); signal.sigwait({signal.SIGUSR1}); sys.exit(7)"
    )
    process = subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def test_dump_counts_the_ranks_that_have_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = waiting_process("otel_fr.monitor")
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: ended.pid)
        for rank in range(3):
            RankRing(tmp_path, rank, 4, pid_namespace=pid_namespace()).writer.set_monitor_pid(ended.pid)
        RankRing(tmp_path, 3, 4, pid_namespace="another container's").writer.set_monitor_pid(ended.pid)
    ended.kill()
    ended.wait()
    done = otel_fr("dump", "--pid", ended.pid, OTEL_FR_RING_DIR=str(tmp_path), TMPDIR=str(tmp_path))
    assert (done.returncode, done.stdout) == (1, "")
    of_unknown, of_ended, of_all = done.stderr.splitlines()
    assert "rank 3" in of_unknown
    assert "3 ranks have ended" in of_ended
    assert "no running rank" in of_all


def test_dump_asks_only_the_monitors_of_this_users_ranks(tmp_path: Path) -> None:
    folder = tmp_path / f"otel-fr-{os.getuid()}"
    monitor, stranger = waiting_process("otel_fr.monitor"), waiting_process("something-else")
    try:
        with_monitor, reused = RankRing(tmp_path, 0, 2), RankRing(tmp_path, 1, 2)
        assert with_monitor.writer.path.parent == folder
        with_monitor.call(signature("barrier", ()))
        with_monitor.writer.set_monitor_pid(monitor.pid)
        reused.writer.set_monitor_pid(stranger.pid)
        (folder / "torn").write_bytes(b"no ring")
        env = {"OTEL_FR_RING_DIR": str(tmp_path), "TMPDIR": str(tmp_path)}

        other = otel_fr("dump", "--pid", 1, **env)
        assert other.returncode == 1
        assert monitor.poll() is None

        done = otel_fr("dump", "--pid", os.getpid(), **env)
        assert done.returncode == 0, done.stderr
        assert f"rank 0 (process {os.getpid()}): asked its monitor (process {monitor.pid})" in done.stdout
        assert "rank 1" in done.stderr
        assert "torn" in done.stderr
        assert monitor.wait(PATIENCE) == 7
        assert stranger.poll() is None
    finally:
        for process in (monitor, stranger):
            process.send_signal(signal.SIGKILL)
            process.wait()


def test_the_package_has_the_analyzer_without_torch_and_pandas() -> None:
    done = python(
        "import sys, otel_fr\n"
        "assert not {'numpy', 'torch', 'otel_fr.analyze'} & set(sys.modules)\n"
        "assert callable(otel_fr.analyze.load)\n"
        "assert not {'torch', 'pandas', 'pyarrow', 'otel_fr.capture'} & set(sys.modules)\n"
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_incident_and_the_ranks_calls_are_sent_as_one_trace(tmp_path: Path) -> None:
    folder = one_missing(tmp_path)
    with grpc_sink() as sink:
        done = otel_fr("analyze", folder, "--otlp", sink.address)
    assert (done.returncode, "sent 1 trace to" in done.stderr) == (1, True), done.stderr
    (incident,) = load(folder).incidents
    assert {span.trace_id.hex() for span in sink.spans} == {incident["trace_id"]}
    (root,) = [span for span in sink.spans if not span.parent_span_id]
    assert root.name == "INCIDENT missing_rank: rank 2 (from files)"
    assert attributes(root.attributes)["torch.incident.category"] == "missing_rank"
    children = [span for span in sink.spans if span is not root]
    assert {span.parent_span_id for span in children} == {root.span_id}
    waiting = [span for span in children if not span.name.startswith("rank 2: not here")]
    assert len(waiting) == len(children) - 1
    shown = [attributes(span.attributes) for span in waiting]
    assert sorted(one["torch.rank"] for one in shown) == [0, 1, 3]
    for one in shown:
        assert (one["torch.collective.state"], one["torch.collective.sequence_id"]) == ("scheduled", 3)
        assert (one["code.file.path"], one["code.line.number"]) == ("/job/train.py", 42)
