"""The numbers of dropped runs, by job."""

from __future__ import annotations

from collections.abc import Iterable

from otel_fr_collector.jobs.numbers import MAX_SERIES, OTHER, Durations, Key, Numbers, Series


class PastNumbers:
    """Totals of the dropped runs of jobs that continue, so that no total falls while its job is known."""

    def __init__(self) -> None:
        self._by_job: dict[str, tuple[dict[Key, Series], Durations, tuple[float, ...]]] = {}

    def add(self, job: str, numbers: Numbers) -> None:
        """Keep the totals of a run of the job."""
        known, steps, bounds = self._by_job.get(job, ({}, Durations(), numbers.bounds))
        if bounds and numbers.bounds and bounds != numbers.bounds:
            return  # the run had another version of otel-fr: its histograms cannot be added
        for key, series in numbers.series.items():
            if key not in known and len(known) >= MAX_SERIES:
                key = OTHER
            known.setdefault(key, Series()).add(series)
        steps.add(numbers.steps)
        self._by_job[job] = known, steps, bounds or numbers.bounds

    def items(self) -> Iterable[tuple[str, dict[Key, Series], Durations, tuple[float, ...]]]:
        """Job, its series, its steps, and the bounds of the histograms."""
        for job, (known, steps, bounds) in self._by_job.items():
            yield job, known, steps, bounds

    def forget(self, job: str) -> None:
        """Forget a job whose last run is dropped."""
        self._by_job.pop(job, None)
