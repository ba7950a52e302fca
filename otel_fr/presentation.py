"""How ranks, groups, collectives, call sites, counts and durations are written for a reader, the same everywhere.

Used by the sentences of the match engine, the terminal, alerts, reports from files and the console commands. The
functions take plain values and import nothing of otel-fr, so that the match engine may import them, and the console
needs no engine to write a list of ranks. The collector's page has the same functions in JavaScript
(``web/page/text.js``), and a test compares both. Programs read ranks in the form of `otel_fr.identity.encode_ranks`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from signal import Signals

MAX_RANGES = 12
"""Ranges of ranks that are written out, so that sentences stay short."""
MIN_STEPPED = 5
"""Least number of ranks in equal steps that are folded: ``0, 2, 4, 6`` is read faster than ``0-6 step 2``."""
MAX_MESSAGE = 200
"""Characters of an exception's message in a sentence, which must stay short; the full text is shown elsewhere."""
MAX_SUMMARY = 4_000
"""Characters of a summary: more than its parts take together, except for very long names and lists of sizes."""
MAX_SERVICE = 100
"""Characters of a service's name in the title of a job."""
_DRAWN = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{16}")
UNKNOWN_SITE = "location not known"

UNDESCRIBED = ("", "undefined")
"""Descriptions that PyTorch gives to groups without one."""


def rank_list(ranks: Iterable[int]) -> str:
    """``[0, 1, 2, 5]`` -> ``"0-2, 5"``; ``[5, 13, ..., 69]`` -> ``"5-69 step 8"``; long lists end with their length.

    Ranks are sorted first, and each is named once; "" if there are none.
    """
    items = sorted(set(ranks))
    parts: list[str] = []
    start = 0
    while start < len(items):
        end = _end_of_range(items, start)
        step = items[end] - items[end - 1] if end > start else 0
        if end == start:
            parts.append(str(items[start]))
        else:
            parts.append(f"{items[start]}-{items[end]}" + (f" step {step}" if step > 1 else ""))
        start = end + 1
    if len(parts) > MAX_RANGES + 1:
        parts[MAX_RANGES:] = [f"... ({len(items)} in all)"]
    return ", ".join(parts)


def _end_of_range(items: list[int], start: int) -> int:
    """Return the index of the last rank of the range that begins at ``start``; ``start`` itself if there is none."""
    if start + 1 == len(items):
        return start
    step = items[start + 1] - items[start]
    end = start + 1
    while end + 1 < len(items) and items[end + 1] - items[end] == step:
        end += 1
    return end if end - start + 1 >= (3 if step == 1 else MIN_STEPPED) else start


def ranks_text(ranks: Iterable[int]) -> str:
    """``"ranks 0-2, 5"``, ``"rank 5"``, ``"no rank"``."""
    items = set(ranks)
    if not items:
        return "no rank"
    return ("rank " if len(items) == 1 else "ranks ") + rank_list(items)


def verb(ranks: Iterable[int], one: str, many: str) -> str:
    """Return the form of a verb that fits the number of ranks."""
    return one if len(set(ranks)) == 1 else many


def job_title(job: str, service: str | None) -> str:
    """Return a job's title: its name or, as in ``"train.py (3f2a9c1e)"``, its script and the beginning of its name.

    The second form is for names that the launcher (torchrun's run id) or the ranks (the nonce) drew at random.

    Args:
        service: ``service.name`` of its telemetry, which is the script unless the user names it; None: unknown.
            OpenTelemetry's default begins with "unknown_service".
    """
    if not service or service.startswith("unknown_service") or not _DRAWN.fullmatch(job):
        return job
    return f"{service[:MAX_SERVICE]} ({job[:8]})"


def signal_text(number: int) -> str:
    """``"signal 9 (SIGKILL)"``, or ``"signal 99"`` if this system has no name for the number."""
    try:
        return f"signal {number} ({Signals(number).name})"
    except ValueError:
        return f"signal {number}"


def group_name(name: str, description: str) -> str:
    """Return the user's description of a process group; without one, c10d's name."""
    return name if description in UNDESCRIBED else description


def group_text(name: str, description: str) -> str:
    """A process group by the user's description and c10d's name, ``"dp (3)"``; without a description ``"3"``."""
    return name if description in (*UNDESCRIBED, name) else f"{description} ({name})"


def collective_text(operation: str, sequence_id: int | None) -> str:
    """``"all_reduce number 5"``."""
    return operation if sequence_id is None else f"{operation} number {sequence_id}"


def site_text(site: str | None) -> str:
    """``"train.py:42 step"``, or that the call site is unknown."""
    return site or UNKNOWN_SITE


def message_text(text: str) -> str:
    """Return an exception or another message of the job as part of a sentence: its first line, cut to `MAX_MESSAGE`.

    If the first line ends in a colon, as in an exception whose text begins with an empty line, the next line is added.
    If the text repeats the traceback of another process (DataLoader's, for example), its last line is added: the
    exception that was raised there.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [""]
    if len(lines) > 1 and lines[0].endswith(":"):
        lines[:2] = [" ".join(lines[:2])]
    last = f" {lines[-1]}" if len(lines) > 1 and "Traceback (most recent call last)" in text else ""
    shown = f"{lines[0]} ...{last}" if len(lines) > 1 else lines[0]
    return shown if len(shown) <= MAX_MESSAGE else shown[: MAX_MESSAGE - 3].rstrip() + "..."


def summary_text(text: str) -> str:
    """Return a summary as one line of at most `MAX_SUMMARY` characters, whatever the names and values in it are."""
    line = " ".join(text.splitlines())
    return line if len(line) <= MAX_SUMMARY else line[: MAX_SUMMARY - 3].rstrip() + "..."


def place_text(
    host: str | None,
    pid: int | None,
    local_rank: int | None,
    gpu: str | None,
    pod: str | None,
    node: str | None,
    namespace: str | None = None,
) -> str:
    """Where a rank runs: ``"gpu-17, local rank 3, GPU 5, pid 4711"``, in Kubernetes ``"gpu-17, pod train/llama-0"``.

    None and "": unknown. The result is "" if nothing is known.
    """
    parts = [node or host or ""]
    inside = pod or (host if node and host != node else None)
    space = f"{namespace}/" if namespace else ""
    parts.append(f"pod {space}{inside}" if inside and inside != parts[0] else "")
    parts += [] if local_rank is None else [f"local rank {local_rank}"]
    parts += [f"GPU {gpu}"] if gpu else []
    parts += [] if pid is None else [f"pid {pid}"]
    return ", ".join(part for part in parts if part)


def rank_state_text(state: str) -> str:
    """Return a rank's state in a reader's words. ``state`` is as in the collector's API."""
    return "no report yet" if state == "unheard" else state


def overdue_text(kind: str, name: str, seconds: float, limit: float) -> str:
    """Describe a heartbeat or section past its limit: ``"section loading open for 45.0 s (limit 30.0 s)"``.

    Args:
        kind: as in rank reports: ``section``, ``heartbeat`` or ``outside`` (of all sections).
    """
    what = {"section": f"section {name} open", "outside": "in no section"}.get(kind, f"no {kind}")
    return f"{what} for {duration_text(seconds)} (limit {duration_text(limit)})"


def resolution_text(resolution: str | None) -> str:
    """Say why an incident has ended (its ``resolution``), as words after its time; "": it is over, or open."""
    return {
        "ended": "the job has ended",
        "stopped": "the job was stopped",
        "replaced": "the job continues in another run",
        "unheard": "the job sends no more reports",
        "dropped": "there were too many firing incidents",
    }.get(resolution or "", "")


def with_wait(summary: str, how_long: str) -> str:
    """Add to a summary how long its ranks have waited: ``"...; ranks 0, 2 wait for 47 s"``.

    Args:
        how_long: ``"for 47 s"`` or ``"since 14:03:12 UTC"``.
    """
    ends_with_wait = summary.endswith((" wait", " waits"))
    return f"{summary} {how_long}" if ends_with_wait else f"{summary} (waiting {how_long})"


def state_summary(summary: str, state: str) -> str:
    """Return the summary of an incident in this state. It is in the present tense: once resolved, it gets a prefix."""
    return f"while it fired: {summary}" if state == "resolved" else summary


def ranks_by_text(texts: Iterable[tuple[int, str]]) -> dict[str, list[int]]:
    """Group ranks by their text, in the order in which the texts first appear."""
    found: dict[str, list[int]] = {}
    for rank, text in texts:
        found.setdefault(text, []).append(rank)
    return found


def count_text(count: int, noun: str) -> str:
    """``"1 job"``, ``"2 jobs"``, ``"0 jobs"``: for nouns whose plural ends with s."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def duration_text(seconds: float) -> str:
    """``"4.5 s"``, ``"12 min 5 s"``, ``"5 h 12 min"``, ``"3 days 4 h"``."""
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 100:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    return f"{hours // 24} days {hours % 24} h"


def short_duration_text(seconds: float) -> str:
    """``"148 ms"``; from one second on like `duration_text`: ``"2.5 s"``."""
    return f"{seconds * 1_000:.0f} ms" if seconds < 1 else duration_text(seconds)


def ago_text(seconds: float) -> str:
    """Say how long ago, in one unit: ``"12 s ago"``, ``"5 min ago"``, ``"3 h ago"``, ``"2 days ago"``."""
    for limit, size, unit in ((90, 1, "s"), (5_400, 60, "min"), (129_600, 3_600, "h")):
        if seconds < limit:
            return f"{max(0.0, seconds) / size:.0f} {unit} ago"
    return f"{seconds / 86_400:.0f} days ago"
