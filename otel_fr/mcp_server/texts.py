"""Writes the answers of the tools as bounded texts that say what is a cause and what a consequence."""

from __future__ import annotations

import io
import time
from collections.abc import Iterable, Sequence

from rich.console import Console, RenderableType

from otel_fr.api_answers import AskedStacks
from otel_fr.console.client import IncidentDetail, JobDetail, JobHead
from otel_fr.console.incident_view import incident_page, job_text, plain_text
from otel_fr.console.job_view import job_page, of_group
from otel_fr.identity import decode_ranks
from otel_fr.incident import IncidentHead, told_now
from otel_fr.presentation import overdue_text, ranks_text, site_text, verb
from otel_fr.printable import one_line, printable

MAX_CHARACTERS = 20_000
"""Most characters of one answer: about 5,000 tokens, so that several answers fit into an assistant's context."""
MAX_JOBS = 50
"""Most jobs that are listed. For further jobs only the number is shown."""
WIDTH = 10_000
"""Characters of a line: so many that no line is wrapped."""
NOTHING_OPEN = "No incident of this job is firing. A rank that waits is normal: others may be about to join."


def capped(text: str, hint: str) -> str:
    """Return at most `MAX_CHARACTERS` of the text, without control characters. If it is cut, the last line says so.

    Args:
        hint: how to get the rest.
    """
    safe = printable(text)
    if len(safe) <= MAX_CHARACTERS:
        return safe
    mark = f"\n[TRUNCATED: the answer has {len(safe)} characters, the first are shown; {hint}]"
    return safe[: MAX_CHARACTERS - len(mark)] + mark


def jobs_text(jobs: Sequence[JobHead]) -> str:
    """Return one line for each job."""
    if not jobs:
        return "The collector knows no job that runs or ended lately."
    lines = []
    for job in jobs[:MAX_JOBS]:
        tally = ", ".join(f"{count} {one_line(name)}" for name, count in job["ranks"].items())
        lines.append(
            f"{job_name(job)}: {one_line(job['state'])}; ranks: {tally or 'none known'}; id {one_line(job['id'])}"
        )
    if len(jobs) > MAX_JOBS:
        lines.append(f"[TRUNCATED: {len(jobs) - MAX_JOBS} more jobs]")
    return "\n".join(lines)


def job_name(job: JobHead) -> str:
    """Return the job's title and attempt."""
    return one_line(f"job {job['job_title']} attempt {job['attempt']}")


def incidents_text(found: Sequence[IncidentHead], limit: int) -> str:
    """Return one line for each of the newest ``limit`` incidents, oldest first. It begins with the role."""
    if not found:
        return "No incident matches."
    lines = [_role_line(one) for one in found[-limit:]]
    if len(found) > limit:
        lines.append(f"[TRUNCATED: the newest {limit} of {len(found)} incidents are shown; raise limit or name a job]")
    return "\n".join(lines)


def _role_line(one: IncidentHead) -> str:
    head = f"{one['state']} {one_line(one['category'])}, incident {one_line(one['id'])}, job {job_text(one)}"
    return f"{role_text(one)}: {_told(one)} ({head}, detected {one['detected_at'] or '?'})"


def role_text(one: IncidentHead | IncidentDetail) -> str:
    """Return ``"cause"`` or ``"consequence of incident ID"``."""
    return f"consequence of incident {one_line(one['caused_by'])}" if one["caused_by"] else "cause"


def _told(one: IncidentHead | IncidentDetail) -> str:
    return one_line(told_now(one, time.time()))


def incident_text(one: IncidentDetail) -> str:
    """Return one incident with its evidence."""
    kind = (
        "This incident is a consequence, not the cause: ask for the incident that caused it."
        if one["caused_by"]
        else "This incident is a cause: its culprits are the origin of the fault. Ranks that wait are a consequence."
    )
    times = f"detected at {one['detected_at'] or '?'} (UTC), resolved at {one['resolved_at'] or '-'}"
    zone = f"Times of day below are in the time zone UTC{time.strftime('%z')}."
    return f"{role_text(one)}; {times}\n{kind}\n{zone}\n\n{_plain(incident_page(one))}"


def waits_text(name: str, job: JobDetail, incidents: Sequence[IncidentDetail]) -> str:
    """Return who waits for whom in one job."""
    lines = [name, _plain(job_page(job, None)), "", "Who waits for whom, by the firing incidents:"]
    for one in incidents:
        waiting, culprits = one["waiting_ranks"], one["culprit_ranks"]
        who = f"{ranks_text(waiting)} {verb(waiting, 'waits', 'wait')}" if waiting else "no rank is known to wait"
        whom = f" for {ranks_text(culprits)}" if culprits else ""
        lines.append(f"- {role_text(one)} (incident {one_line(one['id'])}): {who}{whom}. {_told(one)}")
    if not incidents:
        lines.append(NOTHING_OPEN)
    return "\n".join(lines)


def rank_text(name: str, job: JobDetail, rank: int, incidents: Sequence[IncidentDetail]) -> str | None:
    """Return state and stacks of one rank. None: nothing is known about this rank.

    Args:
        incidents: the job's open incidents.
    """
    columns = job["ranks"]
    if rank not in columns["rank"]:
        return None
    at = columns["rank"].index(rank)
    lines = [f"{name}, rank {rank}: {one_line(columns['state'][at])}"]
    lines += [f"{key}: {text}" for key, text in _facts(job, at) if text]
    for one in incidents:
        number = one_line(one["id"])
        if rank in one["culprit_ranks"]:
            lines.append(f"cause: this rank is a culprit of incident {number}: {_told(one)}")
        elif rank in one["waiting_ranks"]:
            whom = f" for {ranks_text(one['culprit_ranks'])}" if one["culprit_ranks"] else ""
            own = f", which is itself a {role_text(one)}" if one["caused_by"] else ""
            lines.append(f"consequence of incident {number}{own}: this rank waits{whom}; it is not the cause")
    if not any(rank in one["culprit_ranks"] or rank in one["waiting_ranks"] for one in incidents):
        lines.append("no firing incident names this rank: neither a cause nor a consequence")
    return "\n".join([*lines, *_stacks(rank, incidents)])


def stacks_text(name: str, found: AskedStacks) -> str:
    """Return where all ranks of one job are."""
    head = f"{name}: stacks as of {one_line(found['asked_at'] or 'an unknown time')}, outermost frame first"
    lines = [f"{head}. A rank that waits is a consequence: look for one that does not wait."]
    for group in found["groups"]:
        lines += ["", f"{ranks_text(decode_ranks(group['ranks']))}:"]
        lines += [f"  {one_line(frame)}" for frame in group["frames"]]
    if found["not_answered"]:
        lines += ["", f"no answer from {ranks_text(decode_ranks(found['not_answered']))}"]
    return "\n".join(lines)


def _facts(job: JobDetail, at: int) -> Iterable[tuple[str, str]]:
    columns = job["ranks"]
    yield "how it ended", one_line(columns["how"][at])
    yield "training step", "" if columns["step"][at] is None else str(columns["step"][at])
    if columns["waits"][at]:
        operation, number, group, seconds = columns["waits"][at]
        call = f"{one_line(str(operation))} number {number}{of_group(job, group)}"
        yield "oldest call in flight", f"{call}, for {seconds} s"
    if columns["overdue"][at]:
        kind, what, age, limit = columns["overdue"][at]
        yield "overdue", overdue_text(one_line(str(kind)), one_line(str(what)), age, limit)


def _stacks(rank: int, incidents: Sequence[IncidentDetail]) -> list[str]:
    for one in incidents:
        whole = one["stacks"].get(str(rank))
        if whole:
            return ["stack:", *(f"  {one_line(line)}" for line in whole.strip("\n").splitlines())]
    for one in incidents:
        for group in one["stack_groups"]:
            if rank in group["ranks"]:
                shared = f"stack ({ranks_text(group['ranks'])}), outermost frame first:"
                return [shared, *(f"  {one_line(frame)}" for frame in group["frames"])]
    site = next((site for one in incidents if (site := one["call_sites"].get(str(rank)))), None)
    if site:
        return [f"call site: {one_line(site_text(site))}", "no stack of this rank is known"]
    return ["no stack of this rank is known: the collector keeps stacks of ranks that firing incidents name"]


def _plain(shown: RenderableType) -> str:
    return plain_text(shown, Console(file=io.StringIO(), highlight=False, width=WIDTH, color_system=None))
