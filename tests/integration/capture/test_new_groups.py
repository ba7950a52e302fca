"""The creation of process groups in the records of both engines."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import single_rank

PRELUDE = """
session_module.start_monitor = no_monitor
start()
import torch.distributed.distributed_c10d as c10d
def fail_with(error, **how):
    real = c10d.ProcessGroup
    def raise_it(*args, **kwargs):
        raise error
    c10d.ProcessGroup = raise_it
    try:
        dist.new_group([0, 1], **how)
    except Exception as raised:
        assert raised is error
    finally:
        c10d.ProcessGroup = real
def show():
    for record in ring().records():
        new = record.signature.new_group
        if new is not None:
            name = record.site.text.rpartition(" ")[2]
            print(record.kind, record.sequence_id, record.state.name, record.signature.operation, new.name,
                  new.description, *new.ranks, "all" if new.awaits_all else "members", name)
"""

pytestmark = pytest.mark.usefixtures("each_engine", "warm")


def test_each_creation_is_recorded_with_its_number_name_description_and_ranks(tmp_path: Path) -> None:
    out = single_rank.succeed(
        tmp_path,
        PRELUDE
        + """
def setup():
    tp = dist.new_group([2, 0], group_desc="tp")
    dist.new_group([1, 2])  # not a member: only counted
    everyone = dist.new_group(None, group_desc="all")
    dist.all_reduce(torch.ones(2), group=everyone)
    with contextlib.suppress(ValueError):
        dist.new_group([0, 9])  # begins no group; torch 2.14 uses up a name for it
    part, _ = dist.new_subgroups(2)
    print(*[group.group_name for group in (tp, everyone, part)])
setup()
show()
""",
    )
    names, *records = out.splitlines()
    tp, everyone, part = names.split()
    assert (tp, everyone) == ("1", "3")
    assert records == [
        "3 1 COMPLETED new_group 1 tp 0 2 members setup",
        "3 3 COMPLETED new_group 3 all 0 1 2 3 members setup",
        f"3 4 COMPLETED new_group {part} undefined 0 1 members setup",
    ]


def test_a_group_that_its_members_create_alone_has_its_creation_as_its_first_call(tmp_path: Path) -> None:
    """Members create such groups in their own order, so these have no numbers in the default group."""
    out = single_rank.succeed(
        tmp_path,
        PRELUDE
        + """
def setup():
    pair = dist.new_group([0, 1], use_local_synchronization=True, group_desc="pair", backend="fake")
    dist.all_reduce(torch.ones(2), group=pair)
    dist.new_group([1, 2], use_local_synchronization=True)  # not a member
    dist.new_group([0, 1])
    dist.new_group([2, 0], use_local_synchronization=True)
    with contextlib.suppress(ValueError):
        dist.new_group([0, 9], use_local_synchronization=True)  # begins no group
    c10d._new_group_with_tag([0, 3], pg_tag="x", use_local_synchronization=True)
    c10d._new_group_with_tag([0, 3], pg_tag="x", use_local_synchronization=True)  # the same group
    dist.destroy_process_group(pair)
    again = dist.new_group([0, 1], use_local_synchronization=True, group_desc="pair")
    dist.all_reduce(torch.ones(2), group=again)
setup()
for record in ring().records():
    new, group = record.signature.new_group, record.group
    print(record.kind, record.sequence_id, record.state.name, record.signature.operation, group.description,
          *group.ranks, group.backend, new is None or (new.name, new.description, new.ranks, new.awaits_all) == (
          group.name, group.description, group.ranks, False))
print(len({record.group.id for record in ring().records()}), len(ring().groups()), ring().counters["hook_errors"])
""",
    )
    assert out.splitlines() == [
        "3 1 COMPLETED new_group pair 0 1 fake True",
        "0 1 COMPLETED all_reduce pair 0 1 fake True",
        "3 1 COMPLETED new_group default_pg 0 1 2 3 fake False",
        "3 1 COMPLETED new_group undefined 0 2 fake True",
        "3 1 COMPLETED new_group undefined 0 3 fake True",
        "3 2 COMPLETED destroy_process_group pair 0 1 fake True",
        "3 1 COMPLETED new_group pair 0 1 fake True",
        "0 1 COMPLETED all_reduce pair 0 1 fake True",
        "5 4 0",
    ]


def test_a_group_of_its_members_that_could_not_be_created_is_forgotten(tmp_path: Path) -> None:
    out = single_rank.succeed(
        tmp_path,
        PRELUDE
        + """
before = len(ring().groups())
fail_with(dist.DistStoreError("Timed out after 3 s"), use_local_synchronization=True)
print(len(ring().groups()) - before)
group = dist.new_group([0, 1], use_local_synchronization=True)
dist.all_reduce(torch.ones(2), group=group)
print(len(ring().groups()) - before, ring().counters["hook_errors"])
show()
print(len({record.group.id for record in ring().records()}))
""",
    )
    lines = out.splitlines()
    assert lines[:2] == ["0", "1 0"]
    assert [line.split()[2] for line in lines[2:4]] == ["FAILED", "COMPLETED"]
    assert lines[4:] == ["2"]


def test_a_new_default_group_begins_to_count_anew(tmp_path: Path) -> None:
    out = single_rank.succeed(
        tmp_path,
        PRELUDE
        + """
def setup():
    dist.new_group([0, 1], group_desc="tp")
for _ in range(2):
    setup()
    dist.destroy_process_group()
    start()
thread = threading.Thread(target=setup)
thread.start()
thread.join()
show()
""",
    )
    made = [line.split()[1:4:2] for line in out.splitlines()]
    assert made == [["1", "new_group"], ["1", "init_process_group"]] * 2 + [["1", "new_group"]]


def test_the_default_group_is_made_again_as_the_last_call_of_the_run_before(tmp_path: Path) -> None:
    """Ranks may wait there for an absent rank. Nobody knows which ranks should join another world."""
    out = single_rank.succeed(
        tmp_path,
        PRELUDE
        + """
dist.destroy_process_group()
def refuse(*args):
    raise dist.DistStoreError("Timed out after 3 s")
real, c10d.ProcessGroup = c10d.ProcessGroup, refuse
with contextlib.suppress(dist.DistStoreError):
    start()
c10d.ProcessGroup = real
start()
dist.all_reduce(torch.ones(2))
dist.destroy_process_group()
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
dist.all_reduce(torch.ones(2))
for record in ring().records():
    if record.signature.operation != "destroy_process_group":
        print(record.kind, record.sequence_id, record.state.name, record.signature.operation, *record.group.ranks,
              len([one for one in ring().records() if one.group.id == record.group.id]))
runs = [*ring().meta["earlier_runs"], ring().meta]
print(*[run["first_record"] for run in runs], len(ring().groups()), ring().counters["hook_errors"])
""",
    )
    assert out.splitlines() == [
        "3 1 FAILED init_process_group 0 1 2 3 1",
        "3 1 COMPLETED init_process_group 0 1 2 3 1",
        "0 1 COMPLETED all_reduce 0 1 2 3 2",
        "0 1 COMPLETED all_reduce 0 1 1",
        "0 3 5 1 0",
    ]


def test_a_rank_whose_recording_began_late_says_that_it_records_no_creations(tmp_path: Path) -> None:
    """It does not know how many groups were created before."""
    out = single_rank.succeed(
        tmp_path,
        PRELUDE.replace("start()", "")
        + """
import otel_fr
os.environ["OTEL_FR_ENABLED"] = "1"
start()
otel_fr.instrument()
dist.new_group([0, 1])
print(ring().meta["creations"], len(list(ring().records())))
dist.destroy_process_group()
start()
dist.new_group([0, 1])
print(ring().meta["creations"], len(list(ring().records())))
""",
        OTEL_FR_ENABLED="0",
    )
    assert out.splitlines() == ["False 0", "True 2"]


def test_a_creation_that_fails_has_failed_only_if_other_ranks_are_the_reason(tmp_path: Path) -> None:
    out = single_rank.succeed(
        tmp_path,
        PRELUDE
        + """
fail_with(RuntimeError("[enforce fail at gloo/transport/tcp] Connect timeout"))
fail_with(dist.DistStoreError("Timed out after 3 s"))
fail_with(RuntimeError("Distributed package doesn't have NCCL built in"))
dist.new_group([0, 1])
show()
print(ring().counters["hook_errors"])
""",
    )
    lines = out.splitlines()
    assert [line.split()[2] for line in lines[:-1]] == ["FAILED", "FAILED", "COMPLETED", "COMPLETED"]
    assert lines[-1] == "0"


def test_the_barrier_after_a_creation_is_part_of_it(tmp_path: Path) -> None:
    """The barrier waits for every rank, so ranks that are no members are recorded, too."""
    out = single_rank.succeed(
        tmp_path,
        """
import torch.distributed.distributed_c10d as c10d
seen = []
c10d._store_based_barrier = lambda *_: hook._state.session and seen.extend(r.state.name for r in ring().records())
"""
        + PRELUDE
        + """
dist.new_group([1, 2])
print(*seen)
show()
""",
        TORCH_DIST_INIT_BARRIER="1",
    )
    assert out.splitlines()[-2:] == ["IN_FLIGHT", "3 1 COMPLETED new_group 1 undefined 1 2 all <module>"]
