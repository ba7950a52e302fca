"""Where a rank runs, from the variables that Slurm and Kubernetes set, and which value counts."""

from __future__ import annotations

import pytest
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from otel_fr.config import Config
from otel_fr.monitor.rank_identity import MAX_NAMED_RANKS, RankIdentity
from otel_fr.platform_attributes import MAX_VALUE, platform_attributes
from tests.support.otlp_messages import attributes

SLURM = {"SLURM_JOB_ID": "4711", "SLURM_JOB_NAME": "llama", "SLURMD_NODENAME": "gpu-17", "SLURM_STEP_ID": "0"}
POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "POD_NAME": "llama-0", "NODE_NAME": "gpu-17", "MY_POD_NAMESPACE": "train"}


def resource(monkeypatch: pytest.MonkeyPatch, **env: str) -> dict[str, object]:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    found: Resource = RankIdentity.of({"rank": 3, "job_id": "job/7", "host": "node-7"}, Config(), 12).resource()
    return attributes(found.attributes)


def test_a_rank_under_slurm_says_which_job_and_node_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    found = resource(monkeypatch, **SLURM, SLURM_ARRAY_TASK_ID="3")
    assert {name: value for name, value in found.items() if name.startswith("slurm.")} == {
        "slurm.job.id": "4711", "slurm.job.name": "llama", "slurm.node.name": "gpu-17", "slurm.step.id": "0",
        "slurm.array.task.id": "3",
    }  # fmt: skip
    assert (found["host.name"], found["process.pid"], found["torch.rank"]) == ("node-7", 12, 3)


def test_a_rank_in_a_pod_says_which_and_on_which_node() -> None:
    assert platform_attributes(POD) == {
        "k8s.pod.name": "llama-0", "k8s.node.name": "gpu-17", "k8s.namespace.name": "train",
    }  # fmt: skip


def test_names_that_mean_other_things_elsewhere_are_not_read() -> None:
    assert platform_attributes({"NODE_NAME": "jenkins-agent", "POD_NAME": "x", "SLURMD_NODENAME": "y"}) == {}


def test_what_the_user_says_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    given = "k8s.pod.name=mine,k8s.cluster.name=eu-1,host.name=rack-3"
    found = resource(monkeypatch, **POD, OTEL_RESOURCE_ATTRIBUTES=given)
    assert (found["k8s.pod.name"], found["k8s.node.name"], found["k8s.cluster.name"]) == ("mine", "gpu-17", "eu-1")
    assert found["host.name"] == "rack-3"


def test_values_are_bounded_and_text() -> None:
    found = platform_attributes({**SLURM, "SLURM_JOB_NAME": "\udcff" + "x" * 10_000, "SLURM_STEP_ID": " "})
    assert found["slurm.job.name"] == "?" + "x" * (MAX_VALUE - 1)
    assert "slurm.step.id" not in found


@pytest.mark.parametrize(("world_size", "suffix"), [(MAX_NAMED_RANKS, " [rank 3]"), (MAX_NAMED_RANKS + 1, "")])
def test_names_of_spans_have_the_rank_where_that_leaves_them_few(world_size: int, suffix: str) -> None:
    identity = RankIdentity.of({"rank": 3, "world_size": world_size}, Config(), 12)
    assert identity.name_suffix == suffix
