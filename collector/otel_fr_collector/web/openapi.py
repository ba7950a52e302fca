"""/api/openapi.json: OpenAPI 3.1, made from the endpoints, the types of their answers and their docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec.json import schema_components

from otel_fr._version import __version__
from otel_fr.api_answers import ErrorData
from otel_fr_collector.web.endpoints import JSON, Endpoint

Json = dict[str, Any]

_REF = "#/components/schemas/{name}"


def document(endpoints: Sequence[Endpoint]) -> Json:
    """The description of all of them."""
    _, schemas = schema_components([ErrorData, *(kind for one in endpoints for kind in one.answers)], ref_template=_REF)
    paths: dict[str, Json] = {}
    for one in endpoints:
        paths.setdefault(one.path, {})[one.method.lower()] = _operation(one)
    return {
        "openapi": "3.1.0",
        "info": {"title": "otel-fr collector", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": {name: _cleaned(schema) for name, schema in schemas.items()},
            "responses": {"error": _response("An error.", JSON, [ErrorData])},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(one: Endpoint) -> Json:
    summary, _, more = inspect.cleandoc(one.handler.__doc__ or "").partition("\n\n")
    answered = _response("The answer.", one.media_type, one.answers)
    return {
        "operationId": one.handler.__name__,
        "summary": summary,
        **({"description": more} if more else {}),
        "parameters": [*_in_path(one.path), *_in_query(one)],
        "security": [{"token": list(one.access)}] if one.access else [],
        "responses": {"200": answered, "default": {"$ref": "#/components/responses/error"}},
    }


def _response(description: str, media_type: str, kinds: Sequence[Any]) -> Json:
    found = [{"$ref": _REF.format(name=kind.__name__)} for kind in kinds]
    text = {"type": "object" if media_type == JSON else "string"}
    schema = text if not found else found[0] if len(found) == 1 else {"anyOf": found}
    return {"description": description, "content": {media_type: {"schema": schema}}}


def _in_path(path: str) -> Iterable[Json]:
    for name in re.findall(r"{(\w+)}", path):
        yield {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}


def _in_query(one: Endpoint) -> Iterable[Json]:
    if one.query is None:
        return
    _, schemas = schema_components([one.query])
    found = schemas[one.query.__name__]
    for name, schema in found["properties"].items():
        about = {key: schema.pop(key) for key in ("description",) if key in schema}
        yield {"name": name, "in": "query", "required": name in found["required"], **about, "schema": schema}


def _cleaned(schema: Json) -> Json:
    return {**schema, "description": inspect.cleandoc(schema["description"])} if "description" in schema else schema
