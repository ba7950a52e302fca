"""How ranks end once nothing moves: they wait, time out, are aborted, or the launcher ends them."""

from __future__ import annotations

import random
from signal import SIGABRT, SIGKILL, SIGTERM

from otel_fr.match import CallState, Ending, Rank, ThreadException
from tests.support.random_jobs.faults import Fault
from tests.support.random_jobs.simulation import NEVER, SimulatedCall, Simulation
from tests.support.random_jobs.views import WINDOW, Ends

TRUNCATED = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:446] op.preamble.length <= op.nbytes. 4096 vs 4"
"""gloo's error for a message whose size does not fit."""


def natural_ends(job: Simulation, *faults: Fault) -> Ends:
    """Return how ranks ended: at the end of their program, by a failed call, or by their fault."""
    ends = Ends()
    for rank, at in job.stopped_at.items():
        if rank in job.stops.host and any(rank == fault.rank for fault in faults):
            continue
        failed = [call for call in job.calls[rank][-1:] if call.state is CallState.FAILED]
        ends.at[rank] = at + 0.01
        ends.infos[rank] = raised(rank, failed[0], TRUNCATED) if failed else _clean(rank)
    for fault in faults:
        _end_of(job, fault, ends)
    return ends


def _end_of(job: Simulation, fault: Fault, ends: Ends) -> None:
    """Add how the faulty rank ended, or where it is stuck."""
    for rank in fault.threads:
        alone = ThreadException("prefetch", "ValueError: bad sample 4711", "loader.py:9 fill")
        ends.infos.setdefault(rank, Rank(rank)).thread_exceptions = (alone,)
    rank = fault.rank
    if rank in job.stops.host:
        threads = ends.infos[rank].thread_exceptions if rank in ends.infos else ()
        info = Rank(rank, site="train.py:99 load", python_blocked=fault.blocks_python, thread_exceptions=threads)
        if fault.ending:
            ends.at[rank] = job.stopped_at.get(rank, job.clock) + fault.dies_after
        if fault.ending == "clean":
            info.ending, info.exit_code = Ending.CLEAN, 0
        elif fault.ending == "raised":
            info.ending, info.exit_code = Ending.RAISED, 1
            info.exception, info.exception_site = "ValueError: bad sample 4711", "train.py:99 load"
        elif fault.ending == "killed":
            info.ending, info.signal = Ending.KILLED, fault.signal
        ends.infos[rank] = info


def _clean(rank: int) -> Rank:
    return Rank(rank, ending=Ending.CLEAN, exit_code=0)


def raised(rank: int, call: SimulatedCall, text: str) -> Rank:
    """Return a rank that an exception of the call ended."""
    return Rank(rank, ending=Ending.RAISED, exit_code=1, exception=f"RuntimeError: {text}", exception_site=call.op.site)


def first_open(job: Simulation, rank: int) -> SimulatedCall | None:
    return next((call for call in job.calls[rank] if call.ended == NEVER), None)


def peers_fail(job: Simulation, fault: Fault, ends: Ends, rng: random.Random) -> float:
    """A rank ended, so its connections close. Calls in its groups fail in its peers, and these end too.

    Returns the time when the last rank ended.
    """
    now = max(job.clock, ends.at[fault.rank])
    gone = [fault.rank]
    last = now
    for left in gone:
        for rank in job.calls:
            call = first_open(job, rank)
            if rank in ends.at or call is None or left not in call.op.group.ranks:
                continue
            if call.op.is_message and left != call.op.peer:
                continue
            last = at = last + rng.uniform(0.001, 0.01)
            fail(call, at, "error")
            ends.at[rank], ends.infos[rank] = at, raised(rank, call, "Connection closed by peer [10.0.0.7]:2345")
            gone.append(rank)
    return _launcher_ends_the_rest(job, fault, ends, rng, last) if rng.random() < 0.5 else last


def abort(job: Simulation, fault: Fault, ends: Ends, rng: random.Random) -> float:
    """End the ranks whose wait has timed out. All ranks of a job end in the same way, as in `_aborted`.

    The launcher then ends the other ranks, or has not done so yet. Returns the time when the last rank ended.
    """
    job.timeout = timeout = rng.uniform(2.5 * WINDOW, 30.0)
    how = rng.choice(_DEVICE_ABORTS if job.behaviour.depth > 1 else _HOST_ABORTS)
    waits = {rank: call for rank in job.calls if rank not in ends.at and (call := first_open(job, rank)) is not None}
    order = sorted(waits, key=lambda rank: waits[rank].enqueued)
    if not order:
        return job.clock
    launcher = rng.random() < 0.7
    reaction = rng.choice([0.02, 0.3, 5.0])
    patience = timeout if how != "own limit" else rng.uniform(1.2 * WINDOW, 0.9 * timeout)
    first = waits[order[0]].enqueued + patience
    last = first
    for rank in order:
        at = waits[rank].enqueued + patience
        if launcher and at > first + reaction:
            break
        last = ends.at[rank] = at
        ends.infos[rank] = _aborted(rank, how, waits[rank], at, rng)
    return _launcher_ends_the_rest(job, fault, ends, rng, first + reaction) if launcher else last


_HOST_ABORTS = ("SIGABRT", "timeout", "timeout", "os._exit", "own limit")
_DEVICE_ABORTS = ("SIGABRT", "SIGABRT", "backend error", "os._exit")


def _aborted(rank: int, how: str, call: SimulatedCall, at: float, rng: random.Random) -> Rank:
    """Return how a rank ends that has waited too long in the call: a watchdog of the backend or the program ends it, or
    the call raises an exception, by the backend or by a handler of the program's own limit."""
    if how == "timeout":
        fail(call, at, "timeout")
        return raised(rank, call, f"Timed out waiting {(at - call.enqueued) * 1000:.0f}ms for recv operation")
    if how == "own limit":
        fail(call, at, "error")
        return raised(rank, call, "the step took too long")
    if rng.random() < 0.3:
        fail(call, at, "timeout")
    if how == "SIGABRT":
        return Rank(rank, ending=Ending.KILLED, signal=SIGABRT)
    if how == "os._exit":
        return Rank(rank, ending=Ending.RAISED, exit_code=3)
    info = raised(rank, call, "")
    info.exception = "torch.distributed.DistBackendError: NCCL communicator was aborted on rank"
    return info


def join_late(job: Simulation, fault: Fault, ends: Ends, rng: random.Random) -> float:
    """The late rank's peers give up at the timeout. Then the late rank makes its call, which fails or waits.

    Returns the time of that call.
    """
    job.timeout = rng.uniform(1.2, 5.0) * WINDOW
    last = job.clock
    for rank in job.calls:
        call = first_open(job, rank)
        if rank != fault.rank and rank not in ends.at and call is not None:
            at = call.enqueued + job.timeout
            fail(call, at, "timeout")
            ends.at[rank] = at
            ends.infos[rank] = raised(rank, call, "Timed out waiting for recv operation")
            last = max(last, at)
    at = last + rng.uniform(0.01, 3.0)
    ends.infos.pop(fault.rank)
    call = job.record(fault.rank, fault.program.calls[fault.rank][len(job.calls[fault.rank])], at)
    if rng.random() < 0.5:
        fail(call, at + 0.01, "error")
        ends.at[fault.rank] = at + 0.02
        ends.infos[fault.rank] = raised(fault.rank, call, "Connection closed by peer [10.0.0.7]:2345")
    return at


def _launcher_ends_the_rest(job: Simulation, fault: Fault, ends: Ends, rng: random.Random, now: float) -> float:
    """Send SIGTERM, which ends a rank or raises in it. A rank whose Python does not run gets SIGKILL 30 s later.

    Returns the time when the last rank ended.
    """
    last = max([now, *ends.at.values()])
    for rank in job.calls:
        if rank in ends.at:
            continue
        info = ends.infos.get(rank) or Rank(rank)
        ends.infos[rank] = info
        ends.at[rank] = last + rng.uniform(0.001, 0.05)
        if info.python_blocked:
            info.ending, info.signal = Ending.KILLED, SIGKILL
            ends.at[rank] += 30.0
        elif rng.random() < 0.3:
            info.ending, info.exit_code = Ending.RAISED, 1
            info.exception = "KeyboardInterrupt"
        else:
            info.ending, info.signal = Ending.KILLED, SIGTERM
    return max(ends.at.values())


def fail(call: SimulatedCall, at: float, error: str) -> None:
    """Let the call fail."""
    call.state, call.ended, call.error = CallState.FAILED, at, error
