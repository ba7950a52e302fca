"""The operations of `torch.distributed`: one table, and the sets that its users ask for.

A new operation is one row here. Imports only the standard library.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, TypeVar

_R = TypeVar("_R", int, str)
_T = TypeVar("_T")


class Operation(NamedTuple):
    """One operation. Its tensors are those that one rank passes.

    Attributes:
        name: the function's name, as recorded. If there are several ways to call it, otel-fr has one name.
        operators: operators of torch's dispatcher, without ``c10d::``.
        spellings: other names that recorders have for it, separated by blanks.
        analyzer: its name in torch's flight-recorder analyzer (2.13); "": the same.
        family: the operation that it is a variant of, for other forms of tensors; "": it is no variant.
        kind: ``"collective"``; ``"message"``: between two ranks; ``"group"``: it creates or destroys a process group.
        needs_every_rank: no rank completes it before every rank has enqueued it.
        ends_together: ``"always"``: it ends on every rank soon after the last rank has joined, so durations show who
            came last. ``"device"``: only durations on devices show it. Operations with a root let most ranks continue
            before the others have joined, and the end of gloo's reduce_scatter is known only when the rank waits for it
            (docs/reference/limits.md).
        reduces: it has a reduce op. rooted: it has a root.
        sizes: the side whose sizes are the same on all members; "": neither.
        dtypes: the side that every member has, so its dtypes are the same.
        pieces: who holds the list of all members' pieces: ``"all"`` members, the ``"root"``, or each member a list of
            its own, as several tensors (``"own"``) or as one (``"splits"``); "": there are none.
        outputs: size of the outputs: the ``"same"`` as the inputs, as many times ``"larger"`` or ``"smaller"`` as there
            are members, or the same on the ``"root"``, while other ranks need none; "": none of these.
    """

    name: str
    operators: tuple[str, ...] = ()
    spellings: str = ""
    analyzer: str = ""
    family: str = ""
    kind: Literal["collective", "barrier", "message", "group"] = "collective"
    needs_every_rank: bool = False
    ends_together: Literal["", "device", "always"] = ""
    reduces: bool = False
    rooted: bool = False
    sizes: Literal["", "input", "output"] = "input"
    dtypes: Literal["input", "output"] = "input"
    pieces: Literal["", "all", "root", "own", "splits"] = ""
    outputs: Literal["", "same", "root", "larger", "smaller"] = ""


class NewGroup(NamedTuple):
    """The process group that a call of ``new_group``, ``split_group`` or ``init_process_group`` creates.

    Attributes:
        ranks: global ranks of its members, in group order; empty: not known.
        awaits_all: the call waits for every rank of the parent group, not only for the members.
    """

    name: str
    description: str = ""
    ranks: tuple[int, ...] = ()
    awaits_all: bool = False


# Spellings: the profiling_name of torch's ProcessGroupNCCL / Gloo / XCCL, and torchcomms' flight-recorder hook.
# Analyzer: ProcessGroupNCCL records all_to_all_single as all_to_all. Under its own name, uneven splits are a fault.
_TABLE: Final = (
    Operation(
        "all_reduce",
        ("allreduce_",),
        "allreduce all_reduce_sparse sparse_all_reduce",
        needs_every_rank=True,
        ends_together="always",
        reduces=True,
        outputs="same",
    ),
    Operation(
        "all_reduce_coalesced",
        ("allreduce_coalesced_",),
        "allreduce_coalesced",
        analyzer="allreduce_coalesced",
        family="all_reduce",
        needs_every_rank=True,
        ends_together="always",
        reduces=True,
        outputs="same",
    ),
    Operation("broadcast", ("broadcast_",), "_broadcast_oop", rooted=True, outputs="same"),
    Operation("reduce", ("reduce_",), "_reduce_oop", reduces=True, rooted=True, outputs="root"),
    Operation(
        "all_gather",
        ("allgather_",),
        "allgather all_gather_v ALLGATHER_coalesced",
        needs_every_rank=True,
        ends_together="always",
        sizes="output",
        pieces="all",
    ),
    Operation(
        "all_gather_coalesced",
        ("allgather_coalesced_",),
        "allgather_coalesced",
        analyzer="ALLGATHER_coalesced",
        family="all_gather",
        needs_every_rank=True,
        ends_together="always",
    ),
    Operation(
        "all_gather_into_tensor",
        ("_allgather_base_",),
        "_all_gather_base _allgather_base all_gather_single",
        analyzer="_all_gather_base",
        family="all_gather",
        needs_every_rank=True,
        ends_together="always",
        outputs="larger",
    ),
    Operation(
        "all_gather_into_tensor_coalesced",
        ("allgather_into_tensor_coalesced_",),
        "allgather_into_tensor_coalesced",
        family="all_gather",
        needs_every_rank=True,
        ends_together="always",
        outputs="larger",
    ),
    Operation(
        "reduce_scatter",
        ("reduce_scatter_",),
        "reduce_scatter_v REDUCE_SCATTER_coalesced",
        needs_every_rank=True,
        ends_together="device",
        reduces=True,
        pieces="all",
    ),
    Operation(
        "reduce_scatter_tensor",
        ("_reduce_scatter_base_",),
        "_reduce_scatter_base reduce_scatter_single",
        analyzer="_reduce_scatter_base",
        family="reduce_scatter",
        needs_every_rank=True,
        ends_together="device",
        reduces=True,
        outputs="smaller",
    ),
    Operation(
        "reduce_scatter_tensor_coalesced",
        ("reduce_scatter_tensor_coalesced_",),
        family="reduce_scatter",
        needs_every_rank=True,
        ends_together="device",
        reduces=True,
        outputs="smaller",
    ),
    Operation("gather", ("gather_",), "gather_single", rooted=True, sizes="", pieces="root"),
    Operation("gather_into_tensor", ("gather_into_tensor_",), family="gather", rooted=True),
    Operation("scatter", ("scatter_",), rooted=True, sizes="", dtypes="output", pieces="root"),
    Operation(
        "all_to_all",
        ("alltoall_",),
        "alltoall",
        needs_every_rank=True,
        ends_together="always",
        sizes="",
        pieces="own",
    ),
    Operation(
        "all_to_all_single",
        ("alltoall_base_",),
        "alltoall_base all_to_all_v_single",
        analyzer="all_to_all",
        family="all_to_all",
        needs_every_rank=True,
        ends_together="always",
        sizes="",
        pieces="splits",
    ),
    Operation(
        "barrier",
        ("barrier",),
        "all_reduce_barrier",
        kind="barrier",
        needs_every_rank=True,
        ends_together="always",
    ),
    # Rank 0 hears of the other ranks one after another, so its duration is more than the time that it waits.
    Operation(
        "monitored_barrier",
        ("monitored_barrier_",),
        analyzer="barrier",
        kind="barrier",
        needs_every_rank=True,
    ),
    Operation("send", ("send",), "send_", family="message", kind="message"),
    Operation("recv", ("recv_", "recv_any_source_"), "recvAnySource recv_any_source", family="message", kind="message"),
    Operation("new_group", analyzer="barrier", kind="group"),
    Operation("split_group", analyzer="barrier", kind="group"),
    Operation("init_process_group", analyzer="barrier", kind="group"),
    Operation("destroy_process_group", analyzer="barrier", kind="group"),
    Operation("abort_process_group", analyzer="barrier", kind="group"),
)

OPERATIONS: Final = {one.name: one for one in _TABLE}
"""By name. All that is known about any other operation is that its members join it."""

OPERATORS: Final = {operator: one.name for one in _TABLE for operator in one.operators}
"""Operator of torch's dispatcher -> name, in a fixed order."""

SPELLINGS: Final = OPERATORS | {word: one.name for one in _TABLE for word in (one.name, *one.spellings.split())}
"""A recorder's spelling (without the backend's prefix), operator or name -> name."""

NEEDS_EVERY_RANK: Final = frozenset(one.name for one in _TABLE if one.needs_every_rank)
ENDS_TOGETHER: Final = frozenset(one.name for one in _TABLE if one.ends_together == "always")
ENDS_TOGETHER_ON_DEVICE: Final = frozenset(one.name for one in _TABLE if one.ends_together)
REDUCING: Final = frozenset(one.name for one in _TABLE if one.reduces)
ROOTED: Final = frozenset(one.name for one in _TABLE if one.rooted)
MESSAGES: Final = frozenset(one.name for one in _TABLE if one.kind == "message")
COMPARED: Final = frozenset(one.name for one in _TABLE if one.kind == "collective")
"""Operations in which members' calls must agree. Others need not (barriers), or it is unknown in what they must."""
PIECEWISE: Final = frozenset(one.name for one in _TABLE if one.pieces)
"""Operations whose sizes have a piece for each member, so that equal signatures may still disagree."""
LISTS: Final = frozenset(one.name for one in _TABLE if one.pieces == "all")
"""Operations with a tensor for each member, which some recorders record as one."""
GATHERING: Final = frozenset(one.name for one in _TABLE if one.pieces and (one.family or one.name).endswith("gather"))
"""Operations whose list of pieces is their outputs. The other operations with a list have it as their inputs."""
ALL_TO_ALL: Final = frozenset(one.name for one in _TABLE if one.pieces in ("own", "splits"))
DESTRUCTIONS: Final = frozenset({"destroy_process_group", "abort_process_group"})
"""Operations that destroy a process group. No rank waits for another one in them."""


def family(operation: str) -> str:
    """Return the operation that this one is a variant of, or itself.

    For sends and receives, which may share a number, it is ``"message"``.
    """
    known = OPERATIONS.get(operation)
    return known.family or operation if known else operation


def pieces(operation: str) -> str:
    """Return `Operation.pieces`; "" for an unknown operation."""
    known = OPERATIONS.get(operation)
    return known.pieces if known else ""


def outputs(operation: str) -> str:
    """Return `Operation.outputs`; "" for an unknown operation."""
    known = OPERATIONS.get(operation)
    return known.outputs if known else ""


def sides(operation: str, first: _T, second: _T) -> tuple[_T, _T]:
    """Return the rank's own piece and the list of all pieces, for an operation in `LISTS`.

    Applied to its result, the function returns the inputs and outputs again.

    Args:
        first, second: a property of the operation's inputs, and of its outputs.
    """
    return (first, second) if operation in GATHERING else (second, first)


def other_half(message: str) -> str:
    """Return the operation that receives what a send sends, and the other way round."""
    return "recv" if message == "send" else "send"


def way(message: str, rank: _R, peer: _R) -> tuple[_R, _R]:
    """Return source and destination of the message that ``rank`` sends to ``peer`` or receives from it."""
    return (rank, peer) if message == "send" else (peer, rank)
