"""One fault in one rank of a healthy program, and which verdicts on it are right."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from signal import SIGABRT, SIGKILL

from otel_fr.match import Category, Signature
from tests.support.random_jobs.programs import Op, Program, with_calls
from tests.support.random_jobs.simulation import Stops
from tests.support.random_jobs.views import WINDOW

OF_MESSAGES = ("wrong peer", "wrong tag")
FEWER_BATCHES = "fewer micro-batches"
STRAGGLER, THREAD_ALONE = "straggler", "exception in a thread"

LATENESS = 3.0
"""Seconds from the death of a waiting rank to the arrival of the late rank that it waited for. Hosts that run ahead of
their devices may reach a call nearly one second apart."""


@dataclass(slots=True)
class Fault:
    """A program with one fault.

    Attributes:
        kind: a key of `FAULTS`. rank: the faulty rank.
        at: index of the rank's call at which its program changes or stops.
        op: the call that is left out, added or wrong; None: the rank stops.
        ending: how the rank ends: "" (it does not), "clean", "raised", "killed" (by ``signal``).
        dies_after: seconds between its last call and its end.
        blocks_python: its Python threads do not run.
        threads: ranks in which a thread other than the main thread raises an exception. That is no fault.
        is_innocent: no rank is at fault.
        category: the category that a verdict on a mismatch must have; None: no particular one.
    """

    kind: str
    rank: int
    at: int
    program: Program
    op: Op | None = None
    stops: Stops = field(default_factory=Stops)
    ending: str = ""
    signal: int = SIGKILL
    dies_after: float = 0.0
    blocks_python: bool = False
    threads: frozenset[int] = frozenset()
    is_innocent: bool = False
    category: Category | None = None


_Make = Callable[[random.Random, Program], Fault | None]


def random_fault(rng: random.Random, program: Program, kind: str) -> Fault | None:
    """Return a fault of that kind in a random rank at a random call; None: no call of the program allows it."""
    found = FAULTS[kind](rng, program)
    if found is not None:
        found.kind = kind
    return found


def _shared(op: Op) -> bool:
    """Return True if other ranks take part in the call."""
    return op.is_message or len(op.group.ranks) > 1


def _somewhere(
    rng: random.Random, program: Program, wanted: Callable[[Op], bool] = _shared
) -> tuple[int, int, Op] | None:
    """Return a random rank with a wanted call, the call's index, and the call."""
    ranks = list(program.calls)
    rng.shuffle(ranks)
    for rank in ranks:
        places = [index for index, op in enumerate(program.calls[rank]) if wanted(op)]
        if places:
            index = rng.choice(places)
            return rank, index, program.calls[rank][index]
    return None


# The rank stops.


def _stops(ending: str = "", *, blocks_python: bool = False) -> _Make:
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
    """The rank's device completes nothing from one call on. The host continues as far as it may run ahead."""
    place = _somewhere(rng, program)
    if place is None:
        return None
    rank, at, _ = place
    return Fault("", rank, at, program, stops=Stops(device={rank: (at, rng.random() < 0.7)}))


def _dies_in_a_wait(signal: int, least: float, most: float) -> _Make:
    """The rank is killed while it waits in a collective for a rank that is merely late and arrives afterwards.

    Args:
        least, most: seconds for which it waits.
    """

    def make(rng: random.Random, program: Program) -> Fault | None:
        place = _somewhere(rng, program, lambda op: _shared(op) and not op.is_message)
        if place is None:
            return None
        rank, at, op = place
        late = rng.choice([other for other in op.group.ranks if other != rank])
        number = sum(other.group is op.group and not other.is_message for other in program.calls[rank][: at + 1])
        own = [i for i, other in enumerate(program.calls[late]) if other.group is op.group and not other.is_message]
        waits = rng.uniform(least, most)
        stops = Stops(
            host={rank: at + 1}, killed={rank}, inside={rank}, away={late: (own[number - 1], waits + LATENESS)}
        )
        return Fault("", rank, at, program, stops=stops, ending="killed", signal=signal, dies_after=waits)

    return make


def _straggler(rng: random.Random, program: Program) -> Fault | None:
    """The rank's host is busy for long before a call, and then continues."""
    place = _somewhere(rng, program)
    if place is None:
        return None
    rank, at, _ = place
    return Fault("", rank, at, program, stops=Stops(away={rank: (at, rng.uniform(0.2, 5.0) * WINDOW)}))


# A thread raises.


def _thread_alone(rng: random.Random, program: Program) -> Fault | None:
    rank = rng.choice(list(program.calls))
    return Fault("", rank, len(program.calls[rank]), program, threads=frozenset({rank}), is_innocent=True)


def _thread_beside(rng: random.Random, program: Program) -> Fault | None:
    """There is another fault, and a thread of the faulty rank or of any rank raised an exception."""
    fault = FAULTS[rng.choice(_BESIDE)](rng, program)
    if fault is not None:
        fault.threads = frozenset({rng.choice([fault.rank, *program.calls])})
    return fault


_BESIDE = (
    "missing call",
    "stuck on the host",
    "stuck on the host",
    "Python blocked",
    "killed",
    "exception",
    "wrong size",
)


# The rank calls something else.


def _missing_call(rng: random.Random, program: Program) -> Fault | None:
    place = _somewhere(rng, program)
    if place is None:
        return None
    rank, at, op = place
    calls = program.calls[rank]
    return Fault("", rank, at, with_calls(program, rank, calls[:at] + calls[at + 1 :]), op)


def _missing_step(rng: random.Random, program: Program) -> Fault | None:
    """The rank leaves out all calls of one step, as if its data ended a step earlier."""
    place = _somewhere(rng, program, lambda op: op.step >= 0 and _shared(op))
    if place is None:
        return None
    rank, _, op = place
    calls = program.calls[rank]
    at = next(index for index, other in enumerate(calls) if other.step == op.step)
    return Fault("", rank, at, with_calls(program, rank, [o for o in calls if o.step != op.step]), op)


def _fewer_batches(rng: random.Random, program: Program) -> Fault | None:
    """A rank of a pipeline makes one micro-batch less in a step: it leaves out the last forward and backward pass."""
    parts = ("forward", "backward", "layer")
    place = _somewhere(rng, program, lambda op: op.is_message and op.site.endswith(parts))
    if place is None:
        return None
    rank, _, op = place
    calls = program.calls[rank]
    own = [at for at, other in enumerate(calls) if other.step == op.step and other.site.endswith(parts)]
    batches = sum(calls[at] == op for at in own)
    size = len(own) // (2 * batches)  # each part has equally many calls
    left_out = {*own[size * (batches - 1) : size * batches], *own[-size:]}
    if batches < 2:
        return None
    changed = [other for at, other in enumerate(calls) if at not in left_out]
    return Fault("", rank, min(left_out), with_calls(program, rank, changed), op)


def _extra_call(rng: random.Random, program: Program) -> Fault | None:
    """The rank makes an extra call: a call twice, or a call from another place of its program."""
    place = _somewhere(rng, program)
    if place is None:
        return None
    rank, at, op = place
    calls = program.calls[rank]
    if rng.random() < 0.5:
        op = rng.choice([other for other in calls if _shared(other)])
    return Fault("", rank, at, with_calls(program, rank, [*calls[:at], op, *calls[at:]]), op)


def _swapped(rng: random.Random, program: Program) -> Fault | None:
    """The rank makes two neighbouring collectives, of one group or of two, in the opposite order."""

    def differ(rank: int, at: int) -> bool:
        first, second = program.calls[rank][at : at + 2]
        alike = first.group is second.group and first.token == second.token
        return not alike and not any(op.is_message or not _shared(op) for op in (first, second))

    places = [
        (rank, at) for rank, calls in program.calls.items() for at in range(len(calls) - 1) if differ(rank, at)
    ]  # fmt: skip
    if not places:
        return None
    rank, at = rng.choice(places)
    calls = program.calls[rank]
    changed = [*calls[:at], calls[at + 1], calls[at], *calls[at + 2 :]]
    return Fault("", rank, at, with_calls(program, rank, changed), calls[at])


def _misdirected(change: Callable[[random.Random, Op, int], Op | None]) -> _Make:
    """The rank's send or receive names another rank or tag than its other half."""

    def make(rng: random.Random, program: Program) -> Fault | None:
        place = _somewhere(rng, program, lambda op: op.is_message)
        if place is None:
            return None
        rank, at, op = place
        wrong = change(rng, op, rank)
        if wrong is None:
            return None
        calls = program.calls[rank]
        return Fault("", rank, at, with_calls(program, rank, [*calls[:at], wrong, *calls[at + 1 :]]), wrong)

    return make


def _other_peer(rng: random.Random, op: Op, rank: int) -> Op | None:
    others = [other for other in op.group.ranks if other not in (rank, op.peer)]
    if not others:
        return None
    peer = rng.choice(others)
    return replace(op, peer=peer, signature=op.signature._replace(peer=peer))


def _other_tag(rng: random.Random, op: Op, rank: int) -> Op:
    return replace(op, signature=op.signature._replace(tag=(op.signature.tag or 0) + rng.randint(1, 3)))


def _wrong(change: Callable[[Signature, Op], Signature | None], category: Category) -> _Make:
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
    """Return True if all members pass the same sizes."""
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


FAULTS: dict[str, _Make] = {
    "missing call": _missing_call,
    "missing step": _missing_step,
    FEWER_BATCHES: _fewer_batches,
    "extra call": _extra_call,
    "swapped order": _swapped,
    OF_MESSAGES[0]: _misdirected(_other_peer),
    OF_MESSAGES[1]: _misdirected(_other_tag),
    "stuck on the host": _stops(),
    "Python blocked": _stops(blocks_python=True),
    "stuck on the device": _device,
    "killed": _stops("killed"),
    "exception": _stops("raised"),
    "left early": _stops("clean"),
    "killed in a wait for a late rank": _dies_in_a_wait(SIGKILL, 1.1 * WINDOW, 4 * WINDOW),
    "SIGABRT before the stall time": _dies_in_a_wait(SIGABRT, 0.1 * WINDOW, 0.5 * WINDOW),
    STRAGGLER: _straggler,
    THREAD_ALONE: _thread_alone,
    "exception in a thread, and a fault": _thread_beside,
    "wrong size": _wrong(_size, Category.SIZE_MISMATCH),
    "wrong dtype": _wrong(_dtype, Category.DTYPE_MISMATCH),
    "wrong root": _wrong(_root, Category.ROOT_MISMATCH),
    "wrong reduce op": _wrong(_reduce_op, Category.REDUCE_OP_MISMATCH),
    "wrong operation": _wrong(_operation, Category.OP_MISMATCH),
}
