"""Effects of the installation: few dependencies, no torch, entry points that cost nothing."""

from __future__ import annotations

import importlib.metadata
import re

ALLOWED = {
    "opentelemetry-api",
    "opentelemetry-sdk",
    "opentelemetry-exporter-otlp",
    "protobuf",
    "grpcio",
    "msgspec",
    "numpy",
    "rich",
    "tabulate",
    "urllib3",  # for otel-fr top and otel-fr incidents
}


def _requirements() -> list[str]:
    return importlib.metadata.requires("otel-fr") or []


def test_the_base_install_needs_only_the_promised_packages_each_as_a_range() -> None:
    base = [line for line in _requirements() if "extra ==" not in line]
    assert {re.split(r"[<>=! ;\[]", line)[0] for line in base} == ALLOWED
    assert all(">=" in line and "<" in line for line in base)


def test_torch_comes_only_with_the_extra_that_names_what_is_instrumented() -> None:
    naming_torch = [line for line in _requirements() if re.match(r"torch\b", line)]
    assert len(naming_torch) == 1
    assert 'extra == "instruments"' in naming_torch[0].replace("'", '"')


def test_the_entry_points_are_there() -> None:
    groups = {point.group: point.value for point in importlib.metadata.distribution("otel-fr").entry_points}
    assert {"torch.backends", "opentelemetry_instrumentor", "console_scripts"} <= set(groups)
    for taken_by_the_distribution in ("opentelemetry_distro", "opentelemetry_configurator"):
        assert taken_by_the_distribution not in groups
