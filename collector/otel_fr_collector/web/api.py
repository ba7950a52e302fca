"""The JSON API, the live stream and the page, as routes (docs/reference/http-api.md)."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from msgspec import UNSET
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Route

from otel_fr.api_answers import (
    AskedRanks,
    AskedStacks,
    BriefIncidentDetail,
    BriefIncidentList,
    IncidentChange,
    IncidentDetail,
    IncidentList,
    Job,
    JobDetail,
    JobList,
)
from otel_fr.identity import encode_ranks
from otel_fr.incident import timestamp, unix
from otel_fr.rate_answers import JobRates
from otel_fr_collector.attribution.answer import AttributionData
from otel_fr_collector.jobs.run import Run, RunId
from otel_fr_collector.network.tokens import Access
from otel_fr_collector.outlets.event_stream import Listener, TooManyListenersError
from otel_fr_collector.service import Service
from otel_fr_collector.storage.backend import StoreError
from otel_fr_collector.web import runbooks
from otel_fr_collector.web.answers import Answers, owner_of
from otel_fr_collector.web.endpoints import (
    DATA_HEADERS,
    ApiError,
    Endpoint,
    IncidentQuery,
    IncidentsQuery,
    JobQuery,
    JobsQuery,
    RunQuery,
    routes_of,
)
from otel_fr_collector.web.finished import Finished
from otel_fr_collector.web.fresh import FRESH, Fresh
from otel_fr_collector.web.incident_lists import (
    MAX_BYTES,
    MAX_READ,
    Counted,
    Query,
    brief_detail,
    listed,
    remembered,
    stored,
)
from otel_fr_collector.web.job_detail import Picture, detail, picture
from otel_fr_collector.web.job_views import job_key, summary
from otel_fr_collector.web.openapi import document
from otel_fr_collector.web.rates import rates

PING = 15
"""Seconds without an event after which a listener gets a comment, so that no proxy closes the connection."""
SEND_TIMEOUT = 30
"""Seconds after which a listener that does not read is disconnected."""
LEFT_SECONDS = 1.0
"""A job has moved to another collector if it was heard there this much later than here. Clocks may be adjusted."""
SMALL = 4_096
"""Smallest response, in bytes, that is compressed."""
NO_RUN = "no such run; runs are dropped some time after their end, unless they have incidents"

NO_JOB = "no such job; jobs are dropped after the retention time"

PAGE = Path(__file__).with_name("page")
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_HEADERS = {
    # Nothing from other origins, nothing inline, and no markup made from text: job names are not trusted.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self';"
    " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none';"
    " require-trusted-types-for 'script'; trusted-types 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}

UntilRevoked = Callable[[Callable[[], None]], AbstractContextManager[object]]
"""Makes a context that calls a function, once, if the request's token is revoked."""

_Handler = Callable[[Request], Awaitable[Response]]


def routes(service: Service, answers: Answers, finished: Finished) -> list[BaseRoute]:
    """The endpoints, and the page at ``/``."""
    found: list[BaseRoute] = [
        *routes_of(ENDPOINTS, Api(service, answers, finished)),
        Route("/", page_file("index.html")),
    ]
    names = sorted(path.name for path in PAGE.iterdir() if path.suffix in _TYPES and path.name != "index.html")
    found += [Route(f"/page/{name}", page_file(name)) for name in names]
    # Also with .md: the files have these names on a site that publishes them itself.
    found += [Route(f"/runbooks/{name}{end}", runbook(name)) for name in runbooks.names() for end in ("", ".md")]
    return found


def page_file(name: str) -> _Handler:
    """A handler that serves one file of the page."""
    path = PAGE / name

    async def serve(_: Request) -> Response:
        return FileResponse(path, media_type=_TYPES[path.suffix], headers=_HEADERS)

    return serve


def runbook(name: str) -> _Handler:
    """A handler that serves one runbook."""

    async def serve(_: Request) -> Response:
        return HTMLResponse(runbooks.as_html(name), headers=_HEADERS)

    return serve


class Api:
    """The handlers over one service."""

    def __init__(self, service: Service, answers: Answers, finished: Finished) -> None:
        self._service = service
        self._answers = answers
        self._finished = finished
        self._fresh = Fresh(service.clock)
        self._ticker: asyncio.Task[None] | None = None
        self._description: tuple[bytes, bytes] | None = None

    async def openapi(self, request: Request) -> Response:
        """This description, as OpenAPI 3.1."""
        if self._description is None:
            body = json.dumps(document(ENDPOINTS), separators=(",", ":")).encode()
            self._description = body, await _pack(body)
        return _json(request, *self._description)

    async def jobs(self, request: Request, query: JobsQuery) -> Response:
        """The runs: those with firing incidents first, then the newest. Runs that are over: the newest first."""
        if not query.state:
            return _json(request, *await self._jobs(_access(request)))
        async with self._answers.making(owner_of(request.scope)):
            found = await self._finished.jobs(_access(request), query.before_unix, query.limit)
            return _json(request, *await self._packed(json.dumps({"jobs": found}).encode()))

    async def job(self, request: Request, query: JobQuery) -> Response:
        """One run with its ranks and process groups. A finished run of thousands of groups comes without them."""
        key = request.path_params["id"]
        asked = query.asked
        run = self._run(key)
        if run is None:
            return await self._finished_job(request, key)
        if not _access(request).may_see(run.id.job):
            raise ApiError(404, NO_JOB)

        async def make() -> bytes:
            now = self._service.clock()
            return json.dumps(await detail(run, await self._picture(run), now, asked)).encode()

        if not asked:
            return _json(request, *await self._fresh_body(key, make))
        async with self._answers.making(owner_of(request.scope)):
            return _json(request, *await self._packed(await make()))

    async def _picture(self, run: Run) -> Picture:
        service = self._service
        return await self._fresh.get(
            f"picture {job_key(run.id)}", lambda: picture(run, service.book, service.clock(), service.wall())
        )

    async def rates(self, request: Request) -> Response:
        """What the communication of a run costs. Runs that are over have no rates."""
        run = self._running(request)

        async def make() -> bytes:
            return json.dumps(await rates(run, self._service.clock(), self._service.wall())).encode()

        return _json(request, *await self._fresh_body(f"rates {job_key(run.id)}", make))

    async def ask_stacks(self, request: Request) -> Response:
        """Ask all ranks of a run where they are."""
        return JSONResponse({"asked": self._service.ask_stacks(self._running(request))}, headers=DATA_HEADERS)

    async def stacks(self, request: Request) -> Response:
        """Where the ranks are, as far as they have answered.

        404: nobody has asked lately.
        """
        run = self._running(request)
        asked = self._service.ingest.stack_requests.of(run.id)
        if asked is None:
            raise ApiError(404, "no stacks of this job were requested lately; POST requests them")
        groups = [{"ranks": encode_ranks(group.ranks), "frames": group.frames} for group in asked.groups()]
        silent = sorted(rank for rank, state in run.ranks.items() if state.ended is None and rank not in asked.answered)
        found = {"asked_at": timestamp(asked.wall), "groups": groups, "not_answered": encode_ranks(silent)}
        return _json(request, *await self._packed(json.dumps(found).encode()))

    def _running(self, request: Request) -> Run:
        run = self._run(request.path_params["id"])
        if run is None or not _access(request).may_see(run.id.job):
            raise ApiError(404, "no such running job")
        return run

    def _run(self, key: str) -> Run | None:
        """Find a run in memory by its key in URLs."""
        known = self._service.runs.by_id.values()
        return next((run for run in known if job_key(run.id) == key), None)

    async def _finished_job(self, request: Request, key: str) -> Response:
        async with self._answers.making(owner_of(request.scope)):
            found = await self._finished.job(key, _access(request))
            if found is None:
                raise ApiError(404, NO_JOB)
            return _json(request, *await self._packed(found))

    async def incidents(self, request: Request, query: IncidentsQuery) -> Response:
        """The newest incidents, oldest first.

        A consequence is listed only if its cause is not. At most 4 MiB: the oldest are left out.
        """
        job, state = (None if given is UNSET else given for given in (query.job, query.state))
        asked = Query(job, state, query.before_unix, query.limit, folded=not query.include)
        async with self._answers.making(owner_of(request.scope)):
            return _json(request, *await self._list(_access(request), asked, bool(query.view)))

    async def _list(self, access: Access, query: Query, brief: bool) -> tuple[bytes, bytes]:
        """A list of incidents, plain and compressed."""
        found: Counted | None = None
        store = self._service.store
        if store is not None:
            with contextlib.suppress(StoreError):  # the log says why
                found = await asyncio.to_thread(stored, store, query, access.prefix, MAX_READ if brief else MAX_BYTES)
        if found is None:
            found = remembered([one for one in self._service.book.known() if access.may_see(one.run.job)], query)
        return await self._packed(await asyncio.to_thread(listed, found, brief))

    async def _packed(self, body: bytes) -> tuple[bytes, bytes]:
        """A response, plain and compressed. Reuses equal bytes that are already in flight."""
        return self._answers.same(body), self._answers.same(await _pack(body))

    async def incident(self, request: Request, query: IncidentQuery) -> Response:
        """One incident."""
        number = request.path_params["id"]
        service = self._service
        found = service.book.get(number)
        caused = [i.data for i in service.book.known() if i.cause == number]
        consequences = [one["id"] for one in caused]
        if found is None and service.store is not None:
            with contextlib.suppress(StoreError):
                found = await asyncio.to_thread(service.store.get, number, _access(request).prefix)
                if found is not None:
                    consequences = await asyncio.to_thread(service.store.consequences, found)
        if found is None or not _access(request).may_see(found["job"]):
            raise ApiError(404, "no such incident; incidents are dropped some time after their end")
        key = job_key(RunId(found["job"], found["attempt"], found["run_id"]))
        access = _access(request)
        is_known = self._run(key) is not None or await self._finished.is_kept(key, access)
        started, ended = (unix(found[name]) for name in ("started_at", "resolved_at"))
        detected = unix(found["detected_at"]) or self._service.wall()
        more = {
            "links": service.links.for_page(found, started or detected, ended or self._service.wall()),
            "consequences": consequences,
            "waiting_count": len({rank for one in (found, *caused) for rank in one["waiting_ranks"]}),
            "job_url": f"/api/v1/jobs/{key}" if is_known else None,
        }
        async with self._answers.making(owner_of(request.scope)):
            shown = brief_detail(found, len(consequences)) if query.view else found
            return _json(request, *await self._packed(json.dumps({**shown, **more}).encode()))

    async def attribution(self, request: Request, query: RunQuery) -> Response:
        """What failed in a run, and what to do next."""
        if not _access(request).may_see(query.job):
            raise ApiError(404, NO_RUN)
        async with self._answers.making(owner_of(request.scope)):
            attempt = None if query.attempt is UNSET else query.attempt
            found = await self._service.attribution.find(query.job, attempt, query.run_id or None)
            if found is None:
                raise ApiError(404, NO_RUN)
            return _json(request, *await self._packed(json.dumps(found).encode()))

    async def events(self, request: Request) -> Response:
        """Server-Sent Events, for at most 256 clients.

        `jobs`: a `JobList` at the start, then each second if something changed. `incident`: an `IncidentChange`.
        """
        try:
            listener = self._service.outlets.event_stream.join(_access(request))
        except TooManyListenersError:
            raise ApiError(503, "too many listeners") from None
        if self._ticker is None or self._ticker.done():
            self._ticker = asyncio.get_running_loop().create_task(self._tick())
        headers = {**DATA_HEADERS, "X-Accel-Buffering": "no"}
        return EventSourceResponse(
            self._listen(listener, request.state.until_revoked), ping=PING, send_timeout=SEND_TIMEOUT, headers=headers
        )

    async def _listen(self, listener: Listener, until_revoked: UntilRevoked) -> AsyncGenerator[ServerSentEvent, None]:
        stream = self._service.outlets.event_stream
        with until_revoked(lambda: stream.end(listener)):
            try:
                jobs, _ = await self._jobs(listener.access)
                yield ServerSentEvent(event="jobs", data=jobs.decode())
                while (event := await listener.next()) is not None:
                    yield ServerSentEvent(event=event.name, data=event.data)
            finally:
                stream.leave(listener)

    async def _tick(self) -> None:
        """While there are listeners, send the list of jobs in each second in which it has changed."""
        stream = self._service.outlets.event_stream
        before: dict[Access, bytes] = {}
        await asyncio.sleep(FRESH)
        while accesses := stream.accesses():
            now = {access: (await self._jobs(access))[0] for access in accesses}
            for access, jobs in now.items():
                if jobs != before.get(access):
                    stream.jobs(jobs.decode(), access)
            before = now
            await asyncio.sleep(FRESH)

    async def _jobs(self, access: Access) -> tuple[bytes, bytes]:
        return await self._fresh_body(f"jobs {access.prefix}", lambda: self._make_jobs(access))

    async def _make_jobs(self, access: Access) -> bytes:
        found: list[Mapping[str, object]] = []
        book = self._service.book
        # In a stable order: runs with open incidents first, then the newest.
        runs = sorted(self._service.runs.by_id.values(), key=lambda run: (not book.open_of(run.id), -run.first_seen))
        for run in runs:
            if access.may_see(run.id.job):
                found.append(await summary(run, book, self._service.clock(), self._service.wall()))
                await asyncio.sleep(0)
        elsewhere = {one["id"]: one for one in await self._finished.elsewhere(access)}
        found = [one for one in found if one["id"] not in elsewhere or not _has_left(one, elsewhere[one["id"]])]
        known = {one["id"] for one in found}
        found += [one for number, one in elsewhere.items() if number not in known]
        return json.dumps({"jobs": found}).encode()

    async def _fresh_body(self, key: str, make: Callable[[], Awaitable[bytes]]) -> tuple[bytes, bytes]:
        """A response, plain and compressed."""

        async def packed() -> tuple[bytes, bytes]:
            body = await make()
            return body, await _pack(body)

        return await self._fresh.get(key, packed)


def _access(request: Request) -> Access:
    found: Access = request.state.access
    return found


def _has_left(here: Mapping[str, object], elsewhere: Mapping[str, object]) -> bool:
    """Return whether a job's ranks report to another collector now."""
    own, others = (unix(str(one["last_heard_at"])) or 0.0 for one in (here, elsewhere))
    return own + LEFT_SECONDS < others


async def _pack(body: bytes) -> bytes:
    return await asyncio.to_thread(gzip.compress, body, 3) if len(body) >= SMALL else b""


def _json(request: Request, body: bytes, packed: bytes) -> Response:
    headers = dict(DATA_HEADERS)
    headers["Vary"] = "Accept-Encoding"
    if packed and "gzip" in request.headers.get("accept-encoding", ""):
        headers["Content-Encoding"] = "gzip"
        body = packed
    return Response(body, media_type="application/json", headers=headers)


ENDPOINTS = (
    Endpoint("/api/v1/jobs", Api.jobs, (JobList,), JobsQuery),
    Endpoint("/api/v1/jobs/{id}", Api.job, (JobDetail, Job), JobQuery),
    Endpoint("/api/v1/jobs/{id}/rates", Api.rates, (JobRates,)),
    Endpoint("/api/v1/jobs/{id}/stacks", Api.stacks, (AskedStacks,)),
    Endpoint("/api/v1/jobs/{id}/stacks", Api.ask_stacks, (AskedRanks,), method="POST", access=("read", "write")),
    Endpoint("/api/v1/incidents", Api.incidents, (IncidentList, BriefIncidentList), IncidentsQuery),
    Endpoint("/api/v1/incidents/{id}", Api.incident, (IncidentDetail, BriefIncidentDetail), IncidentQuery),
    Endpoint("/api/v1/attribution", Api.attribution, (AttributionData,), RunQuery),
    Endpoint("/api/v1/events", Api.events, (JobList, IncidentChange), media_type="text/event-stream"),
    Endpoint("/api/openapi.json", Api.openapi),
)
"""Every request of the API."""
