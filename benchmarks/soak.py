"""Memory of four ranks that train for some time on gloo, and the incidents of this healthy job: there must be none.

    python benchmarks/soak.py [--job fsdp2|noisy] [--seconds 600] [--engine compiled|python|off]

fsdp2: with FSDP2, while a second thread makes collectives. noisy: with DDP, on ranks that are all late by chance.
Every rank has its monitor, and the collector runs on this machine, too. The growth is each rank's resident memory in
the last of ten samples minus the first. torch itself causes some of it: --engine off shows how much.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.support.ports import free_port

BIN = Path(sys.executable).parent
RANKS = 4
JOB = Path(__file__).with_name("jobs") / "soak.py"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--job", choices=("fsdp2", "noisy"), default="fsdp2")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--engine", choices=("compiled", "python", "off"), default="compiled")
    args = parser.parse_args()
    grpc, http = free_port(), free_port()
    command = [str(BIN / "otel-fr"), "collector", "--grpc", f"127.0.0.1:{grpc}", "--http", f"127.0.0.1:{http}"]
    env = {k: v for k, v in os.environ.items() if not k.startswith("OTEL_")}
    env.update(OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo")
    if args.engine != "off":
        env.update(OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{grpc}", OTEL_FR_CAPTURE_ENGINE=args.engine)
    launch = [str(BIN / "torchrun"), "--standalone", f"--nproc_per_node={RANKS}", str(JOB), args.job, str(args.seconds)]
    with tempfile.TemporaryFile("w+", encoding="utf-8") as incidents:
        collector = subprocess.Popen(command, stdout=incidents, stderr=subprocess.DEVNULL)
        try:
            job = subprocess.run(launch, env=env, stdout=subprocess.PIPE, text=True, check=True)
        finally:
            collector.terminate()
            collector.wait()
        incidents.seek(0)
        told = incidents.read()
    lines = [line.split(maxsplit=3) for line in job.stdout.splitlines()]
    for rank in range(RANKS):
        samples = [int(line[3]) for line in lines if line[:2] == ["SOAK", str(rank)]]
        engine, found = next((line[2], line[3]) for line in lines if line[:2] == ["DONE", str(rank)])
        growth = f"{samples[0] / 1024:.1f} -> {samples[-1] / 1024:.1f} MiB" if samples else "no samples"
        print(f"rank {rank} ({engine}): resident {growth}; {found}")
    print("the collector said:", told.strip() or "nothing")
    sys.exit(1 if told.strip() else 0)


if __name__ == "__main__":
    main()
