"""What the rank monitor costs: CPU as a share of one core, and memory, at a steady rate of collectives.

    python benchmarks/monitor.py [--rate 300] [--seconds 20] [--protocol grpc|http/protobuf] [--metrics on|off]

This process simulates the rank and writes a real ring; a second one receives OTLP; the third is the monitor, measured
from /proc over the steady part of the run. ``--dead`` sends to a port without a server, for the longest queues.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.measured import SIGNATURES, SITES, cpu_seconds, memory_mb, sink
from otel_fr import identity
from otel_fr.ring import KIND_COLLECTIVE, GroupDef, ProcessState, RecordState, RingWriter

LIMIT_CORE = 0.02
LIMIT_MB = 80.0
WARM_UP_SECONDS = 4.0


def _write(writer: RingWriter, group: int, rate: float, seconds: float) -> int:
    """Record collectives at an even rate, with 40 signatures and 10 sites. Each completes a millisecond later."""
    start = time.monotonic()
    sequence = 0
    pending: list[tuple[int, int]] = []
    while (now := time.monotonic()) - start < seconds:
        for ticket, number in pending:
            writer.complete(ticket, group, number, RecordState.COMPLETED, time.monotonic_ns())
        pending.clear()
        while sequence < (now - start) * rate:
            sequence += 1
            shape, place = sequence % 40, sequence % 10
            signature = writer.signatures.get(shape) or writer.define_signature(shape, SIGNATURES[shape])
            site = writer.sites.get(place) or writer.define_site(place, SITES[place])
            thread = writer.threads.get(1) or writer.define_thread(1, "MainThread")
            fields = (KIND_COLLECTIVE, 0, sequence, 0, sequence, 0, 600_000, time.monotonic_ns())
            ticket = writer.append(group, signature, site, thread, writer.generation, *fields)
            pending.append((ticket, sequence))
        time.sleep(0.001)
    return sequence


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=300.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--capacity", type=int, default=20_000)
    parser.add_argument("--protocol", choices=["grpc", "http/protobuf"], default="grpc")
    parser.add_argument("--metrics", choices=["on", "off"], default="on")
    parser.add_argument("--dead", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        receiver = sink(Path(folder), options.protocol)
        if options.dead:
            receiver.stop()
        env = {
            **os.environ,
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{receiver.address}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": options.protocol,
            "OTEL_METRICS_EXPORTER": "otlp" if options.metrics == "on" else "none",
            "OTEL_FR_DUMP_DIR": folder,
        }
        run = identity.run_id("benchmark", 0, "n")
        writer = RingWriter.create([Path(folder)], "ring", options.capacity, {"rank": 0, "run_id": run})
        ranks = tuple(range(8))
        group = writer.add_group(GroupDef(identity.group_id("0", ranks), "0", "default_pg", ranks, "nccl", 0))
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", "otel_fr.monitor", "--ring", str(writer.path), "--fd", str(theirs.fileno())]
        monitor = subprocess.Popen(command, env=env, pass_fds=[theirs.fileno()])
        try:
            _write(writer, group, options.rate, WARM_UP_SECONDS)
            cpu, wall = cpu_seconds(monitor.pid), time.monotonic()
            written = _write(writer, group, options.rate, options.seconds)
            cpu, wall = cpu_seconds(monitor.pid) - cpu, time.monotonic() - wall
            steady = memory_mb(monitor.pid, "VmRSS")
            monitor.send_signal(10)  # SIGUSR1: the monitor needs the most memory to write its file
            deadline = time.monotonic() + 20
            while not Path(folder, "otel_fr_rank_0").exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            after, own = memory_mb(monitor.pid, "VmRSS"), memory_mb(monitor.pid, "Pss_Anon", "smaps_rollup")
        finally:
            writer.set_state(ProcessState.CLEAN)
            monitor.kill()
            monitor.wait()
            receiver.stop()
            ours.close()
    answer = {
        "collectives_per_s": round(written / wall, 1),
        "metrics": options.metrics,
        "protocol": options.protocol + (" (no server)" if options.dead else ""),
        "core_ratio": round(cpu / wall, 4),
        "core_limit": LIMIT_CORE,
        "rss_mb": round(steady, 1),
        "rss_after_dump_mb": round(after, 1),
        "anonymous_mb": round(own, 1),
        "rss_limit_mb": LIMIT_MB,
    }
    print(json.dumps(answer))
    return 0 if cpu / wall <= LIMIT_CORE and max(steady, after) <= LIMIT_MB else 1


if __name__ == "__main__":
    sys.exit(main())
