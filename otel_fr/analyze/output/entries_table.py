"""``--just_print_entries``: what each rank recorded, one column per rank, as ``torchfrtrace -j`` prints it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from tabulate import tabulate

from otel_fr.analyze.analysis import Analysis
from otel_fr.analyze.collectives import group_entries
from otel_fr.analyze.output.overview import View, clean
from otel_fr.dumps.entry import Entry
from otel_fr.match import Group
from otel_fr.operations import way


def entries_text(analysis: Analysis, view: View) -> str:
    """The calls of the ranks side by side, oldest first. Calls of groups that are not selected leave a blank.

    With ``view.verbose``, every field of a call is shown. With ``view.stacks``, a second table shows numbered stacks.
    """
    if analysis.run is None:
        return ""
    stacks: dict[tuple[str, ...], int] = {}
    columns: dict[int, list[str]] = {d.rank: [] for d in analysis.run.dumps if view.has_rank(d.rank)}
    for rank, entry, group in group_entries(analysis.run):
        if rank not in columns:
            continue
        shown = view.has_group(group.name, group.description)
        stack = -1
        if shown and entry.frames:
            stack = stacks.setdefault(entry.frames, len(stacks))
        columns[rank].append(clean(_cell(rank, entry, group, stack, view)) if shown else "")
    rows = [row for row in zip_longest(*columns.values(), fillvalue="") if any(row)]
    text = _table(rows, [f"Rank {rank}" for rank in columns])
    if view.stacks and stacks:
        listed = [(str(number), "\n".join(map(clean, frames))) for frames, number in stacks.items()]
        text += "\n" + _table(listed, ["stack_id", "frame_stack"])
    return text


def _table(rows: Sequence[tuple[str, ...]], headers: list[str]) -> str:
    return tabulate(rows, headers=headers, disable_numparse=True) + "\n"


def _cell(rank: int, entry: Entry, group: Group, stack: int, view: View) -> str:
    signature = entry.signature
    parts: list[str] = []
    if entry.stream == "p2p":
        peer = "?" if signature.peer is None or signature.any_source else signature.peer
        source, destination = way(signature.operation, str(rank), str(peer))
        parts.append(f"s={source} d={destination}")
    if view.verbose:
        parts.insert(0, f"timestamp_created={entry.created_ns}")
    parts.append(f"input_sizes={[list(shape) for shape in signature.input_sizes]}")
    if view.verbose:
        parts += [
            f"output_sizes={[list(shape) for shape in signature.output_sizes]}",
            f"input_dtypes={list(signature.input_dtypes)}",
            f"output_dtypes={list(signature.output_dtypes)}",
            f"collective_seq_id | p2p_seq_id={entry.sequence_id}",
            f"pg_name={group.name}",
            f"pg_description={group.description}",
            f"pg_size={len(group.ranks)}",
            f"stack_id={stack}",
        ]
        known = {"reduce_op": signature.reduce_op, "root": signature.root, "tag": signature.tag}
        parts += [f"{name}={value}" for name, value in known.items() if value is not None]
    parts.append(f"state={entry.state.value}")
    return f"{signature.operation}({', '.join(parts)})"
