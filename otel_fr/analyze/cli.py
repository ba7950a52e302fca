"""``otel-fr analyze``."""

from __future__ import annotations

import argparse
import gc
import os
import sys
from pathlib import Path

from otel_fr.analyze.report import FAULT, HEALTHY, UNUSABLE, analyze, to_json, to_text

__all__ = ["FAULT", "HEALTHY", "UNUSABLE", "add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.add_argument("path", metavar="DIR", help="folder with one flight-recorder file per rank, or one such file")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="default: text")
    parser.add_argument("--prefix", metavar="P", help="only files whose name begins with P")


def run(args: argparse.Namespace) -> int:
    """Analyse and print. Exit status: 0 healthy, 1 fault found, 2 unusable input."""
    if not Path(args.path).exists():
        print(f"otel-fr analyze: {args.path}: no such file or folder", file=sys.stderr)
        return UNUSABLE
    # Millions of small objects that all live to the end: looking for garbage among them takes longer than reading them.
    gc.disable()
    report = analyze(args.path, args.prefix, workers=min(os.cpu_count() or 1, 8))
    sys.stdout.write(to_json(report) + "\n" if args.format == "json" else to_text(report))
    if report.run is None:
        print(f"otel-fr analyze: no readable flight-recorder file in {args.path}", file=sys.stderr)
    return report.status
