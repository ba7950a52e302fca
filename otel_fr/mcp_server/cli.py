"""The options of ``otel-fr mcp``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from otel_fr.console.client import UNREACHABLE, Client, CollectorError
from otel_fr.console.client import add_arguments as add_client_arguments
from otel_fr.printable import printable

NEEDED = "otel-fr mcp needs the package mcp, 1.10 or a later 1.x: pip install 'otel-fr[mcp]'"
USAGE = 2
"""Exit status: a usage error, or the package is not installed."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to its subcommand."""
    parser.epilog = (
        "Exit status: 0 stdin was closed; 2 usage error, or the package mcp is not installed; 3 an option for the"
        " collector cannot be used. An assistant starts this command and talks to it over stdin and stdout."
    )
    parser.add_argument(
        "--root",
        metavar="DIR",
        type=Path,
        default=Path(),
        help="only flight-recorder files below this folder are read (default: the current folder)",
    )
    add_client_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Serve until stdin is closed. Return the exit status."""
    try:
        from otel_fr.mcp_server.server import serve
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "mcp":
            raise
        print(NEEDED, file=sys.stderr)
        return USAGE
    if not args.root.is_dir():
        print(f"otel-fr mcp: --root {printable(str(args.root))}: no such folder", file=sys.stderr)
        return USAGE
    try:
        client = Client.from_args(args)
    except CollectorError as error:
        print(f"otel-fr mcp: {printable(str(error))}", file=sys.stderr)
        return UNREACHABLE
    serve(client, args.root)
    return 0
