"""Groups that are destroyed with a call in flight. On torch before 2.8 otel-fr's callback must not hang that."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support import single_rank, torchrun
from tests.support.engines import EACH_ENGINE
from tests.support.engines import settings as engine_settings
from tests.support.paths import SCRIPTS

pytestmark = pytest.mark.usefixtures("warm")


@pytest.mark.torchrun
@pytest.mark.parametrize("engine", EACH_ENGINE)
def test_a_group_is_destroyed_while_a_call_that_nobody_waits_for_is_in_flight(tmp_path: Path, engine: str) -> None:
    env = single_rank.environment(tmp_path, OTEL_FR_ENABLED="1", **engine_settings(engine))
    command = ["--standalone", "--nproc-per-node", "2", str(SCRIPTS / "destroys_early.py")]
    command += [str(tmp_path), "late"]
    done = torchrun.call(tmp_path, command, env)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.count("done") == 2
    for rank in range(2):
        assert json.loads((tmp_path / f"rank{rank}.json").read_text())[0] == "COMPLETED"


OLD_TORCH = """
from otel_fr.capture import destroy
destroy.keeps_gil = lambda: True
session_module.start_monitor = no_monitor
hook.uninstall()
hook.install()
start()
group, other = dist.new_group([0, 1]), dist.new_group([0, 1])
dist.all_reduce(torch.ones(1), group=group)
dist.all_reduce(torch.ones(1), group=other)
recorder = hook._state.session.recorder
def callback(group):
    return __import__("functools").partial(recorder.futures.function, 0, recorder.groups[group.group_name].index, 1)
"""


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        # It waits until the backend drops this group's callback.
        (
            """
held, kept = [callback(group)], callback(other)
threading.Timer(0.1, held.clear).start()
before = sys.getrefcount(group)
dist.destroy_process_group(group)
print(held, before - sys.getrefcount(group) > 0)
del kept  # the exit waits for callbacks
""",
            "[] True",
        ),
        # After the longest wait the group is kept alive, so that its destructor never runs.
        (
            """
held = callback(group)
destroy.WAIT_SECONDS = 0.2
import weakref
reference = weakref.ref(group)
dist.destroy_process_group(group)
del group
print(reference() is not None)
del held  # the exit waits for callbacks
""",
            "True",
        ),
        # All groups are destroyed.
        (
            """
held = [callback(group), callback(other)]
threading.Timer(0.1, held.clear).start()
dist.destroy_process_group()
print(held)
""",
            "[]",
        ),
    ],
)
def test_on_an_old_torch_it_waits_for_the_callbacks_of_the_groups_calls(
    tmp_path: Path, body: str, expected: str
) -> None:
    assert single_rank.succeed(tmp_path, OLD_TORCH + body).strip() == expected


RECORDED = """
session_module.start_monitor = no_monitor
start()
import torch.distributed.distributed_c10d as c10d
from otel_fr.ring import KIND_GROUP
def shown():
    for record in ring().records():
        if record.kind == KIND_GROUP:
            print(record.sequence_id, record.state.name, record.signature.operation, record.group.description,
                  record.site.text.rpartition(" ")[2])
    print(ring().counters["hook_errors"])
"""


@pytest.mark.usefixtures("each_engine")
def test_each_destruction_is_a_call_of_its_group_until_it_returns(tmp_path: Path) -> None:
    out = single_rank.succeed(
        tmp_path,
        RECORDED
        + """
def leave():
    pair = dist.new_group([0, 1], group_desc="pair")
    dist.all_reduce(torch.ones(2), group=pair)
    dist.destroy_process_group(pair)
    again = dist.new_group([0, 1], group_desc="again")
    dist.destroy_process_group(group=again)
    own = dist.new_group([0, 2], use_local_synchronization=True, group_desc="own")
    dist.destroy_process_group(own)
    for wrong in (own, dist.new_group([1, 2]), 7):
        with contextlib.suppress(ValueError, AttributeError, TypeError, RuntimeError):
            dist.destroy_process_group(wrong)  # torch refuses
    forget = c10d._unregister_all_process_groups
    def observed():
        print([record.state.name for record in ring().records()][-1])
        forget()
        print([record.state.name for record in ring().records()][-1], len(ring().groups()))
    c10d._unregister_all_process_groups = observed
    dist.destroy_process_group()
leave()
shown()
""",
    )
    assert out.splitlines() == [
        "IN_FLIGHT",
        "IN_FLIGHT 0",
        "1 COMPLETED new_group default_pg leave",
        "1 COMPLETED destroy_process_group pair leave",
        "2 COMPLETED new_group default_pg leave",
        "1 COMPLETED destroy_process_group again leave",
        "1 COMPLETED new_group own leave",
        "2 COMPLETED destroy_process_group own leave",
        "4 COMPLETED destroy_process_group default_pg leave",
        "0",
    ]


@pytest.mark.usefixtures("each_engine")
def test_a_destruction_that_fails_has_failed_and_is_raised(tmp_path: Path) -> None:
    out = single_rank.succeed(
        tmp_path,
        RECORDED
        + """
class Gone(Exception): pass
def fail(*_): raise Gone
def leave():
    pair = dist.new_group([0, 1], group_desc="pair")
    c10d._unregister_process_group = fail
    try:
        dist.destroy_process_group(pair)
    except Gone:
        print("raised")
leave()
shown()
""",
    )
    assert out.splitlines() == [
        "raised",
        "1 COMPLETED new_group default_pg leave",
        "1 FAILED destroy_process_group pair leave",
        "0",
    ]


@pytest.mark.usefixtures("each_engine")
def test_groups_that_are_aborted_are_destroyed(tmp_path: Path) -> None:
    out = single_rank.succeed(
        tmp_path,
        RECORDED
        + """
def leave():
    with contextlib.suppress(RuntimeError, NotImplementedError):  # what the fake backend says
        c10d._abort_process_group()
leave()
shown()
""",
    )
    (call, errors) = out.splitlines()
    assert call.split()[0] == "1"
    assert call.endswith(" abort_process_group default_pg leave")
    assert errors == "0"
