"""Small files made to take unbounded time or memory. Each is refused or read within seconds."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_fr.dumps.read import load
from otel_fr.dumps.safe_parse import parse
from tests.support.damaged_dumps import outcomes
from tests.support.torch_files import PLAIN_CONFIG, PLAIN_ENTRY, plain_file


def text(value: str) -> bytes:
    return b"X" + len(value).to_bytes(4, "little") + value.encode()


def put(number: int) -> bytes:
    return b"r" + number.to_bytes(4, "little")


def get(number: int) -> bytes:
    return b"j" + number.to_bytes(4, "little")


LEVELS = 80
START = b"\x80\x02}("
KEY_OF_LAST = get(LEVELS) + b"Nu."


def doubled(step: bytes, after: bytes = b"") -> bytes:
    """Return a pickle of nested tuples. ``step``: opcodes of one level; ``%`` stands for the tuple before.

    ``after``: opcodes between the tuple and its memo entry.
    """
    out = START + text("a") + b"K\x01K\x02\x86" + put(0)
    for level in range(LEVELS):
        out += text("k") + step.replace(b"%", get(level)) + after + put(level + 1)
    return out + KEY_OF_LAST


HIDDEN = (
    b"\x80\x02}(" + text("a") + put(0) + b"N" + text("entries") + b"]("
    + b"".join(b"}(" + text("g") + get(0) * 2 + b"\x86" + put(300 + n) + text("x" * 40) + b"Nu" for n in range(6_000))
    + b"".join(
        b"}(" + text("g") + get(6_299 + n) * 2 + b"\x86" + put(6_300 + n) + text("x" * 40) + b"Nu" for n in range(90)
    )
    + b"}" + get(6_389) + b"Nse" + b"u."
)  # fmt: skip

ENDLESS = {
    "TUPLE2": doubled(b"%%\x86"),
    "TUPLE3": doubled(b"%%%\x87"),
    "TUPLE": doubled(b"(%%%%t"),
    "with others between": doubled(b"%K\x05%\x87"),
    "pop": doubled(b"%%\x86", b"N0"),
    "pop of a mark": doubled(b"%%\x86", b"(1"),
    "put twice": doubled(b"%%\x86", put(5_000)),
    "memoize": b"\x80\x04}(K\x01K\x02\x86\x94" + b"".join(b"h%ch%c\x86\x94" % (n, n) for n in range(LEVELS)) + b"Nu.",
    "protocol 0": b"(dp1\n(I1\nI2\ntp2\n"
    + b"".join(b"0(g%d\ng%d\ntp%d\n" % (n, n, n + 1) for n in range(2, LEVELS)) + b"Ns.",
    "DICT": START[:3] + b"(" + b"K\x01K\x02\x86" + put(0) + b"N"
    + b"".join(get(n) * 2 + b"\x86" + put(n + 1) + b"0" for n in range(LEVELS)) + get(LEVELS) + b"Nd.",
    "few wide levels": START + b"K\x01K\x02\x86" + put(0)
    + b"".join(b"(" + get(n) * 60 + b"t" + put(n + 1) for n in range(10)) + b"Nu.",
    "among regular entries": HIDDEN,
}  # fmt: skip


def test_keys_whose_hash_does_not_end_are_refused(tmp_path: Path) -> None:
    said, _ = outcomes(tmp_path, ENDLESS, seconds=0.2)
    assert [name for name, line in said.items() if not line.startswith("refused: takes far longer to read")] == []


def wide(number: int) -> bytes:
    size = (number.bit_length() + 8) // 8
    return b"\x8a%c" % size + number.to_bytes(size, "little", signed=True)


def costly() -> dict[str, bytes]:
    return {
        "a frame of the protocol that is read whole": b"\x80\x04\x95" + (1 << 23).to_bytes(8, "little") + b"}(Nu.",
        "a wide tuple, many times a key": START
        + b"(" + b"K\x01" * 200_000 + b"t" + put(1) + b"N" + (get(1) + b"N") * 200_000 + b"u.",
        "long numbers as text": b"(dp1\n" + b"".join(b"L1%04000dL\nNs" % n for n in range(5_000)) + b".",
        "a long number, many times a key": b"(dp1\nL" + b"9" * 4_000 + b"L\np2\nNs" + b"g2\nNs" * 500_000 + b".",
        "nested dicts": b"\x80\x02" + (b"}" + text("k")) * 500_000 + b"N" + b"s" * 500_000 + b".",
        "nested marks": b"\x80\x02}" + b"(" * 4_000_000 + b".",
    }  # fmt: skip


def colliding() -> dict[str, bytes]:
    parts = (
        b"(" + b"".join(wide(n * ((1 << 61) - 1)) + b"N" for n in range(first, first + 1_000)) + b"u"
        for first in range(1, 400_000, 1_000)
    )
    return {"colliding integers": b"\x80\x02}" + b"".join(parts) + b"."}


@pytest.mark.parametrize("make", [costly, pytest.param(colliding, marks=pytest.mark.long)])
def test_what_costs_more_than_plain_values_is_ended(tmp_path: Path, make: Callable[[], dict[str, bytes]]) -> None:
    outcomes(tmp_path, make(), seconds=0.2)


LOOP: list[Any] = []
LOOP.append(LOOP)
RING: dict[str, Any] = {"name": "0", "desc": "d"}
RING["ranks"] = RING


@pytest.mark.parametrize("loop", [LOOP, RING, [RING] * 3], ids=["list", "dict", "list of dicts"])
def test_values_that_hold_themselves_are_not_followed(tmp_path: Path, loop: Any) -> None:
    top = ("pg_config", "pg_status", "entries", "otel_fr", "version")
    data = [plain_file(**{where: loop}) for where in top] + [
        plain_file(pg_config={"0": loop}),
        plain_file(pg_status={"0": loop}),
    ]
    data += [
        plain_file(entries=[PLAIN_ENTRY, {**PLAIN_ENTRY, where: loop}])
        for where in (*PLAIN_ENTRY, "frames", "duration_ms")
    ]
    outcomes(tmp_path, {str(number): pickle.dumps(one, 2) for number, one in enumerate(data)}, seconds=0.2)


SCALARS = st.one_of(
    st.text(max_size=3), st.integers(-(1 << 70), 1 << 70), st.none(), st.booleans(), st.floats(allow_nan=False)
)
KEYS = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4).map(tuple), max_leaves=5)
VALUES = st.recursive(
    KEYS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(KEYS, inner, max_size=4)),
    max_leaves=20,
)


@given(value=st.dictionaries(SCALARS, VALUES, max_size=5), protocol=st.integers(0, 5), shared=KEYS)
def test_every_pickle_of_plain_values_is_read(value: dict[Any, Any], protocol: int, shared: object) -> None:
    whole = {"value": value, "shared": [shared] * 3, "more": [("0", "default_pg"), ("0", "default_pg")]}
    assert parse(pickle.dumps(whole, protocol)) == whole


def test_a_long_file_of_many_groups_is_read(tmp_path: Path) -> None:
    names = [(str(number), f"group {number}") for number in range(400)]
    config = {name: {"name": name, "desc": desc, "ranks": "[0, 1]"} for name, desc in names}
    entries = [
        {**PLAIN_ENTRY, "record_id": n, "process_group": (names[n % 400][0], names[n % 400][1]), "collective_seq_id": n}
        for n in range(3_000)
    ]
    path = tmp_path / "trace_0"
    path.write_bytes(pickle.dumps({"version": "2.10", "pg_config": {**PLAIN_CONFIG, **config}, "entries": entries}, 2))
    assert len(load(path).entries) == 3_000


def test_a_file_takes_time_by_the_number_of_its_groups_not_by_its_square(tmp_path: Path) -> None:
    def seconds(groups: int) -> float:
        names = [(str(number), "d") for number in range(groups)]
        config = {name: {"name": name, "desc": desc, "ranks": "[0, 1]"} for name, desc in names}
        entries = [{**PLAIN_ENTRY, "record_id": number, "process_group": name} for number, name in enumerate(names)]
        path = tmp_path / f"trace_{groups}"
        path.write_bytes(pickle.dumps(plain_file(pg_config=config, entries=entries), 2))
        begun = time.process_time()
        assert len(load(path).entries) == groups
        return time.process_time() - begun

    assert seconds(60_000) < 30 * max(seconds(6_000) for _ in range(3))  # 100 times if it were quadratic
