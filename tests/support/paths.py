"""Where the tests find the project's files."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
DEPLOY = ROOT / "deploy"
SCRIPTS = ROOT / "tests" / "support" / "scripts"
"""Programs that the tests start."""
JOBS = ROOT / "tests" / "acceptance" / "jobs"
DUMPS = ROOT / "tests" / "fixtures" / "dumps"
"""Flight-recorder files of real jobs and real cases. The folder's README describes each of them."""
