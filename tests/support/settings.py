"""Reads the collector's settings as the collector does at its start."""

from __future__ import annotations

import argparse
from pathlib import Path

from otel_fr_collector import loading
from otel_fr_collector.settings import Settings


def load_settings(
    command_line: str = "", env: dict[str, str] | None = None, file: str | None = None, folder: Path | None = None
) -> Settings:
    """Read a command line, the environment, and a configuration file's text, which is written to ``folder``."""
    parser = argparse.ArgumentParser()
    loading.add_arguments(parser)
    arguments = command_line.split()
    if file is not None:
        assert folder is not None
        path = folder / "collector.toml"
        path.write_text(file)
        arguments += ["--config", str(path)]
    return loading.load(vars(parser.parse_args(arguments)), env or {})
