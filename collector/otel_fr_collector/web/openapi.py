"""/api/openapi.json: OpenAPI 3.1, made from the endpoints, the types of their answers and their docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence
from typing import Any, is_typeddict

from msgspec.json import schema_components

from otel_fr import api_answers, incident, rate_answers
from otel_fr._version import __version__
from otel_fr.api_answers import ErrorData
from otel_fr_collector.attribution import answer
from otel_fr_collector.web.endpoints import JSON, Endpoint

Json = dict[str, Any]

_MODULES = (api_answers, rate_answers, incident, answer)
_REF = "#/components/schemas/{name}"


def document(endpoints: Sequence[Endpoint]) -> Json:
    """The OpenAPI document of these endpoints."""
    _, schemas = schema_components([ErrorData, *(kind for one in endpoints for kind in one.answers)], ref_template=_REF)
    paths: dict[str, Json] = {}
    for one in endpoints:
        paths.setdefault(one.path, {})[one.method.lower()] = _operation(one)
    return {
        "openapi": "3.1.0",
        "info": {"title": "otel-fr collector", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": _described(schemas),
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


def _described(schemas: dict[str, Json]) -> dict[str, Json]:
    """The schemas with a description of each key, from the docstring of its own type, or of the most similar type."""
    types = [kind for module in _MODULES for kind in vars(module).values() if is_typeddict(kind)]
    known = [(kind.__annotations__.keys(), _docstring(kind.__doc__ or "")[1]) for kind in types]
    made: dict[str, Json] = {}
    for name, schema in schemas.items():
        own = schema.get("properties", {})
        about, keys = _docstring(schema.get("description", ""))
        alike = sorted(known, key=lambda other: len(own.keys() & other[0]) / len(own.keys() | other[0]))
        texts = {key: text for _, found in [*alike, (own.keys(), keys)] for key, text in found.items()}
        properties = {key: {**one, "description": texts[key]} if key in texts else one for key, one in own.items()}
        made[name] = {**schema, **({"description": about} if about else {}), "properties": properties}
    return made


def _docstring(text: str) -> tuple[str, dict[str, str]]:
    """Split a type's docstring into the text about the type and the texts about its keys."""
    about, _, keys = inspect.cleandoc(text).partition("Attributes:\n")
    found = re.findall(r"^    (\w+(?:, \w+)*): (.*(?:\n {5,}.*)*)", keys, re.MULTILINE)
    return about.strip(), {key: " ".join(text.split()) for names, text in found for key in names.split(", ")}
