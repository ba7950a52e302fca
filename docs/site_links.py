"""A hook of MkDocs (mkdocs.yml): links to files of the repository that are not on the site become the files' names."""

from __future__ import annotations

import posixpath
import re
from typing import Any

LINK = re.compile(r"\[([^\]]+)\]\((?![a-z]+:|#)([^)#]+)(#[^)]*)?\)")


def on_page_markdown(markdown: str, *, page: Any, **_: object) -> str:
    """The page's text, in which ``[text](../../deploy/README.md)`` is ``text (`deploy/README.md`)``."""
    folder = posixpath.dirname(page.file.src_uri)

    def target(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join("docs", folder, link[2]))
        outside = not path.startswith("docs/") or path.endswith(".ipynb")
        return f"{link[1]} (`{path}`)" if outside else link[0]

    return LINK.sub(target, markdown)
