"""Step time of DDP and FSDP2 on gloo, with and without otel-fr, in alternating runs.

    python benchmarks/steps.py [--pairs 5] [--steps 150]

Sending: every rank has its monitor, and the collector runs here too. Recording: the same without an endpoint.
Each run is compared with the runs without otel-fr before and after it; the difference between those two is the noise.
"""

from __future__ import annotations

import argparse
import itertools
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


def median_ms(kind: str, steps: int, settings: dict[str, str]) -> float:
    env = {k: v for k, v in os.environ.items() if not k.startswith("OTEL_")}
    env.update(OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo", **settings)
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
        variants = {
            "sending": {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{grpc}"},
            "recording": {"OTEL_FR_ENABLED": "1"},
        }
        for kind in ("ddp", "fsdp2"):
            bare = [median_ms(kind, args.steps, {})]
            ratios: dict[str, list[float]] = {name: [] for name in variants}
            for _ in range(args.pairs):
                for name, settings in variants.items():
                    ours = median_ms(kind, args.steps, settings)
                    bare.append(median_ms(kind, args.steps, {}))
                    ratios[name].append(ours / ((bare[-2] + bare[-1]) / 2))
            noise = [later / earlier for earlier, later in itertools.pairwise(bare)]
            print(f"{kind:6s} step without otel-fr {statistics.median(bare):7.2f} ms", flush=True)
            for name, values in [*ratios.items(), ("nothing (noise)", noise)]:
                middle = statistics.median(values)
                print(f"       {name:16s} {middle:.3f} of it ({min(values):.3f} to {max(values):.3f})", flush=True)
    finally:
        collector.terminate()
        collector.wait()


if __name__ == "__main__":
    main()
