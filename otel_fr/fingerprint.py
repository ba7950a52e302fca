"""Fingerprints of the collectives that a rank has enqueued in a process group, to find out whether ranks disagree.

Two ranks that made the same calls in a group have the same fingerprint, whatever they may legally differ in. A
difference is no verdict: it says between which calls the match engine looks (`otel_fr.match.facts.legal`). This follows
that engine's rules of what all members must agree in. Not covered is what depends on the pair of members: the pieces of
gather, scatter and all_to_all, and sends and receives.

The fingerprint of the calls up to a number is the sum, modulo 2^52, of a hash of each call's `agreed` fields times an
odd factor that depends on the call's number. So the fingerprint of a range of calls is a difference of two sums, a
single call that differs always changes it, and any other difference does but for one time in about 2^50. Readers of
JSON keep integers of 52 bits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from math import prod
from typing import Final, Protocol

from otel_fr.operations import COMPARED, LISTS, OPERATIONS, REDUCING, ROOTED

MASK: Final = 2**52 - 1
STEP: Final = 16
"""All ranks report their fingerprint at numbers that are one less than multiples of this, a power of 2."""

NO_REDUCE_OP: Final = 1
NO_ROOT: Final = 2
ONE_TENSOR: Final = 4
UNTOLD: Final = NO_REDUCE_OP | NO_ROOT | ONE_TENSOR
"""What a recorder may not tell of a call, as bits: see `untold`."""

_BATCH_SHIFT: Final = 40
"""The factors of a batch's calls, which share a number, differ in the bits from this one on."""


class Signature(Protocol):
    """What a call was asked to do, as the ring (`otel_fr.ring.SignatureDef`) or the match engine has it."""

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
    """What every member's call of a collective has in common, where the calls are legal together."""
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
    """What of a call's `agreed` fields its recorder did not tell, though another one does. Not of groups of one rank.

    Calls of ranks where this differs are legal together and have different hashes, so their fingerprints cannot
    be compared: of torch 2.6, the Python engine does not tell reduce ops; PyTorch's recorder tells none of these.
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
    """The dtypes that are the same on all members: of the side that every rank has. Of an operation in `OPERATIONS`."""
    is_output = OPERATIONS[signature.operation].dtypes == "output"
    return signature.output_dtypes if is_output else signature.input_dtypes


def common_sizes(signature: Signature) -> Sequence[tuple[int, ...]]:
    """The sizes that are the same on all members; empty: none are. Of an operation in `OPERATIONS`."""
    side = OPERATIONS[signature.operation].sizes
    return signature.output_sizes if side == "output" else signature.input_sizes if side else ()


def hash_of(signature: Signature) -> int:
    """Of its `agreed` fields: 52 bits, the same in every process."""
    text = repr(agreed(signature))
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).digest(), "big") & MASK


def term(hashed: int, number: int, index: int = 0) -> int:
    """What a call adds to the fingerprint.

    Args:
        hashed: `hash_of` its signature. number: its sequence number in the group. index: how many calls of the same
            batch, which share the number, came before it.
    """
    return hashed * (2 * number + 1 + (index << _BATCH_SHIFT)) & MASK
