"""What is shown beside the verdict: the cost of communication, a comparison with another run, and data from NCCL."""

from __future__ import annotations

from statistics import median
from typing import Any

from otel_fr.analyze.analysis import Analysis
from otel_fr.analyze.call_times import KindKey
from otel_fr.analyze.device_durations import short_text
from otel_fr.analyze.performance import Kind, Performance
from otel_fr.presentation import count_text, duration_text, group_text, ranks_text
from otel_fr.sizes import size_text

MAX_KINDS = 8
"""Kinds of calls that are shown: those that took the most time."""
MIN_SHARE = 0.01
"""Shares of the time below this are not shown as numbers."""
MAX_LAST = 3
"""Ranks that are shown because they came last."""
_NAMES = ("operation", "process_group", "size_bytes", "on_device")
_COMPARED = ("share", "mean_s", "wait_s", "transfer_s")


def beside(analysis: Analysis) -> list[tuple[str, list[str]]]:
    """The sections, as titles and sentences. The cost of communication is shown only if there is no fault."""
    costs = Performance() if analysis.findings else analysis.performance
    measured = analysis.device_durations
    told = (
        (f"Communication, as shares of the {duration_text(costs.seconds)} that the files cover", sentences(costs)),
        ("NCCL's RAS", analysis.ras_lines),
        ("On the devices, by NCCL Inspector", [one.text for one in measured.summary] + measured.notes),
    )
    return [(title, items) for title, items in told if items]


def slowest_text(found: Performance) -> str:
    """``"the others waited 70 % of the time for rank 3, before its call at train.py:44 step"``, or ""."""
    one = found.slowest
    if one is None:
        return ""
    where = f", before its call at {one.before}" if one.before else ""
    if one.before and one.after and one.after != one.before:
        where = f", between its calls at {one.after} and {one.before}"
    share = _share(found.waited_share(one.late.rank))
    return f"the others waited {share} of the time for {ranks_text([one.late.rank])}{where}"


def sentences(found: Performance) -> list[str]:
    """Sentences about the kinds of calls, most time first, the ranks that came last, and exposed communication."""
    if not found.kinds:
        return []
    lines = [_kind_text(kind, found) for kind in found.kinds[:MAX_KINDS]]
    if len(found.kinds) > MAX_KINDS:
        lines.append(f"{count_text(len(found.kinds) - MAX_KINDS, 'more kind')} of calls with less time")
    if len(found.kinds) > 1:
        lines.append(_total_text(found))
    most = sorted(found.waited_for.items(), key=lambda item: -item[1])[:MAX_LAST]
    last = [
        f"{ranks_text([rank])} came last while half of the group waited: {_share(found.waited_share(rank))} of the time"
        for rank, _ in most
    ]
    return [*lines, *last, f"exposed communication: {_exposed(found.in_flight)}"]


def _exposed(in_flight: float | None) -> str:
    if in_flight is None:
        return "unknown, because calls on devices run beside computation, which the files do not show"
    return f"at most {_share(in_flight)} of the time (a call was in flight; average over ranks)"


def comparison(analysis: Analysis, other: Analysis) -> list[str]:
    """Sentences on how the calls of two runs differ, largest difference of time first."""
    ours, theirs = analysis.performance, other.performance
    pairs = _pairs(ours, theirs)
    lines = [*_doubts("this run", analysis), *_doubts("the other run", other)]
    if not pairs:
        return [*lines, "the two runs have no kind of calls with times in common"]
    lines.append(_pace_text(_pace(pairs, ours, theirs)))
    lines += [f"{_name(mine.key)}: {_difference(mine, others)}" for mine, others in pairs[:MAX_KINDS]]
    for word, found in (("this run", ours), ("the other run", theirs)):
        if text := slowest_text(found):
            lines.append(f"{word}: {text}")
    return lines


def _doubts(name: str, analysis: Analysis) -> list[str]:
    """Reasons why the times of a run may be unreliable."""
    found = []
    if analysis.absent:
        found.append(f"{name} has no file of {ranks_text(analysis.absent)}: the times are of the other ranks only")
    if analysis.findings:
        found.append(f"{name} shows a fault, so its times may not be its usual ones")
    return found


def to_json(found: Performance) -> dict[str, Any] | None:
    """The performance as in ``--format json``. None: no file has times."""
    if not found.kinds:
        return None
    one = found.slowest
    return {
        "seconds": found.seconds,
        "in_flight_share": found.in_flight,
        "slowest": None
        if one is None
        else {
            "rank": one.late.rank,
            "process_group": group_text(one.group.name, one.group.description),
            "waited_share": found.waited_share(one.late.rank),
            "late_s": one.late.seconds,
            "before": one.before or None,
            "after": one.after or None,
        },
        "waited_for_s": {str(rank): seconds for rank, seconds in sorted(found.waited_for.items())},
        "operations": [_kind_json(kind, found) for kind in found.kinds],
    }


def comparison_json(analysis: Analysis, other: Analysis) -> dict[str, Any]:
    """The key ``against`` of ``--format json``. The first item of each pair belongs to the run itself."""
    ours, theirs = analysis.performance, other.performance
    pairs = _pairs(ours, theirs)
    return {
        "path": other.path,
        "pace": _pace(pairs, ours, theirs) if pairs else None,
        "performance": to_json(theirs),
        "operations": [
            {**{name: one[name] for name in _NAMES}, **{name: [one[name], two[name]] for name in _COMPARED}}
            for one, two in ((_kind_json(mine, ours), _kind_json(others, theirs)) for mine, others in pairs)
        ],
    }


def _pairs(ours: Performance, theirs: Performance) -> list[tuple[Kind, Kind]]:
    """The kinds of calls that both runs have, largest difference of time first."""
    known = {kind.key: kind for kind in theirs.kinds}
    pairs = [(kind, known[kind.key]) for kind in ours.kinds if kind.key in known]
    return sorted(pairs, key=lambda pair: -abs(pair[0].mean - pair[1].mean) * pair[0].each)


def _pace(pairs: list[tuple[Kind, Kind]], ours: Performance, theirs: Performance) -> float:
    """The run's calls per second divided by the other run's: the median over the kinds."""
    return median((mine.each / ours.seconds) / (others.each / theirs.seconds) for mine, others in pairs)


def _pace_text(pace: float) -> str:
    if pace >= 1:
        return f"calls are {pace:.2f} times as frequent as in the other run"
    return f"calls are {1 / pace:.2f} times as far apart as in the other run"


def _kind_json(kind: Kind, found: Performance) -> dict[str, Any]:
    wait, transfer = kind.parts or (None, None)
    return {
        "operation": kind.key.operation,
        "process_group": kind.key.group,
        "size_bytes": kind.key.size,
        "on_device": kind.key.is_on_device,
        "ranks": kind.ranks,
        "calls": kind.calls,
        "seconds": kind.seconds / kind.ranks,
        "share": found.share(kind),
        "mean_s": kind.mean,
        "wait_s": wait,
        "transfer_s": transfer,
    }


def _kind_text(kind: Kind, found: Performance) -> str:
    calls, seconds = count_text(round(kind.each), "call"), short_text(kind.seconds / kind.ranks)
    text = f"{_name(kind.key)}: {_share(found.share(kind))}, {seconds} in {calls} of {short_text(kind.mean)}"
    if kind.parts is None:
        return text
    wait, transfer = kind.parts
    return f"{text} ({short_text(wait)} wait, {short_text(transfer)} transfer)"


def _total_text(found: Performance) -> str:
    """The totals of all kinds. Kinds whose waits are not known count only in the total time."""
    text = f"all calls: {_share(sum(map(found.share, found.kinds)))}"
    known = [(kind.parts, kind.each) for kind in found.kinds if kind.parts is not None]
    if not known:
        return text
    wait, transfer = (_share(sum(parts[at] * each for parts, each in known) / found.seconds) for at in (0, 1))
    return f"{text} ({wait} wait, {transfer} transfer)"


def _difference(mine: Kind, others: Kind) -> str:
    text = f"{short_text(mine.mean)} against {short_text(others.mean)}"
    if mine.parts is None or others.parts is None:
        return text
    words = zip(("wait", "transfer"), mine.parts, others.parts, strict=True)
    parts = (f"{word} {short_text(one)} against {short_text(other)}" for word, one, other in words)
    return f"{text} ({', '.join(parts)})"


def _name(key: KindKey) -> str:
    size = "" if key.size is None else f" of {size_text(key.size)}"
    return f"{key.operation}{size} in {key.group}"


def _share(share: float) -> str:
    return f"{share:.0%}".replace("%", " %") if share >= MIN_SHARE else "less than 1 %"
