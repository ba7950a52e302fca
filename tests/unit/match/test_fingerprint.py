"""Fingerprints: no healthy difference between ranks changes them, and any illegal one that they cover does."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import assume, given
from hypothesis import strategies as st

from otel_fr.fingerprint import MASK, hash_of, term
from otel_fr.match.facts.legal import alike
from otel_fr.match.model import Signature
from otel_fr.operations import COMPARED, LISTS, PIECEWISE

MEMBERS = 4
DTYPES = ("Float", "Half", "Long")
REDUCE_OPS = ("sum", "max", "avg")
OPERATIONS = (*sorted(COMPARED), "barrier", "_some_new_operation")


@dataclass(frozen=True)
class Call:
    """What the program asks for, on all ranks alike; ``pieces``: elements of each member's piece."""

    operation: str
    dtype: str
    pieces: tuple[int, ...]
    reduce_op: str
    root: int

    def signature(self, rank: int, flat: bool) -> Signature:
        """The rank's own signature. ``flat``: its tensors have one dimension, others' may have two."""
        whole = sum(self.pieces)
        own = self.pieces[rank]

        def shape(count: int) -> tuple[int, ...]:
            return (count,) if flat or count % 2 else (2, count // 2)

        each = tuple(shape(piece) for piece in self.pieces)
        at_root = rank == self.root
        name = self.operation
        sizes = {
            "all_gather": ((shape(own),), each),
            "reduce_scatter": (each, (shape(own),)),
            "gather": ((shape(own),), each if at_root else ()),
            "scatter": (each if at_root else (), (shape(own),)),
            "all_to_all": (tuple(shape(own + i) for i in range(MEMBERS)), tuple(shape(p + rank) for p in self.pieces)),
            "all_to_all_single": ((shape(own * MEMBERS),), (shape(whole),)),
            "reduce": ((shape(whole),), (shape(whole),) if at_root else ()),
            "barrier": ((), ()),
        }.get(name, ((shape(whole),), (shape(whole),)))
        ins, outs = sizes
        return Signature(
            operation=name,
            input_sizes=ins,
            output_sizes=outs,
            input_dtypes=(self.dtype,) * len(ins),
            output_dtypes=(self.dtype,) * len(outs),
            reduce_op=self.reduce_op if "reduce" in name else None,
            root=self.root if name in ("broadcast", "reduce", "gather", "gather_into_tensor", "scatter") else None,
        )


calls = st.builds(
    Call,
    st.sampled_from(OPERATIONS),
    st.sampled_from(DTYPES),
    st.lists(st.integers(1, 6), min_size=MEMBERS, max_size=MEMBERS).map(tuple),
    st.sampled_from(REDUCE_OPS),
    st.integers(0, MEMBERS - 1),
)
programs = st.lists(calls, min_size=1, max_size=12)


def fingerprint(program: list[Call], rank: int, flat: bool = True) -> int:
    signatures = [call.signature(rank, flat) for call in program]
    return sum(term(hash_of(one), number) for number, one in enumerate(signatures, 1)) & MASK


@given(programs, st.lists(st.booleans(), min_size=MEMBERS, max_size=MEMBERS))
def test_ranks_of_a_healthy_program_have_one_fingerprint(program: list[Call], flat: list[bool]) -> None:
    assert len({fingerprint(program, rank, flat[rank]) for rank in range(MEMBERS)}) == 1


@given(programs, st.data())
def test_a_call_that_is_illegal_beside_the_others_changes_the_fingerprint(
    program: list[Call], data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(program) - 1))
    other = [*program[:at], data.draw(calls), *program[at + 1 :]]
    rank = data.draw(st.integers(0, MEMBERS - 1))
    differ = alike(program[at].signature(0, True), other[at].signature(rank, True)) is not None
    # The match engine compares any two members' calls by the same rules: they say the same of each call.
    assert (fingerprint(program, 0) != fingerprint(other, rank)) is differ


@given(programs, st.data())
def test_a_call_too_many_or_out_of_turn_changes_the_fingerprint(program: list[Call], data: st.DataObject) -> None:
    assert fingerprint(program, 0) != fingerprint([*program, data.draw(calls)], 0)
    a = data.draw(st.integers(0, len(program) - 1))
    b = data.draw(st.integers(0, len(program) - 1))
    swapped = list(program)
    swapped[a], swapped[b] = swapped[b], swapped[a]
    assume(hash_of(program[a].signature(0, True)) != hash_of(program[b].signature(0, True)))
    assert fingerprint(program, 0) != fingerprint(swapped, 0)


def test_the_calls_of_a_batch_have_an_order() -> None:
    first, second = (hash_of(Signature("all_reduce", ((size,),), reduce_op="sum")) for size in (2, 3))
    assert term(first, 7) + term(second, 7, 1) != term(second, 7) + term(first, 7, 1)


def test_the_pieces_that_pairs_of_members_agree_on_are_not_covered() -> None:
    """They may legally differ; the match engine compares them where it has the calls."""
    for operation in PIECEWISE - LISTS:
        assert hash_of(Signature(operation, ((2,),), ((2,),))) == hash_of(Signature(operation, ((3,),), ((4,),)))
