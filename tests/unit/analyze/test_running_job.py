"""PyTorch's files of a job that runs: each rank writes its own at another moment, and no call waits for long."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from otel_fr.analyze import FAULT, HEALTHY, load
from otel_fr.match import Category
from tests.support.torch_files import entry, one_missing, write
from tests.support.verdicts import causes

ENQUEUED_NS = 1_800_000_000 * 10**9


def written(folder: Path, seconds: float) -> Path:
    """The files of `one_missing`, so long after the open calls were enqueued."""
    one_missing(folder, time_created_ns=ENQUEUED_NS)
    for file in folder.iterdir():
        os.utime(file, ns=(time.time_ns(), ENQUEUED_NS + round(seconds * 1e9)))
    return folder


@pytest.mark.parametrize("seconds", [-0.004, 0.0, 0.3, 2.0])
def test_a_call_that_was_enqueued_just_before_the_file_was_written_waits_for_nobody(
    tmp_path: Path, seconds: float
) -> None:
    assert load(written(tmp_path, seconds)).status == HEALTHY


@pytest.mark.parametrize("seconds", [8.0, 600.0, 10_000_000.0])
def test_a_call_that_may_be_older_is_judged(tmp_path: Path, seconds: float) -> None:
    """Also of files that were copied: how long their calls have been in flight is not known."""
    report = load(written(tmp_path, seconds))
    assert report.status == FAULT
    assert [(one.category, one.culprit_ranks) for one in causes(report.findings)] == [(Category.MISSING_RANK, (2,))]


@pytest.mark.parametrize("operation", ["scatter", "gather"])
def test_a_list_that_only_the_root_passes_is_no_tensor_of_another_dtype(tmp_path: Path, operation: str) -> None:
    """PyTorch 2.14 writes an undefined tensor for ranks that pass none; a scatter's list is among the outputs there."""
    whole = {"output_sizes": [[16]] * 3, "output_dtypes": ["Float"] * 3}
    none = {"output_sizes": [[0]], "output_dtypes": ["UNKNOWN_SCALAR"]}
    ranks = {
        rank: [entry(0, operation, 1, input_sizes=[[16]], input_dtypes=["Float"], **(none if rank else whole))]
        for rank in range(3)
    }
    assert load(write(tmp_path, ranks)).status == HEALTHY
