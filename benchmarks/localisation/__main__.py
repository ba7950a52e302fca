"""`make bench-localisation`: which tool names the right rank of a job that hangs, crashes, or computes wrong numbers.

docs/development/localisation.md describes the programs and the tools, and how to add one.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from benchmarks.localisation.catalogue import Program, catalogue
from benchmarks.localisation.field import TOOLS, Row, ended_by, observe, runs
from benchmarks.localisation.held_out import held_out
from benchmarks.localisation.results import Results
from benchmarks.localisation.running import TIMEOUT, EndedEarlyError, NotStartedError, Setting
from benchmarks.localisation.tools.tool import Tool
from tests.simulated_device.install import DEFAULT_TORCH, Place
from tests.support import warm
from tests.support.paths import ROOT
from tests.support.simulated_device import SimulatedDevice

RESULTS = ROOT / "build" / "localisation" / "results.json"
TIMED = "nccl-timed"
SETTINGS = ("gloo", "nccl", TIMED, "nccl2")
HELD_OUT = 12
QUICK = ("missing", "killed", "size", "subgroup", "half_batch", "healthy_uneven_gather", "healthy_pauses")


def settings(names: Sequence[str]) -> list[Setting]:
    """Return the settings in which programs run; without the simulated device, only gloo."""
    place = Place(DEFAULT_TORCH)
    device = SimulatedDevice(place) if place.is_ready() else None
    return [Setting(name, device) for name in names if device is not None or name == "gloo"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few programs on gloo and nccl")
    parser.add_argument(
        "--settings", nargs="+", choices=SETTINGS, help=f"all programs in these (default: in {TIMED} a few)"
    )
    parser.add_argument("--programs", nargs="+", help="files of programs/, without .py")
    parser.add_argument(
        "--held-out", type=int, help=f"made-up jobs (default: {HELD_OUT}, or 0 with --quick or --programs)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the made-up jobs")
    parser.add_argument("--tools", nargs="+", choices=[tool.name for tool in TOOLS])
    parser.add_argument("--jobs", type=int, default=6, help="jobs that run at a time (default: %(default)s)")
    parser.add_argument("--keep", type=Path, help="a folder for what each job left")
    parser.add_argument(
        "--print",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="only print these results; of two rows for one answer, the last",
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="JSON (default: %(default)s)")
    parser.add_argument("--resume", action="store_true", help="keep the answers that these results have")
    args = parser.parse_args()
    if args.print:
        print(Results.joined(map(Results.read, args.print)).report())
        return 0
    begun = time.monotonic()
    chosen = catalogue(args.programs or (QUICK if args.quick else ()))
    tools = [tool for tool in TOOLS if not args.tools or tool.name in args.tools]
    places = settings(args.settings or (SETTINGS[:2] if args.quick else SETTINGS))
    if not any(place.device for place in places):
        print("Only on gloo: `make simulated-device` sets up PyTorch's NCCL on a simulated device.")
    count = args.held_out if args.held_out is not None else 0 if args.quick or args.programs else HELD_OUT
    made_up = held_out(count, args.seed, RESULTS.parent / f"seed-{args.seed}")
    if args.keep:
        args.keep.mkdir(parents=True, exist_ok=True)
    results = Results.read(args.results) if args.resume and args.results.exists() else Results()
    about = {"revision": revision(), "torch": torch_versions(places), "seed": args.seed, "limit_s": TIMEOUT}
    results.begin(about)
    wanted = [
        (program, place)
        for place in places
        for program in (*chosen, *made_up)
        if program.runs_on(place.backend) and (args.settings or program.is_timed or place.name != TIMED)
    ]
    observe_all(wanted, tools, args.jobs, args.keep, results, args.results)
    print(f"{results.report()}\n\n{args.results}\n{time.monotonic() - begun:.0f} s")
    return 0


def revision() -> str:
    """Return the sources' revision; "+": with changes."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty=+", "--exclude=*"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def torch_versions(places: Sequence[Setting]) -> list[str]:
    """Return the jobs' versions of torch."""
    asked = [[str(place.bin / "python"), "-c", "import torch; print(torch.__version__)"] for place in places]
    return sorted({subprocess.run(one, capture_output=True, text=True, check=True).stdout.strip() for one in asked})


def observe_all(
    programs: Sequence[tuple[Program, Setting]],
    tools: Sequence[Tool],
    at_a_time: int,
    keep: Path | None,
    results: Results,
    path: Path,
) -> None:
    """Add all answers that the results lack, and write the results after each job."""
    for python in {str(place.bin / "python") for _, place in programs}:
        warm.address(python)  # start the servers that fork ranks before there are threads
    wanted = [
        (program, place, together)
        for program, place in programs
        for together in runs(tools, place.name)
        if not results.have(program, place, together)
    ]
    with ThreadPoolExecutor(at_a_time) as pool:
        tasks = [pool.submit(_twice, program, place, together, keep) for program, place, together in wanted]
        for task in as_completed(tasks):
            found = task.result()
            results.add(found)
            results.write(path)
            if isinstance(found, str):
                print(found, flush=True)
                continue
            for row in found:
                said = f"{row['outcome']} {row['ranks']} {row['seconds']}"
                print(f"{row['backend']} {row['program']} | {row['tool']}: {said}", flush=True)


def _twice(program: Program, place: Setting, tools: Sequence[Tool], keep: Path | None) -> list[Row] | str:
    for _ in range(2):
        try:
            return observe(program, place, tools, keep)
        except NotStartedError as error:
            why, ended = str(error), isinstance(error, EndedEarlyError)
    if ended and tools[0].own_run_on:
        return [ended_by(program, place, tool) for tool in tools]
    return f"{place.name} {program.name}: {why}"


if __name__ == "__main__":
    sys.exit(main())
