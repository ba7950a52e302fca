"""Names of the decisions that otel-fr notices without code in the program: docs/guide/fault-tolerance.md."""

from __future__ import annotations

from typing import Final

OPTIMIZER: Final = "optimizer step"
"""Whether an optimizer made a step in a step of the training: `MADE` or `SKIPPED`."""
MADE: Final = "made"
SKIPPED: Final = "skipped"
GRAPH_REPLAYS: Final = "CUDA graph replays"
"""The replays of CUDA graphs that were launched; each is a decision, of the value `LAUNCHED`."""
LAUNCHED: Final = "launched"
COMPILATION: Final = "torch.compile"
"""A compilation: which function, and why it was compiled again. An event: each is a decision of its own."""
EVENTS: Final = frozenset({COMPILATION})
"""Names whose decisions do not hold until the next one."""
CALLS_IN: Final = "calls in "
"""Followed by a process group: how many collectives a step of the training enqueued in it."""
FIRST_CALL_IN: Final = "first call in "
"""Followed by a process group: the first collective of a step in it, with its dtype and sizes."""
