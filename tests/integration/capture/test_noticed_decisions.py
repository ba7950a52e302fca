"""Decisions that otel-fr notices without `decision`: compilations, and steps without an optimizer's step."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support import single_rank

warm = pytest.mark.usefixtures("warm")
"""Marks all tests except the test of a program that imports TorchDynamo: warm processes have imported it."""

SHOW = """
import otel_fr
session_module.start_monitor = no_monitor

def decided():
    with ring() as reader:
        return [(item.name, item.value, item.step, item.last) for item in reader.decisions.decided()]
"""

COMPILES = (
    SHOW
    + """
start()
print("torch._dynamo.callback" in sys.modules)

@torch.compile(backend="eager", dynamic=False)
def forward(x):
    return x * 2

for step, size in enumerate((3, 3, 4)):
    otel_fr.step(step)
    forward(torch.ones(size))
torch._dynamo.reset()
forward(torch.ones(3))
print(json.dumps(decided()))
with ring() as reader:
    print(reader.decisions.failures)
from torch._dynamo.callback import callback_handler
before = len(callback_handler.start_callbacks)
otel_fr.uninstrument()
print(before - len(callback_handler.start_callbacks))
forward(torch.ones(5))
"""
)


def test_each_compilation_is_noticed_with_its_reason(tmp_path: Path) -> None:
    lines = single_rank.succeed(tmp_path, COMPILES).splitlines()
    assert lines[0] == "False", "otel-fr must not load TorchDynamo"
    reason = "tensor 'x' size mismatch at index 0. expected 3, actual 4"
    found = json.loads(lines[1])
    line = found[0][1].rpartition(":")[2]
    first = f"forward (program.py:{line}"
    assert [[value, step] for _, value, step, _ in found] == [[first, 0], [f"forward: {reason}", 2], [first, 2]]
    assert {name for name, *_ in found} == {"torch.compile"}
    assert lines[2:] == ["0", "1"]


@warm
@pytest.mark.long
def test_a_compilation_that_cannot_be_described_is_counted_and_harms_nothing(tmp_path: Path) -> None:
    out = single_rank.succeed(
        tmp_path,
        SHOW
        + """
start()
import torch._dynamo
from otel_fr.capture import compilations
def broken(frame):
    raise RuntimeError("another torch")
compilations._text = broken
print(torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2)).tolist())
with ring() as reader:
    print(reader.decisions.failures, reader.counters["hook_errors"])
""",
    )
    assert out.splitlines() == ["[2.0, 2.0]", "1 0"]


@warm
def test_a_step_in_which_no_optimizer_made_one_is_noticed(tmp_path: Path) -> None:
    out = single_rank.succeed(
        tmp_path,
        SHOW
        + """
start()
weight = torch.nn.Parameter(torch.ones(2))
optimizers = [torch.optim.SGD([weight], lr=0.1), torch.optim.SGD([weight], lr=0.1)]
for step in range(10):
    otel_fr.step(step)
    weight.grad = torch.ones(2)
    if step > 1 and step != 5:
        for optimizer in optimizers:
            optimizer.step()
print(json.dumps(decided()))
otel_fr.uninstrument()
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks
print(len(_global_optimizer_pre_hooks), len(_global_optimizer_post_hooks))
""",
    )
    lines = out.splitlines()
    name = "optimizer step"
    assert json.loads(lines[0]) == [[name, "made", 2, 3], [name, "skipped", 5, 4], [name, "made", 6, 8]]
    assert lines[1] == "0 0"


@warm
@pytest.mark.parametrize("way", ["eager", pytest.param("compiled", marks=pytest.mark.long)])
def test_a_gradient_scaler_that_skips_is_noticed(way: str, tmp_path: Path) -> None:
    out = single_rank.succeed(
        tmp_path,
        SHOW
        + f"""
start()
weight = torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.SGD([weight], lr=0.1)
scaler = torch.amp.GradScaler("cpu")
step_of = torch.compile(scaler.step, backend="eager") if {way!r} == "compiled" else scaler.step
for step in range(4):
    otel_fr.step(step)
    scaler.scale((weight * (float("inf") if step == 2 else 1.0)).sum()).backward()
    step_of(optimizer)
    scaler.update()
    optimizer.zero_grad()
otel_fr.step(4)
print(json.dumps([item for item in decided() if item[0] == "optimizer step"]))
""",
    )
    name = "optimizer step"
    assert json.loads(out) == [[name, "made", 0, 2], [name, "skipped", 2, 3], [name, "made", 3, 4]]


REPLAYS = (
    SHOW
    + """
class CUDAGraph:  # a made one: there is no device
    def __init__(self, *launches):
        self.launches = list(launches)

    def replay(self, more=0):
        launched = self.launches.pop()
        if isinstance(launched, Exception):
            raise launched
        return launched + more

import torch.cuda.graphs as graphs
from otel_fr.capture import graph_replays
from otel_fr.capture.replaced import Attribute, Replacements

print(graphs.CUDAGraph.replay.__module__, graphs.CUDAGraph.replay.__wrapped__ is not None)
original = CUDAGraph.replay
replaced = Replacements()
replaced.put(Attribute.REPLAY, types.SimpleNamespace(CUDAGraph=CUDAGraph), graph_replays.counting)
CUDAGraph(1).replay()  # nothing is recorded yet
start()
graph = CUDAGraph(RuntimeError("no device"), 2, 3)
print(graph.replay(), graph.replay(more=5))
try:
    graph.replay()
except RuntimeError as error:
    print(error)
print(json.dumps(decided()))
replaced.undo()
print(CUDAGraph.replay is original, torch.cuda.is_initialized())
otel_fr.uninstrument()
print(hasattr(graphs.CUDAGraph.replay, "__wrapped__"))
"""
)


@warm
def test_replays_of_cuda_graphs_are_counted_and_go_on_as_they_were(tmp_path: Path) -> None:
    """A real graph needs a device, so a fake class stands for it."""
    lines = single_rank.succeed(tmp_path, "import types\n" + REPLAYS).splitlines()
    assert lines == [
        "torch.cuda.graphs True",
        "3 7",
        "no device",
        '[["CUDA graph replays", "launched", -1, 3]]',
        "True False",
        "False",
    ]
