"""Files made to do harm. Nothing in them runs, they cost little, and each gives a clear error."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import struct
from pathlib import Path
from typing import Any

import pytest

from otel_fr import analyze
from otel_fr.dumps.read import load, load_folder
from otel_fr.dumps.safe_parse import Limits, UnreadableDump
from tests.support.damaged_dumps import outcomes
from tests.support.rings import RankRing, signature
from tests.support.torch_files import PLAIN_ENTRY, plain_file


class Runs:
    """A value with a pickle that runs a command when it is loaded."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.mark}",)


def refused(folder: Path, *files: bytes) -> list[str]:
    """Write these files, check that none can be read, and return the errors."""
    for rank, data in enumerate(files):
        (folder / f"trace_{rank}").write_bytes(data)
    dumps, problems = load_folder(folder, "trace_")
    assert dumps == []
    assert len({problem.path for problem in problems}) == len(files)
    return [problem.text for problem in problems]


def test_a_pickle_that_runs_a_command_is_refused_unrun(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    evil = Runs(mark)
    forms: list[dict[Any, Any]] = [
        plain_file(x=evil),
        plain_file(entries=[PLAIN_ENTRY, evil]),
        {evil: 1, **plain_file()},
    ]
    texts = refused(tmp_path, *(pickle.dumps(form, protocol) for form in forms for protocol in range(6)))
    assert [text for text in texts if "do not load it" not in text] == []
    assert not mark.exists()


def test_each_instruction_that_does_more_than_hold_values_is_refused(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    programs = {
        "global": b"cos\nsystem\n(S'touch MARK'\ntR.",
        "inst": b"(S'touch MARK'\nios\nsystem\n.",
        "stack_global": b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\ntouch MARK\x85R.",
        "newobj": b"\x80\x02cbuiltins\nlist\n)\x81.",
        "build": b"\x80\x02}}b.",
        "ext": b"\x80\x02\x82\x01.",
        "persid": b"(P5\n.",
        "binpersid": b"\x80\x02\x8a\x08" + bytes(8) + b"Q.",
    }
    texts = refused(tmp_path, *(program.replace(b"MARK", bytes(mark)) for program in programs.values()))
    assert all("refers to objects outside the file" in text for text in texts[-2:])
    assert not mark.exists()


def bombs() -> dict[str, bytes]:
    plain = plain_file()
    shared = [{**PLAIN_ENTRY, "input_sizes": [[1] * 60] * 50_000}] * 50_000
    return {
        "memo number": b"\x80\x02}r\xff\xff\xff\x7f.",
        "memo number as text": b"(dp9999999999999\n.",
        "string length": b"\x80\x02X\xff\xff\xff\x7fab.",
        "string length of 8 bytes": b"\x80\x04\x8d" + struct.pack("<Q", 1 << 62) + b"ab.",
        "bytes length of 8 bytes": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 40) + b"ab.",
        "frame length": b"\x80\x04\x95" + struct.pack("<Q", 1 << 60) + b"}.",
        "nested lists": b"\x80\x02" + b"]" * 2_000_000 + b"a" * 1_999_999 + b".",
        "nested tuples": b"\x80\x02)" + b"\x85" * 2_000_000 + b".",
        "doubled lists": b"\x80\x02]q\x00" + b"".join(b"]q%c(h%ch%ce" % (i + 1, i, i) for i in range(200)) + b".",
        "nested JSON": b'{"entries":' + b"[" * 2_000_000,
        "number of a million digits": b'{"pg_config": {}, "entries": [' + b"9" * 1_000_000 + b"]}",
        "nothing": b"",
        "stop": b"\x80\x02.",
        "text": b"Traceback (most recent call last):\n",
        "half a pickle": pickle.dumps(plain, 2)[:200],
        "half a JSON": json.dumps(plain).encode()[:200],
        "damaged gzip": gzip.compress(pickle.dumps(plain, 2))[:-12],
        "gzip bomb": gzip.compress(b"\x80\x02" + b"]" * 20_000_000, 1),
        "small gzip bomb": gzip.compress(json.dumps(plain).encode()[:-1] + b', "x": "' + b"a" * 40_000_000 + b'"}'),
        "shared sizes": pickle.dumps(plain_file(entries=shared), 2),
    }


def test_files_made_to_exhaust_the_reader_are_refused_cheaply(tmp_path: Path) -> None:
    said, peak = outcomes(tmp_path, bombs())
    assert {name: text for name, text in said.items() if not text.startswith("refused:")} == {}
    assert peak < 1_500_000


@pytest.mark.parametrize("ranks", ["0-999999", "[0, 1, 999999]"])
def test_ranks_that_no_job_has_cost_little(tmp_path: Path, ranks: str) -> None:
    """A few bytes list a million ranks, and each would have a line in the report."""
    ring = RankRing(tmp_path / "rings", 0, 2)
    ring.call(signature("all_reduce"))
    path = ring.write(tmp_path / "files", "json")
    data = json.loads(path.read_text())
    data["otel_fr"] |= {"world_size": 1_000_000}
    for group in (*data["otel_fr"]["groups"], *data["pg_config"].values()):
        group["ranks"] = ranks
    path.write_text(json.dumps(data))
    assert [*analyze.load(tmp_path / "files").ranks] == [0]
    del data["otel_fr"]
    path.write_text(json.dumps(data))
    report = analyze.load(tmp_path / "files")
    assert [*report.ranks] == [0]
    assert report.problems == []


def test_a_file_over_the_limits_is_refused(tmp_path: Path) -> None:
    entries = [{**PLAIN_ENTRY, "record_id": number, "collective_seq_id": number + 1} for number in range(100)]
    data = pickle.dumps(plain_file(entries=entries), 2)
    path = tmp_path / "trace_0"
    path.write_bytes(data)
    with pytest.raises(UnreadableDump, match="larger than"):
        load(path, Limits(max_bytes=500))
    path.write_bytes(gzip.compress(data))
    assert len(load(path).entries) == 100


def test_gzip_files_without_end_are_refused_at_once(tmp_path: Path) -> None:
    """The program once looked for the first byte of a dump itself, in a terabyte of zeros for a day."""
    with (tmp_path / "trace_0").open("wb") as file:
        file.write(gzip.compress(b""))
        file.truncate(1 << 40)
    (tmp_path / "x.txt").write_bytes(2_000_000 * gzip.compress(b""))
    dumps, problems = load_folder(tmp_path)
    assert dumps == []
    assert [problem.text.partition(";")[0] for problem in problems] == [
        "larger than 512 MiB",
        "1 file is not a flight-recorder file and was skipped (x.txt)",
    ]


def test_pipes_and_folders_do_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "trace_0")
    (tmp_path / "trace_1").mkdir()
    dumps, problems = load_folder(tmp_path)
    assert dumps == []
    assert [problem.text for problem in problems] == ["not a regular file"]
