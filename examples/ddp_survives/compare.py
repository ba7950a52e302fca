"""Seconds lost when one of three ranks hangs at step 3: with otel-fr, without it, and with torchft.

    python examples/ddp_survives/compare.py

Each way trains the same small model on gloo, in real processes. What is measured is the time from the last step before
the hang to the next step that is done. A way whose package is missing is left out, and the table says why.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
PATIENCE = 300.0
"""Seconds after which a way counts as one that does not go on."""
HANG_AT = 3
_SHOWN = 40
"""Lines of a job that did not go on that are printed."""
_STEP = re.compile(r"^(\d+\.\d+) step (\d+) done by (\d+) ranks", re.MULTILINE)


class Result(NamedTuple):
    """``lost``: seconds; None: ``note`` says why there is no figure."""

    lost: float | None
    note: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stall-seconds", type=float, default=5.0, help="OTEL_FR_STALL_SECONDS (default: 5, as there)")
    parser.add_argument("--timeout", type=float, default=30.0, help="of collectives, s (default: 30; torch's: 1800)")
    parser.add_argument("--ways", help="of: otel-fr, restart, quorum, step, leave (default: all)")
    options = parser.parse_args()
    timeout = options.timeout
    ways: dict[str, tuple[str, Callable[[], Result]]] = {
        "otel-fr": (
            f"otel-fr, OTEL_FR_STALL_SECONDS={options.stall_seconds:g}",
            lambda: with_otel_fr(options.stall_seconds),
        ),
        "restart": (f"timeout of {timeout:g} s, restart by torchrun", lambda: without(timeout)),
        "quorum": ("torchft, hung before its quorum", lambda: with_torchft(timeout, "quorum")),
        "step": (f"torchft, hung in the step, timeout of {timeout:g} s", lambda: with_torchft(timeout, "step")),
        "leave": ("torchft, left in the step (train_ddp_proactive)", lambda: with_torchft(timeout, "leave")),
    }
    chosen = options.ways.split(",") if options.ways else list(ways)
    if unknown := [way for way in chosen if way not in ways]:
        parser.error(f"--ways: {', '.join(unknown)} is none of {', '.join(ways)}")
    rows = []
    for name, way in (ways[key] for key in chosen):
        print(f"{name} ...", file=sys.stderr, flush=True)
        rows.append((name, way()))
    width = max(len(name) for name, _ in rows)
    print(f"\n{'way':<{width}}  seconds lost  after it")
    for name, result in rows:
        lost = "-" if result.lost is None else f"{result.lost:.1f}"
        print(f"{name:<{width}}  {lost:>12}  {result.note}")


def with_otel_fr(stall_seconds: float) -> Result:
    """A collective that waits for the rank is ended, and the others form the group anew."""
    if torch_version() < (2, 14):
        return Result(None, f"left out: it needs torch 2.14, this is {importlib.metadata.version('torch')}")
    for package in ("otel_fr", "otel_fr_collector"):
        if importlib.util.find_spec(package) is None:
            return Result(None, f"left out: {package} is not installed")
    grpc, http = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    addresses = ["--grpc", grpc, "--http", http, "--otlp-http", "off"]
    command = [sys.executable, "-m", "otel_fr.cli", "collector", *addresses]
    with tempfile.TemporaryDirectory() as folder, running(command), listening(int(grpc.rpartition(":")[2])):
        env = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{grpc}",
            "OTEL_FR_ON_PEER_FAILURE": "abort",
            "OTEL_FR_STALL_SECONDS": str(stall_seconds),
            "OTEL_FR_DUMP_DIR": folder,
        }
        return measure([([*torchrun(3), str(HERE / "train.py")], env)])


def without(timeout: float) -> Result:
    """The others' collective times out, they end, and torchrun restarts all ranks, which load the last checkpoint.

    torchrun waits 30 s for the rank that hangs before it kills it. The store must not be torchrun's own, where ranks
    that start again find gloo's addresses of those before (https://github.com/pytorch/pytorch/issues/135712).
    """
    with tempfile.TemporaryDirectory() as folder:
        script = [str(HERE / "train_restarting.py"), "--timeout", str(timeout), "--state", f"{folder}/state.pt"]
        env = {"OTEL_FR_ENABLED": "0", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        return measure([([*torchrun(3), "--max-restarts=1", *script], env)])


def with_torchft(timeout: float, fault: str) -> Result:
    """torchft's Lighthouse leaves the replica out of the next quorum. There is no proactive recovery in torchft 0.2."""
    lighthouse = shutil.which(
        "torchft_lighthouse", path=os.pathsep.join([*script_folders(), os.environ.get("PATH", "")])
    )
    if lighthouse is None or importlib.util.find_spec("torchft") is None:
        return Result(None, "left out: torchft is not installed (pip install --no-deps torchft==0.2.0)")
    port = free_port()
    command = [lighthouse, "--bind", f"[::]:{port}", "--min_replicas", "1", "--join_timeout_ms", "5000"]
    script = [str(HERE / "train_torchft.py"), "--timeout", str(timeout), "--fault", fault]
    env = {"TORCHFT_LIGHTHOUSE": f"http://localhost:{port}", "NUM_REPLICA_GROUPS": "3", "OTEL_FR_ENABLED": "0"}
    jobs = [([*torchrun(1), *script], {**env, "REPLICA_GROUP_ID": str(number)}) for number in range(3)]
    with tempfile.TemporaryDirectory() as ready, running(command), listening(port):
        return measure([([*run, "--ready", ready], env) for run, env in jobs])


# ---- processes


def torchrun(ranks: int) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]


def measure(jobs: Sequence[tuple[list[str], dict[str, str]]]) -> Result:
    """Run jobs until the first has done a step after the hang, or has ended; then end what is left of them.

    Args:
        jobs: command line and additions to the environment of each.
    """
    common = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    started = [
        subprocess.Popen(
            command,
            env={**common, **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        for command, env in jobs
    ]
    lines: list[str] = []
    is_decided = threading.Event()

    def read(job: subprocess.Popen[str], decides: bool) -> None:
        for line in job.stdout or ():
            lines.append(line)
            found = _STEP.match(line)
            if decides and found and int(found[2]) > HANG_AT:
                is_decided.set()
        if decides:
            is_decided.set()

    readers = [threading.Thread(target=read, args=(job, at == 0), daemon=True) for at, job in enumerate(started)]
    for reader in readers:
        reader.start()
    in_time = is_decided.wait(PATIENCE)
    for job in started:
        end_session(job)
    for reader in readers:
        reader.join(10.0)
    steps = {int(step): (float(at), int(size)) for at, step, size in _STEP.findall("".join(lines))}
    if HANG_AT in steps and HANG_AT + 1 in steps:
        (before, _), (after, size) = steps[HANG_AT], steps[HANG_AT + 1]
        return Result(after - before, f"{size} ranks")
    sys.stderr.writelines(first_error(lines))
    last = max(steps, default=0)
    return Result(None, f"{'ended' if in_time else f'stood still for {PATIENCE:g} s'} after step {last}")


def first_error(lines: list[str]) -> list[str]:
    """The first traceback that a rank printed, and some lines after it; without one, the last lines."""
    first = next((at for at, line in enumerate(lines) if "Traceback (most recent call last)" in line), None)
    return lines[-_SHOWN:] if first is None else lines[first : first + _SHOWN]


def end_session(job: subprocess.Popen[str]) -> None:
    """Kill a torchrun and its ranks, which torchrun starts in sessions of their own."""
    children = Path(f"/proc/{job.pid}/task/{job.pid}/children")
    with contextlib.suppress(OSError):
        for pid in map(int, children.read_text().split()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    job.kill()
    job.wait()


@contextlib.contextmanager
def running(command: list[str]) -> Iterator[None]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def listening(port: int) -> Iterator[None]:
    """Enter once something listens on the port of this machine."""
    end = time.monotonic() + PATIENCE
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
        if time.monotonic() > end:
            raise TimeoutError(f"nothing listens on port {port}")
        time.sleep(0.05)
    yield


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def torch_version() -> tuple[int, ...]:
    return tuple(int(part) for part in importlib.metadata.version("torch").split("+")[0].split(".")[:2])


def script_folders() -> list[str]:
    """Where packages put their programs: of this environment, and beside folders of PYTHONPATH."""
    return [str(Path(sys.executable).parent), *(f"{folder}/bin" for folder in sys.path if folder)]


if __name__ == "__main__":
    main()
