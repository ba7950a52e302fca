"""``otel-fr analyze``: all flags of PyTorch's ``torchfrtrace``, and more."""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from pathlib import Path

from otel_fr.analyze.analysis import HEALTHY, UNUSABLE, Analysis, load
from otel_fr.analyze.output.overview import View
from otel_fr.analyze.output.text import against_text, to_json, to_text
from otel_fr.dumps.places import newest_folder, runs_folder
from otel_fr.presentation import ago_text, count_text
from otel_fr.redaction import hide_password
from otel_fr.urls import is_http_url

_NOTHING_HERE = "no flight-recorder file in {}: name a folder. Ranks write files when a rank stalls or fails"
_TABLES = ("csv", "parquet", "sqlite", "pkl")
"""Suffixes of ``--output`` that are not a ``--format``."""
MAX_WORKERS = 8
"""Processes that read a large folder. More would only wait for the disk."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to its subcommand."""
    add = parser.add_argument
    parser.epilog = (
        "Exit status: 0 no fault was found; 1 a fault was found, in the newest run or an older"
        " one; 2 usage error or no readable file; 3 undecided: calls"
        " are in flight, and the files do not show whether they are blocked, or entries of the files could not be"
        " read, or only one of several ranks has a file."
    )
    add(
        "path",
        metavar="DIR",
        nargs="*",
        help="folder with one flight-recorder file per rank, or one such file; several folders belong to one"
        " job, such as one per host (default: the newest run's folder, in $OTEL_FR_DUMP_DIR, otherwise in"
        " ~/.cache/otel-fr)",
    )
    add(
        "--format",
        type=_format,
        choices=("text", "json", "markdown", "html", "perfetto"),
        default="text",
        help="output format (default: text); perfetto: a trace for ui.perfetto.dev",
    )
    add(
        "--against",
        metavar="DIR3",
        help="also compare the performance with the run in this folder; for --format text and json",
    )
    add(
        "--otlp",
        metavar="ENDPOINT",
        help="also send the incidents as traces to this OTLP endpoint, e.g. http://jaeger:4317",
    )
    add(
        "--nccl-inspector",
        metavar="DIR2",
        help="folder with NCCL Inspector's files, for durations on the devices (default: DIR)",
    )
    same = parser.add_argument_group("options of torchfrtrace")
    add = same.add_argument
    add("-p", "--prefix", metavar="P", help="read only files whose name begins with P")
    add(
        "-o",
        "--output",
        metavar="FILE",
        type=Path,
        help="write all calls as tables: .json, .sqlite or .pkl; or as one table: .csv or .parquet",
    )
    add("-j", "--just_print_entries", action="store_true", help="print what each rank recorded, instead of the verdict")
    add("--selected-ranks", nargs="+", type=int, metavar="R", help="show only these ranks; all ranks are judged")
    add("--pg-filters", nargs="+", metavar="PG", help="show only process groups with these names or descriptions")
    add(
        "--allow-incomplete-ranks",
        action="store_true",
        help="do not mention ranks without a file (missing files never stop the analysis)",
    )
    add("--mismatch_cap", type=_positive, default=10, metavar="N", help="show at most N faults (default: 10)")
    add("--print_stack_trace", action="store_true", help="also print the recorded stacks of calls")
    add(
        "-v", "--verbose", action="store_true", help="list every file, print stacks in full; with -j, print every field"
    )
    add(
        "--transform-ft",
        action="store_true",
        help="read files of torchft, whose default group numbers its ranks from 0 in each replica",
    )
    add(
        "--group-world-size",
        type=_positive,
        metavar="N",
        help="number of ranks of a torchft replica, for --transform-ft",
    )


def _format(text: str) -> str:
    if text in _TABLES:
        raise argparse.ArgumentTypeError(f"tables of all calls are written by --output: -o calls.{text}")
    return text


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return number


def run(args: argparse.Namespace) -> int:
    """Analyze and print. Return the exit status: `Analysis.status`, or `UNUSABLE` for a usage error."""
    refusal = _usage_error(args)
    if refusal:
        return _refuse(refusal)
    replica_size = args.group_world_size if args.transform_ft else None
    if not args.path:
        found = newest_folder()
        if found is None:
            return _refuse(_NOTHING_HERE.format(os.environ.get("OTEL_FR_DUMP_DIR", "").strip() or runs_folder()))
        folder, written = found
        args.path = [str(folder)]
        ago = ago_text(time.time() - written)
        print(f"otel-fr analyze: the newest run is in {folder}, written {ago}", file=sys.stderr)
    # Millions of small objects live until the end: collecting garbage would take longer than reading the files.
    gc.disable()
    try:
        analysis = _load(args, args.path, replica_size)
        other = None if args.against is None else _load(args, [args.against], replica_size)
    except (FileNotFoundError, PermissionError) as error:
        return _refuse(str(error))
    view = View(
        ranks=frozenset(args.selected_ranks) if args.selected_ranks else None,
        groups=frozenset(args.pg_filters) if args.pg_filters else None,
        cap=args.mismatch_cap,
        incomplete=args.allow_incomplete_ranks,
        stacks=args.print_stack_trace,
        verbose=args.verbose,
    )
    _print(analysis, view, args, other)
    status = analysis.status
    if analysis.run is None:
        print(f"otel-fr analyze: no readable flight-recorder file in {analysis.path}", file=sys.stderr)
    elif args.output is not None:
        status = _write(analysis, args.output) or status
    if other is not None and other.run is None:
        status = _refuse(f"--against: no readable flight-recorder file in {other.path}")
    if args.otlp and analysis.run is not None:
        status = _send(analysis, args.otlp) or status
    return status


def _usage_error(args: argparse.Namespace) -> str | None:
    """Why the options cannot be used together. None: they can."""
    if args.transform_ft and args.group_world_size is None:
        return "--transform-ft needs --group-world-size, the number of ranks of a torchft replica"
    if args.just_print_entries and args.format != "text":
        return "-j prints a table only; for programs, --output FILE.json writes every call"
    if args.format == "perfetto" and sys.stdout.isatty():
        return "a trace cannot be shown in a terminal: --format perfetto > trace.json"
    refusal = None if args.output is None else _refusal(args.output)
    if refusal:
        return f"--output {refusal}"
    if args.format == "perfetto" and args.output is not None and args.output.suffix.lower() == ".json":
        return f"--output writes the tables of all calls; for the trace use --format perfetto > {args.output}"
    if args.against is not None and (args.just_print_entries or args.format not in ("text", "json")):
        return "--against needs --format text or json, without -j"
    if args.otlp and not is_http_url(args.otlp):
        return f"--otlp: {hide_password(args.otlp)!r} is not an endpoint such as http://localhost:4317"
    return None


def _refuse(text: str) -> int:
    print(f"otel-fr analyze: {text}", file=sys.stderr)
    return UNUSABLE


_REPORTS = {".html": "html", ".md": "markdown", ".txt": "text", ".pftrace": "perfetto", ".perfetto-trace": "perfetto"}
"""Suffixes of files with the output of ``--format``, and the format."""


def _refusal(path: Path) -> str | None:
    """Why ``--output`` cannot write this file. None: it can."""
    from otel_fr.analyze.output import calls_file, database

    suffix = path.suffix.lower()
    if suffix in _REPORTS:
        return f"writes the tables of all calls; for the report use --format {_REPORTS[suffix]} > {path}"
    if suffix == calls_file.PARQUET and find_spec("pyarrow") is None:
        return f"{path}: {calls_file.PARQUET_NEEDED}"
    known = (calls_file.CSV, calls_file.PARQUET, database.JSON, *database.SQLITE, *database.PICKLE)
    if suffix not in known and suffix[1:].isalpha():
        return f"{path}: {suffix} is not written; use {', '.join(known[:-1])} or {known[-1]}"
    if not path.resolve().parent.is_dir():
        return f"{path}: its folder does not exist"
    return None


def _load(args: argparse.Namespace, path: list[str], replica_size: int | None) -> Analysis:
    loading: AbstractContextManager[Callable[[int, int], None] | None] = nullcontext()
    if sys.stderr.isatty():
        from otel_fr.analyze.output import terminal

        loading = terminal.loading()
    with loading as progress:
        return load(
            path,
            args.prefix,
            workers=min(os.cpu_count() or 1, MAX_WORKERS),
            progress=progress,
            replica_size=replica_size,
            nccl_inspector=args.nccl_inspector,
        )


def _print(analysis: Analysis, view: View, args: argparse.Namespace, other: Analysis | None) -> None:
    # Each output format is imported only when it is used.
    if args.just_print_entries:
        from otel_fr.analyze.output.entries_table import entries_text

        sys.stdout.write(entries_text(analysis, view))
    elif args.format == "json":
        sys.stdout.write(to_json(analysis, other) + "\n")
    elif args.format == "markdown":
        from otel_fr.analyze.output.markdown import to_markdown

        sys.stdout.write(to_markdown(analysis, view))
    elif args.format == "html":
        from otel_fr.analyze.output.page import to_html

        sys.stdout.write(to_html(analysis, view))
    elif args.format == "perfetto":
        from otel_fr.analyze.output.perfetto import MAX_CALLS, write_trace

        left_out = write_trace(analysis, view, sys.stdout.write)
        if left_out:
            older = count_text(left_out, "older call")
            print(
                f"otel-fr analyze: the trace has the newest {MAX_CALLS} calls; {older} left out"
                " (--selected-ranks selects ranks)",
                file=sys.stderr,
            )
    elif sys.stdout.isatty():
        from otel_fr.analyze.output.terminal import show

        show(analysis, view)
    else:
        sys.stdout.write(to_text(analysis, view))
    if other is not None and args.format == "text":
        sys.stdout.write(against_text(analysis, other))


def _write(analysis: Analysis, path: Path) -> int:
    from otel_fr.analyze.output import calls_file, database

    one_table = path.suffix.lower() in (calls_file.CSV, calls_file.PARQUET)
    try:
        (calls_file.write_calls if one_table else database.write_database)(analysis, path)
    except OSError as error:
        return _refuse(f"--output {path}: {error.strerror or error}; nothing was written")
    return HEALTHY


def _send(analysis: Analysis, endpoint: str) -> int:
    from otel_fr.analyze.output.otlp_traces import UnreachableEndpoint, send_traces

    try:
        count = send_traces(analysis, endpoint)
    except UnreachableEndpoint as error:
        return _refuse(hide_password(f"--otlp {endpoint}: {error}"))
    print(f"otel-fr analyze: sent {count_text(count, 'trace')} to {hide_password(endpoint)}", file=sys.stderr)
    return HEALTHY
