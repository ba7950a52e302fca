"""Compose, Kubernetes, systemd and Docker files, each checked by its published schema or its own program."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from otel_fr.config import Config, is_enabled
from tests.support.commands import BIN, otel_fr
from tests.support.external_programs import collector_help, documents, load
from tests.support.paths import DEPLOY, ROOT

COMPOSE = "compose/docker-compose.yml"
KUBERNETES = DEPLOY / "kubernetes"
CUSTOM = {"PyTorchJob": "kubeflow.org/v1", "TrainJob": "trainer.kubeflow.org/v1alpha1"}
"""Kubeflow's kinds, which Kubernetes' own schemas lack, with their versions."""


def collector_options() -> dict[str, str]:
    """Return the collector's options in each deployment, by the place that names them."""
    command = load(COMPOSE)["services"]["collector"]["command"]
    texts = {
        "compose": " ".join(command),
        "systemd": re.sub(r"(?m)^([a-z-]+) =", r"--\1=", (DEPLOY / "systemd" / "collector.toml").read_text()),
        "image": (DEPLOY / "docker" / "Dockerfile.collector").read_text().split("CMD")[-1],
    }
    return {name: " ".join(re.findall(r"--[a-z][a-z-]+(?==|\")", text)) for name, text in texts.items()}


def test_every_option_that_is_given_to_the_collector_exists() -> None:
    known = set(re.findall(r"--[a-z-]+", collector_help()))
    for place, options in collector_options().items():
        assert options, place
        assert set(options.split()) <= known, place


def test_the_collector_takes_the_configuration_of_the_service(tmp_path: Path) -> None:
    config = DEPLOY / "systemd" / "collector.toml"
    done = otel_fr("collector", "--config", config, "--check", "--data", tmp_path)
    assert done.returncode == 0, done.stderr


def test_compose_file_is_valid() -> None:
    command = [str(BIN / "check-jsonschema"), "--builtin-schema", "vendor.compose-spec", str(DEPLOY / COMPOSE)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_compose_is_closed_to_the_network_and_pinned() -> None:
    services = load(COMPOSE)["services"]
    for name, service in services.items():
        image, _, tag = service["image"].rpartition(":")
        assert image, f"{name} has no tag"
        assert re.fullmatch(r"v?\d+\.\d+\.\d+", tag), f"{name}: {tag} may become another program"
        assert service["cap_drop"] == ["ALL"], name
        for port in service.get("ports", []):
            assert port.startswith(("127.0.0.1:", "${BIND:-127.0.0.1}:")), f"{name}: {port}"
    env = dict(re.findall(r"^(\w+)=(.*)$", (DEPLOY / "compose" / "env.example").read_text(), flags=re.MULTILINE))
    assert env["BIND"] == "127.0.0.1"
    unhealthy = {name for name, service in services.items() if "healthcheck" not in service}
    assert unhealthy == {"volumes-owner", "tempo"}
    assert "/deploy/compose/.env" in (ROOT / ".gitignore").read_text().splitlines(), "it has the password"
    # Every variable has a default in the file or must be set, and it is in the example file.
    text = (DEPLOY / COMPOSE).read_text()
    assert set(re.findall(r"\$\{(\w+)", text)) == {*env, "GRAFANA_PASSWORD"}
    assert not re.findall(r"\$\{\w+\}", text)


def test_compose_mounts_what_is_there_and_configurations_reach_each_other() -> None:
    compose = load(COMPOSE)
    for name, service in compose["services"].items():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            known = (DEPLOY / "compose" / source).exists() if source.startswith(".") else source in compose["volumes"]
            assert known, (name, volume)
    build = compose["services"]["collector"]["build"]
    assert (DEPLOY / "compose" / build["context"] / build["dockerfile"]).exists()
    services = set(compose["services"])
    texts = [yaml.safe_dump(compose["services"])]
    texts += [(DEPLOY / path).read_text() for path in ("prometheus/prometheus.yml", "tempo/tempo.yaml")]
    hosts = {host for text in texts for host in re.findall(r"http://([a-z]\w*):\d+", text)}
    hosts |= set(re.findall(r'targets: \["([a-z]+):\d+"\]', texts[1])) - {"localhost"}
    assert hosts <= services
    urls = set(re.findall(r"\$\{(\w+)\}", (DEPLOY / "grafana/provisioning/datasources/otel_fr.yaml").read_text()))
    assert urls
    assert urls <= set(compose["services"]["grafana"]["environment"])


OBJECTS = [
    (f"{path.name}:{document['kind']}", document)
    for path in sorted(KUBERNETES.glob("*.yaml"))
    for document in documents(path)
]


@pytest.mark.parametrize("document", [one for _, one in OBJECTS], ids=[name for name, _ in OBJECTS])
def test_kubernetes_objects_fit_the_published_schemas(document: dict[str, Any]) -> None:
    assert {"apiVersion", "kind", "metadata"} <= set(document)
    if document["kind"] in CUSTOM:
        assert document["apiVersion"] == CUSTOM[document["kind"]]
        return
    kubernetes_validate.validate(document, desired_version="1.31", strict=True)


def pod(job: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the spec of a training job's pods, and its environment by name."""
    spec = job["spec"]
    if job["kind"] == "TrainJob":
        (patch,) = spec["runtimePatches"]
        (replicated,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
        found, variables = replicated["template"]["spec"]["template"]["spec"], spec["trainer"]["env"]
    else:
        found = (spec.get("template") or spec["pytorchReplicaSpecs"]["Worker"]["template"])["spec"]
        variables = found["containers"][0]["env"]
    return found, {one["name"]: one.get("value", "of-the-pod") for one in variables}


@pytest.mark.parametrize("name", ["pytorch-job.yaml", "kubeflow-pytorchjob.yaml", "kubeflow-trainjob.yaml"])
def test_an_example_job_turns_otel_fr_on_and_has_shared_memory(name: str) -> None:
    path = KUBERNETES / name
    (job,) = [one for one in documents(path) if one["kind"] in {"Job", "PyTorchJob", "TrainJob"}]
    spec, env = pod(job)
    (container,) = spec["containers"]
    assert is_enabled(env)
    config = Config.from_env(env)
    assert (config.job_id, str(config.dump_dir)) == ("of-the-pod", "/flight-recorder")
    assert "/flight-recorder" in {one["mountPath"] for one in container["volumeMounts"]}
    assert any(one["mountPath"] == "/dev/shm" for one in container["volumeMounts"])
    (shm,) = [one for one in spec["volumes"] if one["name"] == "shm"]
    assert shm["emptyDir"]["medium"] == "Memory"


def test_a_train_job_has_only_fields_that_kubeflow_trainer_knows() -> None:
    from kubeflow_trainer_api.models import TrainerV1alpha1TrainJob  # takes two seconds

    (job,) = documents(KUBERNETES / "kubeflow-trainjob.yaml")
    assert TrainerV1alpha1TrainJob.from_dict(job).to_dict() == job  # a model drops unknown fields


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not here")
def test_the_systemd_unit_is_valid_and_hardened(tmp_path: Path) -> None:
    unit = (DEPLOY / "systemd" / "otel-fr-collector.service").read_text()
    assert "\nOOMPolicy=continue\n" in unit, "a child that is killed for memory would end the collector"
    program = shutil.which("true")
    copy = tmp_path / "otel-fr-collector.service"
    copy.write_text(unit.replace("/opt/otel-fr/bin/otel-fr", str(program)))
    done = subprocess.run(["systemd-analyze", "verify", str(copy)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not done.stderr.strip(), done.stderr
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=20", str(copy)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout  # exposure 2.0 of 10 at most


@pytest.mark.parametrize("name", ["collector", "training"])
def test_dockerfiles_are_clean(name: str) -> None:
    path = DEPLOY / "docker" / f"Dockerfile.{name}"
    text = path.read_text()
    for image in re.findall(r"^FROM (\S+)", text, flags=re.MULTILINE):
        assert re.search(r":\d+\.\d+\.\d+", image), f"{image} is not pinned"
    users = re.findall(r"^USER (\S+)", text, flags=re.MULTILINE)
    assert users
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", users[-1]), "root, or a name that Kubernetes cannot judge"
    for sources in re.findall(r"^COPY (?!--from)(.*)$", text, flags=re.MULTILINE):
        for source in sources.split()[:-1]:
            assert (DEPLOY.parent / source).exists(), source
            kept = source.split("/")[0]
            assert f"!{kept}\n" in path.with_name(path.name + ".dockerignore").read_text()
    hadolint = BIN / "hadolint"
    if not hadolint.exists():
        pytest.skip("hadolint is not here")
    done = subprocess.run([str(hadolint), str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_tempo_keeps_to_its_volume_and_reports_to_the_prometheus_of_the_stack() -> None:
    tempo, services = load("tempo/tempo.yaml"), load(COMPOSE)["services"]
    mounts = [volume.split(":")[1] for volume in services["tempo"]["volumes"] if not volume.startswith("..")]
    generator, storage = tempo["metrics_generator"]["storage"], tempo["storage"]["trace"]
    for path in (generator["path"], storage["wal"]["path"], storage["local"]["path"]):
        assert any(path.startswith(mount + "/") for mount in mounts), path
    assert [one["url"] for one in generator["remote_write"]] == ["http://prometheus:9090/api/v1/write"]
    assert "--web.enable-remote-write-receiver" in services["prometheus"]["command"]
    limits = tempo["overrides"]["defaults"]
    assert limits["metrics_generator"]["processors"], "a metrics generator without processors makes no metrics"
    scheduler = tempo["backend_scheduler"]["provider"]["compaction"]["compaction"]
    assert scheduler["block_retention"] == tempo["backend_worker"]["compaction"]["block_retention"]


def test_the_documents_name_files_that_exist() -> None:
    root = DEPLOY.parent
    text = (root / "docs" / "guide" / "deploy.md").read_text()
    named = set(re.findall(r"(?<![\w/])deploy/[\w./-]*\w", text))
    folders = "compose|helm|kubernetes|slurm|systemd|otelcol|prometheus|alertmanager|grafana|jaeger|tempo"
    named |= {f"deploy/{path}" for path in re.findall(rf"`((?:{folders})/[\w./-]*)`", text)}
    assert len(named) > 10
    missing = [path for path in named if not (root / path).exists()]
    assert not missing
    listed = {part for row in re.findall(r"^\| (`.*?) \|", (DEPLOY / "README.md").read_text(), flags=re.MULTILINE)
              for part in re.findall(r"`([\w/]+)/?`", row)}  # fmt: skip
    assert {path.name for path in DEPLOY.iterdir() if path.is_dir()} <= {one.split("/")[0] for one in listed}


def test_batch_files_are_clean() -> None:
    shellcheck = BIN / "shellcheck"
    if not shellcheck.exists():
        pytest.skip("shellcheck is not here")
    files = [str(path) for path in (DEPLOY / "slurm").iterdir()]
    done = subprocess.run([str(shellcheck), *files], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
