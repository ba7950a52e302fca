"""What stacks of ranks show: which ranks are at the same place, and which wait for their device."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from otel_fr.match.finding import StackGroup
from otel_fr.match.model import Call, CallState, Ending, Evidence
from otel_fr.stacks import NEWEST_FIRST, ORDER, Frame, first_native_thread, first_thread, frames_of, places_of

MAX_GROUPS: Final = 16
"""Groups that are kept: those with the most ranks."""
MAX_FRAMES: Final = 48
"""Frames that are kept: the innermost."""
_MAX_FRAME: Final = 300


def group_stacks(stacks: Iterable[tuple[int, str]]) -> tuple[StackGroup, ...]:
    """Group ranks by the place where they are, largest group first.

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
    """Return the frames of the first thread without its name and id. The first line says which end is the innermost."""
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
"""Calls of torch that return once the device has done all that was enqueued before. Those of a tensor on a device copy
the tensor, or its size, to the host."""


def sync_of(stack: str) -> str:
    """Return the call in which the first thread waits for its device: ``"torch.cuda.synchronize"``, ``".item()"``.

    ``""`` if there is no such call, or it is not visible: methods of tensors are C++ code, so only the line of Python
    shows them, or the native frames. A condition on a tensor (``if loss > 3:``) is not recognised.

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
    """Return the call in which the innermost frame waits for its device, or ""."""
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
    """Finds which ranks wait for their device, for one judgement. Only stacks that are asked for are parsed."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._known: dict[int, str] = {}

    def of(self, rank: int) -> str:
        """Return `sync_of` the rank's stacks if it runs and has not moved for the window, else ""."""
        if rank not in self._known:
            info = self._evidence.ranks.get(rank)
            still = info is not None and info.ending is Ending.RUNNING and not info.python_blocked
            if info is None or not still or not info.stack or (info.idle or 0.0) < self._evidence.window:
                self._known[rank] = ""
            else:
                self._known[rank] = sync_of(info.stack)
        return self._known[rank]

    def waits_in(self, call: Call) -> bool:
        """True if the rank's thread waits for its device, which may be executing this call.

        The call's backend does not show when calls end, so only the newest such call of a group has an age.
        """
        is_message = call.stream == "p2p"
        return call.state is CallState.UNKNOWN and not call.queued and not is_message and bool(self.of(call.rank))
