"""The table of tests/gpu/README.md: the faults on the simulated device, and the verdicts: ``make nccl-table``.

Some 40 minutes on two processors that do nothing else. What has been observed is kept in a file of JSON lines, and the
next run does not observe it again, unless ``--again`` is given.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.gpu.faults import FAULTS, Fault, Observed, Said, observe
from tests.gpu.hardware import find
from tests.support.paths import ROOT

KEPT = ROOT / "build" / "nccl-table.jsonl"
SETTINGS = {
    "nccl": ("`nccl`, without timing (PyTorch's default)", "nccl", False),
    "nccl-timed": ("`nccl`, `TORCH_NCCL_ENABLE_TIMING=1`", "nccl", True),
    "nccl2": ("`nccl2`", "nccl2", False),
    "mixed": ("`cpu:gloo,cuda:nccl`", "cpu:gloo,cuda:nccl", False),
}
MIXED = ("missing", "batch", "device_busy")
WATCHDOG = ("missing", "absent", "operation", "size", "reduce_op", "subgroup", "send", "batch", "gil", "device_busy")
"""Faults whose jobs PyTorch's watchdog ends. Here it waits `WATCHDOG_SECONDS`."""
WATCHDOG_SECONDS = 12.0
STALL = 5.0

Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", nargs="*", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--faults", nargs="*", choices=FAULTS, default=list(FAULTS))
    parser.add_argument("--again", action="store_true", help="observe all anew")
    parser.add_argument("--kept", type=Path, default=KEPT, help="file of what was observed (default: %(default)s)")
    args = parser.parse_args()
    if args.again:
        args.kept.unlink(missing_ok=True)
    args.kept.parent.mkdir(parents=True, exist_ok=True)
    rows = [json.loads(line) for line in args.kept.read_text().splitlines()] if args.kept.exists() else []
    known = {(row["setting"], row["fault"], row["watchdog"]) for row in rows}
    for setting, fault, watchdog in _wanted(args.settings, args.faults):
        if (setting, fault.name, watchdog) in known:
            continue
        row = _row(setting, fault, watchdog)
        rows.append(row)
        with args.kept.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(f"{setting} {fault.name}{' (watchdog)' if watchdog else ''}: {row['live']}", flush=True)
    print(text(rows))


def _wanted(settings: Sequence[str], faults: Sequence[str]) -> Iterator[tuple[str, Fault, bool]]:
    for setting in settings:
        yield from ((setting, FAULTS[name], False) for name in faults if setting != "mixed" or name in MIXED)
    for setting in settings:  # these take longer
        yield from ((setting, FAULTS[name], True) for name in faults if setting != "mixed" and name in WATCHDOG)


def _row(setting: str, fault: Fault, watchdog: bool) -> Row:
    _, backend, timing = SETTINGS[setting]
    found = find("simulated device")
    if isinstance(found, str):
        raise SystemExit(found)
    hardware = replace(found, backend=backend)
    folder = Path(tempfile.mkdtemp(prefix="otel-fr-nccl-"))
    begun = time.monotonic()
    seconds = WATCHDOG_SECONDS if watchdog else None
    seen = observe(hardware, fault, folder, timing=timing, watchdog=seconds, stall=STALL)
    shutil.rmtree(folder)
    truth = [list(said) for said in fault.truth(hardware, timing=timing)]
    return {
        "setting": setting, "fault": fault.name, "watchdog": watchdog, "truth": truth, **_said(seen),
        "seconds": None if seen.first is None else round(seen.seconds, 1), "took": round(time.monotonic() - begun),
    }  # fmt: skip


def _said(seen: Observed) -> dict[str, list[Said] | None]:
    given = {"live": seen.live, "hung": seen.hung, "after": seen.after, "torch": seen.torch}
    return {
        name: None if causes is None else [(one["category"], tuple(one["culprit_ranks"])) for one in causes]
        for name, causes in given.items()
    }


def text(rows: Sequence[Row]) -> str:
    """Tables in Markdown."""
    parts = []
    for setting, (title, _, _) in SETTINGS.items():
        own = [row for row in rows if row["setting"] == setting]
        for is_watchdog in (False, True):
            chosen = [row for row in own if row["watchdog"] is is_watchdog]
            if chosen:
                parts.append("\n".join(_table(title, is_watchdog, chosen)))
    return "\n\n".join(parts)


def _table(title: str, is_watchdog: bool, rows: Sequence[Row]) -> Iterator[str]:
    columns = {"live": "live", "hung": "own files", "after": "own files after the job"}
    if is_watchdog:
        columns = {"live": "live", "after": "own files", "torch": "PyTorch's files"}
        yield f"**{title}, after the watchdog ({WATCHDOG_SECONDS:g} s)**\n"
    else:
        yield f"**{title}**\n"
    yield "| fault | right | " + " | ".join(columns.values()) + " | seconds to the incident |"
    yield "|---|---|" + "---|" * (len(columns) + 1)
    for row in rows:
        truth = " or ".join(_text(*said) for said in row["truth"])
        cells = [_cell(row, name) for name in columns]
        yield f"| {row['fault']} | {truth} | {' | '.join(cells)} | {'' if row['seconds'] is None else row['seconds']} |"
    counts = {name: sum(_cell(row, name) == "right" for row in rows) for name in columns}
    of = {name: sum(row[name] is not None for row in rows) for name in columns}
    yield f"| | | {' | '.join(f'{counts[name]} of {of[name]}' for name in columns)} | |"


def _cell(row: Mapping[str, Any], name: str) -> str:
    said = row[name]
    if said is None:
        return "no file"
    if [list(one) for one in said] in [[truth] for truth in row["truth"]]:
        return "right"
    return "; ".join(_text(*one) for one in said) or "nothing"


def _text(category: str, ranks: Sequence[int]) -> str:
    return f"`{category}` {', '.join(map(str, ranks))}".rstrip()


if __name__ == "__main__":
    main()
