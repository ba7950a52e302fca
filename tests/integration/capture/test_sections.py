"""Heartbeats, sections and steps of real programs, with both capture engines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support import single_rank

pytestmark = pytest.mark.usefixtures("each_engine", "warm")

SHOW = """
import otel_fr

def shown():
    activity = ring().activity
    step = activity.step()
    return {
        "open": [item.name for item in activity.open_sections()],
        "ended": [item.name or f"step {item.step}" for item in activity.ended(0)[0]],
        "step": step and step.step,
        "beats": activity.beats().count,
        "misuses": activity.misuses,
    }
"""


def test_steps_are_those_of_optimizers_until_the_program_tells_its_own(tmp_path: Path) -> None:
    out = single_rank.succeed(
        tmp_path,
        SHOW
        + """
with otel_fr.section("setup"):
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    start()
    print(json.dumps(shown()))
for _ in range(3):
    weight.grad = torch.ones(2)
    optimizer.step()
print(json.dumps(shown()))
otel_fr.step(100)
optimizer.step()
print(json.dumps(shown()))
from torch.optim.optimizer import _global_optimizer_post_hooks
print(len(_global_optimizer_post_hooks), torch.allclose(weight, torch.full((2,), 0.6)))
dist.all_reduce(torch.ones(2))
print(len(list(ring().records())))
otel_fr.uninstrument()
otel_fr.heartbeat()
with otel_fr.section("after"):
    optimizer.step()
""",
    )
    lines = out.splitlines()
    assert json.loads(lines[0]) == {"open": ["setup"], "ended": [], "step": None, "beats": 0, "misuses": 0}
    second = json.loads(lines[1])
    assert second == {"open": [], "ended": ["setup", "step 1", "step 2"], "step": 3, "beats": 3, "misuses": 0}
    assert json.loads(lines[2])["step"] == 100
    assert lines[3:] == ["0 True", "1"]


def test_a_forked_child_leaves_its_parents_sections_alone(tmp_path: Path) -> None:
    out = single_rank.succeed(
        tmp_path,
        SHOW
        + """
start()
otel_fr.step(1)
stop = threading.Event()
def hold():
    otel_fr.start_section("in a thread")
    stop.wait()
thread = threading.Thread(target=hold)
thread.start()
while "in a thread" not in shown()["open"]:
    pass
with contextlib.ExitStack() as stack:
    stack.enter_context(otel_fr.section("outer"))
    before = shown()
    child = os.fork()
    if child == 0:
        otel_fr.heartbeat(); otel_fr.step(); otel_fr.start_section("mine"); otel_fr.end_section("mine")
        stack.close()
        weight = torch.nn.Parameter(torch.ones(2)); weight.grad = torch.ones(2)
        torch.optim.SGD([weight], lr=0.1).step()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert shown() == before, (before, shown())
    print(before["open"])
stop.set()
thread.join()
print(shown()["open"], shown()["ended"])
""",
    )
    assert out.splitlines() == ["['in a thread', 'outer']", "[] ['outer', 'in a thread']"]
