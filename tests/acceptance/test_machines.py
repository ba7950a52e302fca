"""A real job on two hosts hangs. Every outlet names the machine, the process and the line. Its user ends it.

Both agents run on this machine. ``OTEL_RESOURCE_ATTRIBUTES`` gives them different host names.
"""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

from otel_fr.incident import unix
from tests.support import torchrun, warm
from tests.support.commands import otel_fr
from tests.support.incident_receivers import AlertSink, Receiver
from tests.support.paths import JOBS
from tests.support.ports import free_port
from tests.support.waiting import PATIENCE, until, wait_for

pytestmark = torchrun.needed

PODS = {"gpu-16": "llama-0", "gpu-17": "llama-1"}


def start(folder: Path, number: int, port: int, env: dict[str, str]) -> subprocess.Popen[str]:
    """Start an agent with two ranks: the host ``gpu-16`` or ``gpu-17``."""
    host = list(PODS)[number]
    command = [
        *(*torchrun.WARM, "--nnodes=2", "--nproc_per_node=2", f"--node_rank={number}", "--master_addr=127.0.0.1"),
        *(f"--master_port={port}", str(JOBS / "hung.py"), "never"),
    ]
    attributes = f"host.name={PODS[host]},k8s.node.name={host},k8s.pod.name={PODS[host]}"
    merged = {**torchrun.base_environment(), **env, "OTEL_RESOURCE_ATTRIBUTES": attributes}
    with (folder / f"agent-{number}.log").open("w") as log:
        return warm.popen(command, env=merged, stdout=log, stderr=subprocess.STDOUT, cwd=folder)


def test_every_outlet_names_the_machine_and_the_process_until_the_job_is_stopped(tmp_path: Path) -> None:
    alerts, hook, port = AlertSink(), Receiver(), free_port()
    options = ("--alertmanager", alerts.url, "--webhook", hook.url)
    with torchrun.collector(tmp_path / "collector", *options) as running:
        env = {**torchrun.endpoint(running), "OTEL_FR_DUMP_DIR": str(tmp_path / "dumps"), "OTEL_FR_JOB_ID": "llama"}
        agents = [start(tmp_path, number, port, env) for number in range(2)]
        try:
            found = running.wait_cause(lambda one: len(one["places"]) == 4 and "load_shard" in one["summary"])
            assert wait_for(lambda: hook.requests and "load_shard" in str(alerts.posts))
            assert wait_for(lambda: len(list((tmp_path / "dumps").glob("*_rank_[0-3]"))) == 4)
        finally:
            for agent in agents:
                agent.send_signal(signal.SIGTERM)
            for agent in agents:
                agent.wait(PATIENCE)
        (over,) = until(lambda: [one for one in running.causes() if one["state"] == "resolved"])
        assert (over["resolution"], over["culprit_ranks"]) == ("stopped", [2])
    alerts.close()
    hook.close()
    assert (found["category"], found["culprit_ranks"]) == ("missing_rank", [2])
    assert found["summary"].startswith("rank 2 (gpu-17, pod llama-1, local rank 0) ")
    assert found["call_sites"]["2"].endswith(" load_shard")
    places = found["places"]
    assert list(places) == ["0", "1", "2", "3"]
    assert {rank: (one["host"], one["node"], one["local_rank"]) for rank, one in places.items()} == {
        str(rank): (f"llama-{rank // 2}", f"gpu-{16 + rank // 2}", rank % 2) for rank in range(4)
    }
    pids = {str(rank): int((tmp_path / f"pid-{rank}").read_text()) for rank in range(4)}
    assert {rank: one["pid"] for rank, one in places.items()} == pids
    assert all(one["pod"] == PODS[one["node"]] for one in places.values())
    since, detected = unix(found["waiting_since"]), unix(found["detected_at"])
    assert since is not None
    assert detected is not None
    assert 1.0 < detected - since < PATIENCE

    alert = next(post[0] for post in alerts.posts if "load_shard" in str(post))
    assert alert["labels"]["host"] == "gpu-17"
    moment = str(found["waiting_since"])[11:19]
    assert alert["annotations"]["summary"].startswith("rank 2 (gpu-17, pod llama-1, local rank 0) ")
    assert alert["annotations"]["summary"].endswith(f" since {moment} UTC")
    assert f"rank 2 (gpu-17, pod llama-1, local rank 0, pid {pids['2']}) at" in alert["annotations"]["description"]
    posted = [json.loads(body)["incident"] for _, _, _, body in hook.requests]
    assert any((one["places"], one["waiting_since"]) == (places, found["waiting_since"]) for one in posted)

    files = json.loads(otel_fr("analyze", tmp_path / "dumps", "--format", "json").stdout)["files"]
    assert {str(one["rank"]): (one["host"], one["local_rank"], one["pid"]) for one in files} == {
        rank: (one["host"], one["local_rank"], one["pid"]) for rank, one in places.items()
    }
