"""Files with random changes. Each is read or refused in bounded time and memory, and never ends the reader."""

from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.damaged_dumps import read_or_refused
from tests.support.paths import DUMPS
from tests.support.rings import OPERATIONS, RankRing, signature


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """One valid file of each kind."""
    folder = tmp_path_factory.mktemp("sound")
    ring = RankRing(folder, 0, 2)
    for operation in OPERATIONS:
        ring.call(signature(operation, peer=1, tag=0, root=0))
    ring.write(folder)
    ring.write(folder, "json")
    torch = (DUMPS / "nvrx_lock_gil_2nd" / "_dump_1").read_bytes()
    plain = pickle.loads(torch)
    return {
        "ring": Path(ring.writer.path).read_bytes(),
        "own": (folder / "trace_0").read_bytes(),
        "own json": (folder / "trace_0.json").read_bytes(),
        "torch": torch,
        "torch json": json.dumps(plain).encode(),
        "torchcomms": (DUMPS / "tc01_torchcomms_json_hang" / "rank_0.json").read_bytes(),
        "gzip": gzip.compress(torch),
        "protocol 0": pickle.dumps(plain, 0),
        "protocol 5": pickle.dumps(plain, 5),
    }


CHANGES = st.lists(
    st.tuples(
        st.floats(0, 1, exclude_max=True),
        st.sampled_from(["set", "cut", "insert", "repeat"]),
        st.binary(min_size=1, max_size=12),
    ),
    min_size=1,
    max_size=5,
)


def changed(data: bytes, changes: list[tuple[float, str, bytes]]) -> bytes:
    """Change data. ``changes``: (relative position, kind of change, bytes)."""
    whole = bytearray(data)
    for place, how, new in changes:
        at = int(place * len(whole))
        if how == "set":
            whole[at : at + 1] = new[:1]
        elif how == "cut":
            del whole[at : at + 4 * len(new)]
        elif how == "insert":
            whole[at:at] = new
        else:
            whole[at:at] = whole[at : at + 16 * len(new)]
        whole = whole or bytearray(b".")
    return bytes(whole)


KINDS = ["ring", "own", "own json", "torch", "torch json", "torchcomms", "gzip", "protocol 0", "protocol 5"]


@settings(max_examples=10)
@given(files=st.lists(st.tuples(st.sampled_from(KINDS), CHANGES), min_size=25, max_size=25))
def test_files_with_changed_bytes_are_read_or_refused(
    sound: dict[str, bytes], files: list[tuple[str, list[tuple[float, str, bytes]]]]
) -> None:
    read_or_refused([changed(sound[kind], changes) for kind, changes in files])


PLAIN = b"(01N}])tlduase\x85\x86\x87\x88\x89\x94"
FORBIDDEN = b".2cioRbQPB\x81\x93\x92\x8f\x90\x91"
LINES = st.text("0123456789'a.e-", max_size=8).map(lambda text: text.encode() + b"\n")
INSTRUCTIONS = st.one_of(
    st.sampled_from([bytes([code]) for code in PLAIN + FORBIDDEN]),
    st.tuples(st.sampled_from([b"K", b"q", b"h", b"\x80"]), st.binary(min_size=1, max_size=1)).map(b"".join),
    st.binary(max_size=9).map(lambda text: b"X" + len(text).to_bytes(4, "little") + text),
    st.tuples(st.sampled_from([b"J", b"r", b"j", b"X", b"M", b"\x8a"]), st.binary(max_size=8)).map(b"".join),
    st.tuples(st.sampled_from([b"I", b"L", b"F", b"S", b"V", b"g", b"p"]), LINES).map(b"".join),
)


@settings(max_examples=10)
@given(programs=st.lists(st.lists(INSTRUCTIONS, max_size=40), min_size=40, max_size=40))
def test_any_instructions_are_read_or_refused(programs: list[list[bytes]]) -> None:
    read_or_refused([b"\x80\x02}" + b"".join(program) + b"." for program in programs])
