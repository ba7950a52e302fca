"""``python -m tests.fuzz``: the fuzz for some time, or one failure again. Exit status 1 if anything failed."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

from tests.fuzz.cases import load
from tests.fuzz.run import MIB, Ceilings, Fuzz, Outcome


def main(arguments: list[str] | None = None) -> int:
    """Run the fuzz. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long (default: 60)")
    parser.add_argument("--seed", type=int, help="of all chance; it is printed, to make the same inputs again")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="send the inputs of a saved failure instead")
    parser.add_argument("--folder", type=Path, help="for its files and failures (default: a temporary one)")
    default = Ceilings()
    parser.add_argument("--latency", type=float, default=default.latency, help="ceiling of /healthz in seconds")
    parser.add_argument("--resident", type=float, default=default.resident, help="ceiling of the collector in MiB")
    args = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(10**9) if args.seed is None else args.seed
    folder = args.folder or Path(tempfile.mkdtemp(prefix="otel-fr-fuzz-"))
    folder.mkdir(parents=True, exist_ok=True)
    fuzz = Fuzz(folder, seed, Ceilings(latency=args.latency, resident=args.resident))
    if args.replay is not None:
        outcome = fuzz.replay(load(args.replay).cases)
    else:
        print(f"seed {seed}, {args.seconds:.0f} s, files in {folder}", flush=True)
        outcome = fuzz.run(args.seconds)
    _print(outcome)
    return 1 if outcome.failures else 0


def _print(outcome: Outcome) -> None:
    for target, count in sorted(outcome.counts.items()):
        print(f"{count:9,} {target}")
    print(f"{outcome.counts.total():9,} inputs, {len(outcome.failures)} failures")
    print(f"collector: /healthz took {outcome.slowest_health:.2f} s at most, {outcome.resident / MIB:.0f} MiB resident")
    print(f"reader: {outcome.slowest_file:.2f} s and {outcome.largest_file / MIB:.0f} MiB at most for one file")


if __name__ == "__main__":
    sys.exit(main())
