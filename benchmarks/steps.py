"""Step time of DDP and FSDP2 on gloo, with and without otel-fr, in alternating runs: what training feels.

    python benchmarks/steps.py [--pairs 5] [--steps 150]

With: a real collector is running and every rank has its monitor. The figure is the ratio of the two runs of a pair.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

BIN = Path(sys.executable).parent
JOB = Path(__file__).with_name("jobs") / "steps.py"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def median_ms(kind: str, steps: int, endpoint: str | None) -> float:
    env = {k: v for k, v in os.environ.items() if not k.startswith("OTEL_")}
    env.update(OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo")
    if endpoint is not None:
        env["OTEL_EXPORTER_OTLP_ENDPOINT"] = endpoint
    command = [str(BIN / "torchrun"), "--standalone", "--nproc_per_node=2", str(JOB), kind, str(steps)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=True)
    return float(next(line.split()[1] for line in done.stdout.splitlines() if line.startswith("MEDIAN_MS")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=150)
    args = parser.parse_args()
    grpc, http = free_port(), free_port()
    command = [str(BIN / "otel-fr"), "collector", "--grpc", f"127.0.0.1:{grpc}", "--http", f"127.0.0.1:{http}"]
    collector = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while socket.socket().connect_ex(("127.0.0.1", grpc)) != 0:
            time.sleep(0.05)
        for kind in ("ddp", "fsdp2"):
            ratios, without, same = [], [], []
            for _ in range(args.pairs):
                bare = median_ms(kind, args.steps, None)
                recorded = median_ms(kind, args.steps, f"http://127.0.0.1:{grpc}")
                again = median_ms(kind, args.steps, None)
                without.append(bare)
                ratios.append(recorded / ((bare + again) / 2))
                same.append(again / bare)
            print(
                f"{kind:6s} step without otel-fr {statistics.median(without):7.2f} ms;"
                f" with / without: median {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f});"
                f" noise, without / without: {statistics.median(same):.3f} ({min(same):.3f} to {max(same):.3f})",
                flush=True,
            )
    finally:
        collector.terminate()
        collector.wait()


if __name__ == "__main__":
    main()
