"""A simulated job on devices: its spans, as a collector receives them, with the devices' own durations."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from itertools import count

from otel_fr_collector.jobs.calls import SpanCall, Template
from otel_fr_collector.jobs.origins import make_run_id
from otel_fr_collector.jobs.run import Run
from otel_fr_collector.jobs.run_spans import add_spans

from otel_fr import identity
from otel_fr.match import CallState, Group, Signature

TRANSFER = 0.0005
AHEAD = 0.5
"""Most seconds by which hosts enqueue calls before their devices begin them."""
WATCHDOG = 0.1
"""Seconds between two checks of PyTorch's watchdog for calls that have ended."""


class DeviceJob:
    """A job in which each rank has a host that enqueues ahead, and one device that executes its calls in order.

    Args:
        untimed: share of the calls with a duration that is still unknown when their end is seen; 1: all.

    Attributes:
        now: the time on each device.
        silent: a rank whose spans do not arrive.
    """

    def __init__(self, size: int, seed: object = 0, *, untimed: float = 0.002) -> None:
        self.size = size
        self.draw = random.Random(f"device {seed}")
        self.now = [0.0] * size
        self.run = Run(make_run_id("job", 0, "r"), 0.0, 0.0)
        self.silent: int | None = None
        self._untimed = untimed
        self._offset = [1e9 + 3_600 * rank for rank in range(size)]
        self._phase = [self.draw.random() * WATCHDOG for _ in range(size)]
        self._records = [count() for _ in range(size)]
        self._numbers: dict[tuple[str, int | tuple[int, int]], count[int]] = defaultdict(count)
        self._templates: dict[tuple[object, ...], Template] = {}
        self._spans: list[list[SpanCall]] = [[] for _ in range(size)]

    def compute(self, rank: int, seconds: float) -> None:
        """Let the rank's device execute kernels that belong to no call."""
        self.now[rank] += seconds

    def collective(self, operation: str, ranks: Sequence[int], label: str = "default_pg") -> None:
        """Make a collective that ends on all members at once, when the last member has reached it."""
        group = Group(identity.group_id(label, ranks), label, label, tuple(ranks))
        end = max(self.now[rank] for rank in ranks) + TRANSFER
        for rank in ranks:
            number = next(self._numbers[group.id, rank])
            self._end(rank, self._template(group, Signature(operation), "collective"), number, 0, end)

    def message(self, source: int, target: int, label: str = "pp") -> None:
        """Make a send and its receive; both devices wait for each other."""
        group = Group(identity.group_id(label, (0, 1)), label, label, ())
        end = max(self.now[source], self.now[target]) + TRANSFER
        pair = next(self._numbers[group.id, (source, target)])
        for rank, operation, peer in ((source, "send", target), (target, "recv", source)):
            template = self._template(group, Signature(operation, peer=peer), "p2p")
            self._end(rank, template, next(self._numbers[group.id, rank]), pair, end)

    def tell(self) -> None:
        """Let all spans arrive, rank after rank."""
        for rank, spans in enumerate(self._spans):
            if rank != self.silent:
                add_spans(self.run, rank, spans, 0.0)
            spans.clear()

    def named(self) -> set[int]:
        """Return the ranks that an incident would name now."""
        return {one.rank for group in self.run.groups.values() for one in group.waits.blocks.stragglers()}

    def shown(self) -> set[int]:
        """Return the ranks that metrics and page name now."""
        found = [group.waits.blocks.slowest() for group in self.run.groups.values()]
        return {one.rank for one in found if one is not None}

    def _end(self, rank: int, template: Template, number: int, pair: int, end: float) -> None:
        took, begun, offset = end - self.now[rank], self.now[rank], self._offset[rank]
        self.now[rank] = end
        issued = max(0.0, begun - self.draw.uniform(0, AHEAD))
        seen = self._phase[rank] + WATCHDOG * (1 + (end - self._phase[rank]) // WATCHDOG)
        device = None if self.draw.random() < self._untimed else took
        record = next(self._records[rank])
        times = round((issued + offset) * 1e9), round((seen + offset) * 1e9)
        self._spans[rank].append((template, number, record, pair, *times, device))

    def _template(self, group: Group, signature: Signature, stream: str) -> Template:
        key = group.id, signature, stream
        if key not in self._templates:
            self._templates[key] = Template(
                group, len(group.ranks), signature, 0, stream, CallState.COMPLETED, is_end_seen=True,  # type: ignore[arg-type]
            )  # fmt: skip
        return self._templates[key]
