"""`otel-fr demo`: a real job that hangs and the incident that explains it, on this machine, in about ten seconds.

The demo starts the collector, and runs ``train.py``, which does not use otel-fr, under plain torchrun with only
``OTEL_EXPORTER_OTLP_ENDPOINT`` set. It waits for the incident and compares it with the verdict on the ranks' files. At
a terminal, the job then keeps hanging, and the page shows it, until Ctrl-C.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from otel_fr.incident import CollectorIncidentData, unix
from otel_fr.typed_json import typed

_TRAIN = Path(__file__).with_name("train.py")
_LIMIT_SECONDS = 90.0
"""Longest wait for the incident: a cold import of torch in four processes on a slow disk takes tens of seconds."""
_ALERT_SECONDS = 5.0
"""Most seconds from the first waiting rank to the incident. The demo checks this limit."""
_FILES_SECONDS = 30.0
"""Longest wait, after the incident, until the ranks' files show the fault."""
_DEFECT = "fetch_shard"
"""The function of ``train.py`` in which rank 2 hangs. On a very busy machine, ranks may stall earlier, in imports."""
_FOLDERS, _INCIDENTS = ("flight-recorder", "job-files"), "incidents.jsonl"
_REPLACED = (*_FOLDERS, _INCIDENTS)
"""What a demo deletes of the demo before. A user's own files may have these names."""
_LOGS = ("job.log", "collector.log")
"""Files that every demo leaves."""
_JAEGER = "docker run --rm -p 4317:4317 -p 16686:16686 jaegertracing/jaeger:2.18.0"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the demo's options to its subcommand."""
    parser.add_argument("--nproc", type=int, default=4, metavar="N", help="number of ranks, at least 3 (default: 4)")
    parser.add_argument(
        "--dir",
        type=Path,
        default=Path("demo-out"),
        help="folder for logs and flight-recorder files (default: demo-out)",
    )
    parser.add_argument(
        "--once", action="store_true", help="end after the incident (default if stdout is not a terminal)"
    )
    parser.add_argument(
        "--jaeger",
        metavar="HOST",
        help="also send the traces to Jaeger on HOST (OTLP at port 4317, its page at port 16686)",
    )
    parser.epilog = "Exit status: 0 the incident came in time; 1 it did not; 2 the demo cannot run here."


def run(args: argparse.Namespace) -> int:
    """Run the demo. Return the exit status."""
    torchrun = shutil.which("torchrun", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    if torchrun is None:
        print("otel-fr demo: torchrun was not found; install PyTorch in this environment", file=sys.stderr)
        return 2
    if importlib.util.find_spec("prometheus_client") is None:  # a package that only the collector needs
        print("otel-fr demo needs a collector here: pip install 'otel-fr[collector]'", file=sys.stderr)
        return 2
    if args.nproc < 3:
        print("otel-fr demo: --nproc must be at least 3: rank 2 is the rank that hangs", file=sys.stderr)
        return 2
    folder = args.dir.resolve()
    there = [name for name in _REPLACED if (folder / name).exists()]
    if there and not all((folder / name).is_file() for name in _LOGS):
        print(
            f"otel-fr demo: {_short(folder / there[0])} is not from a demo and would be deleted; name another --dir",
            file=sys.stderr,
        )
        return 2
    for name in _FOLDERS:
        shutil.rmtree(folder / name, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    grpc_port, http_port = _free_ports(2)
    incidents = folder / _INCIDENTS
    incidents.unlink(missing_ok=True)
    page = f"http://127.0.0.1:{http_port}"
    command = [sys.executable, "-m", "otel_fr.cli", "collector", "--incidents", str(incidents)]
    command += ["--grpc", f"127.0.0.1:{grpc_port}", "--http", f"127.0.0.1:{http_port}", "--otlp-http", "off"]
    if args.jaeger:
        command += ["--forward", f"http://{args.jaeger}:4317"]
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(open(folder / _LOGS[0], "wb"))
        errors = stack.enter_context(open(folder / _LOGS[1], "wb"))
        collector = subprocess.Popen(command, stderr=errors)
        stack.callback(_end, collector)
        if not _listens(grpc_port, collector):
            print(
                f"otel-fr demo: the collector did not start; its error is in {_short(folder / 'collector.log')}",
                file=sys.stderr,
            )
            return 2
        environment = _job_environment(grpc_port, folder / "job-files")
        options = ["--standalone", f"--nproc_per_node={args.nproc}"]
        command = [torchrun, *options, str(_TRAIN)]
        endpoint = f"OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:{grpc_port}"
        print(f"$ {endpoint} torchrun {' '.join(options)} {_short(_TRAIN)}")
        print(f"  (rank 2 will hang at step 3; the job's own output goes to {_short(folder / 'job.log')})")
        print(f"  the collector's page: {page}\n", flush=True)
        job = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        stack.callback(_end, job)
        incident = _await_incident(incidents, job)
        if incident is not None:
            status = _conclude(incident, folder, args.jaeger)
            if sys.stdout.isatty() and not args.once:
                _stay(page, incident)
        _end(collector)  # before the job: stopping the job would open another incident
    if incident is None:
        print(
            f"otel-fr demo: no incident was reported; the job's output is in {_short(folder / 'job.log')}",
            file=sys.stderr,
        )
        return 1
    return status


def _verdict_from_files(folder: Path) -> str:
    """Return the first line of `otel-fr analyze` about the ranks' files, once it shows the fault.

    The files are copied while the job hangs: stopping the job would add its end to them.
    """
    kept = folder / "flight-recorder"
    command = [sys.executable, "-m", "otel_fr.cli", "analyze", str(kept)]
    end = time.monotonic() + _FILES_SECONDS
    while True:
        shutil.rmtree(kept, ignore_errors=True)
        with contextlib.suppress(OSError):  # not there yet, or a file was renamed meanwhile: try again
            shutil.copytree(folder / "job-files", kept, ignore=shutil.ignore_patterns(".*"))
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if _DEFECT in done.stdout.partition("\n")[0] or time.monotonic() > end:
            return (done.stdout or done.stderr).partition("\n")[0]
        time.sleep(0.5)


def _conclude(incident: CollectorIncidentData, folder: Path, jaeger: str | None) -> int:
    """Print how fast the incident came, what the files show, and where the trace is. Return the exit status."""
    seconds = (unix(incident["detected_at"]) or 0.0) - (unix(incident["started_at"]) or 0.0)
    verdict = _verdict_from_files(folder)  # meanwhile the collector prints the incident, with the ranks' files
    print(f"\nTime from the first waiting rank to the incident: {seconds:.1f} s (limit: {_ALERT_SECONDS:.0f} s).\n")
    print(f"The ranks' files say the same:\n\n    $ otel-fr analyze {_short(folder / 'flight-recorder')}")
    print(f"    {verdict}\n    ...\n")
    if jaeger:
        print(f"The trace in Jaeger: http://{jaeger}:16686/trace/{incident['trace_id']}", flush=True)
    else:
        print(f"To see the trace in Jaeger:\n\n    {_JAEGER}\n    otel-fr demo --jaeger localhost", flush=True)
    return 0 if seconds <= _ALERT_SECONDS else 1


def _stay(page: str, incident: CollectorIncidentData) -> None:
    """Leave the job hanging, and the page open, until Ctrl-C."""
    print(f"\nThe job still hangs: {page}/#/incidents/{incident['id']}\nCtrl-C ends the demo.", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        signal.pause()
    print()


def _short(path: Path) -> Path:
    """The path as a user would type it: relative if it is below the current folder."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _job_environment(port: int, dumps: Path) -> dict[str, str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("OTEL_")}
    environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://127.0.0.1:{port}"
    environment["OTEL_SERVICE_NAME"] = "demo"
    environment["OTEL_FR_DUMP_DIR"] = str(dumps)
    environment.setdefault("OMP_NUM_THREADS", "1")
    environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment.get("PATH", "")])
    return environment


def _await_incident(path: Path, job: subprocess.Popen[bytes]) -> CollectorIncidentData | None:
    """Wait for the incident that the job's defect causes. None: it did not come."""
    end = time.monotonic() + _LIMIT_SECONDS
    while time.monotonic() < end:
        if path.exists():
            for line in path.read_text().splitlines():
                with contextlib.suppress(ValueError):  # the last line may be half written
                    incident = typed(CollectorIncidentData, json.loads(line))
                    if incident["caused_by"] is None and _DEFECT in incident["call_sites"].get("2", ""):
                        return incident
        if job.poll() is not None:
            return None
        time.sleep(0.05)
    return None


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _listens(port: int, process: subprocess.Popen[bytes]) -> bool:
    end = time.monotonic() + 30
    while time.monotonic() < end and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return True
        time.sleep(0.05)
    return False


def _end(process: subprocess.Popen[bytes]) -> None:
    """Stop a child process: SIGINT, then SIGKILL. Does nothing if it has ended."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
