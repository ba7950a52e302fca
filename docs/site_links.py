"""A hook of MkDocs (mkdocs.yml): puts documents from other folders on the site, and links lead to where pages are.

In the repository, links are relative to their file, as hosts that render Markdown want them.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RUNBOOKS = "collector/otel_fr_collector/web/runbooks"
"""The packaged ones are pages beside docs/runbooks/README.md."""
OTHERS = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "benchmarks/RESULTS.md", "deploy/README.md")
"""Further pages, in the site's folder ``repository``."""
LINK = re.compile(r"\[([^\]]+)\]\((?![a-z]+:|#)([^)#]+)(#[^)]*)?\)")


def on_files(files: Any, *, config: Any) -> Any:
    """The site's files with those from other folders."""
    from mkdocs.structure.files import File

    for path, page in added().items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: object) -> str:
    """The page's text with links to pages of the site; ``[text](../x.py)``, which is none, is ``text (`x.py`)``."""
    here = page.file.src_uri
    folder = posixpath.dirname({added_page: path for path, added_page in added().items()}.get(here, f"docs/{here}"))

    def target(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, link[2]))
        there = added().get(path, path.removeprefix("docs/") if path.startswith("docs/") else "")
        if not there or there.endswith(".ipynb"):
            return f"{link[1]} (`{path}`)"
        return f"[{link[1]}]({posixpath.relpath(there, posixpath.dirname(here) or '.')}{link[3] or ''})"

    return LINK.sub(target, markdown)


def added() -> dict[str, str]:
    """Path in the repository -> path on the site, of the documents from other folders."""
    runbooks = {f"{RUNBOOKS}/{path.name}": f"runbooks/{path.name}" for path in (ROOT / RUNBOOKS).glob("*.md")}
    return {**runbooks, **{path: f"repository/{path}" for path in OTHERS}}
