"""Fingerprints of the collectives that a rank has enqueued in a process group, to find out whether ranks disagree.

Ranks that made the same calls in a group have the same fingerprint: legal differences do not change it. A different
fingerprint is no verdict: it tells the match engine which calls to compare (`otel_fr.match.facts.legal`). Fingerprints
cover the fields that all members must agree in, by that engine's rules. They leave out what depends on pairs of
members: the pieces of gather, scatter and all_to_all, and sends and receives.

The fingerprint of the calls up to a number is a sum modulo 2^52. Each call adds a hash of its `agreed` fields times an
odd factor that depends on the call's number. So the fingerprint of a range of calls is a difference of two sums. A
single call that differs always changes it. About one in 2^50 of all other differences is not seen. JSON readers keep
integers of 52 bits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from math import prod
from typing import Final, Protocol

from otel_fr.operations import COMPARED, LISTS, OPERATIONS, REDUCING, ROOTED

MASK: Final = 2**52 - 1
STEP: Final = 16
"""All ranks report their fingerprints at numbers that are one less than a multiple of this power of 2."""

NO_REDUCE_OP: Final = 1
NO_ROOT: Final = 2
ONE_TENSOR: Final = 4
UNTOLD: Final = NO_REDUCE_OP | NO_ROOT | ONE_TENSOR
"""Fields of a call that a recorder may leave out, as bits: see `untold`."""

_BATCH_SHIFT: Final = 40
"""The calls of a batch share a number. Their factors differ from this bit on."""


class Signature(Protocol):
    """What a call does, as in the ring (`otel_fr.ring.SignatureDef`) or in the match engine."""

    @property
    def operation(self) -> str: ...
    @property
    def input_sizes(self) -> Sequence[tuple[int, ...]]: ...
    @property
    def output_sizes(self) -> Sequence[tuple[int, ...]]: ...
    @property
    def input_dtypes(self) -> Sequence[str]: ...
    @property
    def output_dtypes(self) -> Sequence[str]: ...
    @property
    def reduce_op(self) -> str | None: ...
    @property
    def root(self) -> int | None: ...


def agreed(signature: Signature) -> tuple[object, ...]:
    """Return what every member's call of a collective has in common if the calls are legal together."""
    operation = signature.operation
    if operation not in COMPARED:
        return (operation,)
    return (
        operation,
        tuple(sorted({name for name in common_dtypes(signature) if name})),
        tuple([prod(shape) for shape in common_sizes(signature)]),
        signature.root if operation in ROOTED else None,
        signature.reduce_op if operation in REDUCING else None,
    )


def untold(signature: Signature) -> int:
    """Return which of a call's `agreed` fields its recorder left out, while other recorders have them.

    Only for groups of several ranks. If this differs between ranks, their hashes differ even if their calls are legal
    together, so their fingerprints cannot be compared. With torch 2.6, the Python engine records no reduce ops.
    PyTorch's recorder records none of these fields.
    """
    operation, found = signature.operation, 0
    if operation in REDUCING and signature.reduce_op is None:
        found |= NO_REDUCE_OP
    if operation in ROOTED and signature.root is None:
        found |= NO_ROOT
    if operation in LISTS and len(common_sizes(signature)) == 1:
        found |= ONE_TENSOR
    return found


def common_dtypes(signature: Signature) -> Sequence[str]:
    """Return the dtypes that all members must share: of the side that every rank has. Only for `OPERATIONS`."""
    is_output = OPERATIONS[signature.operation].dtypes == "output"
    return signature.output_dtypes if is_output else signature.input_dtypes


def common_sizes(signature: Signature) -> Sequence[tuple[int, ...]]:
    """Return the sizes that all members must share; empty: none. Only for `OPERATIONS`."""
    side = OPERATIONS[signature.operation].sizes
    return signature.output_sizes if side == "output" else signature.input_sizes if side else ()


def hash_of(signature: Signature) -> int:
    """Return the hash of its `agreed` fields: 52 bits, the same in every process."""
    text = repr(agreed(signature))
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).digest(), "big") & MASK


def term(hashed: int, number: int, index: int = 0) -> int:
    """Return what a call adds to the fingerprint.

    Args:
        hashed: `hash_of` its signature.
        number: its sequence number in the group.
        index: how many calls of the same batch, which share the number, came before it.
    """
    return hashed * (2 * number + 1 + (index << _BATCH_SHIFT)) & MASK
