"""``otel-fr check``: check this node now, as torchrun's rendezvous handler ``otel-fr`` does before each start."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict

import tabulate

from otel_fr.checks import plan, report, runner
from otel_fr.checks.model import NODE_FAILED, Result, Status
from otel_fr.checks.settings import CheckSettings, SettingsError
from otel_fr.printable import one_line, printable_data

USAGE = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to its subcommand."""
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    parser.add_argument(
        "--conf",
        metavar="KEY=VALUE,...",
        default="",
        help="options as in torchrun's --rdzv-conf, such as check_paths=/data:/ckpt; they override the environment",
    )
    parser.add_argument(
        "--restart", action="store_true", help="also wait until the memory of GPUs is free, as before a restart"
    )
    parser.epilog = (
        f"OTEL_FR_CHECK... variables set what is checked. Exit status: 0 the node can be used; {NODE_FAILED} a"
        f" check failed; {USAGE} usage error."
    )


def run(args: argparse.Namespace) -> int:
    """Check, and print what was found."""
    try:
        settings = CheckSettings.read(os.environ, _conf(args.conf))
    except SettingsError as error:
        print(f"otel-fr check: {error}", file=sys.stderr)
        return USAGE
    results = runner.run(plan.tasks(settings, is_restart=args.restart))
    failed = any(result.status is Status.FAILED for result in results)
    if args.json:
        found = [{**asdict(result), "status": result.status.value} for result in results]
        print(json.dumps(printable_data({"failed": failed, "checks": found}), indent=2))
    else:
        print(_table(results), flush=True)
    report.publish(results)
    return NODE_FAILED if failed else 0


def _table(results: Sequence[Result]) -> str:
    if not results:
        return "Nothing is checked."
    rows = [
        (result.kind, one_line(result.target), result.status.value, f"{result.seconds:.1f} s", one_line(result.text))
        for result in results
    ]
    headers = ("check", "of", "result", "took", "found")
    return tabulate.tabulate(rows, headers, tablefmt="plain", disable_numparse=True)


def _conf(text: str) -> dict[str, object]:
    """Read ``a=1,b=2`` as torchrun does.

    Raises:
        SettingsError: it has another form.
    """
    found: dict[str, object] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = part.partition("=")
        if not equals or not value.strip():
            raise SettingsError(f"--conf {part!r} is not KEY=VALUE")
        found[key.strip()] = value.strip()
    return found
