"""`RankMonitorClient`: the client API of nvidia-resiliency-ext, based on otel-fr's heartbeats and sections.

It needs no special launcher and no server: the rank's monitor judges the heartbeats and sections
(docs/guide/fault-tolerance.md).
"""

from __future__ import annotations

import dataclasses
import logging
import os
import sys
import time
from collections.abc import Collection, Mapping
from enum import Enum
from typing import Any, Final

from otel_fr import semconv
from otel_fr.config import Config
from otel_fr.fault_tolerance import sections
from otel_fr.fault_tolerance.timeouts import (
    HeartbeatTimeouts,
    Observed,
    SectionTimeouts,
    heartbeat_timeouts,
    section_timeouts,
)

STATE_KEY: Final = "current_timeouts"
SAFETY_FACTOR: Final = 5.0
"""Computed timeouts are the longest observed time multiplied by this, as in nvidia-resiliency-ext."""


class RankMonitorClientError(Exception):
    """The client is not, or already, initialised; a section not, or already, open; or timeouts lack observed times."""


class WorkloadAction(Enum):
    """An action that a rank requests before the next start of the job."""

    Continue = 0
    ExcludeThisNode = 1
    ShutdownWorkload = 2


ACTION_NAMES: Final[Mapping[WorkloadAction, str]] = {
    WorkloadAction.Continue: semconv.WORKLOAD_CONTINUE,
    WorkloadAction.ExcludeThisNode: semconv.WORKLOAD_EXCLUDE_NODE,
    WorkloadAction.ShutdownWorkload: semconv.WORKLOAD_STOP,
}
"""Names of the actions in docs/reference/telemetry.md."""


@dataclasses.dataclass
class WorkloadControlRequest:
    """The action that a rank requests, and why."""

    action: WorkloadAction
    description: str = "<not set>"


class RankMonitorClient:
    """Reports heartbeats and sections to the rank's monitor, and computes timeouts from their durations.

    Unlike `otel_fr.section`, its methods raise `RankMonitorClientError` for wrong calls, like the original client.
    Sections need not be configured. Without a recording, the client works, but nothing watches the timeouts.

    Attributes:
        is_initialized: True between `init_workload_monitoring` and `shutdown_workload_monitoring`.
        hb_timeouts, section_timeouts: timeouts in use; before `init_workload_monitoring`, the loaded timeouts.
    """

    def __init__(self) -> None:
        self.is_initialized = False
        self.hb_timeouts: HeartbeatTimeouts = HeartbeatTimeouts()
        self.section_timeouts: SectionTimeouts = SectionTimeouts()
        self.loaded_hb_timeouts: HeartbeatTimeouts | None = None
        self.loaded_section_timeouts: SectionTimeouts | None = None
        self.logger = logging.getLogger("RankMonitorClient")
        self._observed = Observed()
        self._since_ns = 0

    def init_workload_monitoring(self) -> None:
        """Start with the loaded timeouts, otherwise with those from the environment (docs/reference/environment.md).

        Raises:
            RankMonitorClientError: the client is already initialised.
        """
        if self.is_initialized:
            raise RankMonitorClientError("RankMonitorClient is already initialized")
        config = Config.from_env()
        self._observed = Observed()
        self._since_ns = time.monotonic_ns()
        self.hb_timeouts = self.loaded_hb_timeouts or HeartbeatTimeouts(
            config.first_heartbeat_timeout or None, config.heartbeat_timeout or None, were_calculated=False
        )
        self.section_timeouts = self.loaded_section_timeouts or SectionTimeouts(
            section=dict(config.section_timeouts), out_of_section=config.outside_timeout or None
        )
        self.is_initialized = True
        if not sections.is_recording():
            self.logger.info("otel-fr does not record yet: recording starts with the first process group")
        self._tell_limits()

    def shutdown_workload_monitoring(self) -> None:
        """Stop: end the open sections, and expect no more heartbeats. Does nothing if the client is not initialised."""
        if not self.is_initialized:
            return
        self.end_all_sections()
        self.is_initialized = False
        sections.stop_watching()

    # ---- heartbeats and sections

    def send_heartbeat(self) -> None:
        """Report that the program makes progress."""
        self._ensure_is_ready()
        self._observed.note_heartbeat()
        sections.heartbeat()

    def start_section(self, section: str) -> None:
        """Begin a section. Sections may nest and overlap, but each name may be open only once."""
        self._ensure_is_ready()
        if self._observed.is_open(section):
            raise RankMonitorClientError(f"section {section!r} is already open")
        self._observed.note_start(section)
        sections.start_section(section, self.section_timeouts.section.get(section))

    def end_section(self, section: str) -> None:
        """End an open section."""
        self._ensure_is_ready()
        if not self._observed.is_open(section):
            raise RankMonitorClientError(f"section {section!r} is not open")
        self._observed.note_end(section)
        sections.end_section(section)

    def end_all_sections(self) -> None:
        """End all sections that this client has begun and not ended."""
        self._ensure_is_ready()
        for section in reversed(self._observed.open_names):
            self.end_section(section)

    # ---- timeouts

    def calculate_and_set_hb_timeouts(self, skip_if_not_ready: bool = False) -> bool:
        """Compute the heartbeat timeouts from the times observed on all ranks, and use them.

        All ranks must call this, because it exchanges times in the default process group, if there is one.

        Returns:
            False if fewer than two heartbeats were sent, and ``skip_if_not_ready`` is true.

        Raises:
            RankMonitorClientError: fewer than two heartbeats were sent, and ``skip_if_not_ready`` is false.
        """
        self._ensure_is_ready()
        self._exchange()
        found = heartbeat_timeouts(self._observed, SAFETY_FACTOR, self.hb_timeouts)
        if found is None:
            return self._not_enough(skip_if_not_ready)
        self.hb_timeouts = found
        self._tell_limits()
        return True

    def calculate_and_set_section_timeouts(
        self,
        selected_sections: Collection[str] | None = None,
        calc_out_of_section: bool = True,
        skip_if_not_ready: bool = False,
    ) -> bool:
        """Like `calculate_and_set_hb_timeouts`, for sections that begin from now on.

        There is not enough data if a selected section has never ended.

        Args:
            selected_sections: names of sections; None: all.
            calc_out_of_section: also compute the timeout of the time without an open section.
            skip_if_not_ready: return False if there is not enough data, instead of raising an error.
        """
        self._ensure_is_ready()
        self._observed.note_outside()
        self._exchange()
        found = section_timeouts(
            self._observed, SAFETY_FACTOR, self.section_timeouts, selected_sections, calc_out_of_section
        )
        if found is None:
            return self._not_enough(skip_if_not_ready)
        self.section_timeouts = found
        self._tell_limits()
        return True

    def _not_enough(self, is_allowed: bool) -> bool:
        if not is_allowed:
            raise RankMonitorClientError("Not enough data to compute timeouts.")
        return False

    def _exchange(self) -> None:
        """Take over the longest times of all ranks."""
        distributed = sys.modules.get("torch.distributed")
        if distributed is None or not (distributed.is_available() and distributed.is_initialized()):
            return
        found: list[Any] = [None] * distributed.get_world_size()
        distributed.all_gather_object(found, self._observed.times())
        self._observed.merge(found)

    def _tell_limits(self) -> None:
        sections.set_limits(
            heartbeat=self.hb_timeouts.subsequent,
            first=self.hb_timeouts.initial,
            since_ns=self._since_ns,
            outside=self.section_timeouts.out_of_section,
        )

    def _ensure_is_ready(self) -> None:
        if not self.is_initialized:
            raise RankMonitorClientError("RankMonitorClient is not initialized")

    # ---- state and requests

    def state_dict(self) -> dict[str, Any]:
        """Return the computed timeouts, which are the same on all ranks, as plain values."""
        state: dict[str, Any] = {}
        if self.hb_timeouts.are_valid and self.hb_timeouts.were_calculated:
            state["heartbeat"] = dataclasses.asdict(self.hb_timeouts)
        found = self.section_timeouts
        if found.calculated_sections or found.is_out_of_section_calculated:
            state["section"] = dataclasses.asdict(found) | {"calculated_sections": sorted(found.calculated_sections)}
        return {STATE_KEY: state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Use the timeouts from `state_dict`, at once or from `init_workload_monitoring` on."""
        found = state.get(STATE_KEY, {})
        if "heartbeat" in found:
            self.loaded_hb_timeouts = HeartbeatTimeouts(**found["heartbeat"])
        if "section" in found:
            self.loaded_section_timeouts = SectionTimeouts(**found["section"])
        self.hb_timeouts = self.loaded_hb_timeouts or self.hb_timeouts
        self.section_timeouts = self.loaded_section_timeouts or self.section_timeouts
        if self.is_initialized:
            self._tell_limits()

    def send_workload_control_request(self, req: WorkloadControlRequest) -> None:
        """Request an action before the next start. The collector's attribution takes the request into account.

        Raises:
            RuntimeError: this rank has no monitor that could pass the request on.
        """
        action = ACTION_NAMES[WorkloadAction(getattr(req.action, "value", req.action))]
        message = {"cmd": "workload_control", "action": action, "description": str(req.description)[:1000]}
        if not sections.send_to_monitor(message):
            raise RuntimeError("this rank has no monitor: otel-fr does not record it")
        self.logger.info("rank %s asks for: %s", os.environ.get("RANK", "?"), req)
