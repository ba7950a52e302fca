"""torchfrtrace, PyTorch's analyzer, on PyTorch's files."""

from __future__ import annotations

import re

from benchmarks.localisation.answers import Answer, named
from benchmarks.localisation.running import PREFIX, Finished
from benchmarks.localisation.tools.tool import OnFiles, last_line, module

_MISSING = re.compile(r"missing ranks: \{([\d, ]+)\}")
_CULPRIT = re.compile(r"Culprit rank (\d+)")
_MODULE = "torch.distributed.flight_recorder.fr_trace"
_INCOMPLETE = "--allow-incomplete-ranks"


class TorchFrTrace(OnFiles):
    """Called as users call it. If it ends because files are missing, it is called again with the option for that."""

    name = "torchfrtrace"

    def answer(self, job: Finished) -> Answer:
        if job.newest("torch") is None:
            return Answer("silent", text="no file")
        python, options = job.setting.bin / "python", [_MODULE, "-p", PREFIX, job.folder / "torch"]
        status, output = module(python, *options, imports_torch=True)
        if status and "missing dump files" in output.lower():
            status, output = module(python, *options, _INCOMPLETE, imports_torch=True)
        return from_output(status, output)


def from_output(status: int, output: str) -> Answer:
    """Return its answer. It names ranks in two ways: missing ranks, and culprits of mismatches."""
    if status:
        return Answer("crash", text=last_line(output))
    ranks = {int(rank) for found in _MISSING.findall(output) for rank in found.split(",")}
    ranks |= {int(rank) for rank in _CULPRIT.findall(output)}
    said = [line for line in output.splitlines() if _MISSING.search(line) or _CULPRIT.search(line)]
    return named(ranks, "; ".join(said)[:300])
