"""Time from the first waiting rank to the incident, at the default settings. Runs the demo several times.

python benchmarks/latency.py [--runs 5]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from datetime import datetime
from pathlib import Path

BIN = Path(sys.executable).parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    seconds = []
    for _ in range(args.runs):
        with tempfile.TemporaryDirectory() as folder:
            command = [str(BIN / "otel-fr"), "demo", "--dir", folder]
            subprocess.run(command, stdout=subprocess.DEVNULL, check=False, timeout=200)
            line = (Path(folder) / "incidents.jsonl").read_text().splitlines()[0]
            incident = json.loads(line)
            begin, end = (
                datetime.fromisoformat(incident[key].replace("Z", "+00:00")) for key in ("started_at", "detected_at")
            )
            seconds.append((end - begin).total_seconds())
    print(
        f"first waiting rank to incident: median {statistics.median(seconds):.2f} s"
        f" ({min(seconds):.2f} to {max(seconds):.2f}, {args.runs} runs)"
    )


if __name__ == "__main__":
    main()
