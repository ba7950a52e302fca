"""Asks the collector for advice before a node joins again, and decides whether the node follows it."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from otel_fr.checks import runner
from otel_fr.checks.model import ATTRIBUTION, Status, Task
from otel_fr.checks.report import say
from otel_fr.checks.settings import ACT, OFF, AttributionSettings

_LATER: Final = 5.0
"""The asking process is ended this many seconds after its time is over."""

STOP, EXCLUDE_NODE = "stop", "exclude_node"


class Advice(NamedTuple):
    """The parts of the collector's answer about a run that matter here.

    Attributes:
        run: id of the run.
        text: the reasons.
        nodes: nodes that should be left out.
        is_here: True if this node is one of them.
    """

    run: str
    attempt: int
    recommendation: str
    text: str
    nodes: tuple[str, ...] = ()
    is_here: bool = False

    def line(self) -> str:
        """Return the advice as one line for the user."""
        nodes = f" {', '.join(self.nodes)}" if self.recommendation == EXCLUDE_NODE else ""
        return f"attempt {self.attempt} failed; the collector advises {self.recommendation}{nodes}: {self.text}"


Find = Callable[[str], "Advice | str"]
"""Asks for advice. Its argument is the run of the last answer. Returns the advice, or why there is none."""


def ask(job: str, seconds: float, seen: str, env: Mapping[str, str] = os.environ) -> Advice | str:
    """Ask the collector, in a process with a time limit. Return the advice, or why there is none."""
    arguments = {"job": job, "seconds": seconds, "seen": seen}
    (result,) = runner.run([Task(ATTRIBUTION, job, seconds + _LATER, arguments)], env)
    if result.status is not Status.OK:
        return result.text
    data = json.loads(result.text)
    return Advice(
        data["run"], data["attempt"], data["recommendation"], data["text"], tuple(data["nodes"]), data["is_here"]
    )


@dataclass
class Adviser:
    """Asks before each restart.

    Attributes:
        job: the job's name; empty: the ranks' job has no known name, so the collector cannot be asked.
    """

    settings: AttributionSettings
    job: str
    find: Find
    _seen: str = ""
    _thread: threading.Thread | None = None
    _has_complained: bool = False

    @classmethod
    def of(cls, settings: AttributionSettings, job: str) -> Adviser:
        """Create an adviser that asks the collector as configured."""
        return cls(settings, job, lambda seen: ask(job, settings.seconds, seen))

    def before_restart(self) -> Advice | None:
        """Wait for advice that this node must follow, and return it, or None. If advice is only shown, do not wait."""
        if self.settings.mode == OFF or not self.settings.can_ask or not self.job:
            return None
        if self.settings.mode == ACT:
            return self._show()
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._show, name="otel-fr-attribution", daemon=True)
            self._thread.start()
        return None

    def _show(self) -> Advice | None:
        found = self.find(self._seen)
        if isinstance(found, str):
            if self.settings.mode == ACT and not self._has_complained:
                self._has_complained = True
                say(f"the collector gives no advice: {found}")
            return None
        self._seen = found.run
        say(found.line())
        return found
