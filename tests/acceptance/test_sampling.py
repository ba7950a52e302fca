"""A real torchrun job that sends one span in a hundred, with a mismatch that makes no rank wait."""

from __future__ import annotations

from pathlib import Path

import pytest

from otel_fr import identity
from tests.support import torchrun
from tests.support.waiting import until

pytestmark = torchrun.needed

ODD, NUMBER = 1, 38  # after 37 all_reduce and a broadcast


@pytest.mark.long
def test_a_mismatch_in_a_call_of_which_no_span_is_sent_is_named(tmp_path: Path) -> None:
    env = {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.01"}
    stop = tmp_path / "stop"
    with torchrun.collector(tmp_path / "collector") as running:
        job = torchrun.start(tmp_path, "sampled.py", str(ODD), str(stop), env={**torchrun.endpoint(running), **env})
        try:
            (incident,) = until(running.causes)
            questions = running.metric("otel_fr_collector_disagreements_total", outcome="mismatch")
        finally:
            stop.touch()
            output, _ = job.communicate()
    assert job.returncode == 0, output
    assert (incident["category"], incident["culprit_ranks"]) == ("reduce_op_mismatch", [ODD])
    assert incident["sequence_id"] == NUMBER
    assert "sampled.py" in incident["call_sites"][str(ODD)]
    # Not by chance: the call is none of the sample.
    group = identity.group_id("0", range(3))
    assert incident["process_group"]["id"] == group
    trace = identity.trace_id(incident["run_id"], group, "collective", NUMBER)
    assert int.from_bytes(trace[8:], "big") >= 0.01 * 2**64
    assert questions == 1.0
