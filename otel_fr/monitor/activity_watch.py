"""Follows what the program tells of its progress in the ring: what is overdue, what has ended, what can be learned."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

from otel_fr.config import Config
from otel_fr.monitor import activity
from otel_fr.monitor.activity import Given, Watched
from otel_fr.monitor.learned import LearnedLimits, path_of
from otel_fr.rank_report import ReportedActivity
from otel_fr.ring import Activity, RingReader

_log = logging.getLogger("otel_fr.monitor")

SAVE_SECONDS = 30.0
"""Time between two writes of what was learned."""


class ActivityWatch:
    """What the monitor knows of one rank's heartbeats, sections and steps.

    Attributes:
        sections: open. step: the current one.
    """

    def __init__(self, reader: RingReader, config: Config, rank: int, since_ns: int = 0) -> None:
        """``since_ns``: what ended earlier, a monitor before has learned from."""
        self._ring = reader
        self._reader = reader.activity
        self._config = config
        self._learned = LearnedLimits(config.learn_steps)
        self._file: Path | None = None
        if config.state_dir is not None and config.learn_steps:
            self._file = path_of(config.state_dir, config.job_id, rank)
            self._learned.load(self._file)
        self._given = Given(config.heartbeat_timeout, config.outside_timeout, config.section_timeouts)
        self._since_ns = since_ns
        self._position = 0
        self._saved_at = time.monotonic()
        self._watched: list[Watched] = []
        self._known: set[tuple[str, int, int]] = set()
        self._beat = (0, 0)
        self._covered_ns = 0
        self._kept: tuple[ReportedActivity, ...] = ()
        self.sections: list[Activity] = []
        self.step: Activity | None = None

    def poll(self, now_ns: int) -> list[Activity]:
        """Read the ring again; returns the sections and steps that have ended since the last call."""
        reader = self._reader
        if reader is None:
            return []
        ended, self._position, _ = reader.ended(self._position)
        self.sections = [section for section in reader.open_sections() if self._lives(section)]
        self.step = reader.step()
        beats = reader.beats()
        if self._config.learn_steps:
            news = [item for item in ended if (item.ended_ns or 0) >= self._since_ns]
            self._learn(news, beats.count, beats.last_ns, now_ns)
        self._watched = activity.watched(
            beats,
            self.sections,
            self._learned,
            self._given,
            exiting=self._ring.meta.get("exiting") is True,
        )
        return ended

    @property
    def current(self) -> list[Activity]:
        """The open sections, and the current step."""
        return [*self.sections, *([] if self.step is None else [self.step])]

    def _lives(self, section: Activity) -> bool:
        """The thread that began it has not ended."""
        if not section.native_id or section.native_id == self._ring.pid:
            return True
        return os.path.exists(f"/proc/{self._ring.pid}/task/{section.native_id}") or not os.path.exists(
            f"/proc/{self._ring.pid}/task/{self._ring.pid}"
        )

    # ---- what is overdue

    def new_overdue(self, now_ns: int) -> list[Watched]:
        """What has become overdue since the last call."""
        overdue = [item for item in self._watched if item.is_overdue(now_ns)]
        new = [item for item in overdue if item.identity not in self._known]
        self._known = {item.identity for item in overdue}
        return new

    def is_overdue(self, now_ns: int) -> bool:
        """Something is, as of the last `poll`."""
        return any(item.is_overdue(now_ns) for item in self._watched)

    def reported(self, now_ns: int) -> tuple[ReportedActivity, ...]:
        """For the rank report."""
        return self._kept or activity.reported(self._watched, now_ns)

    def keep(self, now_ns: int) -> None:
        """The rank is ended for what is overdue: that is reported from now on, for its handlers may end sections."""
        self._kept = tuple([item for item in activity.reported(self._watched, now_ns) if item.is_overdue])

    # ---- what is learned

    def _learn(self, ended: list[Activity], count: int, last_ns: int, now_ns: int) -> None:
        for item in ended:
            if not item.is_step and not item.is_failed and not item.is_left and item.ended_ns is not None:
                self._learned.note_section(item.name, (item.ended_ns - item.began_ns) / 1e9)
        self._learn_outside(ended)
        before, before_ns = self._beat
        if last_ns and count > before:
            if before_ns and last_ns > before_ns:
                self._learned.note_heartbeat((last_ns - before_ns) / 1e9, count - before)
            self._beat = (count, last_ns)
        elif not last_ns:
            self._beat = (count, 0)
        now = now_ns / 1e9
        if self._learned.has_news and self._file is not None and now >= self._saved_at + SAVE_SECONDS:
            self.save()

    def _learn_outside(self, ended: list[Activity]) -> None:
        """Times between sections. A section inside another one that is still open may be taken for the next one, which
        only makes the time longer."""
        begun = sorted([item for item in (*ended, *self.sections) if not item.is_step], key=lambda item: item.began_ns)
        for item in begun:
            if self._covered_ns and item.began_ns > self._covered_ns:
                self._learned.note_outside((item.began_ns - self._covered_ns) / 1e9)
                self._covered_ns = item.began_ns
            self._covered_ns = max(self._covered_ns, item.ended_ns or item.began_ns)

    def save(self) -> None:
        """Write what was learned to its file. Never raises."""
        if self._file is None:
            return
        self._saved_at = time.monotonic()
        try:
            self._learned.save(self._file)
        except OSError as error:
            _log.warning("what was learned is not kept: %s", error)
            self._file = None
