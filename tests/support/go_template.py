"""As much of Go's text/template as the message templates in deploy/alertmanager use, to show their text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_ACTION = re.compile(r"\{\{(?P<left>-?)\s*(?P<text>.*?)\s*(?P<right>-?)\}\}", re.DOTALL)
_VARIABLES = re.compile(r"(?P<names>\$\w+(?:,\s*\$\w+)*)\s*:=\s*(?P<value>.*)")

Token = tuple[str, str]
"""``("text", text)`` or ``("action", what is in the braces)``."""


def render(source: str, name: str, data: Mapping[str, Any]) -> str:
    """The template of this name (``{{ define "NAME" }}``) with ``data`` as its dot.

    Raises:
        KeyError: there is no such template. ValueError: an action that is not supported.
    """
    return _render(_definitions(_tokens(source))[name], data, {"$": data})


def _tokens(source: str) -> list[Token]:
    found: list[Token] = []
    at, trims = 0, False
    for match in _ACTION.finditer(source):
        text = source[at : match.start()]
        text = text.lstrip() if trims else text
        found.append(("text", text.rstrip() if match["left"] else text))
        found.append(("action", match["text"]))
        at, trims = match.end(), bool(match["right"])
    return found


def _definitions(tokens: list[Token]) -> dict[str, list[Token]]:
    found = {}
    at = 0
    while at < len(tokens):
        kind, text = tokens[at]
        at += 1
        if kind == "action" and text.startswith("define "):
            end = _end_of_block(tokens, at)[-1]
            found[text.split('"')[1]] = tokens[at:end]
            at = end + 1
    return found


def _end_of_block(tokens: list[Token], at: int) -> list[int]:
    """Where the ``else`` actions and the ``end`` of the block are that begins before ``at``."""
    depth, found = 0, []
    while True:
        kind, text = tokens[at]
        word = text.partition(" ")[0] if kind == "action" else ""
        if word in ("if", "range", "with", "define"):
            depth += 1
        elif word == "end" and depth:
            depth -= 1
        elif word in ("else", "end") and not depth:
            found.append(at)
            if word == "end":
                return found
        at += 1


def _render(tokens: list[Token], dot: Any, variables: dict[str, Any]) -> str:
    parts: list[str] = []
    at = 0
    while at < len(tokens):
        kind, text = tokens[at]
        at += 1
        if kind == "text":
            parts.append(text)
            continue
        word, _, rest = text.partition(" ")
        if word not in ("if", "range", "with"):
            parts.append(str(_value(text, dot, variables)))
            continue
        marks = _end_of_block(tokens, at)
        bodies = [tokens[begin + 1 : end] for begin, end in zip([at - 1, *marks], marks, strict=False)]
        conditions = [rest, *(tokens[mark][1].removeprefix("else").strip() for mark in marks[:-1])]
        parts.append(_block(word, conditions, bodies, dot, variables))
        at = marks[-1] + 1
    return "".join(parts)


def _block(word: str, conditions: list[str], bodies: list[list[Token]], dot: Any, variables: dict[str, Any]) -> str:
    if word == "range":
        given = _VARIABLES.fullmatch(conditions[0])
        items = _value(given["value"] if given else conditions[0], dot, variables)
        names = re.findall(r"\$\w+", given["names"]) if given else []
        return "".join(
            _render(bodies[0], item, {**variables, **dict(zip(names, (number, item), strict=False))})
            for number, item in enumerate(items)
        )
    for condition, body in zip(conditions, bodies, strict=True):
        value = _value(condition.removeprefix("if "), dot, variables) if condition else True
        if value:
            return _render(body, value if word == "with" and condition else dot, variables)
    return ""


def _value(text: str, dot: Any, variables: dict[str, Any]) -> Any:
    first, *filters = [part.strip() for part in text.split("|")]
    operands = [_operand(word, dot, variables) for word in first.removeprefix("or ").split()]
    if len(operands) > 1 and not first.startswith("or "):
        raise ValueError(f"not supported: {text}")
    value = next((one for one in operands if one), operands[-1])
    for name in filters:
        if name != "toUpper":
            raise ValueError(f"not supported: {text}")
        value = str(value).upper()
    return value


def _operand(word: str, dot: Any, variables: dict[str, Any]) -> Any:
    """``.``, ``.Alerts``, ``$alert.Labels.host``; "" for a key that is not there, as of Alertmanager's maps."""
    root, _, path = word.partition(".")
    if root and root not in variables:
        raise ValueError(f"not supported: {word}")
    value = variables[root] if root else dot
    for name in filter(None, path.split(".")):
        value = value.get(name, "")
    return value
