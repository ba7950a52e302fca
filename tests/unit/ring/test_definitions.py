"""Definitions keep every value; what is too large says so; what is damaged is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_fr.ring import DefinitionError, GroupDef, NewGroup, SignatureDef, SiteDef
from otel_fr.ring.definitions import MAX_PAYLOAD, fitting, thread_bytes, thread_of

u64 = st.integers(0, 2**64 - 1)
i63 = st.integers(-(2**63) + 1, 2**63 - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
shapes = st.lists(st.lists(u64, max_size=5).map(tuple), max_size=6).map(tuple)
dtypes = st.lists(st.sampled_from(["Float", "Long", "BFloat16"]) | texts, max_size=6).map(tuple)
splits = st.none() | st.lists(u64, max_size=6).map(tuple)
ranks = st.lists(st.integers(0, 100_000), max_size=40) | st.builds(
    lambda start, count, step: list(range(start, start + count * step, step)),
    st.integers(0, 1000), st.integers(0, 3000), st.integers(1, 9),
)  # fmt: skip

groups = st.builds(GroupDef, texts, texts, texts, ranks.map(tuple), texts, u64, st.booleans())
signatures = st.builds(
    SignatureDef, texts, texts, shapes, shapes, dtypes, dtypes, st.none() | texts, st.none() | i63, st.none() | i63,
    st.none() | i63, splits, splits, u64, u64, st.booleans(), st.booleans(),
    st.none() | st.builds(NewGroup, texts, texts, ranks.map(tuple), st.booleans()),
)  # fmt: skip
sites = st.builds(SiteDef, st.lists(st.tuples(texts, u64, texts), max_size=8).map(tuple), st.booleans())

SIGNATURE = SignatureDef(
    "all_reduce", "gloo", ((3, 4),), ((3, 4),), ("Float",), ("Float",), "sum", None, None, None, None, None, 48, 48
)


@given(st.one_of(groups, signatures, sites))
def test_a_definition_is_read_as_it_was_written(definition: GroupDef | SignatureDef | SiteDef) -> None:
    assert type(definition).from_bytes(definition.to_bytes()) == definition


@given(signatures)
def test_signature_with_equal_input_and_output_round_trip(signature: SignatureDef) -> None:
    same = replace(signature, output_sizes=signature.input_sizes, output_dtypes=signature.input_dtypes)
    assert SignatureDef.from_bytes(same.to_bytes()) == same


@given(u64, texts)
def test_thread_round_trip(ident: int, name: str) -> None:
    assert thread_of(thread_bytes(ident, name)) == (ident, name)


@given(st.binary(max_size=200), st.sampled_from([GroupDef, SignatureDef, SiteDef]))
def test_random_bytes_are_a_definition_or_refused(data: bytes, kind: type[GroupDef | SignatureDef | SiteDef]) -> None:
    try:
        found = kind.from_bytes(data)
    except DefinitionError:
        return
    assert isinstance(found, kind)


@given(signatures, st.data())
def test_a_cut_or_prolonged_definition_is_refused(signature: SignatureDef, data: st.DataObject) -> None:
    whole = signature.to_bytes()
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(DefinitionError):
        SignatureDef.from_bytes(whole[:cut])
    with pytest.raises(DefinitionError):
        SignatureDef.from_bytes(whole + b"\0")


def test_the_ranks_of_a_large_job_take_a_few_bytes() -> None:
    everyone = GroupDef("0" * 16, "0", "default_pg", tuple(range(100_000)), "nccl", 0)
    every_eighth = replace(everyone, ranks=tuple(range(5, 100_000, 8)))
    for group in (everyone, every_eighth):
        data = group.to_bytes()
        assert len(data) < 64
        assert GroupDef.from_bytes(data) == group


def test_a_claim_of_endless_ranks_or_dtypes_is_refused() -> None:
    empty = GroupDef("", "", "", (), "", 0).to_bytes()
    endless = empty[:-1] + b"\x01" + b"\x00\x02" + b"\xff" * 9 + b"\x01"
    with pytest.raises(DefinitionError, match="ranks"):
        GroupDef.from_bytes(endless)
    plain = replace(SIGNATURE, input_dtypes=("Float",), output_dtypes=("Float",)).to_bytes()
    assert plain.endswith(b"\x01\x01\x05Float")
    with pytest.raises(DefinitionError, match="dtypes"):
        SignatureDef.from_bytes(plain[: -len(b"\x01\x05Float")] + b"\xff" * 9 + b"\x01\x05Float")


def test_a_signature_too_large_is_cut_and_says_so() -> None:
    tensors = 50_000
    large = replace(
        SIGNATURE,
        input_sizes=((1024, 1024),) * tensors,
        output_sizes=((1024, 1024),) * tensors,
        input_dtypes=("Float",) * tensors,
        input_bytes=4 * 1024 * 1024 * tensors,
        output_bytes=4 * 1024 * 1024 * tensors,
    )
    payload, truncated = fitting(large)
    found = SignatureDef.from_bytes(payload)
    assert truncated
    assert found.truncated
    assert len(payload) <= MAX_PAYLOAD
    assert (found.operation, found.reduce_op) == ("all_reduce", "sum")
    assert (found.input_bytes, found.output_bytes) == (large.input_bytes, large.output_bytes)
    assert found.input_sizes == large.input_sizes[: len(found.input_sizes)]
    assert len(found.input_sizes) >= 1000


@pytest.mark.parametrize(
    "large",
    [
        replace(SIGNATURE, input_splits=(2**40,) * 70_000),
        replace(SIGNATURE, input_sizes=((2**62,) * 70_000,)),
        replace(SIGNATURE, operation="o" * 70_000, reduce_op="r" * 70_000),
        replace(SIGNATURE, input_dtypes=tuple(str(number) for number in range(70_000))),
        replace(SIGNATURE, input_dtypes=("d" * 70_000,)),
        replace(SIGNATURE, new_group=NewGroup("n" * 70_000, "d" * 70_000, (0, 1))),
        replace(SIGNATURE, new_group=NewGroup("1", "", tuple(rank * rank for rank in range(40_000)))),
        SiteDef((("f" * 70_000, 1, "g" * 70_000),)),
        SiteDef((("/job/train.py", 1, "step"),) * 70_000),
    ],
)
def test_whatever_makes_a_definition_large_it_is_cut(large: SignatureDef | SiteDef) -> None:
    payload, truncated = fitting(large)
    assert truncated
    assert len(payload) <= MAX_PAYLOAD
    assert type(large).from_bytes(payload).truncated


def test_a_site_too_large_keeps_its_innermost_frames() -> None:
    frames = tuple((f"/job/layer{number}.py", number, "forward") for number in range(10_000))
    found = SiteDef.from_bytes(fitting(SiteDef(frames))[0])
    assert found.frames == frames[: len(found.frames)]
    assert found.text == "/job/layer0.py:0 forward"


def test_a_file_name_that_is_not_utf8_is_spelled_out() -> None:
    found = SiteDef.from_bytes(SiteDef((("/job/caf\udce9.py", 3, "f"),)).to_bytes())
    assert found.text == "/job/caf\\udce9.py:3 f"


def test_text_of_a_site() -> None:
    assert SiteDef((("/job/train.py", 42, "step"), ("/job/main.py", 3, "<module>"))).text == "/job/train.py:42 step"
    assert SiteDef(()).text == ""
