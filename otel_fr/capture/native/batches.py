"""Follows batches of sends and receives on backends of `torch_recorder.is_followed`: only the batch has a Work.

torch's Python code gets this Work from ``ProcessGroup._end_coalescing``, which calls no operator.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

from otel_fr.capture.native.library import KernelLibrary
from otel_fr.capture.native.recorder import CompiledRecorder
from otel_fr.capture.replaced import Attribute, Replacements
from otel_fr.torch_recorder import is_followed


def install(torch: Any, recorder: CompiledRecorder, library: KernelLibrary, replaced: Replacements) -> None:
    """Follow each batch that the program enqueues."""
    if library.follow_batches():
        follow = torch.ops.otel_fr.follow_batch.default
        replaced.put(Attribute.END_BATCH, torch.distributed, partial(_following, recorder, library, follow))


def _following(
    recorder: CompiledRecorder, library: KernelLibrary, follow: Callable[..., Any], original: Callable[..., Any]
) -> Callable[..., Any]:
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

    return end_coalescing


def _index(recorder: CompiledRecorder, process_group: Any) -> int | None:
    """Return the group's index in the ring, or None if its batches are not followed."""
    try:
        group = recorder.groups.get(process_group.group_name)
        if group is None or not any(is_followed(name) for name, _ in group.backends.values()):
            return None
        return int(group.index)
    except Exception:  # noqa: BLE001 - the batch continues
        recorder.failed()
        return None
