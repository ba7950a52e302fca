"""A client of the collector's HTTP API, for the terminal commands."""

from __future__ import annotations

import argparse
import json
import os
import ssl
from collections.abc import Callable, Iterator, Mapping
from http.client import BadStatusLine, RemoteDisconnected
from pathlib import Path
from typing import Any, TypedDict, TypeVar
from urllib.parse import quote, urlencode

import urllib3

from otel_fr.api_answers import AskedRanks, AskedStacks, SlowLink, WaitingRanks
from otel_fr.config import COLLECTOR_VARIABLE, DEFAULT_COLLECTOR, TOKEN_VARIABLE
from otel_fr.incident import CollectorIncidentData, IncidentHead
from otel_fr.printable import one_line
from otel_fr.rate_answers import LatestRates
from otel_fr.redaction import hide_password
from otel_fr.typed_json import typed
from otel_fr.urls import is_http_url

_T = TypeVar("_T")

UNREACHABLE = 3
"""Exit status if the collector cannot be reached, or refuses the request."""
TIMEOUT = urllib3.Timeout(connect=5.0, read=15.0)
STREAM_TIMEOUT = urllib3.Timeout(connect=5.0, read=40.0)
"""Longer than the 15 s after which the collector sends a keep-alive."""


class LateRank(TypedDict):
    """The rank that others wait for most. ``seconds``: how late it is on average. ``waited``: share of their time."""

    rank: int
    seconds: float
    waited: float


class JobHead(TypedDict):
    """A job in the API's list of jobs, with the keys that are shown.

    Attributes:
        job_title: the job's name for readers.
        hosts: the job's first hosts.
        ranks: how many ranks are in each state.
    """

    id: str
    run_id: str
    job: str
    job_title: str
    attempt: int
    state: str
    world_size: int | None
    hosts: list[str] | None
    ranks: dict[str, int]
    lag: int
    late: LateRank | None
    rates: LatestRates | None
    last_heard_at: str | None


def job_names(one: IncidentHead | JobHead) -> set[str]:
    """What a user may call the job: its name or its title, also as lists show them."""
    name, title = one["job"], one["job_title"]
    return {name, one_line(name), title, one_line(title)}


class RankColumns(TypedDict):
    """Ranks of a job in columns: item I of each list belongs to rank ``rank[I]``.

    A large job has only the ranks that differ from the rest, or were asked for. ``tally``: as ``ranks`` in `JobHead`.
    """

    rank: list[int]
    state: list[str]
    how: list[str]
    step: list[int | None]
    waits: list[Any]
    overdue: list[Any]
    late: list[Any]
    tally: dict[str, int]


class GroupHead(TypedDict):
    """A process group of a job."""

    name: str
    description: str


class JobDetail(TypedDict):
    """One job in full, with the keys that are shown. ``job_title``: as in `JobHead`. ``steps``: lowest and highest."""

    job: str
    job_title: str
    attempt: int
    state: str
    world_size: int | None
    last_heard_at: str | None
    rates: LatestRates | None
    ranks: RankColumns
    groups: list[GroupHead]
    steps: list[int] | None
    waiting: list[WaitingRanks] | None
    slow_links: list[SlowLink] | None


class AdviceReason(TypedDict):
    """A rule from which the advice follows."""

    rule: str


class Advice(TypedDict):
    """What a launcher should do next with a job (docs/guide/fault-tolerance.md)."""

    recommendation: str
    exclude_nodes: list[str]
    reasons: list[AdviceReason]


class IncidentDetail(CollectorIncidentData):
    """One incident in full, with the keys that the API adds. ``links``: name -> URL; ``consequences``: ids."""

    links: dict[str, str] | None
    consequences: list[str] | None


class ChangeEvent(TypedDict):
    """One incident change in the live stream. ``change``: opened, updated or resolved."""

    change: str
    incident: IncidentHead


class CollectorError(Exception):
    """The collector cannot be reached, or refuses the request. The text says what to do."""


class UnknownError(CollectorError):
    """The collector does not know the requested object."""


class RefusedError(CollectorError):
    """The token does not allow the request."""


def add_arguments(parser: argparse.ArgumentParser, *, again: bool = False) -> None:
    """Add the options for the collector's address, token and certificate authority.

    Args:
        again: True for a subcommand if its command has these options, too. Values given before the subcommand then
            count.
    """

    def default(value: str | None) -> str | None:
        return argparse.SUPPRESS if again else value

    parser.add_argument(
        "--collector",
        metavar="URL",
        default=default(os.environ.get(COLLECTOR_VARIABLE) or DEFAULT_COLLECTOR),
        help=f"the collector's HTTP address (default: ${COLLECTOR_VARIABLE}, otherwise {DEFAULT_COLLECTOR})",
    )
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        type=Path,
        default=default(None),
        help=f"file with the token (default: the token in ${TOKEN_VARIABLE})",
    )
    parser.add_argument(
        "--ca-file",
        metavar="FILE",
        type=Path,
        default=default(None),
        help="also trust this certificate authority (PEM)",
    )


class Client:
    """A client of one collector.

    Its methods raise CollectorError if the collector cannot be reached, refuses the request, or is not a collector.

    Args:
        url: base URL, with any path prefix that a proxy adds.

    Raises:
        CollectorError: the URL is not an http or https URL, or a file cannot be read.
    """

    def __init__(self, url: str, token: str = "", ca_file: Path | None = None) -> None:
        if not is_http_url(url):
            raise CollectorError(f"{hide_password(url)!r} is not an http:// or https:// URL")
        self.url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        context = ssl.create_default_context()
        if ca_file is not None:
            try:
                context.load_verify_locations(ca_file)
            except (OSError, ssl.SSLError) as error:
                raise CollectorError(f"--ca-file {ca_file}: {error.strerror or error}") from error
        self._http = urllib3.PoolManager(ssl_context=context, timeout=TIMEOUT, retries=False)

    @classmethod
    def from_args(cls, args: argparse.Namespace) -> Client:
        """Create a client from the options of `add_arguments`.

        Raises:
            CollectorError: a setting cannot be used.
        """
        token = os.environ.get(TOKEN_VARIABLE, "").strip()
        if args.token_file is not None:
            try:
                token = args.token_file.read_text().strip()
            except (OSError, ValueError) as error:
                reason = getattr(error, "strerror", None) or error
                raise CollectorError(f"--token-file {args.token_file}: {reason}") from error
        if not token.isascii() or not token.isprintable():
            raise CollectorError("the token contains characters that are not allowed in an HTTP header")
        return cls(args.collector, token, args.ca_file)

    def jobs(self) -> list[JobHead]:
        """The jobs."""
        return self._listed("jobs", JobHead, {})

    def incidents(
        self,
        *,
        job: str | None = None,
        state: str | None = None,
        before: str | None = None,
        brief: bool = False,
        consequences: bool = False,
    ) -> list[IncidentHead]:
        """The newest 1,000 incidents, oldest first, with all keys that the API gives.

        Args:
            before: only those that were detected before this time (RFC 3339).
            brief: leave out the keys that grow with the number of waiting ranks.
            consequences: return consequences whose cause is listed, too.
        """
        asked = {"job": job, "state": state, "before": before, "view": "brief" if brief else None}
        return self._listed("incidents", IncidentHead, {**asked, "include": "consequences" if consequences else None})

    def incident(self, number: str) -> IncidentDetail:
        """One incident in full. ``number``: its id."""
        return self._one(f"incidents/{quote(number, safe='')}", IncidentDetail)

    def job(self, key: str, rank: int | None = None) -> JobDetail | None:
        """One job in full. None: the collector no longer knows it.

        Args:
            key: the job's ``id`` in the list.
            rank: a rank to include even if the job is large.
        """
        asked = "" if rank is None else f"?ranks={rank}"
        return self._one_if_there(f"jobs/{quote(key, safe='')}{asked}", JobDetail)

    def ask_stacks(self, key: str) -> int:
        """Ask the ranks of a job for their stacks. Return how many are asked. ``key``: the job's ``id`` in the list.

        Raises:
            RefusedError: the token may only read.
            CollectorError: the job is over.
        """
        return self._one(f"jobs/{quote(key, safe='')}/stacks", AskedRanks, "POST")["asked"]

    def stacks(self, key: str) -> AskedStacks | None:
        """The stacks received so far. None: nobody has asked lately. ``key``: as in `ask_stacks`."""
        return self._one_if_there(f"jobs/{quote(key, safe='')}/stacks", AskedStacks)

    def advice(self, job: str, attempt: int, run_id: str) -> Advice | None:
        """What to do next with a run of a job. None: the collector has no advice, or is too old to give any."""
        asked = urlencode({"job": job, "attempt": attempt, "run_id": run_id})
        return self._one_if_there(f"attribution?{asked}", Advice)

    def _one_if_there(self, name: str, kind: type[_T]) -> _T | None:
        try:
            return self._one(name, kind)
        except UnknownError:
            return None

    def _one(self, name: str, kind: type[_T], method: str = "GET") -> _T:
        return self._read(name, lambda found: typed(kind, found), method)

    def _listed(self, name: str, kind: type[_T], query: Mapping[str, str | None]) -> list[_T]:
        given = urlencode({key: value for key, value in query.items() if value is not None})
        return self._read(f"{name}?{given}", lambda found: [typed(kind, item) for item in found[name]])

    def _read(self, name: str, read: Callable[[Any], _T], method: str = "GET") -> _T:
        address = f"{self.url}/api/v1/{name}"
        response = self._reach(lambda: self._http.request(method, address, headers=self._headers))
        self._check(response.status, response.data)
        try:
            return read(json.loads(response.data))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise self._not_a_collector() from error

    def changes(self) -> Iterator[ChangeEvent | None]:
        """Yield the incident changes of the live stream until the collector ends it. None stands for any other event.

        The stream begins with such another event. After its item, no change is missed.

        Raises:
            CollectorError: the stream cannot be opened, or has broken.
        """
        address = f"{self.url}/api/v1/events"
        headers = {**self._headers, "Accept": "text/event-stream"}
        response = self._reach(
            lambda: self._http.request(
                "GET", address, headers=headers, preload_content=False, timeout=STREAM_TIMEOUT, retries=False
            )
        )
        try:
            if response.status != 200:
                self._check(response.status, self._reach(lambda: response.read(4_096)))
            for name, text in _parse(self._lines(response)):
                yield typed(ChangeEvent, json.loads(text)) if name == "incident" else None
        except (ValueError, RecursionError) as error:
            raise self._not_a_collector() from error
        finally:
            response.close()

    def _lines(self, response: urllib3.BaseHTTPResponse) -> Iterator[str]:
        rest = b""
        chunks = response.stream(65_536)
        while (chunk := self._reach(lambda: next(chunks, None))) is not None:
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                yield line.decode(errors="replace").rstrip("\r")

    def _reach(self, work: Callable[[], _T]) -> _T:
        try:
            return work()
        except (urllib3.exceptions.HTTPError, OSError) as error:
            if _is_no_http(error):
                raise self._not_a_collector() from error
            raise CollectorError(
                hide_password(f"cannot reach a collector at {self.url}: {_reason(error)}. Is it running, and does")
                + " --collector match its --http address?"
            ) from error

    def _not_a_collector(self) -> CollectorError:
        return CollectorError(
            f"the server at {hide_password(self.url)} is not an otel-fr collector; is this its HTTP address?"
        )

    def _check(self, status: int, body: bytes) -> None:
        if status == 200:
            return
        try:
            reason = json.loads(body)["error"]
        except (ValueError, KeyError, TypeError, RecursionError):
            reason = f"status {status}"
        hint = f" (pass a token with --token-file or {TOKEN_VARIABLE})" if status in (401, 403) else ""
        if status == 404:
            raise UnknownError(f"{hide_password(self.url)} answered: {reason}")
        kind = RefusedError if status in (401, 403) else CollectorError
        raise kind(f"{hide_password(self.url)} refused the request: {reason}{hint}")


def _is_no_http(error: BaseException) -> bool:
    """Return whether the server's answer was not HTTP, as from the collector's gRPC port."""
    return any(isinstance(one, BadStatusLine) and not isinstance(one, RemoteDisconnected) for one in error.args)


def _reason(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    text = error.strerror if isinstance(error, OSError) else None  # without "[Errno 111]"
    return text or str(error) or type(error).__name__


def _parse(lines: Iterator[str]) -> Iterator[tuple[str, str]]:
    """Parse Server-Sent Events (html.spec.whatwg.org, server-sent events): their names and data."""
    name = "message"
    data: list[str] = []
    for line in lines:
        if not line:
            if data:
                yield name, "\n".join(data)
            name, data = "message", []
        elif line.startswith("event:"):
            name = line[6:].strip()
        elif line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
