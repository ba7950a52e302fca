"""`make bench-verdicts`: random jobs with one to three faults, and healthy ones, judged by the match engine.

python benchmarks/verdicts.py [--programs 10000] [--pairs 4000] [--healthy 1000000] [--paths 250] [--seed 0]

Prints by fault and by layout how often the verdict was right (tests/support/random_jobs/scoring.py defines it),
precision, recall and F1 of the ranks named; how often several faults of one job were named
(tests/support/random_jobs/several_faults.py), and how often both if the second struck while ranks recovered from the
first (tests/support/random_jobs/recovery.py); how many roots each rule of the engine decided; the findings in healthy
jobs, and how verdicts on the same jobs from flight-recorder files and of the collector differ from these
(tests/support/random_jobs/paths.py). The exit status is 1
if `LEAST_RIGHT` and the other limits below are not held. benchmarks/RESULTS.md has the figures.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from pathlib import Path

from otel_fr.match import Case
from otel_fr.match.rules import decide, rule_names

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

# The tests are no installed package: the line above makes them importable.
from tests.support.random_jobs.healthy import HealthyRun, healthy_run  # noqa: E402
from tests.support.random_jobs.paths import Comparison, compare_paths  # noqa: E402
from tests.support.random_jobs.programs import LAYOUTS  # noqa: E402
from tests.support.random_jobs.recovery import Recovery, recovery  # noqa: E402
from tests.support.random_jobs.scoring import Score, judge  # noqa: E402
from tests.support.random_jobs.several_faults import is_right, several_faults  # noqa: E402
from tests.support.random_jobs.trials import KINDS, cells, random_trial  # noqa: E402

LEAST_RIGHT_OF_SEVERAL = 0.98
"""Least share of right verdicts on programs with two faults: they name both if both show, and no other rank."""
LEAST_RIGHT = 0.994
"""Least share of right or ambiguous verdicts on programs with a visible fault."""
SEVERAL = ((2, 1), (3, 4))
"""(faults in a program, divisor of `--pairs` that gives the number of these programs)."""
MOST_DIFFERENT = 0.01
"""Highest share of programs with a worse verdict from files or live: reports and files are not of one moment."""
STRIDE = 5
"""Every fifth program is judged on all paths. 5 shares no factor with the number of layouts, so all come in turn."""


def _faulty(job: tuple[int, str, str]) -> tuple[Score, Counter[str]] | None:
    seed, kind, layout = job
    trial = random_trial(seed, kind, layout)
    return (judge(trial)[0], decide(Case(trial.evidence)).decided) if trial is not None else None


def _several(job: tuple[int, str, int]) -> tuple[int, bool, tuple[str, ...], Counter[str]] | None:
    """Judge a job with several faults. Return how many show, if the verdict is right, the kinds, and the rules used."""
    trial = several_faults(*job)
    if trial is None:
        return None
    right, _ = is_right(trial)
    kinds = tuple(sorted(fault.kind for fault in trial.faults))
    return len(trial.must_name), right, kinds, decide(Case(trial.evidence)).decided


def _recovery(job: tuple[int, str]) -> tuple[Recovery, str] | None:
    trial = recovery(*job)
    return (trial, trial.wrong()) if trial is not None else None


def _compared(job: tuple[int, str, str]) -> Comparison | None:
    trial = random_trial(*job)
    return compare_paths(trial) if trial is not None else None


def _healthy(job: tuple[int, str]) -> HealthyRun:
    return healthy_run(*job)


def scores(
    programs: int, seed: int, kinds: Collection[str], pool: multiprocessing.pool.Pool, hits: Counter[str]
) -> list[Score]:
    """Return scores of ``programs`` jobs, spread evenly over faults and layouts. Adds the rules used to ``hits``."""
    found: list[Score] = []
    rounds = itertools.count(seed)
    while len(found) < programs:
        jobs = [cell for number in itertools.islice(rounds, 20) for cell in cells(number) if cell[1] in kinds]
        for one in pool.imap(_faulty, jobs, chunksize=32):
            if one is not None:
                found.append(one[0])
                hits.update(one[1])
    return found[:programs]


def judge_several(
    faults: int, count: int, seed: int, pool: multiprocessing.pool.Pool, hits: Counter[str], show: int
) -> float:
    """Print how often the verdict on programs with several faults is right.

    Returns:
        The share of right verdicts.
    """
    found: list[tuple[int, bool, tuple[str, ...], Counter[str]]] = []
    jobs = ((number, layout, faults) for number in itertools.count(seed) for layout in LAYOUTS)
    while len(found) < count:
        found += [one for one in pool.imap(_several, itertools.islice(jobs, 240), chunksize=16) if one is not None]
    for one in found:
        hits.update(one[3])
    for shown in range(1, faults + 1):
        own = [right for number, right, _, _ in found if number == shown]
        if own:
            what = f"{shown} of {faults} faults {'shows' if shown == 1 else 'show'}"
            print(f"{sum(own)} of {len(own)} verdicts right where {what}: {_share(sum(own), len(own))}")
    wrong = Counter(kinds for _, right, kinds, _ in found if not right)
    for kinds, number in wrong.most_common(show):
        print(f"  {' and '.join(kinds)}: {number} not right")
    return sum(right for _, right, _, _ in found) / len(found) if found else 1.0


def judge_recoveries(count: int, seed: int, pool: multiprocessing.pool.Pool, show: int) -> float:
    """Print how often verdicts are right if a second fault strikes during recovery. Returns the share that is right."""
    found: list[tuple[Recovery, str]] = []
    jobs = ((number, layout) for number in itertools.count(seed) for layout in LAYOUTS)
    while len(found) < count:
        found += [one for one in pool.imap(_recovery, itertools.islice(jobs, 240), chunksize=16) if one is not None]
    right = sum(not wrong for _, wrong in found)
    print(f"{right} of {len(found)} verdicts right on faults in recovery: {_share(right, len(found))}")
    for one, wrong in [one for one in found if one[1]][:show]:
        print(f"  {one.first}, then {one.second} ({one.how}): {wrong}")
    return right / len(found) if found else 1.0


def compare_all(count: int, seed: int, kinds: Collection[str], show: int, pool: multiprocessing.pool.Pool) -> float:
    """Print how verdicts from files and live differ from verdicts in memory. Returns the share of jobs that differ."""
    rounds = (cell for number in itertools.count(seed) for cell in cells(number) if cell[1] in kinds)
    jobs = itertools.islice(rounds, 0, None, STRIDE)
    found: list[Comparison] = []
    while len(found) < count:
        some = list(itertools.islice(jobs, count - len(found)))
        found += [one for one in pool.imap(_compared, some, chunksize=4) if one is not None]
    every = {
        "in memory": [one.memory for one in found],
        "files": [one.files for one in found],
        "live": [one.live for one in found],
    }
    print("\n" + table("path", [row(name, scores) for name, scores in every.items()]))
    different = [one for one in found if one.differs]
    strays = [one for one in found if one.strays]
    print(f"\n{len(different)} of {len(found)} jobs judged from files or live otherwise than in memory")
    print(f"{len(strays)} of {len(found)} jobs where an incident named an innocent rank for a time")
    for one in [*different, *strays][:show]:
        print(f"{one.memory.kind}, {one.memory.layout}, seed {one.memory.seed}: {one.memory.outcome}, files"
              f" {one.files.outcome} {one.files.named}, live {one.live.outcome} {one.live.named}, for a time"
              f" {one.strays}")  # fmt: skip
    return len(different) / max(1, len(found))


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"


def row(name: str, found: Iterable[Score]) -> list[str]:
    """Return name, programs, right, ambiguous, wrong, silent, precision, recall, F1.

    Precision: the share of the named ranks that are faulty, or belong to an explanation that also fits. Recall: the
    share of the faulty ranks that are named. If no rank can be named, or none is at fault, no rank counts as faulty.
    """
    found = [score for score in found if score.outcome != "unseen"]
    count = Counter(score.outcome for score in found)
    hit = sum(score.truth in score.named for score in found)
    false = sum(len(score.accused_wrongly) for score in found)
    there = sum(score.truth in score.named or score.can_be_named for score in found)
    shares = [_share(count[outcome], len(found)) for outcome in ("right", "ambiguous", "wrong", "silent")]
    if not there:
        return [name, str(len(found)), *shares, "-", "-", "-"]
    precision, recall = hit / max(1, hit + false), hit / there
    f1 = 2 * precision * recall / max(1e-9, precision + recall)
    return [name, str(len(found)), *shares, f"{precision:.4f}", f"{recall:.4f}", f"{f1:.4f}"]


def table(head: str, rows: list[list[str]]) -> str:
    """Return a table in Markdown."""
    names = [head, "programs", "right", "ambiguous", "wrong", "silent", "precision", "recall", "F1"]
    lines = [names, ["---", *["---:"] * (len(names) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def report(found: list[Score]) -> str:
    """Return the tables by fault and by layout."""
    by_kind, by_layout = defaultdict[str, list[Score]](list), defaultdict[str, list[Score]](list)
    for score in found:
        by_kind[score.kind].append(score)
        by_layout[score.layout].append(score)
    total = row("all", found)
    kinds = [row(kind, by_kind[kind]) for kind in KINDS if by_kind[kind]]
    layouts = [row(layout.replace("_", " x "), by_layout[layout]) for layout in LAYOUTS]
    return table("fault", [*kinds, total]) + "\n\n" + table("layout", [*layouts, total])


def is_good(score: Score) -> bool:
    return score.outcome in ("right", "ambiguous")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=10_000)
    parser.add_argument(
        "--pairs", type=int, default=4_000, help="programs with two faults; with three, a quarter; in recovery, as many"
    )
    parser.add_argument("--healthy", type=int, default=1_000_000, help="collectives of healthy jobs")
    parser.add_argument("--paths", type=int, default=250, help="programs judged from files and live as well")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fault", action="append", choices=KINDS, help="only programs with it; may be repeated")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--show", type=int, default=0, help="failures to print in full, of each fault and layout")
    args = parser.parse_args()
    started = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(args.processes) as pool:
        hits = Counter[str]()
        found = scores(args.programs, args.seed, args.fault or KINDS, pool, hits) if args.programs else []
        if found:
            print(report(found), flush=True)
        shown = Counter[tuple[str, str]]()
        for score in found if args.show else ():
            if score.outcome == "unseen":
                continue
            shown[score.kind, score.layout] += not is_good(score)
            if not is_good(score) and shown[score.kind, score.layout] <= args.show:
                print(f"{score.kind}, {score.layout}, seed {score.seed}: {score.outcome}, rank {score.truth},"
                      f" named {score.named}: {score.summary}")  # fmt: skip
        several = [judge_several(of, args.pairs // share, args.seed, pool, hits, args.show) for of, share in SEVERAL]
        several.append(judge_recoveries(args.pairs, args.seed, pool, args.show))
        print("\n| rule | roots decided |\n| --- | ---: |")
        print("\n".join(f"| {rule} | {hits[rule]} |" for rule in rule_names()), flush=True)
        collectives = judgements = alarms = 0
        jobs = ((number, layout) for number in itertools.count(args.seed) for layout in LAYOUTS)
        while collectives < args.healthy:
            for run in pool.imap_unordered(_healthy, itertools.islice(jobs, 60), chunksize=5):
                collectives += run.collectives
                judgements += run.judgements
                alarms += len(run.findings)
                for finding in run.findings[: args.show]:
                    print(f"healthy, {run.layout}, seed {run.seed}: {finding.category.value}: {finding.summary}")
        different = compare_all(args.paths, args.seed, args.fault or KINDS, args.show, pool) if args.paths else 0.0
    found = [score for score in found if score.outcome != "unseen"]
    good = sum(map(is_good, found))
    share = _share(good, len(found))
    print(f"\n{good} of {len(found)} verdicts right, or ambiguous where a second explanation fits: {share}")
    manifold = sum(len(score.categories) > 1 for score in found)
    print(f"{manifold} of {len(found)} verdicts have more than one cause")
    print(f"{alarms} findings in {collectives:,} collectives of healthy jobs, judged {judgements:,} times")
    print(f"{time.monotonic() - started:.0f} s")
    enough = good >= LEAST_RIGHT * len(found) and min(several) >= LEAST_RIGHT_OF_SEVERAL
    return 0 if enough and not alarms and different <= MOST_DIFFERENT else 1


if __name__ == "__main__":
    sys.exit(main())
