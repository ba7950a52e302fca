"""Names of the decisions that otel-fr notices without code in the program: docs/guide/fault-tolerance.md."""

from __future__ import annotations

from typing import Final

OPTIMIZER: Final = "optimizer step"
"""Whether an optimizer made a step in a training step: `MADE` or `SKIPPED`."""
MADE: Final = "made"
SKIPPED: Final = "skipped"
GRAPH_REPLAYS: Final = "CUDA graph replays"
"""Launched replays of CUDA graphs. Each is a decision with the value `LAUNCHED`."""
LAUNCHED: Final = "launched"
COMPILATION: Final = "torch.compile"
"""A compilation: which function, and why it was compiled again. Each is an event."""
EVENTS: Final = frozenset({COMPILATION})
"""Names whose decisions do not hold until the next one."""
CALLS_IN: Final = "calls in "
"""Followed by a process group: how many collectives a training step enqueued in the group."""
FIRST_CALL_IN: Final = "first call in "
"""Followed by a process group: the first collective of a step in the group, with its dtype and sizes."""
