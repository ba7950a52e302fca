"""``otel-fr top``: a collector's jobs and their firing incidents, live, with keys to open one of them."""

from __future__ import annotations

import argparse
import contextlib
import sys
import threading
from dataclasses import dataclass, field
from datetime import datetime

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.segment import Segment, SegmentLines
from rich.text import Text

from otel_fr.console.client import UNREACHABLE, Advice, Client, CollectorError, IncidentDetail, JobDetail, JobHead
from otel_fr.console.client import add_arguments as add_client_arguments
from otel_fr.console.incident_view import incident_list, incident_page, plain_text
from otel_fr.console.job_view import job_heading, job_page, jobs_table, waiting_seconds
from otel_fr.console.keys import Keys, reading
from otel_fr.incident import IncidentHead
from otel_fr.presentation import count_text
from otel_fr.printable import printable
from otel_fr.redaction import hide_password

WIDE = 160
"""Width of the table in characters if stdout is not a terminal."""
TICK_SECONDS = 0.2
"""Seconds that `_Top` waits for a key before it draws the screen again."""
HEAD_LINES = 3
"""Lines above the first job: the collector, an empty line, and the names of the columns."""
MANY = 1_000_000
"""More rows or lines than there can be."""
MARK = "> "
"""Stands before the chosen incident of a job."""
HELP = (
    ("j, Down / k, Up", "choose the next or the previous job or incident"),
    ("Enter", "open the chosen one: a job, then one of its incidents"),
    ("u, Esc, Backspace", "go back"),
    ("Space, PgDn / b, PgUp", "a page down, a page up"),
    ("g, Home / G, End", "to the beginning, to the end"),
    ("q, Ctrl-C", "quit"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to its subcommand."""
    parser.epilog = (
        "At a terminal: j and k choose, Enter opens, u goes back, ? lists all keys, q quits.\n\n"
        "Exit status: 0 success; 2 usage error; 3 the collector cannot be reached or refuses the request."
    )
    parser.add_argument("--once", action="store_true", help="print once and exit (default if stdout is not a terminal)")
    parser.add_argument(
        "--interval", metavar="SECONDS", type=_interval, default=1.0, help="time between refreshes (default: 1)"
    )
    add_client_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Show the jobs, at a terminal until a key or Ctrl-C ends the command. Return the exit status."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDE)
    try:
        client = Client.from_args(args)
        shown = fetch(client, Place())
        if args.once or not sys.stdout.isatty():
            print(plain_text(overview(client.url, shown, console.width), console))
            return 0
    except CollectorError as error:
        print(f"otel-fr top: {printable(str(error))}", file=sys.stderr)
        return UNREACHABLE
    with reading() as keys, Live(console=console, screen=True, auto_refresh=False) as live:
        _Top(client, shown, console, live, args.interval).run(keys)
    return 0


@dataclass(frozen=True)
class Place:
    """Where the user is. ``job``: the API's id of the open job; ``incident``: the id of the open incident."""

    job: str = ""
    incident: str = ""


@dataclass(frozen=True)
class Shown:
    """The collector's answers for one place."""

    place: Place
    jobs: list[JobHead]
    open: list[IncidentHead]
    job: JobDetail | None = None
    of_job: list[IncidentHead] = field(default_factory=list)
    advice: Advice | None = None
    incident: IncidentDetail | None = None


def fetch(client: Client, place: Place) -> Shown:
    """Ask the collector for everything that is shown at one place.

    Raises:
        CollectorError: the collector cannot be reached, or refuses the request.
    """
    jobs = client.jobs()
    firing = [one for one in client.incidents(state="firing", brief=True) if not one["caused_by"]]
    if place.incident:
        return Shown(place, jobs, firing, incident=client.incident(place.incident))
    head = next((one for one in jobs if one["id"] == place.job), None)
    if head is None:
        return Shown(place, jobs, firing)
    found = [one for one in client.incidents(job=head["job"], brief=True) if one["run_id"] == head["run_id"]]
    return Shown(
        place,
        jobs,
        firing,
        job=client.job(place.job),
        of_job=[one for one in reversed(found) if not one["caused_by"]],
        advice=client.advice(head["job"], head["attempt"], head["run_id"]) if found else None,
    )


def overview(url: str, shown: Shown, width: int) -> Group:
    """The jobs, those with incidents first, and the open incidents."""
    parts: list[RenderableType] = [_head(url, shown)]
    if shown.jobs:
        parts.append(jobs_table(shown.jobs, waiting_seconds(shown.open), width))
    else:
        parts.append(Text("no job reports now; the page shows finished jobs"))
    if shown.open:
        parts += [Text(""), incident_list(shown.open)]
    return Group(*parts)


def _head(url: str, shown: Shown) -> Text:
    counts = f"{count_text(len(shown.jobs), 'job')}, {count_text(len(shown.open), 'firing incident')}"
    return Text(f"{hide_password(url)}  {counts}  {datetime.now():%H:%M:%S}\n", "dim", no_wrap=True)


class _Top:
    """The screen: where the user is, what is chosen and how far it is scrolled."""

    def __init__(self, client: Client, shown: Shown, console: Console, live: Live, interval: float) -> None:
        self._client, self._console, self._live, self._interval = client, console, live, interval
        self._shown, self._note = shown, ""
        self._place = Place()
        self._chosen: dict[Place, str] = {}
        """Place -> id of the chosen row. The row stays chosen when rows are added above it."""
        self._offset = 0
        self._follows = False
        """Whether the text scrolls to the chosen row: after a key that chooses, not after one that scrolls."""
        self._helps = False
        self._asked = threading.Event()
        self._is_over = False

    def run(self, keys: Keys | None) -> None:
        """Show until the user quits."""
        threading.Thread(target=self._refresh, name="otel-fr-top", daemon=True).start()
        waiting = threading.Event()  # without keys: only Ctrl-C ends it
        with contextlib.suppress(EOFError):
            while not self._is_over:
                self._live.update(self._screen(), refresh=True)
                if keys is None:
                    waiting.wait(self._interval)
                else:
                    key = keys.wait(TICK_SECONDS)
                    while key is not None:  # handle all waiting keys before the screen is drawn again
                        self._press(key)
                        key = keys.wait(0)

    def _refresh(self) -> None:
        """Ask the collector again and again, in a thread, so that keys never wait for its answers."""
        while not self._is_over:
            place = self._place
            try:
                shown = fetch(self._client, place)
                self._note = ""
                if place == self._place:
                    self._shown = shown
            except CollectorError as error:
                self._note = f"Not current, trying again: {printable(str(error))}"
            if place == self._place:
                self._asked.wait(self._interval)
            self._asked.clear()

    # ---- keys

    def _press(self, key: str) -> None:
        page = max(1, self._height() - 2)
        self._follows = key in ("up", "down")
        steps = {"up": -1, "down": 1, "page up": -page, "page down": page, "home": -MANY, "end": MANY}
        if self._helps:
            self._helps = False
        elif key == "q":
            self._is_over = True
        elif key == "?":
            self._helps = True
        elif key == "enter":
            self._open()
        elif key == "back":
            self._go(Place() if not self._place.incident else Place(self._place.job))
        elif key in ("up", "down") or (key in steps and not self._place.job):
            self._choose(steps[key])
        elif key in steps:
            self._offset += steps[key]  # `_Window` limits it to the text

    def _rows(self) -> list[str]:
        """Ids of the rows that can be chosen at this place."""
        if self._place.incident or (self._place.job and self._shown.place != self._place):
            return []
        return [one["id"] for one in (self._shown.of_job if self._place.job else self._shown.jobs)]

    def _at(self) -> int:
        """Index of the chosen row. 0 if the row is gone."""
        rows, chosen = self._rows(), self._chosen.get(self._place, "")
        return rows.index(chosen) if chosen in rows else 0

    def _choose(self, by: int) -> None:
        """Choose another row, or scroll if there is nothing to choose."""
        rows = self._rows()
        if rows:
            self._chosen[self._place] = rows[min(max(self._at() + by, 0), len(rows) - 1)]
        else:
            self._offset += by

    def _open(self) -> None:
        rows = self._rows()
        if rows:
            chosen = rows[self._at()]
            self._chosen[self._place] = chosen
            self._go(Place(self._place.job, chosen) if self._place.job else Place(chosen))

    def _go(self, place: Place) -> None:
        if place != self._place:
            self._place, self._offset = place, 0
            self._asked.set()

    # ---- the screen

    def _height(self) -> int:
        return max(3, self._console.height - 1 - bool(self._note))

    def _screen(self) -> RenderableType:
        window = _Window(self._content(), self._height(), self._offset)
        self._offset = window.fit(self._console, shows_mark=self._follows)
        foot = Text("j k choose  Enter open  u back  Space page  ? keys  q quit", "dim", no_wrap=True)
        parts: list[RenderableType] = [Text(self._note, "bold yellow", no_wrap=True)] if self._note else []
        return Group(*parts, window, foot)

    def _content(self) -> RenderableType:
        shown, place = self._shown, self._place
        if self._helps:
            return Group(*(Text.assemble((f"{keys:<24}", "bold"), text) for keys, text in HELP))
        if shown.place != place:
            return Text("asking the collector ...", "dim")
        if place.incident:
            return incident_page(shown.incident) if shown.incident is not None else Text("")
        if not place.job:
            return self._jobs()
        if shown.job is None:
            return Text("the collector no longer knows this job; u goes back")
        parts: list[RenderableType] = [job_heading(shown.job), Text(""), job_page(shown.job, shown.advice), Text("")]
        if not shown.of_job:
            parts.append(Text("no incident", "dim"))
        for number, one in enumerate(shown.of_job):
            mark = MARK if number == self._at() else " " * len(MARK)
            parts.append(_Marked(mark, incident_list([one])))
        return Group(*parts)

    def _jobs(self) -> RenderableType:
        """The jobs around the chosen one, and open incidents: all of them if they fit, else only the chosen job's."""
        shown, height = self._shown, self._height()
        if not shown.jobs:
            return overview(self._client.url, shown, self._console.width)
        chosen = self._at()
        incidents = shown.open
        space = height - HEAD_LINES - len(shown.jobs) - 1
        if len(self._lines(incident_list(incidents))) > space:
            job = shown.jobs[chosen]
            incidents = [one for one in incidents if (one["job"], one["run_id"]) == (job["job"], job["run_id"])]
        below = self._lines(incident_list(incidents))[: height // 2]
        size = max(1, height - HEAD_LINES - 1 - len(below))
        first = max(0, min(chosen - size // 2, len(shown.jobs) - size))
        rows = shown.jobs[first : first + size]
        table = jobs_table(rows, waiting_seconds(shown.open), self._console.width)
        table.row_styles = ["reverse" if first + row == chosen else "" for row in range(len(rows))]
        return Group(_head(self._client.url, shown), table, Text(""), SegmentLines(below, new_lines=True))

    def _lines(self, shown: RenderableType) -> list[list[Segment]]:
        return self._console.render_lines(shown, self._console.options, pad=False)


class _Marked:
    """A renderable with a mark before its first line, and as many spaces before the others."""

    def __init__(self, mark: str, shown: RenderableType) -> None:
        self._mark, self._shown = mark, shown

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = max(1, options.max_width - len(self._mark))
        for number, line in enumerate(console.render_lines(self._shown, options.update_width(width), pad=False)):
            yield Segment(self._mark if number == 0 else " " * len(self._mark))
            yield from line
            yield Segment.line()


class _Window:
    """The lines of a renderable that fit into a height, from line ``offset`` on."""

    def __init__(self, shown: RenderableType, height: int, offset: int) -> None:
        self._shown, self._height, self._offset = shown, height, offset
        self._lines: list[list[Segment]] = []

    def fit(self, console: Console, *, shows_mark: bool) -> int:
        """Lay out the text. Return the offset, limited so that the window is filled.

        Args:
            shows_mark: move it so that the line with the `MARK` and the line below are in the window.
        """
        self._lines = console.render_lines(self._shown, console.options, pad=False)
        marked = (at for at, line in enumerate(self._lines) if line and line[0].text == MARK)
        if shows_mark and (at := next(marked, None)) is not None:
            self._offset = min(max(self._offset, at + 2 - self._height), at)
        self._offset = max(0, min(self._offset, len(self._lines) - self._height))
        return self._offset

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shown = self._lines[self._offset : self._offset + self._height]
        for number in range(self._height):
            if number < len(shown):
                yield from shown[number]
            yield Segment.line()


def _interval(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 3_600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0.1 to 3600")
    return seconds
