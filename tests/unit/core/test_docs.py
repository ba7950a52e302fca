"""The documents name only what exists: files, links, environment variables, and the checks of pre-commit."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path

import opentelemetry.sdk.environment_variables as otel_variables
import pytest
import yaml
from otel_fr_collector.settings import ENV_PREFIX, OPTIONS

from tests.support.paths import DOCS, ROOT

DOCUMENTS = sorted([*ROOT.glob("*.md"), *DOCS.glob("*.md"), *(ROOT / "deploy").rglob("*.md")])
ARCHITECTURE = DOCS / "architecture.md"
FOLDERS = ("otel_fr", "collector", "proto", "deploy", "benchmarks", "docs", "tests", ".ci")
PACKAGES = (ROOT / "otel_fr", ROOT / "collector" / "otel_fr_collector")
"""docs/architecture.md names modules relative to the two packages."""
OTHER_PROGRAMS = {"NCCL_DEBUG", "NO_COLOR", "SSL_CERT_FILE", "TORCH_DEVICE_BACKEND_AUTOLOAD"}
"""Variables that otel-fr need not read itself: NCCL, rich, OpenSSL and torch do."""
VARIABLE = re.compile(r"\b(?:OTEL|TORCH\w*?|SLURM|NCCL|LSB|PBS|NO|SSL)_[A-Z0-9_]*[A-Z0-9]\b")

each_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))


@functools.cache
def code() -> str:
    """All program text and configuration of the project."""
    files = [path for name in FOLDERS for path in (ROOT / name).rglob("*") if path.suffix in {".py", ".yaml", ".yml"}]
    return "\n".join(path.read_text() for path in files if path != Path(__file__))


def anchors(document: Path) -> set[str]:
    """The anchors that a host which renders Markdown gives the headings."""
    headings = re.findall(r"^#+ (.+)$", document.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(document: Path) -> Iterator[str]:
    for target in re.findall(r"\]\(([^)\s]+)\)", document.read_text()):
        if not re.match(r"[a-z]+:", target):
            yield target


@each_document
def test_links_lead_somewhere(document: Path) -> None:
    broken = []
    for target in links(document):
        path, _, anchor = target.partition("#")
        file = document.parent / path if path else document
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)
    assert broken == []


@each_document
def test_files_of_the_project_exist(document: Path) -> None:
    names = re.findall(rf"(?<![\w/.\-])(?:{'|'.join(map(re.escape, FOLDERS))})/[\w./\-*]*", document.read_text())
    missing = [name for name in names if not any(ROOT.glob(name.rstrip("./")))]
    assert missing == []


def test_files_of_the_architecture_exist() -> None:
    names = re.findall(r"`([\w./]+(?:\.py|/))`", ARCHITECTURE.read_text())
    missing = [name for name in names if not any((base / name).exists() for base in (ROOT, *PACKAGES))]
    assert names
    assert missing == []


def test_every_package_has_its_place_in_the_architecture() -> None:
    text = ARCHITECTURE.read_text()
    packages = [path.parent.name for base in PACKAGES for path in base.glob("*/__init__.py")]
    assert [name for name in packages if f"{name}/`" not in text] == []


@each_document
def test_environment_variables_are_read_by_something(document: Path) -> None:
    known = {option.env for option in OPTIONS} | {f"{ENV_PREFIX}CONFIG"}
    known |= OTHER_PROGRAMS | set(dir(otel_variables)) | set(VARIABLE.findall(code()))
    assert [name for name in VARIABLE.findall(document.read_text()) if name not in known] == []


def test_every_variable_of_the_ranks_is_documented() -> None:
    read = re.findall(r'"((?:[A-Z]+_)+[A-Z]+|RANK)"', (ROOT / "otel_fr" / "config.py").read_text())
    text = (DOCS / "configuration.md").read_text()
    text = text.replace("`..._", "`OTEL_EXPORTER_OTLP_")
    assert len(read) > 20
    assert [name for name in read if f"`{name}`" not in text] == []


def test_the_readme_leads_to_every_document() -> None:
    text = (ROOT / "README.md").read_text()
    assert [path.name for path in DOCS.glob("*.md") if f"docs/{path.name}" not in text] == []


def test_pre_commit_runs_what_lint_runs() -> None:
    recipe = re.search(r"^lint:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert recipe
    commands = [line.strip().replace("$(BIN)", ".venv/bin") for line in recipe[1].splitlines()]
    configuration = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    assert [hook["entry"] for repository in configuration["repos"] for hook in repository["hooks"]] == commands
