"""Reads files of NCCL Inspector: how long devices executed the calls of each communicator, as measured by NCCL.

Inspector, a profiler plugin of NCCL, writes one file of JSON lines per process, ``HOST-pidPID.log``. Up to version 4.2
of the format, each line has the communicator (``header``, ``metadata``) and one call (``coll_perf`` or ``p2p_perf``).
From 4.3 on, a line with ``dump_stats`` has the communicator, and its calls follow. Source: README.md and inspector.cc
(later inspector_json.cc) of the plugin in NVIDIA/nccl.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final, NamedTuple

from otel_fr.dumps.nccl_fields import head_of, integer, number, text

MAX_LINE: Final = 1 << 20
"""Bytes of a line. A verbose line with 64 channels has some 20 KB."""
GPU_CLOCK: Final = "kernel_gpu"
"""`DeviceCall.source` of times by the device's clock. Other times are by the host's clock."""

_NAME: Final = re.compile(r".*-pid[0-9]{1,9}\.log", re.DOTALL)
_SIGN: Final = b'"inspector_output_format_version"'
_WORDS: Final = re.compile("(?<=[a-z])(?=[A-Z])")


class Communicator(NamedTuple):
    """One process's part in an NCCL communicator.

    Attributes:
        id: NCCL's hash, which is the same in all processes of the communicator: ``"0x7f8c496ae9f661"``.
        name: the name that the program gave the communicator. "": none, or not in the file.
        rank: rank of the process in the communicator.
        size: number of ranks in the communicator.
        host, pid: host and id of the process.
    """

    id: str
    name: str
    rank: int
    size: int
    host: str
    pid: int


class DeviceCall(NamedTuple):
    """One call that a device has executed.

    Attributes:
        operation: `torch.distributed`'s name for NCCL's function: ``"all_gather"``, whichever variant was called.
        number: number of the call among calls of this function in this communicator, from 0. Each replay of a CUDA
            graph counts. For sends and receives, the number in the file.
        size: bytes as NCCL counts them: for all_gather one rank's input, for reduce_scatter one rank's output.
        seconds: time on the device.
        bus_bandwidth: bytes per second, as nccl-tests defines it. 0: not known.
        source: what measured the time: `GPU_CLOCK`, ``"kernel_cpu"`` or ``"collective_cpu"``. "": not known.
    """

    communicator: Communicator
    operation: str
    number: int
    size: int
    seconds: float
    bus_bandwidth: float
    source: str


class LineReader:
    """Reads the lines of one file, in their order.

    Args:
        is_whole: False if the beginning of the file is left out. A call without a communicator is then no error.

    Attributes:
        unusable: number of lines that are not JSON, or not a call of a communicator.
        dropped: number of calls that NCCL Inspector has lost, according to the file, by communicator.
    """

    def __init__(self, *, is_whole: bool = True) -> None:
        self._is_whole = is_whole
        self._communicator: Communicator | None = None
        self.unusable = 0
        self.dropped: dict[str, int] = {}

    def read(self, line: bytes) -> DeviceCall | None:
        """The call of a line. None: the line has none."""
        if not line.strip():
            return None
        try:
            if len(line) > MAX_LINE:
                raise ValueError("the line is too long")
            item = json.loads(line)
            return self._call(item)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            self.unusable += 1
            return None

    def forget(self) -> None:
        """Note that lines were left out: the next ones may belong to another communicator."""
        self._communicator = None
        self._is_whole = False

    def _call(self, item: object) -> DeviceCall | None:
        if not isinstance(item, dict):
            raise TypeError
        if "header" in item:
            self._communicator = _communicator(item["header"], item.get("metadata"))
        if "coll_perf" in item:
            kind, body = "coll", item["coll_perf"]
        elif "p2p_perf" in item:
            kind, body = "p2p", item["p2p_perf"]
        else:
            self._note_dropped(item.get("dump_stats"))
            return None
        if self._communicator is None:
            if self._is_whole:
                raise ValueError("the line has no communicator")
            return None
        seconds = number(body[f"{kind}_exec_time_us"]) / 1e6
        bandwidth = body.get(f"{kind}_busbw_gbs", 0)
        return DeviceCall(
            self._communicator,
            operation_name(text(body[kind])),
            integer(body[f"{kind}_sn"]),
            integer(body[f"{kind}_msg_size_bytes"]),
            seconds,
            number(bandwidth) * 1e9,
            text(body.get(f"{kind}_timing_source", "")),
        )

    def _note_dropped(self, stats: object) -> None:
        if isinstance(stats, dict) and self._communicator is not None:
            lost = sum(integer(stats.get(f"{kind}_dropped_total", 0)) for kind in ("coll", "p2p"))
            self.dropped[self._communicator.id] = lost


def _communicator(header: dict[str, Any], metadata: dict[str, Any] | None) -> Communicator:
    about = metadata or {}
    name = text(header.get("comm_name", ""))
    return Communicator(
        text(header["id"]),
        "" if name == "unknown" else name,
        integer(header["rank"]),
        integer(header["n_ranks"]),
        text(about.get("hostname", "")),
        integer(about.get("pid", 0)),
    )


def operation_name(function: str) -> str:
    """`torch.distributed`'s name for a function of NCCL: ``"all_gather"`` for ``"AllGather"``."""
    return "all_to_all" if function == "AlltoAll" else _WORDS.sub("_", function).lower()


def is_one(path: Path) -> bool:
    """Return whether name and beginning show a file of NCCL Inspector."""
    return _NAME.fullmatch(path.name) is not None and _SIGN in head_of(path)


def file_name(host: str, pid: int) -> str:
    """The name of a process's file."""
    return f"{host}-pid{pid}.log"


class InspectorFile(NamedTuple):
    """The contents of one file, or of its newest part.

    Attributes:
        skipped: bytes at the file's beginning that were not read.
        unusable: as in `LineReader`.
        dropped: the sum of `LineReader.dropped`.
    """

    path: str
    calls: list[DeviceCall]
    skipped: int
    unusable: int
    dropped: int


def read_file(path: Path, most: int) -> InspectorFile:
    """Read the newest ``most`` bytes of a file.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        size = file.seek(0, 2)
        skipped = max(0, size - most)
        file.seek(skipped)
        data = file.read(most)
    reader = LineReader(is_whole=not skipped)
    # If bytes were skipped, the first line may be incomplete. The last line may be half written.
    lines = data.split(b"\n")[1 if skipped else 0 : None if data.endswith(b"}") else -1]
    calls = [call for call in map(reader.read, lines) if call is not None]
    return InspectorFile(str(path), calls, skipped, reader.unusable, sum(reader.dropped.values()))
