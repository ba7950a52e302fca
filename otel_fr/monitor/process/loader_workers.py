"""Stacks of a rank's DataLoader workers: the rank itself, which waits for a batch, shows only that it does."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from otel_fr.monitor.process.state import Process, look

NAME: Final = "pt_data_worker"
"""What torch calls the main thread of each worker (torch/utils/data/_utils/worker.py)."""
LIMIT_SECONDS: Final = 5.0
"""After this no further worker is looked at."""
MAX_SHOWN: Final = 3
"""Workers that are shown: those that hang mostly do so at the same place."""
MAX_TEXT: Final = 4 * 1024
"""Characters of one worker."""
_MAX_LOOKED_AT: Final = 64
_LOOP: Final = re.compile(r"^ *_worker_loop \(.*$", re.MULTILINE)
"""The frame that calls what the program gave the DataLoader. The frames that called it are of all workers."""
_IDLE: Final = re.compile(r"^ *(?:\w+\.)?get \(.*queues\.py:\d+\)\n *_worker_loop \(", re.MULTILINE)
"""It waits for the numbers of the next batch."""


def workers_of(pid: int, root: Path = Path("/proc")) -> Iterator[int]:
    """The process ids of the workers that a process has started; those of a fork server are its children's children."""
    parents = [pid]
    for _ in range(2):
        found = [child for parent in parents for child in _children(Process(parent, root))][:_MAX_LOOKED_AT]
        yield from [child for child in found if Process(child, root).text("comm").strip() == NAME]
        parents = found


def _children(process: Process) -> list[int]:
    lists = [process.text(f"task/{tid}/children") for tid in (process.pid, *process.threads())]
    return [int(number) for text in lists for number in text.split()]


def texts_of(pid: int, stacks: Callable[[int], str], doing: Callable[[int], str] = look) -> str:
    """The workers that are not idle, each with what the kernel says of it and its stack; "": there is none.

    Args:
        stacks: the stack of a process, as py-spy writes it; "": not known.
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
