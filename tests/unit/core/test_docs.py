"""The documents name only what exists: files, links, environment variables, metrics, and the checks of pre-commit."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import opentelemetry.sdk.environment_variables as otel_variables
import pytest
from otel_fr_collector.metric_table import FAMILIES
from otel_fr_collector.settings import ENV_PREFIX, OPTIONS

from tests.support.paths import DOCS, ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PARTS = ("docs", "deploy", "benchmarks", "collector", "otel_fr", "tests/gpu")
DOCUMENTS = sorted([*ROOT.glob("*.md"), *itertools.chain.from_iterable((ROOT / one).rglob("*.md") for one in PARTS)])
ARCHITECTURE = DOCS / "development" / "architecture.md"
FOLDERS = ("otel_fr", "collector", "proto", "deploy", "benchmarks", "docs", "tests", ".ci")
PACKAGES = (ROOT / "otel_fr", ROOT / "collector" / "otel_fr_collector")
"""docs/development/architecture.md names modules relative to the two packages."""
OTHER_PROGRAMS = {
    "NCCL_DEBUG",
    "NO_COLOR",
    "SLURM_NNODES",
    "SLURM_NTASKS",
    "SSL_CERT_FILE",
    "TORCH_DEVICE_BACKEND_AUTOLOAD",
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE",
    "TORCH_NCCL_DEBUG_INFO_PIPE_FILE",
}
"""Variables that otel-fr need not read itself: NCCL, rich, OpenSSL, torch and batch scripts of Slurm do."""
VARIABLE = r"\b(?:OTEL|TORCH\w*?|SLURM|NCCL|LSB|PBS|NO|SSL)_[A-Z0-9_]*[A-Z0-9]\b"


def code() -> str:
    """All program text and configuration of the project."""
    files = [path for name in FOLDERS for path in (ROOT / name).rglob("*") if path.suffix in {".py", ".yaml", ".yml"}]
    return "\n".join(path.read_text() for path in files if path != Path(__file__))


def anchors(document: Path) -> set[str]:
    """The anchors that a host which renders Markdown gives the headings."""
    headings = re.findall(r"^#+ (.+)$", document.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def rows(package: str = "") -> dict[str, int]:
    """The names in the first column of the architecture's tables, and their rows; of one package or both."""
    text = ARCHITECTURE.read_text()
    tables = {
        "otel_fr": text.partition("## Packages of otel_fr")[2].partition("\n## ")[0],
        "otel_fr_collector": text.partition("## Packages of the collector")[2].partition("\n## ")[0],
    }
    lines = (tables[package] if package else "".join(tables.values())).splitlines()
    cells = [(number, line.split("|")[1]) for number, line in enumerate(lines) if line.startswith("| `")]
    return {name: number for number, cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def named(pattern: str) -> Iterator[tuple[Path, str]]:
    """Each document, and what it has that matches."""
    for document in DOCUMENTS:
        for name in re.findall(pattern, document.read_text()):
            yield document, name


def links(document: Path) -> Iterator[str]:
    for target in re.findall(r"\]\(([^)\s]+)\)", document.read_text()):
        if not re.match(r"[a-z]+:", target):
            yield target


def test_links_lead_somewhere() -> None:
    broken = []
    for document in DOCUMENTS:
        for target in links(document):
            path, _, anchor = target.partition("#")
            file = document.parent / path if path else document
            if not file.exists() or (anchor and anchor not in anchors(file)):
                broken.append((document, target))
    assert broken == []


def test_files_of_the_project_exist() -> None:
    found = named(rf"(?<![\w/.\-])(?:{'|'.join(map(re.escape, FOLDERS))})/[\w./\-*]*")
    assert [one for one in found if not any(ROOT.glob(one[1].rstrip("./")))] == []


def test_files_of_the_architecture_exist() -> None:
    names = re.findall(r"`([\w./]+(?:\.py|/))`", ARCHITECTURE.read_text())
    missing = [name for name in names if not any((base / name).exists() for base in (ROOT, *PACKAGES))]
    assert names
    assert missing == []


def test_the_architecture_has_a_row_for_every_package() -> None:
    parts = [path for base in PACKAGES for path in base.iterdir() if not path.name.startswith("_")]
    names = [f"{path.name}/" for path in parts if path.is_dir()] + [path.name for path in parts if path.suffix == ".py"]
    assert [name for name in names if name not in rows()] == []


@pytest.mark.parametrize("package", ["otel_fr", "otel_fr_collector"])
def test_the_rows_of_the_architecture_are_in_the_order_that_lint_enforces(package: str) -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = [one["layers"] for one in contracts if one["type"] == "layers" and one["containers"] == [package]]
    order = rows(package)
    found = [[order.get(f"{name}.py", order.get(f"{name}/")) for name in layer.split(" | ")] for layer in layers]
    numbers = [[number for number in layer if number is not None] for layer in found]
    for above, below in itertools.pairwise(layer for layer in numbers if layer):
        assert max(above) < min(below)


def test_environment_variables_are_read_by_something() -> None:
    known = {option.env for option in OPTIONS} | {f"{ENV_PREFIX}CONFIG"}
    known |= OTHER_PROGRAMS | set(dir(otel_variables)) | set(re.findall(VARIABLE, code()))
    assert [one for one in named(VARIABLE) if one[1] not in known] == []


def test_metrics_of_the_collector_exist() -> None:
    found = named(r"\botel_fr_collector_\w+")
    assert [one for one in found if re.sub("_(total|sum|count)$", "", one[1]) not in FAMILIES] == []


def test_every_variable_of_the_ranks_is_documented() -> None:
    read = re.findall(r'"((?:[A-Z]+_)+[A-Z]+|RANK)"', (ROOT / "otel_fr" / "config.py").read_text())
    text = (DOCS / "reference" / "environment.md").read_text()
    text = text.replace("`..._", "`OTEL_EXPORTER_OTLP_")
    assert len(read) > 20
    assert [name for name in read if f"`{name}`" not in text] == []


def test_the_index_leads_to_every_document() -> None:
    index = DOCS / "README.md"
    found = {(DOCS / target.partition("#")[0]).resolve() for target in links(index)}
    missing = [path for path in DOCS.rglob("*.md") if path != index and path not in found]
    assert [str(path.relative_to(DOCS)) for path in missing] == []


def test_make_has_the_targets_that_documents_name() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    found = {target for _, target in named(r"(?m)(?:`|^    )make ([a-z-]+)")}
    assert found
    assert found <= set(targets)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_modules_and_names_that_the_code_refers_to_exist(package: Path) -> None:
    """`otel_fr.ring.RingWriter` in a docstring: the module exists and has the name."""
    missing = []
    for source in package.rglob("*.py"):
        for reference in re.findall(r"`(otel_fr(?:_collector)?(?:\.\w+)+)(?:\(\))?`", source.read_text()):
            root = next(path for path in PACKAGES if path.name == reference.partition(".")[0])
            path, names = root, reference.split(".")[1:]
            while names and (path / names[0]).is_dir():
                path /= names.pop(0)
            path = path / f"{names.pop(0)}.py" if names and (path / f"{names[0]}.py").exists() else path / "__init__.py"
            if any(not re.search(rf"\b{name}\b", path.read_text()) for name in names):
                missing.append(f"{source.relative_to(ROOT)}: {reference}")
    assert missing == []
