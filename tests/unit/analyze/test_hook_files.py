"""Files with what torch 2.14's FlightRecorderHook recorded: ``c10d:`` calls, retired when they have been issued."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from otel_fr.analyze import Analysis, load
from otel_fr.dumps.read import load as load_file
from otel_fr.match.model import CallState, Sizes
from tests.support.torch_files import entry, group, write

GROUPS = {"0": group("0", "default_pg", [0, 1])}

Call = dict[str, Any]


def hooked(operation: str, number: int, **more: Any) -> Call:
    """What the hook records of a call in place: no outputs, no end."""
    fields = {"state": "scheduled", "output_sizes": [], "output_dtypes": [], "retired": True}
    return entry(0, f"c10d:{operation}", number, **{**fields, **more})


def by_backend(operation: str, number: int, retired: bool = True) -> Call:
    """What gloo records of it."""
    return entry(0, f"gloo:{operation}", number, state="scheduled", retired=retired)


def in_order(*calls: Call) -> list[Call]:
    return [{**call, "record_id": at, "op_id": at + 1} for at, call in enumerate(calls)]


def hook_only(count: int, *more: Call) -> list[Call]:
    return in_order(*(hooked("allreduce", number) for number in range(1, count + 1)), *more)


def both(count: int, behind: int = 0, ended: bool = True) -> list[Call]:
    """Calls that hook and backend recorded; the hook has not seen the first ``behind``. ``ended``: the last one has."""
    calls: list[Call] = []
    for number in range(1, count + 1):
        if number > behind:
            calls.append(hooked("allreduce", number - behind))
        calls.append(by_backend("all_reduce", number, ended or number < count))
    return in_order(*calls)


def judge(folder: Path, first: list[Call], second: list[Call]) -> Analysis:
    return load(write(folder, {0: first, 1: second}, **GROUPS))


def say_completed(path: Path, number: int) -> None:
    """Let the file say, as such files do, that the calls up to this one have completed."""
    status = {"last_enqueued_collective": number, "last_started_collective": -1, "last_completed_collective": number}
    path.write_bytes(pickle.dumps({**pickle.loads(path.read_bytes()), "pg_status": {"0": status}}, 2))


def test_the_hooks_calls_are_not_known_to_have_ended(tmp_path: Path) -> None:
    assert judge(tmp_path, hook_only(3), hook_only(3)).findings == []
    say_completed(tmp_path / "trace_0", 3)
    assert {call.state for call in load_file(tmp_path / "trace_0").entries} == {CallState.UNKNOWN}
    assert not load_file(tmp_path / "trace_0").has_completions


def test_a_rank_that_the_hooks_show_missing(tmp_path: Path) -> None:
    (finding,) = judge(tmp_path, hook_only(3), hook_only(2)).findings
    assert (finding.category.value, finding.culprit_ranks) == ("missing_rank", (1,))


def test_where_the_backend_records_too_its_entries_count(tmp_path: Path) -> None:
    write(tmp_path, {0: both(3, behind=1, ended=False), 1: both(2, behind=1)}, **GROUPS)
    say_completed(tmp_path / "trace_0", 3)
    (finding,) = load(tmp_path).findings
    assert (finding.category.value, finding.culprit_ranks) == ("missing_rank", (1,))
    waits = load_file(tmp_path / "trace_0")
    assert [(call.sequence_id, call.state) for call in waits.entries] == [
        (1, CallState.COMPLETED),
        (2, CallState.COMPLETED),
        (3, CallState.IN_FLIGHT),
    ]
    (progress,) = waits.groups.values()
    assert (progress.enqueued, progress.completed) == (3, 2)
    assert not waits.partial
    assert waits.notes == []


def test_a_healthy_job_that_both_recorded(tmp_path: Path) -> None:
    report = judge(tmp_path, both(4), both(4, behind=2))
    assert report.findings == []
    assert len(report.collectives) == 4


def test_calls_that_both_recorded_are_no_batch(tmp_path: Path) -> None:
    """In a file without the oldest calls, calls with one number would be a batch whose end was left out."""
    calls = [{**call, "record_id": call["record_id"] + 100} for call in both(3, ended=False)]
    write(tmp_path, {0: calls}, **GROUPS)
    assert load_file(tmp_path / "trace_0").entries[-1].state is CallState.IN_FLIGHT


def test_sends_that_only_the_hook_recorded_remain(tmp_path: Path) -> None:
    send = hooked("send", 2, p2p_seq_id=1, is_p2p=True)
    calls = in_order(by_backend("all_reduce", 1), hooked("allreduce", 1), send)
    write(tmp_path, {0: calls}, **GROUPS)
    found = load_file(tmp_path / "trace_0").entries
    assert [(call.signature.operation, call.stream) for call in found] == [
        ("all_reduce", "collective"),
        ("send", "p2p"),
    ]


def test_a_call_that_says_it_completed_has(tmp_path: Path) -> None:
    write(tmp_path, {0: [hooked("allreduce", 1, state="completed")]}, **GROUPS)
    assert load_file(tmp_path / "trace_0").entries[0].state is CallState.COMPLETED


def sized(name: str, ins: Sizes, outs: Sizes, **more: Any) -> list[Call]:
    """One call with these sizes, of Floats."""
    sizes = {"input_sizes": [list(shape) for shape in ins], "output_sizes": [list(shape) for shape in outs]}
    dtypes = {"input_dtypes": ["Float"] * len(ins), "output_dtypes": ["Float"] * len(outs)}
    return [entry(0, name, 1, **sizes, **dtypes, **more)]


@pytest.mark.parametrize(
    ("name", "ins", "outs", "operation"),
    [
        ("nccl2:all_gather", ((4,),), ((4,), (4,), (4,)), "all_gather"),
        ("nccl2:all_gather", ((4,),), ((12,),), "all_gather"),
        ("c10d:allgather", ((3,),), ((3,), (3,), (3,)), "all_gather"),
        ("c10d:allgather", ((4,), (6,)), ((12,), (18,)), "all_gather_into_tensor_coalesced"),
        ("c10d:allgather", ((2,), (3,)), ((2,), (3,), (2,), (3,), (2,), (3,)), "all_gather_coalesced"),
        ("gloo:all_gather", ((4,), (6,)), ((2, 4),), "all_gather_coalesced"),
        ("gloo:all_gather", ((),), ((3,),), "all_gather"),
        ("nccl2:reduce_scatter", ((4,), (4,), (4,)), ((4,),), "reduce_scatter"),
        ("nccl2:reduce_scatter", ((12,),), ((4,),), "reduce_scatter"),
        ("c10d:reduce_scatter", ((12,), (18,)), ((4,), (6,)), "reduce_scatter_tensor_coalesced"),
        ("torchcomms:all_gather_v", ((4,),), ((13,),), "all_gather"),
    ],
)
def test_lists_and_coalesced_calls_are_legal(
    name: str, ins: Sizes, outs: Sizes, operation: str, tmp_path: Path
) -> None:
    """What torch 2.14's hook and the backends record of them, of three ranks; the first ranks' files are there."""
    report = load(write(tmp_path, {rank: sized(name, ins, outs) for rank in range(3)}))
    assert report.findings == []
    assert {one.operation for one in report.collectives} == {operation}


@pytest.mark.parametrize("operation", ["scatter", "gather"])
def test_a_list_that_only_the_root_passes_is_no_tensor_of_another_dtype(tmp_path: Path, operation: str) -> None:
    """PyTorch 2.14 writes an undefined tensor for ranks that pass none; a scatter's list is among the outputs there."""
    whole = {"output_sizes": [[16]] * 3, "output_dtypes": ["Float"] * 3}
    none = {"output_sizes": [[0]], "output_dtypes": ["UNKNOWN_SCALAR"]}
    ranks = {
        rank: [entry(0, operation, 1, input_sizes=[[16]], input_dtypes=["Float"], **(none if rank else whole))]
        for rank in range(3)
    }
    assert load(write(tmp_path, ranks)).findings == []


def test_a_flattened_list_names_the_rank_whose_piece_does_not_fit(tmp_path: Path) -> None:
    for name, wrong in (("all_gather", ((5,), (12,))), ("reduce_scatter", ((12,), (5,)))):
        right = ((4,), (12,)) if name == "all_gather" else ((12,), (4,))
        ranks = {
            rank: sized(f"nccl2:{name}", *((shape,) for shape in (wrong if rank == 1 else right)), state="scheduled")
            for rank in range(3)
        }
        (finding,) = load(write(tmp_path / name, ranks)).findings
        assert (finding.category.value, finding.culprit_ranks) == ("size_mismatch", (1,))
        own = "input" if name == "all_gather" else "output"
        assert finding.values == {1: f"12 elements, should be 15 elements ({own} x 3 ranks)"}


def test_where_all_ranks_flattened_lists_are_wrong_it_is_said_what_is_right(tmp_path: Path) -> None:
    (finding,) = load(
        write(tmp_path, {rank: sized("nccl2:all_gather", ((4,),), ((9,),)) for rank in range(2)})
    ).findings
    assert finding.culprit_ranks == (0, 1)
    assert set(finding.values.values()) == {"9 elements, should be 8 elements (input x 2 ranks)"}


def test_a_stacked_list_of_more_pieces_has_members_without_a_file(tmp_path: Path) -> None:
    """gloo's files before torch 2.14 do not say who is in the default group."""
    folder = write(tmp_path, {rank: sized("gloo:all_gather", ((4,),), ((3, 4),)) for rank in range(2)})
    for path in folder.iterdir():
        data = pickle.loads(path.read_bytes())
        path.write_bytes(pickle.dumps({**data, "pg_config": {"": {"name": "", "desc": "", "ranks": "[]"}}}, 2))
    assert load(folder).findings == []
