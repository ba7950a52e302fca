"""Jobs made up from a seed: random programs with one fault, and healthy programs. No tool can be tuned to them.

tests/support/random_jobs makes them, and play.py plays them on a real process group.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.localisation.catalogue import Program
from tests.support.random_jobs.faults import Fault, random_fault
from tests.support.random_jobs.programs import LAYOUTS, Op, random_program
from tests.support.random_jobs.programs import Program as Calls

PLAYER = Path(__file__).with_name("play.py")
STOPS = ("stuck on the host", "Python blocked", "killed", "exception", "left early")
CHANGES = (
    "missing call",
    "missing step",
    "extra call",
    "swapped order",
    "wrong size",
    "wrong dtype",
    "wrong root",
    "wrong reduce op",
    "wrong operation",
)
KINDS = (*STOPS, *CHANGES)
MADE_UP = "random-"
"""The beginning of their names."""
RANKS = (3, 4)
STEPS = 3
HEALTHY_EVERY = 4
"""Every fourth job is healthy."""


def held_out(count: int, seed: int, folder: Path) -> list[Program]:
    """Make jobs from the seed, and write their files to the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(f"localisation {seed}")
    kinds = itertools.cycle(rng.sample(KINDS, len(KINDS)))
    return [_made(rng, None if number % HEALTHY_EVERY == 3 else next(kinds), number, folder) for number in range(count)]


def _made(rng: random.Random, kind: str | None, number: int, folder: Path) -> Program:
    while True:
        calls = random_program(rng, rng.choice(list(LAYOUTS)), STEPS)
        found = random_fault(rng, calls, kind) if kind is not None and calls.world in RANKS else None
        if calls.world in RANKS and (found is not None or kind is None):
            break
    path = folder / f"{number}.json"
    path.write_text(json.dumps(_job(found.program if found is not None else calls, found)))
    culprits = tuple(_culprits(found)) if found is not None else ()
    name = f"{MADE_UP}{number}"
    return Program(name, kind or "healthy", culprits, calls.world, PLAYER, arguments=(str(path),))


def _culprits(found: Fault) -> Iterator[frozenset[int]]:
    """Yield the right sets of culprits: the faulty rank. If only two ranks disagree in a call, either may be wrong."""
    yield frozenset({found.rank})
    if found.kind in CHANGES and found.op is not None:
        members = {found.rank, found.op.peer} if found.op.peer is not None else {*found.op.group.ranks}
        if len(members) == 2:
            yield from (frozenset(members), frozenset(members - {found.rank}))


def _job(calls: Calls, found: Fault | None) -> dict[str, Any]:
    numbers = {group.id: number for number, group in enumerate(calls.groups)}
    return {
        "groups": [group.ranks for group in calls.groups],
        "calls": [[_call(op, numbers) for op in calls.calls[rank]] for rank in range(calls.world)],
        "faulty": found.rank if found is not None else None,
        "at": found.at if found is not None else None,
        "kind": found.kind if found is not None else "",
    }


def _call(op: Op, numbers: dict[str, int]) -> dict[str, Any]:
    own = op.signature
    return {
        "operation": own.operation,
        "group": numbers[op.group.id],
        "ins": own.input_sizes,
        "outs": own.output_sizes,
        "dtype": own.input_dtypes[0] if own.input_dtypes else "Float",
        "reduce_op": own.reduce_op,
        "root": own.root,
        "peer": op.peer,
        "input_splits": own.input_splits,
        "output_splits": own.output_splits,
        "host_waits": op.host_waits,
    }
