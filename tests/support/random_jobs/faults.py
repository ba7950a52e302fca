"""One fault in one rank of a healthy program, and what a right verdict may say of it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from otel_fr.match import Category, Signature
from tests.support.random_jobs.programs import Op, Program, with_calls
from tests.support.random_jobs.simulation import Stops


@dataclass(slots=True)
class Fault:
    """A program with one fault.

    Attributes:
        kind: a key of `FAULTS`. rank: whose fault it is.
        at: index of the rank's call at which its program changes or stops.
        op: the call that is left out, added or wrong; None: the rank stops.
        ending: how the rank ends of itself: "" (it does not), "clean", "raised", "killed".
        blocks_python: its Python threads do not run.
        category: what a mismatch must be called; None: the fault has no category of its own.
    """

    kind: str
    rank: int
    at: int
    program: Program
    op: Op | None = None
    stops: Stops = field(default_factory=Stops)
    ending: str = ""
    blocks_python: bool = False
    category: Category | None = None


def random_fault(rng: random.Random, program: Program, kind: str) -> Fault | None:
    """That fault in a random rank at a random call; None: the program has no call where it can be put."""
    found = FAULTS[kind](rng, program)
    if found is not None:
        found.kind = kind
    return found


def _shared(op: Op) -> bool:
    """Others take part in it."""
    return op.is_message or len(op.group.ranks) > 1


def _somewhere(
    rng: random.Random, program: Program, wanted: Callable[[Op], bool] = _shared
) -> tuple[int, int, Op] | None:
    """A rank, and the index of a call of it."""
    ranks = list(program.calls)
    rng.shuffle(ranks)
    for rank in ranks:
        places = [index for index, op in enumerate(program.calls[rank]) if wanted(op)]
        if places:
            index = rng.choice(places)
            return rank, index, program.calls[rank][index]
    return None


# The rank stops.


def _stops(ending: str = "", *, blocks_python: bool = False) -> Callable[[random.Random, Program], Fault | None]:
    def make(rng: random.Random, program: Program) -> Fault | None:
        place = _somewhere(rng, program)
        if place is None:
            return None
        rank, at, _ = place
        killed = {rank} if ending == "killed" else set()
        inside = killed if at and rng.random() < 0.3 else set()
        stops = Stops(host={rank: at}, killed=killed, inside=set(inside))
        return Fault("", rank, at, program, stops=stops, ending=ending, blocks_python=blocks_python)

    return make


def _device(rng: random.Random, program: Program) -> Fault | None:
    """Its device completes nothing from a call on; the host goes on as far as it may run ahead."""
    place = _somewhere(rng, program)
    if place is None:
        return None
    rank, at, _ = place
    return Fault("", rank, at, program, stops=Stops(device={rank: (at, rng.random() < 0.7)}))


# The rank calls something else.


def _missing_call(rng: random.Random, program: Program) -> Fault | None:
    place = _somewhere(rng, program)
    if place is None:
        return None
    rank, at, op = place
    calls = program.calls[rank]
    return Fault("", rank, at, with_calls(program, rank, calls[:at] + calls[at + 1 :]), op)


def _missing_step(rng: random.Random, program: Program) -> Fault | None:
    """The rank leaves out all calls of one step, as one whose data ends a step earlier."""
    place = _somewhere(rng, program, lambda op: op.step >= 0 and _shared(op))
    if place is None:
        return None
    rank, _, op = place
    calls = program.calls[rank]
    at = next(index for index, other in enumerate(calls) if other.step == op.step)
    return Fault("", rank, at, with_calls(program, rank, [o for o in calls if o.step != op.step]), op)


def _extra_call(rng: random.Random, program: Program) -> Fault | None:
    """The rank makes a call twice, or one of another place of its program."""
    place = _somewhere(rng, program)
    if place is None:
        return None
    rank, at, op = place
    calls = program.calls[rank]
    if rng.random() < 0.5:
        op = rng.choice([other for other in calls if _shared(other)])
    return Fault("", rank, at, with_calls(program, rank, [*calls[:at], op, *calls[at:]]), op)


def _wrong(
    change: Callable[[Signature, Op], Signature | None], category: Category
) -> Callable[[random.Random, Program], Fault | None]:
    def make(rng: random.Random, program: Program) -> Fault | None:
        place = _somewhere(rng, program, lambda op: _shared(op) and change(op.signature, op) is not None)
        if place is None:
            return None
        rank, at, op = place
        signature = change(op.signature, op)
        assert signature is not None
        token = (op.token, "wrong") if op.is_message else signature
        wrong = replace(op, signature=signature, token=token)
        calls = program.calls[rank]
        changed = with_calls(program, rank, [*calls[:at], wrong, *calls[at + 1 :]])
        return Fault("", rank, at, changed, wrong, category=category)

    return make


def _plain(op: Op) -> bool:
    """All members pass the same sizes."""
    return op.token == op.signature or op.is_message


def _size(signature: Signature, op: Op) -> Signature | None:
    if not _plain(op) or not signature.input_sizes:
        return None
    ins, outs = (tuple((shape[0] * 3,) for shape in s) for s in (signature.input_sizes, signature.output_sizes))
    return signature._replace(input_sizes=ins, output_sizes=outs)


def _dtype(signature: Signature, op: Op) -> Signature | None:
    if not _plain(op) or not signature.input_dtypes:
        return None
    return signature._replace(input_dtypes=("Half",), output_dtypes=("Half",))


def _root(signature: Signature, op: Op) -> Signature | None:
    if signature.root is None or not _plain(op):
        return None
    ranks = op.group.ranks
    return signature._replace(root=ranks[(ranks.index(signature.root) + 1) % len(ranks)])


def _reduce_op(signature: Signature, op: Op) -> Signature | None:
    return signature._replace(reduce_op="max") if signature.reduce_op is not None else None


def _operation(signature: Signature, op: Op) -> Signature | None:
    if op.is_message:
        return None
    if signature.operation == "all_reduce" and len(signature.input_sizes[0]) == 1:
        return signature._replace(operation="broadcast", reduce_op=None, root=op.group.ranks[0])
    return Signature("barrier") if signature.operation != "barrier" else None


FAULTS: dict[str, Callable[[random.Random, Program], Fault | None]] = {
    "missing call": _missing_call,
    "missing step": _missing_step,
    "extra call": _extra_call,
    "stuck on the host": _stops(),
    "Python blocked": _stops(blocks_python=True),
    "stuck on the device": _device,
    "killed": _stops("killed"),
    "exception": _stops("raised"),
    "left early": _stops("clean"),
    "wrong size": _wrong(_size, Category.SIZE_MISMATCH),
    "wrong dtype": _wrong(_dtype, Category.DTYPE_MISMATCH),
    "wrong root": _wrong(_root, Category.ROOT_MISMATCH),
    "wrong reduce op": _wrong(_reduce_op, Category.REDUCE_OP_MISMATCH),
    "wrong operation": _wrong(_operation, Category.OP_MISMATCH),
}
