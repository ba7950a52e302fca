"""``otel-fr top``: a collector's jobs and their open incidents."""

from __future__ import annotations

import argparse
import sys
import time
from datetime import datetime, timezone

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from otel_fr.console.client import UNREACHABLE, Client, CollectorError, JobHead, LateRank
from otel_fr.console.client import add_arguments as add_client_arguments
from otel_fr.incident import told_now
from otel_fr.presentation import ago_text, count_text
from otel_fr.printable import one_line, printable

COLORS = {
    "incident": "bold red",
    "failed": "magenta",
    "silent": "yellow",
    "running": "green",
    "ended": "dim",
    "replaced": "dim",
}
WIDE = 160
"""Width of the table in characters if stdout is not a terminal."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to its subcommand."""
    parser.epilog = "Exit status: 0 success; 2 usage error; 3 the collector cannot be reached or refuses the request."
    parser.add_argument("--once", action="store_true", help="print once and exit (default if stdout is not a terminal)")
    parser.add_argument(
        "--interval", metavar="SECONDS", type=_interval, default=1.0, help="time between refreshes (default: 1)"
    )
    add_client_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Show the jobs; at a terminal until Ctrl-C.

    Returns:
        the process's exit status: 0, or 3 if the collector cannot be reached or refuses the request.
    """
    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDE)
    try:
        client = Client.from_args(args)
        shown = current(client)
        if args.once or not sys.stdout.isatty():
            console.print(shown)
            return 0
    except CollectorError as error:
        print(f"otel-fr top: {printable(str(error))}", file=sys.stderr)
        return UNREACHABLE
    with Live(shown, console=console, screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(args.interval)
            try:
                shown = current(client)
                live.update(shown, refresh=True)
            except CollectorError as error:
                note = Text(printable(f"{error} Trying again; the table below is not current."), "bold yellow")
                live.update(Group(note, shown), refresh=True)


def current(client: Client) -> Group:
    """The current jobs, those with incidents first, and the open incidents.

    Raises:
        CollectorError: the collector cannot be reached, or refuses the request.
    """
    jobs = client.jobs()
    firing = [one for one in client.incidents(state="firing", brief=True) if not one["caused_by"]]
    moment = datetime.now().strftime("%H:%M:%S")
    head = Text(
        f"{client.url}  {count_text(len(jobs), 'job')}, {count_text(len(firing), 'open incident')}  {moment}\n", "dim"
    )
    if not jobs:
        return Group(head, Text("no job has reported yet"))
    faults = [
        Text.assemble(
            (f"{one['category']} ", "bold red"),
            one_line(f"{one['job']}/{one['attempt']}: {told_now(one, time.time())}"),
        )
        for one in firing
    ]
    return Group(head, _table(jobs), Text(""), *faults)


def _table(jobs: list[JobHead]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("JOB", "STATE", "RANKS", "NOT RUNNING"):
        table.add_column(name)
    for name in ("GROUPS", "LAG", "LATE", "LAST REPORT"):
        table.add_column(name, justify="right")
    for job in jobs:
        tally, state = job["ranks"], job["state"]
        world = "?" if job["world_size"] is None else str(job["world_size"])
        others = ", ".join(f"{count} {name}" for name, count in tally.items() if name != "running")
        table.add_row(
            Text(one_line(f"{job['job']}/{job['attempt']}")),
            Text(state, COLORS.get(state, "")),
            f"{tally.get('running', 0)}/{world}",
            others or "-",
            str(job["groups"]),
            str(job["lag"]),
            _late(job["late"]),
            _ago(job["last_heard_at"]),
        )
    return table


def _late(late: LateRank | None) -> str:
    """``"rank 3: 148 ms, 31 %"``: who comes last, by how much, and for how much of their time the others wait."""
    if late is None:
        return "-"
    return f"rank {late['rank']}: {late['seconds'] * 1_000:.0f} ms, {late['waited'] * 100:.0f} %"


def _ago(text: str | None) -> str:
    if text is None:
        return "-"
    heard = datetime.fromisoformat(text.replace("Z", "+00:00"))
    return ago_text((datetime.now(tz=timezone.utc) - heard).total_seconds())


def _interval(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 3_600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0.1 to 3600")
    return seconds
