"""Import rules that import-linter cannot state: what the lowest packages may import at all, and who imports torch."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import otel_fr

ROOT = Path(otel_fr.__file__).parent


def imported(path: Path) -> Iterator[str]:
    """Full names of the modules that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            module = node.module or ""
            yield from (f"{module}.{alias.name}" if module == "otel_fr" else module for alias in node.names)


def files(name: str) -> list[Path]:
    """The files of a package or a module of `otel_fr`."""
    module = ROOT / f"{name}.py"
    found = [module] if module.exists() else sorted((ROOT / name).rglob("*.py"))
    assert found
    return found


@pytest.mark.parametrize(
    ("name", "others"),
    [
        ("ring", {"otel_fr.operations", "otel_fr.identity"}),
        ("identity", set()),
        ("config", set()),
        ("semconv", set()),
        ("presentation", set()),
        ("decision_names", set()),
        ("communication_errors", set()),
        ("operations", set()),
        ("fingerprint", {"otel_fr.operations"}),
        # The engine's sentences are written as all others are; ranks compare by its rules what they have enqueued.
        (
            "match",
            {
                "numpy",
                "otel_fr.presentation",
                "otel_fr.decision_names",
                "otel_fr.fingerprint",
                "otel_fr.identity",
                "otel_fr.operations",
                "otel_fr.rank_report",
                "otel_fr.communication_errors",
                "otel_fr.stacks",
            },
        ),
    ],
)
def test_the_lowest_packages_import_only_the_standard_library(name: str, others: set[str]) -> None:
    own = f"otel_fr.{name}"
    for path in files(name):
        foreign = {
            module
            for module in imported(path)
            if not (module == own or module.startswith(f"{own}."))
            and module not in others
            and module.partition(".")[0] not in sys.stdlib_module_names | others
        }
        assert not foreign, f"{path.relative_to(ROOT)} imports {sorted(foreign)}"


def test_only_the_demo_job_and_torchruns_handler_import_torch() -> None:
    """Capture takes it from ``sys.modules`` once the training job has imported it."""
    importing = {
        path.relative_to(ROOT).parts[0]
        for path in ROOT.rglob("*.py")
        if any(name.partition(".")[0] == "torch" for name in imported(path))
    }
    assert importing == {"demo", "rendezvous"}
