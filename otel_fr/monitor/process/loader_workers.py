"""Takes stacks of a rank's DataLoader workers: the rank's own stack shows only that it waits for a batch."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from otel_fr.monitor.process.state import Process, look

NAME: Final = "pt_data_worker"
"""torch's name of the main thread of each worker (torch/utils/data/_utils/worker.py)."""
LIMIT_SECONDS: Final = 5.0
"""After this time no further worker is examined."""
MAX_SHOWN: Final = 3
"""How many workers are shown. Workers that hang mostly do so at the same place."""
MAX_TEXT: Final = 4 * 1024
"""Most characters for one worker."""
_MAX_LOOKED_AT: Final = 64
_LOOP: Final = re.compile(r"^ *_worker_loop \(.*$", re.MULTILINE)
"""The frame that calls the program's code. The frames outside are the same in all workers."""
_IDLE: Final = re.compile(r"^ *(?:\w+\.)?get \(.*queues\.py:\d+\)\n *_worker_loop \(", re.MULTILINE)
"""Matches the stack of a worker that waits for the indexes of the next batch."""


def workers_of(pid: int, root: Path = Path("/proc")) -> Iterator[int]:
    """Yield the process ids of the workers of a process. With a fork server, they are its children's children."""
    parents = [pid]
    for _ in range(2):
        found = [child for parent in parents for child in _children(Process(parent, root))][:_MAX_LOOKED_AT]
        yield from [child for child in found if Process(child, root).text("comm").strip() == NAME]
        parents = found


def _children(process: Process) -> list[int]:
    lists = [process.text(f"task/{tid}/children") for tid in (process.pid, *process.threads())]
    return [int(number) for text in lists for number in text.split()]


def texts_of(pid: int, stacks: Callable[[int], str], doing: Callable[[int], str] = look) -> str:
    """Return what each worker that is not idle is doing, according to the kernel, and its stack; "": there is none.

    Args:
        stacks: returns the stack of a process, as py-spy writes it; "": unknown.
        doing: returns what the kernel shows a process doing.
    """
    deadline = time.monotonic() + LIMIT_SECONDS
    found: list[str] = []
    for worker in workers_of(pid):
        if len(found) == MAX_SHOWN or time.monotonic() > deadline:
            break
        text = stacks(worker)
        if text and not _IDLE.search(text):
            what = doing(worker)
            loop = _LOOP.search(text)
            shown = text[: loop.end()] if loop else text
            found.append(f"DataLoader worker, process {worker}{what and f', {what}'}:\n{shown}"[:MAX_TEXT])
    return "\n\n".join(found)
