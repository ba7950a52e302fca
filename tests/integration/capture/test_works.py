"""Calls with a Work without a future (gloo's send, recv, reduce_scatter), under both engines."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.support import engines, single_rank, torchrun
from tests.support.paths import ROOT, SCRIPTS

pytestmark = pytest.mark.usefixtures("warm")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The results that both ranks of the job wrote."""
    engines.kernel()
    folder = tmp_path_factory.mktemp("works")
    env = single_rank.environment(folder, PYTHONPATH=os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    command = ["--standalone", "--nproc-per-node", "2", str(SCRIPTS / "works.py"), str(folder)]
    done = torchrun.call(folder, command, env)
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]


def test_random_programs_are_recorded_alike(ranks: list[dict[str, Any]]) -> None:
    texts = ""
    for rank in ranks:
        for python, compiled in rank["programs"]:
            assert compiled["records"] == python["records"]
            assert compiled == python
            assert python["counters"]["hook_errors"] == 0
            texts += " ".join(python["records"])
    for state in ("COMPLETED", "UNKNOWN"):
        assert f"RecordState.{state}" in texts
    for waited in ("None", "1", "'waited'"):
        assert f"('waited_ns', {waited})" in texts


def test_the_wait_of_a_functional_collective_is_seen_by_the_compiled_engine(ranks: list[dict[str, Any]]) -> None:
    """The wait is in C++, where Python cannot see it."""
    for rank in ranks:
        assert rank["functional"] == [["UNKNOWN", "COMPLETED"], ["COMPLETED", "COMPLETED"]]


def test_the_program_gets_what_torch_gives_it(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        alone, recorded = rank["seen"]
        assert recorded == alone
        assert alone["recv"]["_source_rank"].isdigit()


def test_no_tensor_is_kept_alive(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert rank["alive"] == [0, 0]


ALONE = """
import datetime, gc
session_module.start_monitor = no_monitor
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
tensor = torch.zeros(3)  # for receives that no rank sends to
def found():
    return [(record.state.name, (record.waited_ns or 0) > 1) for record in ring().records()]
"""
FAILS = """
work = dist.irecv(tensor)
for _ in range(2):
    try:
        work.wait(datetime.timedelta(milliseconds=20))
    except Exception as error:
        print(type(error), error)
"""


@pytest.mark.usefixtures("each_engine")
def test_an_error_of_a_wait_passes_unchanged(tmp_path: Path) -> None:
    alone = single_rank.succeed(tmp_path, ALONE + FAILS, OTEL_FR_ENABLED="0")
    assert alone.count("Timed out waiting 20ms") == 2
    assert single_rank.succeed(tmp_path, ALONE + FAILS + "print(found())") == alone + "[('FAILED', True)]\n"


@pytest.mark.usefixtures("each_engine")
def test_a_receive_that_is_aborted_while_a_thread_waits_has_not_completed(tmp_path: Path) -> None:
    """A waiting thread keeps the Work alive, whatever happens to the group. `wait` returns false, or fails."""
    out = single_rank.succeed(
        tmp_path,
        ALONE
        + """
work = dist.irecv(tensor)
answers = []
def wait():
    try:
        answers.append(work.wait(datetime.timedelta(seconds=1)))
    except RuntimeError as error:
        answers.append(False)
thread = threading.Thread(target=wait)
thread.start()
while not found()[0][1]:
    time.sleep(0.001)
dist.distributed_c10d._abort_process_group(dist.group.WORLD)
thread.join()
del work
print(answers)
""",
    )
    assert out == "[False]\n"


@pytest.mark.usefixtures("each_engine")
def test_works_outlive_their_group_and_their_recording(tmp_path: Path) -> None:
    """A late wait for a Work, or its late end, is not recorded and does no harm."""
    out = single_rank.succeed(
        tmp_path,
        ALONE
        + """
dropped, waited, kept, cycle = [dist.irecv(tensor) for _ in range(4)]
cycle = [cycle]
cycle.append(cycle)
print(found())
dist.destroy_process_group()
hook.uninstall()
del dropped, cycle
gc.collect()
try:
    waited.wait(datetime.timedelta(milliseconds=1))
except RuntimeError as error:
    print("an error")
hook.install()
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
dist.reduce_scatter_tensor(torch.zeros(1), torch.zeros(1))
print(found())
""",
    )
    assert out == f"{[('IN_FLIGHT', False)] * 4}\nan error\n[('COMPLETED', False)]\n"


@pytest.mark.usefixtures("each_engine")
def test_a_forked_child_drops_its_parents_works(tmp_path: Path) -> None:
    out = single_rank.succeed(
        tmp_path,
        ALONE
        + """
works = [dist.irecv(tensor) for _ in range(2)]
child = os.fork()
if not child:
    works.clear()
    os._exit(3)  # torch itself hangs when a child destroys the group
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), found())
del works[0]
dist.all_reduce(tensor)
print([state for state, _ in found()][:2])
""",
    )
    assert out == "3 [('IN_FLIGHT', False), ('IN_FLIGHT', False)]\n['UNKNOWN', 'IN_FLIGHT']\n"
