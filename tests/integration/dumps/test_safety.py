"""Files made to do harm: nothing in them runs, they cost little, and what is wrong is said."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_fr import analyze
from otel_fr.dumps.read import load, load_folder
from otel_fr.dumps.safe_parse import Limits, UnreadableDump
from tests.support.damaged_dumps import read_or_refused
from tests.support.rings import RankRing, signature
from tests.support.torch_files import PLAIN_ENTRY, plain_file
from tests.support.waiting import PATIENCE


class Runs:
    """A value whose pickle runs a command when it is loaded."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.mark}",)


class PersistentPickler(pickle.Pickler):
    def persistent_id(self, obj: object) -> object:
        return "somewhere" if obj == "there" else None


def refused(folder: Path, *files: bytes) -> list[str]:
    """The errors that all of these as files give, which must come at once."""
    for rank, data in enumerate(files):
        (folder / f"trace_{rank}").write_bytes(data)
    began = time.monotonic()
    dumps, problems = load_folder(folder, "trace_")
    assert time.monotonic() - began < 20
    assert dumps == []
    assert len({problem.path for problem in problems}) == len(files)
    return [problem.text for problem in problems]


def test_every_pickle_protocol_of_plain_values_is_read(tmp_path: Path) -> None:
    for protocol in range(6):
        (tmp_path / f"trace_{protocol}").write_bytes(pickle.dumps(plain_file(), protocol))
    dumps, problems = load_folder(tmp_path)
    assert problems == []
    assert [(found.rank, found.source) for found in dumps] == [(protocol, "pytorch") for protocol in range(6)]
    assert {tuple(entry.signature.operation for entry in found.entries) for found in dumps} == {("all_reduce",)}


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
    refused(tmp_path, *(program.replace(b"MARK", bytes(mark)) for program in programs.values()))
    assert not mark.exists()


def test_a_reference_to_something_outside_is_refused(tmp_path: Path) -> None:
    out = io.BytesIO()
    PersistentPickler(out, 2).dump(plain_file(x="there"))
    (text,) = refused(tmp_path, out.getvalue())
    assert "refers to objects outside the file" in text


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


CHILD = """
import resource, sys
from otel_fr.dumps.read import load
from otel_fr.dumps.safe_parse import UnreadableDump
resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
for path in sys.argv[1:]:
    try:
        load(path)
        print("read")
    except UnreadableDump as error:
        print("refused:", error)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def test_files_made_to_exhaust_the_reader_are_refused_cheaply(tmp_path: Path) -> None:
    names = []
    for name, data in bombs().items():
        (tmp_path / f"{name}_0").write_bytes(data)
        names.append(name)
    command = [sys.executable, "-c", CHILD, *(str(tmp_path / f"{name}_0") for name in names)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    *said, peak = done.stdout.splitlines()
    outcomes = dict(zip(names, said, strict=True))
    assert [name for name, text in outcomes.items() if not text.startswith("refused:")] == [], done.stderr[-2000:]
    assert int(peak) < 1_500_000  # KiB


@pytest.mark.parametrize("ranks", ["0-999999", "[0, 1, 999999]"])
def test_ranks_that_no_job_has_cost_little(tmp_path: Path, ranks: str) -> None:
    """A few bytes list a million ranks, and each would have its line in the report."""
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


def test_pipes_and_folders_do_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "trace_0")
    (tmp_path / "trace_1").mkdir()
    dumps, problems = load_folder(tmp_path)
    assert dumps == []
    assert [problem.text for problem in problems] == ["not a regular file"]


def test_bad_files_do_not_cost_the_good_ones(tmp_path: Path) -> None:
    (tmp_path / "trace_0").write_bytes(pickle.dumps(plain_file(), 2))
    (tmp_path / "trace_1.json").write_text(json.dumps(plain_file()))
    (tmp_path / "trace_2").write_bytes(pickle.dumps(plain_file(x=Runs(tmp_path / "mark")), 2))
    (tmp_path / "trace_3").write_bytes(b"")
    (tmp_path / "notes.txt").write_text("rank 4 looked odd")
    (tmp_path / "settings.json").write_text("{}")
    (tmp_path / "nameless").write_bytes(pickle.dumps(plain_file(), 2))
    (tmp_path / ".trace_5.77.tmp").write_bytes(b"half")
    dumps, problems = load_folder(tmp_path)
    assert [found.rank for found in dumps] == [0, 1]
    said = {Path(problem.path).name: problem.text for problem in problems}
    assert set(said) == {"trace_2", "trace_3", tmp_path.name, "nameless"}
    assert "do not load it" in said["trace_2"]
    assert said["trace_3"].startswith("empty")
    assert said[tmp_path.name] == "2 files are not flight-recorder files and were skipped (notes.txt, settings.json)"
    assert "name must end with the rank" in said["nameless"]
    assert not (tmp_path / "mark").exists()


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=8,
)


ENTRIES = st.dictionaries(st.sampled_from(sorted(PLAIN_ENTRY)), values, max_size=4)
TOPS = st.dictionaries(st.sampled_from(["entries", "pg_config", "pg_status", "otel_fr", "version"]), values, max_size=2)
PROTOCOLS = st.integers(0, pickle.HIGHEST_PROTOCOL)


@settings(max_examples=8)
@given(files=st.lists(st.tuples(ENTRIES, values, TOPS, PROTOCOLS), min_size=20, max_size=20))
def test_any_field_may_hold_anything(files: list[tuple[dict[str, Any], Any, dict[str, Any], int]]) -> None:
    read_or_refused(
        [
            pickle.dumps({**plain_file(entries=[PLAIN_ENTRY, {**PLAIN_ENTRY, **entry}, other]), **top}, protocol)
            for entry, other, top, protocol in files
        ]
    )
