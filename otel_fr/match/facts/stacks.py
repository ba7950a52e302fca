"""What stacks of ranks show: which ranks are at the same place, and which wait for their device."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from otel_fr.match.finding import StackGroup
from otel_fr.match.model import Call, CallState, Ending, Evidence
from otel_fr.stacks import NEWEST_FIRST, ORDER, Frame, first_native_thread, first_thread, frames_of, places_of

MAX_GROUPS: Final = 16
"""The groups of the most ranks are kept."""
MAX_FRAMES: Final = 48
"""The innermost frames are kept."""
_MAX_FRAME: Final = 300


def group_stacks(stacks: Iterable[tuple[int, str]]) -> tuple[StackGroup, ...]:
    """The ranks of each place, most ranks first.

    Args:
        stacks: ranks with the text of their threads' stacks, the rank's thread first, as `faulthandler` or `traceback`
            write it. Other threads, and the ids of threads, make no difference.
    """
    by_text: dict[str, list[int]] = {}
    for rank, text in stacks:
        by_text.setdefault(_main_thread(text), []).append(rank)
    by_frames: dict[tuple[str, ...], list[int]] = {}
    for text, ranks in by_text.items():
        frames = tuple(place[:_MAX_FRAME] for place in places_of(text)[-MAX_FRAMES:])
        if frames:
            by_frames.setdefault(frames, []).extend(ranks)
    groups = [StackGroup(tuple(sorted(ranks)), frames) for frames, ranks in by_frames.items()]
    return tuple(sorted(groups, key=lambda group: (-len(group.ranks), group.ranks))[:MAX_GROUPS])


def _main_thread(text: str) -> str:
    """The part of the first thread, without its name and id; it says which end of its frames is the innermost."""
    thread = first_thread(text)
    head, _, frames = thread.partition("\n")
    return f"{NEWEST_FIRST if NEWEST_FIRST in head else ''}\n{frames.strip()}" if ORDER in head else thread


def groups_of(ranks: Iterable[int], stacks: Mapping[int, str]) -> tuple[StackGroup, ...]:
    """`group_stacks` of some ranks; () if fewer than two of them have a stack."""
    known = [(rank, stacks[rank]) for rank in sorted(set(ranks)) if stacks.get(rank)]
    return group_stacks(known) if len(known) > 1 else ()


_NATIVE_WAIT: Final = re.compile(
    r"\b((?:cuda|hip)(?:Device|Stream|Event)Synchronize|cu(?:Ctx|Stream|Event)Synchronize|_local_scalar_dense)"
)
_DEVICE_MODULE: Final = re.compile(r"(?:^|/)torch(?:_\w+)?/(?P<device>\w+)/(?P<module>__init__|streams)\.py$")
_PRINTING: Final = re.compile(r"(?:^|/)torch/(?:_tensor_str\.py$)")
_C10D: Final = re.compile(r"(?:^|/)torch/distributed/distributed_c10d\.py$")
_SOURCE: Final = re.compile(
    r"\.(?P<method>item|tolist|cpu|numpy|nonzero|masked_select|synchronize)\("
    r"|\.to\(\s*(?:device\s*=\s*)?(?:torch\.device\(\s*)?(?P<cpu>['\"]cpu['\"])"
)
"""Calls of torch that return once the device has done what was enqueued before: of a tensor on a device, these copy it
or its size to the host."""


def sync_of(stack: str) -> str:
    """What the first thread of a rank's stacks waits in for its device: ``"torch.cuda.synchronize"``, ``".item()"``.

    ``""`` if it is in nothing of that kind, or that is not seen: methods of tensors are C++ code, so only the line of
    Python shows them, or the native frames. A condition on a tensor (``if loss > 3:``) is not recognised.

    Args:
        stack: text of `faulthandler`, or of `traceback` with the lines of code; native frames may follow.
    """
    for innermost in frames_of(stack)[:1]:
        found = _of_frame(innermost)
        if found:
            return found
    wait = _NATIVE_WAIT.search(first_native_thread(stack))
    return wait[1] if wait is not None else ""


def _of_frame(frame: Frame) -> str:
    """What the innermost frame is in."""
    file, name = frame.file, frame.name
    module = _DEVICE_MODULE.search(file)
    if module is not None and name == "synchronize":
        return f"torch.{module['device']}{'.synchronize' if module['module'] == '__init__' else ': stream or event'}"
    if _PRINTING.search(file):
        return "printing a tensor"
    if _C10D.search(file):
        return "torch.distributed.barrier" if name == "barrier" else ""
    source = _SOURCE.search(frame.source)
    if source is None:
        return ""
    return '.to("cpu")' if source["cpu"] else f".{source['method']}()"


class DeviceSyncs:
    """Which ranks wait for their device, for one judgement. Stacks are read only of the ranks that are asked for."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._known: dict[int, str] = {}

    def of(self, rank: int) -> str:
        """`sync_of` the rank's stacks, if it has not moved since they were taken, nor for the window."""
        if rank not in self._known:
            info = self._evidence.ranks.get(rank)
            still = info is not None and info.ending is Ending.RUNNING and not info.python_blocked
            if info is None or not still or not info.stack or (info.idle or 0.0) < self._evidence.window:
                self._known[rank] = ""
            else:
                self._known[rank] = sync_of(info.stack)
        return self._known[rank]

    def waits_in(self, call: Call) -> bool:
        """The call may be what the rank's device is in, and its thread waits for the device.

        Its backend does not show when it ends, so only the newest such call of a group has an age.
        """
        is_message = call.stream == "p2p"
        return call.state is CallState.UNKNOWN and not call.queued and not is_message and bool(self.of(call.rank))
