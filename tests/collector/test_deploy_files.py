"""The files under deploy/, each loaded by the program that reads it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from kit import running
from prometheus_client.parser import text_string_to_metric_families

DEPLOY = Path(__file__).parents[2] / "deploy"


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not here")
def test_prometheus_rules_pass_their_unit_tests() -> None:
    for command in (["check", "rules", "otel_fr.rules.yml"], ["test", "rules", "otel_fr.rules.test.yml"]):
        done = subprocess.run(["promtool", *command], cwd=DEPLOY / "prometheus", capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(not shutil.which("amtool"), reason="amtool is not here")
def test_alertmanager_takes_the_example() -> None:
    command = ["amtool", "check-config", str(DEPLOY / "alertmanager" / "alertmanager.yml")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_rules_name_only_metrics_that_exist(tmp_path: Path) -> None:
    rules = (DEPLOY / "prometheus" / "otel_fr.rules.yml").read_text()
    used = set(re.findall(r"\botel_fr_\w+", "\n".join(re.findall(r"expr: (.*)", rules))))
    with running(tmp_path) as collector:
        families = list(text_string_to_metric_families(collector.get("/metrics")))
    known = {family.name for family in families}
    assert used
    assert {name.removesuffix("_total") for name in used} <= known
