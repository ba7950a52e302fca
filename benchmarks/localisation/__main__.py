"""`make bench-localisation`: which tool names the right rank of a job that hangs, crashes, or computes wrong numbers.

docs/development/localisation.md says what the programs and the tools are, and how to add one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from benchmarks.localisation.catalogue import Program, catalogue
from benchmarks.localisation.field import TOOLS, Row, ended_by, observe, runs
from benchmarks.localisation.held_out import MADE_UP, held_out
from benchmarks.localisation.running import TIMEOUT, EndedEarlyError, NotStartedError, Setting
from benchmarks.localisation.tables import programs, summary
from benchmarks.localisation.tools.tool import Tool
from tests.simulated_device.install import DEFAULT_TORCH, Place
from tests.support import warm
from tests.support.paths import ROOT
from tests.support.simulated_device import SimulatedDevice

RESULTS = ROOT / "build" / "localisation" / "results.json"
BACKENDS = ("gloo", "nccl", "nccl2")
HELD_OUT = 12
QUICK = ("missing", "killed", "size", "subgroup", "half_batch", "healthy_uneven_gather", "healthy_pauses")


def settings(backends: Sequence[str]) -> list[Setting]:
    """Where programs run: on the simulated device's torch, if it is there; else only on gloo."""
    place = Place(DEFAULT_TORCH)
    device = SimulatedDevice(place) if place.is_ready() else None
    return [Setting(backend, device) for backend in backends if device is not None or backend == "gloo"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few programs on gloo and nccl")
    parser.add_argument("--backends", nargs="+", choices=BACKENDS)
    parser.add_argument("--programs", nargs="+", help="files of programs/, without .py")
    parser.add_argument(
        "--held-out", type=int, help=f"made-up jobs (default: {HELD_OUT}, or 0 with --quick or --programs)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the made-up jobs")
    parser.add_argument("--tools", nargs="+", choices=[tool.name for tool in TOOLS])
    parser.add_argument("--jobs", type=int, default=4, help="jobs that run at a time (default: %(default)s)")
    parser.add_argument("--keep", type=Path, help="a folder for what each job left")
    parser.add_argument(
        "--print",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="only print these results; of two rows for one answer, the last",
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="JSON (default: %(default)s)")
    args = parser.parse_args()
    if args.print:
        read = [json.loads(path.read_text()) for path in args.print]
        latest = {(row["backend"], row["program"], row["tool"]): row for one in read for row in one["rows"]}
        print(report(list(latest.values()), []))
        return 0
    begun = time.monotonic()
    chosen = catalogue(args.programs or (QUICK if args.quick else ()))
    tools = [tool for tool in TOOLS if not args.tools or tool.name in args.tools]
    places = settings(args.backends or (BACKENDS[:2] if args.quick else BACKENDS))
    begun_at = time.strftime("%Y-%m-%d")
    count = args.held_out if args.held_out is not None else 0 if args.quick or args.programs else HELD_OUT
    made_up = held_out(count, args.seed, RESULTS.parent / f"seed-{args.seed}")
    if args.keep:
        args.keep.mkdir(parents=True, exist_ok=True)
    rows, failed = observe_all([*chosen, *made_up], places, tools, args.jobs, args.keep)
    args.results.parent.mkdir(parents=True, exist_ok=True)
    about = {"date": begun_at, "torch": torch_versions(places), "seed": args.seed, "timeout": TIMEOUT}
    args.results.write_text(json.dumps({**about, "not_started": failed, "rows": rows}, indent=1))
    print(report(rows, failed))
    print(f"\n{about}\n{args.results}\n{time.monotonic() - begun:.0f} s")
    return 0


def report(rows: Sequence[Row], failed: Sequence[str]) -> str:
    """All tables."""
    listed = [row for row in rows if not row["program"].startswith(MADE_UP)]
    made_up = [row for row in rows if row["program"].startswith(MADE_UP)]
    parts = [f"## The programs\n\n{summary(listed)}"] if listed else []
    parts += [f"## Made up by the seed\n\n{summary(made_up)}"] if made_up else []
    for backend in dict.fromkeys(row["backend"] for row in rows):
        parts.append(f"## {backend}\n\n{programs(rows, backend)}")
    if failed:
        parts.append("## Did not begin\n\n" + "\n".join(failed))
    return "\n" + "\n\n".join(parts)


def torch_versions(places: Sequence[Setting]) -> list[str]:
    """Of the jobs."""
    asked = [[str(place.bin / "python"), "-c", "import torch; print(torch.__version__)"] for place in places]
    return sorted({subprocess.run(one, capture_output=True, text=True, check=True).stdout.strip() for one in asked})


def observe_all(
    chosen: Sequence[Program], places: Sequence[Setting], tools: Sequence[Tool], at_a_time: int, keep: Path | None
) -> tuple[list[Row], list[str]]:
    """All answers, and the jobs that did not begin in two tries."""
    for place in places:  # servers from which ranks are forked: before there are threads
        warm.address(str(place.bin / "python"))
    wanted = [
        (program, place, together)
        for place in places
        for program in chosen
        if program.runs_on(place.backend)
        for together in runs(tools)
    ]
    rows: list[Row] = []
    failed: list[str] = []
    with ThreadPoolExecutor(at_a_time) as pool:
        tasks = [pool.submit(_twice, program, place, together, keep) for program, place, together in wanted]
        for task in as_completed(tasks):
            found = task.result()
            if isinstance(found, str):
                failed.append(found)
                print(found, flush=True)
                continue
            rows += found
            for row in found:
                said = f"{row['outcome']} {row['ranks']} {row['seconds']}"
                print(f"{row['backend']} {row['program']} | {row['tool']}: {said}", flush=True)
    return rows, failed


def _twice(program: Program, place: Setting, tools: Sequence[Tool], keep: Path | None) -> list[Row] | str:
    for _ in range(2):
        try:
            return observe(program, place, tools, keep)
        except NotStartedError as error:
            why, ended = str(error), isinstance(error, EndedEarlyError)
    if ended and tools[0].own_run:
        return [ended_by(program, place, tool) for tool in tools]
    return f"{place.backend} {program.name}: {why}"


if __name__ == "__main__":
    sys.exit(main())
