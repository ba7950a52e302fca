"""Declarations of the API's requests. Routes and /api/openapi.json are made from them."""

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
"""Characters of a list of ranks in a request."""
MAX_ASKED = 1_024
"""Ranks of a large job that one request may ask for."""


class ApiError(HTTPException):
    """A response other than 200, with its status and one sentence."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(status, text, DATA_HEADERS)


class PageQuery(Struct):
    """Parameters that select a part of a list."""

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
    """Parameters of the list of runs. The parameters of `PageQuery` apply to runs that are over."""

    state: (
        Annotated[
            Literal["finished"], Meta(description="Only jobs that are over. `before` and `limit` apply to these only.")
        ]
        | UnsetType
    ) = UNSET


class JobQuery(Struct):
    """Parameters of a request for one run."""

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
        ApiError: ``ranks`` cannot be read, or has too many ranks.
        """
        try:
            return decode_ranks(self.ranks or "", limit=MAX_ASKED)
        except ValueError as error:
            raise ApiError(400, f"ranks: {error}; at most {MAX_ASKED:,} can be asked for") from None


_View = Annotated[Literal["brief"], Meta(description="Leaves out most of what grows with the number of ranks.")]


class IncidentsQuery(PageQuery):
    """Parameters of the list of incidents."""

    job: Annotated[str, Meta(description="Its name.")] | UnsetType = UNSET
    state: Literal["firing", "resolved"] | UnsetType = UNSET
    include: (
        Annotated[Literal["consequences"], Meta(description="Also incidents that follow from another one.")] | UnsetType
    ) = UNSET
    view: _View | UnsetType = UNSET


class IncidentQuery(Struct):
    """Parameters of a request for one incident."""

    view: _View | UnsetType = UNSET


class RunQuery(Struct):
    """Parameters that name a run."""

    job: Annotated[str, Meta(min_length=1, description="Its name.")]
    attempt: Annotated[int, Meta(ge=0, lt=10**9, description="Otherwise the newest.")] | UnsetType = UNSET
    run_id: Annotated[str, Meta(description="Otherwise the newest.")] | UnsetType = UNSET


class Endpoint(NamedTuple):
    """One request of the API.

    Attributes:
        handler: an unbound method. Its docstring describes the request; the first paragraph is the summary.
        answers: the types of the JSON that the handler returns. Empty: it returns text of ``media_type``.
        query: the type of the query parameters. None: there are none.
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
    """Make a route for each path. ``owner``: the object to which the handlers are bound."""
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
    """Return the values that a parameter may have if its type lists them."""
    _, schemas = schema_components([kind])
    found: list[str] = schemas[kind.__name__]["properties"].get(name, {}).get("enum", [])
    return found
