"""`make bench`: all benchmarks but the analyzer's, each as a ratio within one run. Takes about ten minutes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PARTS = {
    "cost of the ring per record": ["ring.py"],
    "cost per collective in the training thread (fake process group)": ["capture.py"],
    "training steps on gloo: DDP, FSDP2, small all-reduces": ["steps.py", "--seconds", "60", "--launches", "1"],
    "the monitor at 300 collectives/s": ["monitor.py"],
    "the monitor at 300 collectives/s, without metrics": ["monitor.py", "--metrics", "off"],
    "the collector against a do-nothing sink": ["collector.py"],
    "the collector without the ranks' metrics and with them": ["collector.py", "--metrics", "on"],
    "from the first waiting rank to the incident": ["latency.py"],
}


def main() -> int:
    failed = 0
    for title, (script, *options) in PARTS.items():
        print(f"\n## {title}", flush=True)
        failed += subprocess.run([sys.executable, str(Path(__file__).with_name(script)), *options]).returncode != 0
    return failed


if __name__ == "__main__":
    sys.exit(main())
