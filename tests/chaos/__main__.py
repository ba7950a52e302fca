"""``make chaos``: random faults of real torchrun jobs, and kills of the collector.

Each job runs with otel-fr and, with the same fault, without it: both must end alike. The exit status is 1 if a check
failed; each line with a failure says how to repeat it. The end of the output says how many of the jobs and kills ran.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest
from tabulate import tabulate

from tests.chaos import jobs, kills
from tests.chaos.faults import FAULTS
from tests.chaos.hub import Hub
from tests.support.freezer import hierarchy
from tests.support.mounts import tmpfs

MIB = 1 << 20
SHARE_OF_JOBS = 0.75
"""Share of the time for jobs, if there are kills."""


def main(arguments: list[str] | None = None) -> int:
    """Run the chaos tests. Returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=len(FAULTS), help="jobs with one fault each (default: one of each)")
    parser.add_argument("--kills", type=int, default=8, help="kills of the collector (default: 8)")
    parser.add_argument("--seed", type=int, help="of all chance; it is printed, to do the same again")
    parser.add_argument(
        "--seconds", type=float, default=600.0, help="no job or kill begins after so long (default: 600)"
    )
    parser.add_argument("--faults", help=f"only these, separated by commas: {', '.join(FAULTS)}")
    args = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(10**9) if args.seed is None else args.seed
    folder = Path(tempfile.mkdtemp(prefix="otel-fr-chaos-"))
    print(f"seed {seed}, files in {folder}", flush=True)
    begun = time.monotonic()
    share = SHARE_OF_JOBS if args.kills else 1.0
    names = args.faults.split(",") if args.faults else list(FAULTS)
    held = _jobs(folder, seed, args.jobs, begun + share * args.seconds, names) if args.jobs else True
    if args.kills:
        held &= _kills(folder, seed, args.kills, begun + args.seconds)
    if held:
        shutil.rmtree(folder, ignore_errors=True)
    return 0 if held else 1


def _jobs(folder: Path, seed: int, count: int, until: float, names: list[str]) -> bool:
    clock = _clock(folder)
    left_out = _impossible(folder, clock)
    cases, held, failed = Counter[str](), Counter[str](), []
    slowest = (0.0, "no job")
    with Hub(folder / "collector") as hub:
        bare = jobs.Bare(folder, clock)
        planned = [jobs.Case.of(seed + number, names) for number in range(count)]
        for case, following in zip(planned, [*planned[1:], None], strict=True):
            if case.fault.name in left_out:
                continue
            if time.monotonic() > until:
                break
            begun = time.monotonic()
            bare.end(case)
            if following is not None and following.fault.name not in left_out:
                bare.end(following)
            outcome = jobs.run(case, hub, bare, folder / f"job-{case.seed}", clock)
            cases[case.fault.name] += 1
            held[case.fault.name] += not outcome.wrong
            if outcome.seconds is not None:
                slowest = max(slowest, (outcome.seconds, f"{case.fault.name}, seed {case.seed}"))
            verdict = "held" if not outcome.wrong else "DID NOT HOLD"
            took = time.monotonic() - begun
            print(f"seed {case.seed}: {case}: {verdict} ({took:.0f} s); {', '.join(outcome.named) or 'nobody named'}")
            for wrong in outcome.wrong:
                print(f"    {wrong}")
            sys.stdout.flush()
            if outcome.wrong:
                failed.append(case.seed)
                print(f"    again: --jobs 1 --kills 0 --seed {case.seed} --faults '{case.fault.name}'", flush=True)
            else:
                shutil.rmtree(folder / f"job-{case.seed}", ignore_errors=True)
        trouble = hub.trouble()
    print("\n" + tabulate([(name, cases[name], held[name]) for name in cases], headers=("fault", "jobs", "held")))
    print(f"{cases.total()} jobs of {count}, {held.total()} held; did not hold: {failed or 'none'}")
    print(f"from a fault to the incident that names the victim: {slowest[0]:.1f} s at most ({slowest[1]})")
    print(f"not possible here: {left_out or 'nothing'}")
    _print_collector(hub, trouble)
    return not failed and not trouble


def _kills(folder: Path, seed: int, count: int, until: float) -> bool:
    with Hub(folder / "killed", *(receivers := kills.Receivers()).options()) as hub:
        told = kills.run(hub, receivers, folder, seed, count, until)
        trouble = hub.trouble()
    receivers.close()
    print(
        f"\n{told.kills} kills of the collector (asked: {count}), {told.faults} faults, {told.posts} posts of webhooks"
    )
    for wrong in told.wrong:
        print(f"    seed {seed}: {wrong}")
    print(f"lost {told.lost}, told twice as new {told.twice}, repeated with the same key {told.repeated}")
    print(f"not told, as the collector was away too long: {told.unheard}; told without the rank: {len(told.unnamed)}")
    for unnamed in told.unnamed:
        print(f"    {unnamed}")
    _print_collector(hub, trouble)
    return not told.wrong and not trouble


def _print_collector(hub: Hub, trouble: str) -> None:
    print(f"collector: {hub.resident / MIB:.0f} MiB at most, /healthz took {hub.slowest:.2f} s at most", flush=True)
    if trouble:
        print(f"its log has:\n{trouble}", flush=True)


def _clock(folder: Path) -> Path | None:
    """Build the library that makes clocks wrong; None: there is no C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    library = folder / "clock.so"
    source = Path(__file__).with_name("clock.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"], check=True)
    return library


def _impossible(folder: Path, clock: Path | None) -> dict[str, str]:
    """Return the faults that are impossible on this machine, and why."""
    found: dict[str, str] = {}
    if clock is None:
        found |= {name: "no C compiler" for name in FAULTS if "clock" in name}
    if os.geteuid() == 0:
        found["processes"] = "does not hold for root"
    if hierarchy() is None:
        found |= {name: "no cgroups to make" for name in FAULTS if "frozen" in name}
    try:
        with tmpfs(folder / "tried", "size=64k"):
            pass
    except pytest.skip.Exception as error:
        found |= {name: str(error) for name in FAULTS if "full" in name}
    return found


if __name__ == "__main__":
    sys.exit(main())
