"""The runbooks: what to do about each category of incident, and about the collector's own alerts, as pages."""

from __future__ import annotations

import functools
import html
import itertools
import re
from pathlib import Path

from markdown_it import MarkdownIt

FOLDER = Path(__file__).parent
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title} · otel-fr</title>
<link rel="icon" href="../page/icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="../page/app.css">
</head>
<body>
<header class="bar"><a class="brand" href="../"><img src="../page/icon.svg" alt="" width="22" height="22"> otel-fr</a>
<nav aria-label="Main"><a href="../">Jobs</a> <a href="../#/incidents">Incidents</a></nav></header>
<main class="text">
{body}
</main>
</body>
</html>
"""


def names() -> list[str]:
    """The names of the runbooks: the categories of incidents, and ``collector``."""
    return sorted(path.stem for path in FOLDER.glob("*.md"))


@functools.cache
def as_html(name: str) -> str:
    """A runbook as a page. A heading's id is its text in lower case, with ``-`` for blanks: alerts link to it.

    Raises:
        KeyError: there is no such runbook.
    """
    if name not in names():
        raise KeyError(name)
    text = (FOLDER / f"{name}.md").read_text()
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = markdown.parse(text)
    for opening, inline in itertools.pairwise(tokens):
        if opening.type == "heading_open":
            opening.attrSet("id", re.sub(r"\s+", "-", inline.content.lower()))
    body = markdown.renderer.render(tokens, markdown.options, {})
    return _PAGE.format(title=html.escape(name), body=body)
