"""``otel-fr incidents``: a collector's incidents as a list, or their changes as they happen."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import NoReturn

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from otel_fr.console.client import UNREACHABLE, Client, CollectorError, IncidentDetail, job_names
from otel_fr.console.client import add_arguments as add_client_arguments
from otel_fr.console.incident_view import COLORS, incident_list, incident_page, job_text, plain_text, summary_line
from otel_fr.incident import IncidentHead
from otel_fr.presentation import ranks_text, state_summary
from otel_fr.printable import one_line, printable

STATES = ("firing", "resolved")
_WHOLE_ID = re.compile("[0-9a-f]{16}")
_NO_ACTION = re.compile(r"invalid choice: '([^']*)' \(choose from '?show'?\)")
"""The message of argparse (Python 3.10 to 3.14) if the first word after the options is not ``show``."""
PAUSE = 2.0
"""Seconds before a broken stream is requested again."""
PIPE_WIDTH = 10_000
"""Characters of a line if stdout is not a terminal: a pipe has no width, and lines must not wrap."""

_Seen = dict[tuple[str, str], tuple[int, str]]
"""(incident, run) -> the latest revision that was seen, and when it was made."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to its subcommand."""
    parser.epilog = (
        "Exit status: 0 at least one incident matches; 1 none matches; 2 usage error; "
        "3 the collector cannot be reached or refuses the request."
    )
    parser.add_argument("--job", metavar="NAME", help="only incidents of this job, by its name or its title in lists")
    parser.add_argument("--state", choices=STATES, help="only firing or only resolved incidents")
    parser.add_argument(
        "--follow", action="store_true", help="print the firing incidents, then each change as it happens"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    add_client_arguments(parser)
    parser.error = partial(_refuse, parser, parser.error)  # type: ignore[method-assign]
    actions = parser.add_subparsers(dest="action", metavar="show ID")
    show = actions.add_parser("show", help="print one incident in full", description="Print one incident in full.")
    show.add_argument("id", metavar="ID", help="the incident's id, or its beginning")
    show.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print it as JSON")
    add_client_arguments(show, again=True)


def _refuse(parser: argparse.ArgumentParser, refuse: Callable[[str], NoReturn], message: str) -> NoReturn:
    """Report a usage error. argparse calls an id without ``show`` an invalid choice: say what to type instead."""
    found = _NO_ACTION.search(message)
    if found is None:
        refuse(message)
    parser.exit(2, f"{parser.prog}: to print one incident: {parser.prog} show {printable(found[1])}\n")


def run(args: argparse.Namespace) -> int:
    """Print the incidents. Return the exit status."""
    try:
        client = Client.from_args(args)
        if args.action == "show":
            return _show(client, args)
        return _follow(client, args) if args.follow else _list(client, args)
    except CollectorError as error:
        print(f"otel-fr incidents: {printable(str(error))}", file=sys.stderr)
        return UNREACHABLE


def _list(client: Client, args: argparse.Namespace) -> int:
    found = of_job(client, args.job, state=args.state, brief=not args.json)
    if args.json:
        for incident in found:
            print(json.dumps(incident))
    elif not found:
        print("no incident matches", file=sys.stderr)
    elif sys.stdout.isatty():
        Console(highlight=False).print(
            incident_list(found), Text("otel-fr incidents show ID prints one in full", "dim")
        )
    else:
        _print(_table(found))
    return 0 if found else 1


def of_job(
    client: Client, job: str | None, *, state: str | None, brief: bool, consequences: bool = False
) -> list[IncidentHead]:
    """The incidents of a job by its name or, if it has none, by its title. None: of all jobs. Oldest first."""
    ask = partial(client.incidents, state=state, brief=brief, consequences=consequences)
    found = ask(job=job)
    if not found and job is not None:
        pages = [[one for one in page if _is_of(one, job)] for page in _pages(ask)]
        found = [one for page in reversed(pages) for one in page]
    return found


def _pages(ask: Callable[..., list[IncidentHead]]) -> Iterator[list[IncidentHead]]:
    """Yield the newest incidents, then those before, until there are no more: one answer has 1,000 at most.

    Args:
        ask: `Client.incidents` with all arguments but ``before``.
    """
    before: str | None = None
    while (page := ask(before=before)) and (first := page[0]["detected_at"]) != before:
        yield page
        before = first


def _show(client: Client, args: argparse.Namespace) -> int:
    try:
        one = find(client, args.id)
    except LookupError as error:
        print(f"otel-fr incidents: {error}", file=sys.stderr)
        return 1
    if args.json:
        print(json.dumps(one))
    else:
        Console(highlight=False).print(incident_page(one)) if sys.stdout.isatty() else _print(incident_page(one))
    return 0


def find(client: Client, given: str) -> IncidentDetail:
    """Find an incident by its id, or by the beginning of its id: the newest that fits, of each thousand.

    Raises:
        LookupError: no id, or more than one, begins with ``given``; or ``given`` is empty.
        CollectorError: as in `Client.incident`.
    """
    wanted = given.strip().lower()
    if not wanted:
        raise LookupError("the id is empty; otel-fr incidents lists the ids")
    if _WHOLE_ID.fullmatch(wanted):
        return client.incident(wanted)
    pages = _pages(partial(client.incidents, brief=True, consequences=True))
    matching = ({one["id"] for one in page if one["id"].startswith(wanted)} for page in pages)
    ids = next(filter(None, matching), set[str]())
    if len(ids) > 1:
        raise LookupError(f"{len(ids)} incidents have an id that begins with {printable(wanted)}")
    if not ids:
        raise LookupError(f"no incident has an id that begins with {printable(wanted)!r}")
    return client.incident(ids.pop())


def _print(shown: RenderableType) -> None:
    print(plain_text(shown, Console(highlight=False, width=PIPE_WIDTH)))


def _table(found: list[IncidentHead]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("DETECTED (UTC)", "STATE", "JOB", "CATEGORY", "CULPRITS", "INCIDENT"):
        table.add_column(name, no_wrap=True)
    table.add_column("SUMMARY", overflow="fold")
    for data in found:
        table.add_row(
            (data["detected_at"] or "-")[:19].replace("T", " "),
            Text(data["state"] + (" (consequence)" if data["caused_by"] else "")),
            Text(job_text(data)),
            Text(one_line(data["category"])),
            ranks_text(data["culprit_ranks"]) if data["culprit_ranks"] else "-",
            data["id"],
            Text(summary_line(data)),
        )
    return table


def _follow(client: Client, args: argparse.Namespace) -> int:
    console = Console(highlight=False, soft_wrap=True)
    for change, data in _changes(client, args):
        if args.json:
            print(json.dumps({"change": change, "incident": data}), flush=True)
            continue
        line = Text(f"{change:<8} ", COLORS.get(change, ""))
        line.append(f"{data['category']} ", "bold")
        line.append(f"{job_text(data)} [{one_line(data['id'])}] ")
        line.append("consequence: " if data["caused_by"] else "")
        line.append(one_line(state_summary(data["summary"], data["state"])))
        console.print(line)
    return 0


def _changes(client: Client, args: argparse.Namespace) -> Iterator[tuple[str, IncidentHead]]:
    """Yield the open incidents, then each change once. After a broken connection, yield the missed changes, too."""
    seen: _Seen = {}
    is_first = True
    while True:
        try:
            for number, event in enumerate(client.changes()):
                if number == 0:  # from now on nothing is missed
                    yield from _missed(client, seen, args, is_first)
                    is_first = False
                if event is not None and _is_new(event["incident"], seen) and _matches(event["incident"], args):
                    yield event["change"], event["incident"]
        except CollectorError as error:
            if is_first:
                raise
            print(f"otel-fr incidents: {printable(str(error))} Trying again.", file=sys.stderr)
        time.sleep(PAUSE)


def _missed(
    client: Client, seen: _Seen, args: argparse.Namespace, is_first: bool
) -> Iterator[tuple[str, IncidentHead]]:
    for data in client.incidents():
        known = (data["id"], data["run_id"]) in seen
        if not _is_new(data, seen) or not _matches(data, args):
            continue
        if data["state"] == "firing":
            yield ("updated" if known else "opened"), data
        elif not is_first:
            yield "resolved", data


def _is_new(data: IncidentHead, seen: _Seen) -> bool:
    key, revision, updated = (data["id"], data["run_id"]), data["revision"], data["updated_at"] or ""
    last, last_updated = seen.get(key, (0, ""))
    if revision <= last and updated <= last_updated:  # a collector that has forgotten an incident counts again from 1
        return False
    seen[key] = revision, updated
    return True


def _matches(data: IncidentHead, args: argparse.Namespace) -> bool:
    return (args.job is None or _is_of(data, args.job)) and args.state in (None, data["state"])


def _is_of(data: IncidentHead, job: str) -> bool:
    return job in {data["job_title"].partition(" (")[0], *job_names(data)}
