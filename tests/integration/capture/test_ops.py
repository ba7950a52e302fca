"""The ring's records of a job that uses torch.distributed in every way, compared with PyTorch's own recorder."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from otel_fr.capture.dispatcher import reduce_ops_are_readable
from tests.support import single_rank, torchrun
from tests.support.engines import EACH_ENGINE
from tests.support.engines import settings as engine_settings
from tests.support.paths import SCRIPTS

JOB = SCRIPTS / "all_operations.py"
SOURCE = JOB.read_text().splitlines()

pytestmark = pytest.mark.torchrun

Record = dict[str, Any]


def line_of(text: str) -> int:
    (number,) = [index for index, line in enumerate(SOURCE, 1) if text in line]
    return number


@pytest.fixture(scope="module", params=EACH_ENGINE)
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Both ranks' results, with each engine."""
    folder = tmp_path_factory.mktemp("capture")
    sizes = {"OTEL_FR_BUFFER_SIZE": "2000", "TORCH_FR_BUFFER_SIZE": "2000"}  # switches PyTorch's own recorder on
    env = single_rank.environment(folder, OTEL_FR_ENABLED="1", **sizes, **engine_settings(request.param))
    command = ["--standalone", "--nproc-per-node", "2", str(JOB), str(folder)]
    done = torchrun.call(folder, command, env)
    assert done.returncode == 0, done.stderr[-4000:]
    results = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]
    assert {result["facts"]["meta"]["capture_engine"] for result in results} == {request.param}
    for number, result in enumerate(results):
        result["ring_left"] = list(folder.glob(f"otel-fr-*/rank{number}-*"))
    return results


def records(result: dict[str, Any], section: str) -> list[Record]:
    """Return the records of the section. Skips the test if this torch refused the section's calls."""
    if section not in result["sections"]:
        pytest.skip("this torch cannot split groups")
    if refused := result["sections"][section]["refused"]:
        pytest.skip(f"this torch: {refused}")
    found: list[Record] = result["sections"][section]["records"]
    return found


def only(result: dict[str, Any], section: str) -> Record:
    (record,) = records(result, section)
    return record


@pytest.mark.skipif(
    not hasattr(torch._C._distributed_c10d, "_dump_fr_trace_json"), reason="this torch's own recorder cannot be read"
)
def test_numbers_agree_with_pytorchs_own(ranks: list[dict[str, Any]]) -> None:
    for section in ranks[0]["sections"]:
        records(ranks[0], section)  # PyTorch does not count refused calls
    compared = 0
    for result in ranks:
        for name, section in result["sections"].items():
            own = [(r["seq"], r["op_id"]) for r in section["records"] if r["kind"] == 0]
            theirs = [(entry["collective_seq_id"], entry["op_id"]) for entry in section["torch"]]
            if name == "reduce_scatter":  # gloo makes two all_reduces of this call
                theirs = theirs[:1]
            assert own == theirs, name
            compared += len(own)
    assert compared > 60


@pytest.mark.parametrize(
    ("section", "operation", "expected"),
    [
        ("all_reduce", "all_reduce", {"in": [[3, 4]], "out": [[3, 4]], "in_bytes": 48, "reduce_op": "max"}),
        ("broadcast", "broadcast", {"in": [[5]], "in_dtypes": ["Long"], "in_bytes": 40, "root": 1, "reduce_op": None}),
        ("reduce", "reduce", {"in_dtypes": ["Double"], "root": 1, "reduce_op": "product"}),
        ("all_gather", "all_gather", {"in": [[2]], "out": [[2], [2]], "out_bytes": 16, "root": None}),
        ("all_gather_into_tensor", "all_gather_into_tensor", {"in": [[4]], "out": [[8]]}),
        ("reduce_scatter", "reduce_scatter", {"in": [[2], [2]], "out": [[2]], "reduce_op": "sum"}),
        ("reduce_scatter_tensor", "reduce_scatter_tensor", {"in": [[4]], "out": [[2]]}),
        ("all_to_all", "all_to_all", {"in": [[2], [2]], "out": [[2], [2]]}),
        ("barrier", "barrier", {"in": [], "out": [], "in_bytes": 0}),
        ("monitored_barrier", "monitored_barrier", {"in": [], "kind": 2, "seq": 1}),
        ("all_reduce_coalesced", "all_reduce_coalesced", {"in": [[2], [3]], "in_bytes": 20}),
        ("coalescing_manager", "all_reduce_coalesced", {"in": [[2], [3]]}),
        ("bfloat16", "all_reduce", {"in_dtypes": ["BFloat16"], "in_bytes": 4}),
        ("short_timeout", "all_reduce", {"timeout_ms": 77_000}),
        ("async", "all_reduce", {"timeout_ms": 1_800_000}),
        ("functional", "all_reduce", {"in": [[4]], "reduce_op": "sum"}),
        ("functional_gather", "all_gather_into_tensor", {"in": [[4]], "out": [[8]]}),
        ("compiled", "all_reduce", {"in": [[4]], "reduce_op": "sum"}),
    ],
)
def test_what_is_recorded(ranks: list[dict[str, Any]], section: str, operation: str, expected: dict[str, Any]) -> None:
    for result in ranks:
        record = only(result, section)
        assert record["operation"] == operation
        if not reduce_ops_are_readable(torch) and result["facts"]["meta"]["capture_engine"] == "python":
            expected = {key: value for key, value in expected.items() if key != "reduce_op"}
        assert {key: record[key] for key in expected} == expected
        assert record["backend"] == "gloo"
        assert record["state"] == "COMPLETED"
        assert record["ordered"]


def test_lists_off_the_root_are_empty(ranks: list[dict[str, Any]]) -> None:
    gather = [only(result, "gather") for result in ranks]
    assert [r["out"] for r in gather] == [[[4], [4]], []]
    assert [r["root"] for r in gather] == [0, 0]
    scatter = [only(result, "scatter") for result in ranks]
    assert [r["in"] for r in scatter] == [[], [[4], [4]]]
    assert [r["root"] for r in scatter] == [1, 1]


def test_uneven_splits(ranks: list[dict[str, Any]]) -> None:
    first, second = (only(result, "all_to_all_single") for result in ranks)
    assert (first["in_splits"], first["out_splits"]) == ([1, 3], [1, 2])
    assert (second["in_splits"], second["out_splits"]) == ([2, 2], [3, 2])
    assert only(ranks[0], "all_to_all")["in_splits"] is None


def test_object_collectives_are_their_tensors(ranks: list[dict[str, Any]]) -> None:
    for result in ranks:
        assert [r["operation"] for r in records(result, "objects")] == ["all_gather", "all_gather"]
        assert [r["operation"] for r in records(result, "object_list")] == ["broadcast", "broadcast"]


def test_sends_and_receives(ranks: list[dict[str, Any]]) -> None:
    sends, receives = (records(result, "send_recv") for result in ranks)
    assert [(r["operation"], r["peer"], r["tag"], r["pair_index"]) for r in sends] == [
        ("send", 1, 7, 0),
        ("send", 1, 7, 1),
    ]
    assert [(r["operation"], r["peer"], r["tag"], r["pair_index"]) for r in receives] == [
        ("recv", 0, 7, 0),
        ("recv", 0, 7, 1),
    ]
    assert [r["p2p_seq"] for r in sends] == [1, 2]
    assert sends[0]["in"] == [[5]]
    assert receives[0]["out"] == [[5]]
    everything = [r for result in ranks for name in ("send_recv", "any_source", "isend") for r in records(result, name)]
    assert {r["state"] for r in everything} == {"COMPLETED"}
    assert {r["kind"] for r in everything} == {1}
    any_source = only(ranks[1], "any_source")
    assert any_source["any_source"]
    assert any_source["peer"] is None


def test_a_receive_after_one_from_any_source_is_paired_with_no_message(ranks: list[dict[str, Any]]) -> None:
    sent, received = (only(result, "isend") for result in ranks)
    assert (sent["any_source"], sent["pair_index"]) == (False, 1)
    assert (received["any_source"], received["peer"], received["tag"]) == (True, 0, 0)


def test_a_batch_of_sends_and_receives(ranks: list[dict[str, Any]]) -> None:
    for rank, result in enumerate(ranks):
        batch = records(result, "batch")
        assert [(r["operation"], r["peer"], r["state"]) for r in batch] == [
            ("send", 1 - rank, "COMPLETED"),
            ("recv", 1 - rank, "COMPLETED"),
        ]


def test_ddp_and_fsdp2(ranks: list[dict[str, Any]]) -> None:
    for result in ranks:
        ddp = records(result, "ddp")
        assert [r["operation"] for r in ddp] == ["all_gather", "broadcast", "broadcast", "all_reduce"]
        assert {r["state"] for r in ddp} == {"COMPLETED"}
        assert ddp[-1]["in"] == [[10]]
        assert ddp[-1]["site"] == f"{JOB}:{line_of('# DDP-LINE')} ddp"
        fsdp = records(result, "fsdp2")
        assert [r["operation"] for r in fsdp] == ["all_gather_into_tensor", "reduce_scatter_tensor"]
        assert {r["state"] for r in fsdp} == {"COMPLETED"}
        assert result["facts"]["compiled_value"] == 5.0


def test_the_call_site_is_the_users_line(ranks: list[dict[str, Any]]) -> None:
    for section, text in [
        ("all_reduce", "op=dist.ReduceOp.MAX"),
        ("reduce_scatter_tensor", 'section("reduce_scatter_tensor"'),
        ("objects", 'section("objects"'),
        ("functional", 'section("functional",'),
    ]:
        record = records(ranks[0], section)[0]
        assert record["site"] == f"{JOB}:{line_of(text)} <lambda>"
        assert record["frames"] >= 4


def test_groups(ranks: list[dict[str, Any]]) -> None:
    world = [only(result, "all_reduce")["group"] for result in ranks]
    assert world[0] == world[1]
    assert world[0]["ranks"] == [0, 1]
    assert (world[0]["description"], world[0]["backend"]) == ("default_pg", "gloo")
    pair = [only(result, "new_group")["group"] for result in ranks]
    assert pair[0] == pair[1]
    assert pair[0]["description"] == "a pair"
    assert only(ranks[0], "new_group")["root"] == 1
    alone = only(ranks[1], "alone")["group"]
    assert alone["ranks"] == [1]
    part = [only(result, "split_group")["group"] for result in ranks]
    assert part[0] == part[1]
    assert (part[0]["description"], part[0]["ranks"]) == ("a part", [0, 1])
    assert len({group["id"] for group in (world[0], pair[0], alone, part[0])}) == 4


def test_a_default_group_made_again_is_that_of_another_run(ranks: list[dict[str, Any]]) -> None:
    before = [only(result, "all_reduce")["group"] for result in ranks]
    again = [only(result, "again") for result in ranks]
    assert again[0]["group"] == again[1]["group"]
    assert again[0]["group"]["name"] == before[0]["name"]
    runs = [(result["facts"]["first_meta"]["run_id"], result["facts"]["meta"]["run_id"]) for result in ranks]
    assert runs[0] == runs[1]
    assert runs[0][0] != runs[0][1]
    assert [result["facts"]["meta"]["session"] for result in ranks] == [1, 1]
    assert again[0]["seq"] == 1
    assert all(result["facts"]["groups_closed"] == 1 for result in ranks)


def test_meta_and_fake_tensors_are_no_collectives(ranks: list[dict[str, Any]]) -> None:
    assert all(records(result, "meta") == [] for result in ranks)


def test_nothing_is_kept_alive(ranks: list[dict[str, Any]]) -> None:
    for result in ranks:
        assert result["facts"]["tensors_alive"] == 0
        assert result["facts"]["group_alive"] is False


def test_the_run_and_the_process(ranks: list[dict[str, Any]]) -> None:
    metas = [result["facts"]["meta"] for result in ranks]
    assert metas[0]["nonce"] == metas[1]["nonce"] != ""
    assert metas[0]["run_id"] == metas[1]["run_id"]
    assert [meta["rank"] for meta in metas] == [0, 1]
    assert {meta["world_size"] for meta in metas} == {2}
    assert {meta["service_name"] for meta in metas} == {JOB.name}
    for result in ranks:
        assert result["facts"]["children"] == "none"
        assert set(result["facts"]["counters"].values()) == {0}
        assert result["ring_left"] == []
