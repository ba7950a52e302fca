"""Reasons why an answer of otel-fr is not right, or not the first: a sentence for each such answer."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from benchmarks.localisation.field import Row
from benchmarks.localisation.held_out import STOPS
from benchmarks.localisation.tools.otel_fr import Live, OwnFiles, TorchFiles

OURS = (Live.name, OwnFiles.name, TorchFiles.name)
UNKNOWN = "**no reason is known**"
SOONER = 1.0
"""Seconds by which another tool must be earlier to count as first."""
MAX_LISTED = 20
"""Most programs named in one line. The tables by program have all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """A sentence, and conditions on the answers that it explains. An empty condition fits all.

    Attributes:
        tools: of `OURS`. settings: beginnings of names. programs: names, or kinds of made-up jobs.
        outcomes: of the answers. text: the beginning of the tool's text.
    """

    sentence: str
    tools: Collection[str] = ()
    settings: tuple[str, ...] = ()
    programs: Collection[str] = ()
    outcomes: Collection[str] = ()
    text: str = ""

    def explains(self, row: Row) -> bool:
        return (
            (not self.tools or row["tool"] in self.tools)
            and (not self.settings or row["backend"].startswith(self.settings))
            and (not self.programs or bool({row["program"], row["kind"]} & {*self.programs}))
            and (not self.outcomes or row["outcome"] in self.outcomes)
            and row["text"].startswith(self.text)
        )


_WRONG = ("silent", "undecided", "wrong", "right and others", "crash", "false alarm")
_NO_FILE = "no file"
REASONS = (
    Reason(
        sentence="otel-fr answers after the next report, once a second, or after the stall time of 5 s. The other tool"
        " compares each call before it is made, or answers at the job's end.",
        tools=[Live.name],
        outcomes=["right"],
    ),
    Reason(
        sentence="PyTorch writes no files for `nccl2`.",
        tools=[TorchFiles.name],
        settings=("nccl2",),
        text=_NO_FILE,
    ),
    Reason(
        sentence="The job ended before PyTorch's timeout, or continued: PyTorch wrote no file.",
        tools=[TorchFiles.name],
        text=_NO_FILE,
    ),
    Reason(
        sentence="The job ended well; otel-fr writes files only when a job hangs or fails.",
        tools=[OwnFiles.name],
        programs=["late_rank", "slow_rank", "slow_device"],
    ),
    Reason(
        sentence="All hosts wait for their devices at once. Only times on the device show which one is slow, and"
        " PyTorch takes them only with `TORCH_NCCL_ENABLE_TIMING=1`, and not on `nccl2`.",
        tools=[Live.name],
        settings=("nccl",),
        programs=["slow_rank", "slow_device"],
    ),
    Reason(
        sentence="All hosts wait alike, and without timing PyTorch does not show which devices have begun the call.",
        settings=("nccl",),
        programs=["device_stuck", "busy_device"],
    ),
    Reason(
        sentence="The host was lost half a second after the job began, before its ranks had sent a report.",
        tools=[Live.name],
        programs=["lost_host"],
    ),
    Reason(
        sentence="The lost host leaves no files. Two ranks have none, and it is not known which of them is missing.",
        tools=[OwnFiles.name],
        programs=["lost_host"],
    ),
    Reason(
        sentence="The files show one moment of a job that continues, in which nobody has waited for long.",
        tools=[TorchFiles.name],
        programs=["slow_rank", "slow_device", "late_rank"],
        outcomes=["silent"],
    ),
    Reason(
        sentence="`nccl2` lets all calls fail before it ends the processes; the file of the rank that receives from the"
        " wrong one shows its next message as sent.",
        tools=[OwnFiles.name],
        settings=("nccl2",),
        programs=["wrong_peer"],
    ),
    Reason(
        sentence="PyTorch does not record the creation of process groups.",
        tools=[TorchFiles.name],
        programs=["group_creation"],
    ),
    Reason(
        sentence="PyTorch does not record roots and reduce ops.",
        tools=[TorchFiles.name],
        programs=["root", "reduce_op", "two_kinds", "wrong root", "wrong reduce op"],
    ),
    Reason(
        sentence="The stopped rank has no file. It may wait for the other one, with which it shares a group.",
        tools=[TorchFiles.name],
        programs=["two_absent"],
    ),
    Reason(
        sentence="Several ranks have no file, and it is not known which of them is missing.",
        tools=[TorchFiles.name],
        settings=("nccl",),
        programs=["lost_host", "rank0_barrier"],
    ),
    Reason(
        sentence="A rank that does not run or has ended has no file of PyTorch's. On gloo, the files of the others do"
        " not show which calls have ended, nor that a rank is missing.",
        tools=[TorchFiles.name],
        programs=["gil", "stopped", "lost_host", "left", "raised", *STOPS],
    ),
    Reason(
        sentence="PyTorch's recorder does not record gloo's sends and receives.",
        tools=[TorchFiles.name],
        settings=("gloo",),
        programs=["half_batch", "send_alone", "wrong_peer", "pipeline_stuck"],
    ),
    Reason(
        sentence="The files were written while ranks already failed, at different calls.",
        tools=[TorchFiles.name],
        settings=("gloo",),
        programs=["same_bytes"],
    ),
)  # fmt: skip


def table(rows: Sequence[Row]) -> str:
    """Return a table with a line for each reason, live answers first; "": otel-fr is always the best."""
    lines: dict[str, list[dict[str, None]]] = {}
    for row in sorted(rows, key=lambda one: one["tool"] != Live.name):
        outcome, others = _better(row, [one for one in rows if _is_of_same_job(row, one)])
        if outcome:
            line = lines.setdefault(why(row), [{}, {}, {}, {}, {}])
            answer, program = row["tool"].removeprefix("otel-fr, "), f"`{row['program']}`"
            for texts, more in zip(line, ([answer], [outcome], [program], [row["backend"]], others), strict=True):
                texts.update(dict.fromkeys(more))
    if not lines:
        return ""
    head = ["| why | answer from | outcome | programs | settings | better in some |", f"|{' --- |' * 6}"]
    return "\n".join([*head, *(f"| {' | '.join([reason, *map(_cell, line)])} |" for reason, line in lines.items())])


def _cell(texts: Collection[str]) -> str:
    return f"{len(texts)} programs" if len(texts) > MAX_LISTED else ", ".join(texts) or "no other tool"


def why(row: Row) -> str:
    """Return the first sentence that explains the answer."""
    return next((one.sentence for one in REASONS if one.explains(row)), UNKNOWN)


def _is_of_same_job(row: Row, other: Row) -> bool:
    return (row["backend"], row["program"]) == (other["backend"], other["program"])


def _better(row: Row, rows: Iterable[Row]) -> tuple[str, list[str]]:
    """Return what is not best in this answer, and the better tools; "": it is the best, or not otel-fr's."""
    if row["tool"] not in OURS:
        return "", []
    right = [one for one in rows if one["outcome"] == "right"]
    if row["outcome"] in _WRONG:
        return row["outcome"], sorted(one["tool"] for one in right if one["tool"] not in OURS)
    if row["tool"] != Live.name or row["seconds"] is None:
        return "", []
    limit = row["seconds"] - SOONER
    sooner = sorted(one["tool"] for one in right if one["seconds"] is not None and one["seconds"] < limit)
    return ("later" if sooner else ""), sooner
