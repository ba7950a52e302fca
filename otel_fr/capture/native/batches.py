"""Batches of sends and receives on a backend that is followed: the batch has a Work, and its members have none.

torch's Python code gets that Work from ``ProcessGroup._end_coalescing``, which passes no operator.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Final

from otel_fr.capture.native.library import KernelLibrary
from otel_fr.capture.native.recorder import CompiledRecorder
from otel_fr.capture.replaced import replace
from otel_fr.torch_recorder import is_followed

_METHOD: Final = "_end_coalescing"


def install(torch: Any, recorder: CompiledRecorder, library: KernelLibrary) -> Callable[[], None]:
    """Follow each batch that is issued. Returns what restores the method."""
    group_type = torch.distributed.ProcessGroup
    original = getattr(group_type, _METHOD, None)
    if original is None or not library.follow_batches():
        return lambda: None
    follow = torch.ops.otel_fr.follow_batch.default

    @wraps(original)
    def end_coalescing(process_group: Any, *args: Any, **named: Any) -> Any:
        index = _index(recorder, process_group)
        try:
            work = original(process_group, *args, **named)
        except BaseException:
            if index is not None:
                library.drop_batch(index)
            raise
        if index is not None:
            try:
                follow(work.boxed(), index)
            except Exception:  # noqa: BLE001 - the batch continues
                recorder.failed()
        return work

    return replace(group_type, _METHOD, end_coalescing)


def _index(recorder: CompiledRecorder, process_group: Any) -> int | None:
    """Of the group in the ring; None: its batches are not followed."""
    try:
        group = recorder.groups.get(process_group.group_name)
        if group is None or not any(is_followed(name) for name, _ in group.backends.values()):
            return None
        return int(group.index)
    except Exception:  # noqa: BLE001 - the batch continues
        recorder.failed()
        return None
