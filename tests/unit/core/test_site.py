"""The documents as a site (mkdocs.yml): every page is in its navigation, and links lead to pages."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml

from tests.support.paths import DOCS, ROOT


@pytest.fixture(scope="module")
def hook() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_links", DOCS / "site_links.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def paths(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
        return
    for one in nav.values() if isinstance(nav, dict) else nav:
        yield from paths(one)


def test_every_document_is_in_the_navigation_once(hook: ModuleType) -> None:
    listed = list(paths(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    documents = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md") if "notebook-files" not in path.parts}
    assert sorted(listed) == sorted(documents | set(hook.added().values()))
    assert not [path for path in hook.added() if not (ROOT / path).is_file()]


@pytest.mark.parametrize(
    ("page", "link", "shown"),
    [
        ("runbooks/README.md", "[a](../../collector/otel_fr_collector/web/runbooks/deadlock.md)", "[a](deadlock.md)"),
        ("runbooks/collector.md", "[a](#store)", "[a](#store)"),
        ("guide/alerts.md", "[a](../runbooks/README.md#b)", "[a](../runbooks/README.md#b)"),
        ("README.md", "[a](../README.md)", "[a](repository/README.md)"),
        ("repository/README.md", "![a](docs/images/hung.png)", "![a](../images/hung.png)"),
        ("repository/benchmarks/RESULTS.md", "[a](../docs/guide/deploy.md#b)", "[a](../../guide/deploy.md#b)"),
        ("guide/analyze.md", "[a](../notebook.ipynb)", "a (`docs/notebook.ipynb`)"),
        (
            "reference/rank-report.md",
            "[a](../../otel_fr/rank_report/__init__.py)",
            "a (`otel_fr/rank_report/__init__.py`)",
        ),
        ("guide/alerts.md", "[a](https://example.org/x.md)", "[a](https://example.org/x.md)"),
    ],
)
def test_links_lead_to_pages(hook: ModuleType, page: str, link: str, shown: str) -> None:
    assert hook.on_page_markdown(link, page=SimpleNamespace(file=SimpleNamespace(src_uri=page))) == shown
