"""``otel-fr bundle``: one file with what a colleague or a vendor needs to look into a fault, and nothing else."""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import re
import shutil
import socket
import stat
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Final

from otel_fr.analyze.analysis import Analysis, load
from otel_fr.analyze.output.text import to_json, to_text
from otel_fr.console.client import UNREACHABLE, Client, CollectorError
from otel_fr.console.client import add_arguments as add_client_arguments
from otel_fr.console.incidents import find
from otel_fr.dumps.nccl_ras import RAS_FILE
from otel_fr.dumps.places import newest_folder
from otel_fr.presentation import count_text
from otel_fr.printable import one_line, printable, printable_data
from otel_fr.redaction import clean
from otel_fr.sizes import size_text

_USAGE: Final = 2
_REDACTED: Final = "(redacted)"
_VARIABLES: Final = ("OTEL_", "TORCH_", "TORCHELASTIC_", "NCCL_", "SLURM_")
"""Prefixes of the environment variables that the bundle contains."""
_SECRET: Final = r"(?:token|secret|passw?|pwd?\b|_pw\b|key|cred|header|auth|cookie|jwt|webhook|\bsig\b|signature)"  # noqa: S105 - names, no secrets
_SECRET_NAME: Final = re.compile(_SECRET, re.IGNORECASE)
_SECRET_PART: Final = re.compile(rf"({_SECRET}[\w.-]*(?:[\"']?\s*[=:]\s*|\s+)).*", re.IGNORECASE | re.DOTALL)
"""In a value, a secret up to the end: ``api.key=...``, ``--token ...``, ``?access_token=...``, ``{"key": ...``."""
_SECRET_VALUE: Final = re.compile(
    r"-----BEGIN|\bAKIA[0-9A-Z]{12}|\bgh[a-z]_\w{16}|\bsk-[\w-]{16}|\bxox[a-z]-|\beyJ[\w-]+\.[\w-]+\.|[^\s/@:]+:[^\s/@]+@|\s-u\s"
)
"""Private keys, tokens (AWS, GitHub, model providers, Slack, JWT), ``user:password@host``, and curl's ``-u``."""
_PACKAGES: Final = re.compile(
    r"torch|torchcomms|torchft.*|nvidia[-_]nccl[-_].*|numpy|otel[-_]fr|opentelemetry[-_]sdk|py[-_]spy"
)
_TOPOLOGY: Final = ("nvidia-smi", "topo", "-m")
_MAX_LISTED: Final = 8
"""Flight-recorder files that the terminal lists. ``CONTENTS.txt`` lists all."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to its subcommand."""
    parser.epilog = (
        "Exit status: 0 the file was written; 2 usage error, nothing to put in, or the file cannot be written; 3 the"
        " collector cannot be reached or refuses the request."
    )
    parser.add_argument(
        "folder", nargs="?", type=Path, help="folder of flight-recorder files (default: the newest run's)"
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path, help="file to write (default: otel-fr-HOST-TIME.tar.gz here)"
    )
    text = "also pack the collector's incident with this id, or whose id begins with this text"
    parser.add_argument("--incident", metavar="ID", help=text)
    add_client_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Write the file and print its contents."""
    newest = newest_folder() if args.folder is None else None
    folder: Path | None = newest[0] if newest else args.folder
    made = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    output: Path = args.output or Path(f"otel-fr-{socket.gethostname()}-{made}.tar.gz")
    try:
        analysis = None if folder is None else load(folder)
        incident = None if args.incident is None else find(Client.from_args(args), args.incident)
    except (OSError, LookupError) as error:
        return _refuse(str(error))
    except CollectorError as error:
        return _refuse(str(error), UNREACHABLE)
    if (analysis is None or analysis.run is None) and incident is None:
        where = "of this user: name a FOLDER" if folder is None else f"in {folder}"
        return _refuse(f"no readable flight-recorder file {where}")
    texts = dict(_texts(analysis, os.environ, made))
    if incident is not None:
        texts["incident.json"] = ("the collector's incident", _json(dict(incident)))
    files = {} if analysis is None else _files(analysis)
    try:
        _write(output, texts, files)
    except OSError as error:
        return _refuse(f"{error.filename or output}: {error.strerror or error}; nothing was written")
    _tell(output, texts, files)
    return 0


def _refuse(text: str, status: int = _USAGE) -> int:
    print(f"otel-fr bundle: {printable(text)}", file=sys.stderr)
    return status


def _json(value: object) -> str:
    return json.dumps(printable_data(value, clean), indent=1) + "\n"


def _texts(analysis: Analysis | None, env: Mapping[str, str], made: str) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield name -> (what it is, its text) for the texts that are made here."""
    if analysis is not None and analysis.run is not None:
        yield "verdict.txt", ("what otel-fr analyze says", clean(to_text(analysis)))
        yield (
            "verdict.json",
            ("the same for programs", _json(json.loads(to_json(analysis)))),
        )
    variables = environment(env)
    hidden = sum(env[name] != value for name, value in variables.items())
    about = {
        "host": socket.gethostname(),
        "time": made,
        "platform": platform.platform(),
        "python": platform.python_version(),
        "packages": _packages(),
        "environment": variables,
    }
    what = f"host name, versions, {count_text(len(variables), 'environment variable')} ({hidden} redacted)"
    yield "about.json", (what, _json(about))
    if shutil.which(_TOPOLOGY[0]):
        yield "topology.txt", (f"{' '.join(_TOPOLOGY)} on {socket.gethostname()}", _topology())


def environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that matter, without tokens, headers, passwords and credentials in URLs."""
    return {name: _redacted(name, value) for name, value in sorted(env.items()) if name.startswith(_VARIABLES)}


def _redacted(name: str, value: str) -> str:
    if _SECRET_NAME.search(name) or _SECRET_VALUE.search(clean(value)):
        return _REDACTED
    items = value.split(",") if name == "OTEL_RESOURCE_ATTRIBUTES" else [value]
    return clean(",".join(_SECRET_PART.sub(rf"\1{_REDACTED}", item) for item in items))


def _packages() -> dict[str, str]:
    """Return versions of installed packages, without importing them."""
    found = ((one.metadata["Name"] or "", one.version) for one in metadata.distributions())
    return {name: version for name, version in sorted(found) if _PACKAGES.fullmatch(name.lower())}


def _topology() -> str:
    try:
        done = subprocess.run(_TOPOLOGY, capture_output=True, text=True, errors="replace", timeout=20.0)
    except (OSError, subprocess.SubprocessError) as error:
        return f"{error}\n"
    return done.stdout + done.stderr


def _files(analysis: Analysis) -> dict[str, Path]:
    """Return name in the bundle -> file: the answers of NCCL's RAS, and the files on which the verdict rests."""
    paths = [] if analysis.run is None else [Path(os.path.abspath(dump.path)) for dump in analysis.run.dumps]
    if not paths:
        return {}
    folders = sorted({path.parent for path in paths})
    beside = [path for folder in folders for path in sorted(folder.glob(f"{RAS_FILE}*")) if _is_own(path)]
    base = os.path.commonpath(folders)
    return {f"files/{path.relative_to(base)}": path for path in (*beside, *paths)}


def _is_own(path: Path) -> bool:
    """True for a file that is not a link: a link's target may be anything, whatever its name says."""
    return stat.S_ISREG(path.lstat().st_mode)


def _write(output: Path, texts: Mapping[str, tuple[str, str]], files: Mapping[str, Path]) -> None:
    """Write the archive, readable only by its owner.

    Raises:
        OSError: the archive exists or cannot be written, or a file cannot be read. No partial archive remains.
    """
    listed = [f"{name}: {what}" for name, (what, _) in texts.items()] + [f"{name}: {files[name]}" for name in files]
    handle = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "wb") as raw, tarfile.open(fileobj=raw, mode="w:gz") as archive:
            _add(archive, "CONTENTS.txt", "\n".join([*listed, ""]).encode("utf-8", "replace"))
            for name, (_, text) in texts.items():
                _add(archive, name, text.encode("utf-8", "replace"))
            for name, path in files.items():
                _add(archive, name, path.read_bytes())
    except BaseException:
        output.unlink(missing_ok=True)
        raise


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(f"otel-fr-bundle/{name}")  # without a user's name or id
    entry.size, entry.mtime, entry.mode = len(data), int(time.time()), 0o600
    archive.addfile(entry, io.BytesIO(data))


def _tell(output: Path, texts: Mapping[str, tuple[str, str]], files: Mapping[str, Path]) -> None:
    print(f"{printable(str(output))}, {size_text(output.stat().st_size)}, holds")
    for name, (what, _) in texts.items():
        print(f"  {name:<14}{what}")
    for name in list(files)[:_MAX_LISTED]:
        print(f"  {one_line(name)}")
    if len(files) > _MAX_LISTED:
        print(f"  and {count_text(len(files) - _MAX_LISTED, 'more file')}")
    print("  CONTENTS.txt  the names of all of them")
    print("Nothing else. The files are unchanged: they hold host names, paths, lines of source, exceptions.")
