"""The ``otel-fr`` command. A subcommand's module is imported only when that subcommand runs."""

from __future__ import annotations

import argparse
import errno
import importlib
import io
import os
import re
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from otel_fr._version import __version__
from otel_fr.config import Config
from otel_fr.option_names import did_you_mean
from otel_fr.presentation import count_text
from otel_fr.ring import RingFormatError, RingReader
from otel_fr.ring.files import ring_files, ring_folders

_COMMANDS = {
    "analyze": ("otel_fr.analyze.cli", "find the rank that hung a job, from its flight-recorder files"),
    "collector": ("otel_fr_collector.cli", "receive the ranks' telemetry and publish incidents live"),
    "top": ("otel_fr.console.top", "show a collector's jobs, refreshed every second"),
    "incidents": ("otel_fr.console.incidents", "list a collector's incidents, or follow their changes"),
    "bundle": ("otel_fr.bundle", "pack what a colleague or a vendor needs into one file"),
    "mcp": ("otel_fr.mcp_server.cli", "serve a collector's incidents to an assistant, read-only (MCP over stdio)"),
    "doctor": ("otel_fr.doctor", "check whether a job would be recorded here, and what is missing"),
    "check": ("otel_fr.checks.cli", "check this node: storage, space, GPUs, health service, clock, collector"),
    "kernel": ("otel_fr.capture.native.build", "compile the capture kernel for a torch"),
    "demo": ("otel_fr.demo", "run a small job that hangs, and show the incident that explains it"),
}
_EXAMPLES = {
    "analyze": """
  otel-fr analyze                        the newest run of this user
  otel-fr analyze dumps/                 the files in one folder
  otel-fr analyze dumps/ --format html > report.html
""",
    "collector": """
  otel-fr collector                      for this machine only
  otel-fr collector --grpc 0.0.0.0:4317 --http 0.0.0.0:8080 --data /var/lib/fr
  otel-fr collector --alertmanager http://alertmanager:9093
  otel-fr collector --config collector.toml --check
""",
    "top": """
  otel-fr top
  otel-fr top --collector http://collector:8080 --interval 5
  otel-fr top --once
""",
    "incidents": """
  otel-fr incidents --state firing
  otel-fr incidents show 3f2a            the incident whose id begins with 3f2a
  otel-fr incidents --follow --json | jq .incident.summary
""",
    "bundle": """
  otel-fr bundle                         the newest run of this user
  otel-fr bundle dumps/ -o case.tar.gz
  otel-fr bundle dumps/ --collector http://collector:8080 --incident 3f2a
""",
    "mcp": """
  otel-fr mcp --collector http://collector:8080 --token-file reader.token
  otel-fr mcp --root /shared/flight-recorder
""",
    "doctor": """
  OTEL_EXPORTER_OTLP_ENDPOINT=http://collector:4317 otel-fr doctor
""",
    "check": """
  otel-fr check
  otel-fr check --conf check_paths=/data:/ckpt,check_gpus=8 --json
""",
    "kernel": """
  otel-fr kernel build                   for the torch installed here
  otel-fr kernel build --folder kernels --wheel torch-2.14.1-cp311.whl
""",
    "demo": """
  otel-fr demo
  otel-fr demo --nproc 8 --dir demo-of-8
""",
    "dump": """
  otel-fr dump                           all ranks of this user on this machine
  otel-fr dump --pid 4711
""",
}
"""Examples in each subcommand's help, at most 80 columns wide."""
_EXAMPLES_TITLE = "examples:"
_EXTRAS = {
    "collector": "otel-fr collector, otel-fr demo",
    "postgresql": "otel-fr collector --store postgresql://...",
    "mcp": "otel-fr mcp",
    "pandas": "data frames of otel_fr.analyze.load()",
    "parquet": "otel-fr analyze -o FILE.parquet",
    "instruments": "torch 2.6 or later, if the job has none",
    "uvloop": "a faster otel-fr collector",
}
"""Extra of the package -> what needs it. Recording and everything else need no extra."""
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors of a write: the disk or the quota is full, the file is too large, or the disk fails."""
_MONITOR = b"otel_fr.monitor"
"""Part of the command line of every rank monitor."""


class _Help(argparse.HelpFormatter):
    """Wraps text to the terminal, except paragraphs of examples, whose lines are kept."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = text.split("\n\n")
        return "\n\n".join(
            one if one.startswith(_EXAMPLES_TITLE) else super(_Help, self)._fill_text(one, width, indent)
            for one in paragraphs
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand.

    Returns:
        the process's exit status (2: usage error; 74: stdout cannot be written; 128 + a signal's number: Ctrl-C, or the
        process that reads stdout has ended).
    """
    _complete_streams()
    arguments = list(sys.argv[1:] if argv is None else argv)
    wanted = next((word for word in arguments if not word.startswith("-")), "")
    parser = argparse.ArgumentParser(
        prog="otel-fr",
        description="OpenTelemetry-native flight recorder for torch.distributed",
        epilog=_extras(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"otel-fr {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (module, text) in _COMMANDS.items():
        command = commands.add_parser(name, help=text, description=_sentence(text), formatter_class=_Help)
        if name == wanted:
            try:
                loaded = importlib.import_module(module)
            except ModuleNotFoundError as error:
                package = "'otel-fr[collector]'" if f"otel-fr {name}" in _EXTRAS["collector"] else "otel-fr"
                needed = f"otel-fr {name} needs the module {error.name}; to install it: pip install {package}"
                print(needed, file=sys.stderr)
                return 2
            loaded.add_arguments(command)
            _add_examples(command, name)
            command.set_defaults(run=loaded.run)
    text = "dump all ranks on this host now: each writes its flight-recorder file"
    dump = commands.add_parser("dump", help=text, description=_sentence(text), formatter_class=_Help)
    which = dump.add_mutually_exclusive_group()
    which.add_argument("--pid", type=int, help="only the rank with this process id")
    which.add_argument("--all", action="store_true", help="all ranks of this user (default)")
    dump.epilog = "Exit status: 0 at least one file was requested; 1 none was; 2 usage error."
    _add_examples(dump, "dump")
    dump.set_defaults(run=_dump)
    if not arguments:
        parser.print_help(sys.stderr)
        return 2
    args, unknown = parser.parse_known_args(arguments)
    if unknown:  # argparse would print the usage of otel-fr, which lists no options of the subcommand
        command = commands.choices[args.command]
        known = re.findall(r"--[\w-]+", command.format_usage())
        flags = (one.partition("=")[0] for one in unknown if one.startswith("--"))
        hint = next(filter(None, (did_you_mean(flag, known) for flag in flags)), "")
        command.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
    try:
        status: int = args.run(args)
        if not sys.stdout.closed:  # otel-fr mcp closes it
            sys.stdout.flush()
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:  # the process that reads stdout has ended
        _drop_output()
        return 128 + signal.SIGPIPE
    except OSError as error:
        if error.errno not in _DISK_ERRORS or error.filename is not None:
            raise
        _drop_output()
        print(f"otel-fr {args.command}: cannot write to standard output: {error.strerror}", file=sys.stderr)
        return os.EX_IOERR
    return status


def _complete_streams() -> None:
    """Open the standard streams that the parent process has closed, and escape what stdout's encoding lacks."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - for as long as the process runs
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _drop_output() -> None:
    """Discard what is still buffered for stdout, so that Python's own flush at the end does not fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _extras() -> str:
    lines = [f"  {f'otel-fr[{name}]':<22}{text}" for name, text in _EXTRAS.items()]
    return "\n".join(["extras to install:", *lines])


def _add_examples(command: argparse.ArgumentParser, name: str) -> None:
    command.epilog = f"{_EXAMPLES_TITLE}\n{_EXAMPLES[name].strip(chr(10))}\n\n{command.epilog or ''}"


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _dump(args: argparse.Namespace) -> int:
    requested = ended = 0
    for path in ring_files([*ring_folders(Config.from_env().ring_dir), *ring_folders(None)]):
        try:
            with RingReader.open(path) as reader:
                rank, pid, monitor = reader.meta.get("rank", "?"), reader.pid, reader.monitor_pid
                has_ended = reader.has_ended()
        except (OSError, RingFormatError) as error:
            reason = f"{path}: {error.strerror}" if isinstance(error, OSError) and error.strerror else error
            print(f"otel-fr dump: {reason}", file=sys.stderr)
            continue
        if args.pid not in (None, pid):
            continue
        # The ring may have outlived its monitor. Then another program may have the process id.
        if not _is_monitor(monitor):
            ended += has_ended
            if not has_ended:
                print(f"rank {rank} (process {pid}): its monitor is not running", file=sys.stderr)
            continue
        with suppress(ProcessLookupError):
            os.kill(monitor, signal.SIGUSR1)
            print(f"rank {rank} (process {pid}): asked its monitor (process {monitor}) for a flight-recorder file")
            requested += 1
    if ended:
        who = f"{count_text(ended, 'rank')} {'has' if ended == 1 else 'have'} ended"
        print(f"otel-fr dump: {who}; otel-fr analyze reads what they recorded", file=sys.stderr)
    if not requested:
        which = "" if args.pid is None else f" with process id {args.pid}"
        print(f"otel-fr dump: this user has no running rank{which} on this machine", file=sys.stderr)
        return 1
    return 0


def _is_monitor(pid: int) -> bool:
    if pid <= 1:
        return False
    try:
        return _MONITOR in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(main())
