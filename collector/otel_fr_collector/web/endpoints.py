"""A request of the API, declared once: its route and its part of /api/openapi.json are made from that."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.json import schema_components
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from otel_fr.identity import decode_ranks
from otel_fr_collector.storage.backend import MAX_PAGE

_Q = TypeVar("_Q", bound=Struct)
DATA_HEADERS = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}
JSON = "application/json"
MAX_RANKS_TEXT = 8_192
"""Characters."""
MAX_ASKED = 1_024
"""Ranks of a large job that one request asks for."""


class ApiError(HTTPException):
    """A response other than 200: its status and one sentence."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(status, text, DATA_HEADERS)


class PageQuery(Struct):
    """The part of a list that is asked for."""

    before: (
        Annotated[
            datetime,
            Meta(tz=True, description="Only jobs that ended, or incidents that were detected, before this time."),
        ]
        | UnsetType
    ) = UNSET
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE, description="How many to return at most, the newest first.")] = (
        MAX_PAGE
    )

    @property
    def before_unix(self) -> float | None:
        return self.before.timestamp() if self.before else None


class JobsQuery(PageQuery):
    """Of the list of runs; `PageQuery` is for those that are over."""

    state: (
        Annotated[
            Literal["finished"], Meta(description="Only jobs that are over. `before` and `limit` apply to these only.")
        ]
        | UnsetType
    ) = UNSET


class JobQuery(Struct):
    """Of one run."""

    ranks: (
        Annotated[
            str,
            Meta(
                max_length=MAX_RANKS_TEXT,
                description="Of a job of more than 1,024 ranks, also these, at most 1,024: `0-3,8-12:2`.",
            ),
        ]
        | UnsetType
    ) = UNSET

    @property
    def asked(self) -> list[int]:
        """Raises:
        ApiError: these are no ranks, or too many.
        """
        try:
            found = decode_ranks(self.ranks or "", limit=MAX_ASKED)
        except ValueError as error:
            raise ApiError(400, f"ranks: {error}") from None
        if len(found) > MAX_ASKED:
            raise ApiError(400, f"ranks: {len(found)} are too many; at most {MAX_ASKED} can be asked for")
        return found


class IncidentsQuery(PageQuery):
    """Of the list of incidents."""

    job: Annotated[str, Meta(description="Its name.")] | UnsetType = UNSET
    state: Literal["firing", "resolved"] | UnsetType = UNSET
    include: (
        Annotated[Literal["consequences"], Meta(description="Also incidents that follow from another one.")] | UnsetType
    ) = UNSET
    view: (
        Annotated[Literal["brief"], Meta(description="Leaves out most of what grows with the number of ranks.")]
        | UnsetType
    ) = UNSET


class IncidentQuery(Struct):
    """Of one incident."""

    view: (
        Annotated[Literal["brief"], Meta(description="Leaves out most of what grows with the number of ranks.")]
        | UnsetType
    ) = UNSET


class RunQuery(Struct):
    """A run."""

    job: Annotated[str, Meta(min_length=1, description="Its name.")]
    attempt: Annotated[int, Meta(ge=0, lt=10**9, description="Otherwise the newest.")] | UnsetType = UNSET
    run_id: Annotated[str, Meta(description="Otherwise the newest.")] | UnsetType = UNSET


class Endpoint(NamedTuple):
    """One request.

    Attributes:
        handler: a method of what answers; its docstring describes the request, in the first line shortly.
        answers: the types of the JSON that it answers with; none: text of ``media_type``.
        query: its parameters; None: it has none.
        access: what the token must allow.
    """

    path: str
    handler: Callable[..., Awaitable[Response]]
    answers: tuple[Any, ...] = ()
    query: type[Struct] | None = None
    method: str = "GET"
    media_type: str = JSON
    access: tuple[str, ...] = ("read",)


def routes_of(endpoints: Iterable[Endpoint], owner: object) -> list[Route]:
    """A route for each path. ``owner``: whose methods the handlers are."""
    paths: dict[str, dict[str, Endpoint]] = {}
    for one in endpoints:
        paths.setdefault(one.path, {})[one.method] = one
    return [Route(path, _serve(methods, owner), methods=list(methods)) for path, methods in paths.items()]


def _serve(methods: dict[str, Endpoint], owner: object) -> Callable[[Request], Awaitable[Response]]:
    async def serve(request: Request) -> Response:
        one = methods.get(request.method) or methods["GET"]  # HEAD
        if "write" in one.access and not request.state.access.write:
            raise ApiError(403, "the token is read-only; this needs one with access read,write")
        if one.query is None:
            return await one.handler(owner, request)
        return await one.handler(owner, request, _read(one.query, request))

    return serve


def _read(kind: type[_Q], request: Request) -> _Q:
    try:
        return msgspec.convert(dict(request.query_params), kind, strict=False)
    except msgspec.ValidationError as error:
        reason, _, place = str(error).partition(" - at `$.")
        name = place.rstrip("`")
        where = f"{name}: " if name else ""
        values = _values(kind, name)
        allowed = f" ({' or '.join(values)} is allowed)" if values else ""
        raise ApiError(400, f"{where}{reason}{allowed}; /api/openapi.json describes the parameters") from None


def _values(kind: type[Struct], name: str) -> list[str]:
    """Those that a parameter may have, if they are few."""
    _, schemas = schema_components([kind])
    found: list[str] = schemas[kind.__name__]["properties"].get(name, {}).get("enum", [])
    return found
