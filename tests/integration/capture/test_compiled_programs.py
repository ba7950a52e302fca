"""Programs that use torch.compile: TorchDynamo sees their frames, and none of otel-fr's."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import single_rank

_PROGRAM = """
import torch._dynamo
from torch._dynamo.utils import get_compilation_metrics
session_module.start_monitor = no_monitor
start()

@torch.compile(backend="eager")
def step(x):
    y = x * 2
    dist.barrier()
    dist.isend(y, 1).wait()
    dist.reduce_scatter(torch.empty(1), [torch.empty(1)] * 4)
    return y + 1

for size in range(1, 4):
    print(step(torch.ones(size)).tolist())
torch.compiler.set_stance("eager_on_recompile")
step(torch.ones(1, 7))
print(sorted({os.path.basename(item.co_filename) for item in get_compilation_metrics() if item.co_filename}))
if os.environ["OTEL_FR_ENABLED"] == "1":
    print(len(list(ring().records())), ring().counters["hook_errors"], file=sys.stderr)
"""


@pytest.mark.long
@pytest.mark.usefixtures("each_engine")
def test_torch_compile_leaves_our_frames_alone(tmp_path: Path) -> None:
    with_us = single_rank.run(tmp_path, _PROGRAM)
    without = single_rank.run(tmp_path, _PROGRAM, OTEL_FR_ENABLED="0")
    assert with_us.returncode == 0, with_us.stderr[-4000:]
    assert with_us.stdout == without.stdout
    assert with_us.stdout.endswith("['program.py']\n")
    assert with_us.stderr.splitlines()[-1] == "12 0"


_WRAPPED = """
session_module.start_monitor = no_monitor
start()
compiled = []
def backend(module, inputs):
    compiled.append([node.name for node in module.graph.nodes if node.op.startswith("call")])
    return module.forward

@otel_fr.section("layer")
def layer(x):
    return x.sin()

class Layer(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.clone()
    @staticmethod
    def backward(context, grad):
        return torch.cos(grad)

torch.compile(lambda x: layer(x + 1) * 2, backend=backend)(torch.ones(1))
loss = Layer.apply(torch.ones(1, requires_grad=True))
torch.compile(lambda: loss.backward(), backend=backend)()
print(compiled)
"""


@pytest.mark.long
def test_the_programs_functions_that_otel_fr_wraps_are_compiled(tmp_path: Path) -> None:
    """A decorated function, and the functions of a backward pass."""
    done = single_rank.run(tmp_path, "import otel_fr\n" + _WRAPPED, OTEL_FR_ON_PEER_FAILURE="abort")
    assert done.stdout == "[['add'], ['sin'], ['mul'], ['cos']]\n", done.stderr[-4000:]
