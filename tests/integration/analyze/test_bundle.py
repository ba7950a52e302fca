"""``otel-fr bundle``: the contents of the file, and what it must never contain."""

from __future__ import annotations

import json
import stat
import tarfile
from itertools import count
from pathlib import Path

import pytest

from otel_fr.bundle import environment
from otel_fr.cli import main
from tests.support.commands import otel_fr
from tests.support.torch_files import one_missing
from tests.support.virtual_collector import VirtualCollector

SECRET = "s3cret"
TOP = "otel-fr-bundle/"


def texts(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as archive:
        members = archive.getmembers()
        assert all(one.isfile() and (one.uid, one.uname) == (0, "") for one in members)
        read = {one.name.removeprefix(TOP): archive.extractfile(one) for one in members}
        return {name: file.read() for name, file in read.items() if file is not None}


def test_the_name_and_the_file_have_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = count()
    monkeypatch.setattr("otel_fr.bundle.time.strftime", lambda *_: f"time-{next(seconds)}")
    monkeypatch.chdir(tmp_path)
    assert main(["bundle", str(one_missing(tmp_path / "dumps", 4))]) == 0
    (output,) = tmp_path.glob("otel-fr-*.tar.gz")
    assert output.name.endswith(f"-{json.loads(texts(output)['about.json'])['time']}.tar.gz")


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        ("OTEL_EXPORTER_OTLP_HEADERS", f"authorization={SECRET}", ""),
        ("OTEL_FR_TOKEN", SECRET, ""),
        ("SLURM_JWT", SECRET, ""),
        ("OTEL_FR_COLLECTOR_WEBHOOK", f"https://hooks.example.org/services/{SECRET}", ""),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://me:a/{SECRET}@collector:4317", "collector:4317"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"http://h/v1?access_token={SECRET}&x=1", "http://h/v1"),
        ("OTEL_RESOURCE_ATTRIBUTES", f"team=a,api.key={SECRET},b=c", "b=c"),
        ("OTEL_FR_CHECK_NODE_HEALTH_ARGS", f"--url h --password {SECRET}", "--url h"),
        ("OTEL_FR_CHECK_NODE_HEALTH_ARGS", f"-H 'Authorization: Bearer {SECRET}, {SECRET}'", "-H"),
        ("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", f"Bearer {SECRET}", "Bearer"),
        ("OTEL_RESOURCE_ATTRIBUTES", f"team=a,pwd={SECRET}", "team=a"),
        ("SLURM_SPANK_PW", SECRET, ""),
        ("SLURM_PASSPHRASE", SECRET, ""),
        ("TORCH_CREDS", SECRET, ""),
        ("NCCL_CONF_FILE", f"bob:{SECRET}@host", ""),
        ("SLURM_COMMENT", f"curl -u bob:{SECRET}", ""),
        ("SLURM_COMMENT", f"-----BEGIN PRIVATE X-----{SECRET}", ""),
        ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", f"https://h/v1?sig={SECRET}", "https://h/v1"),
        ("SLURM_JOB_COMMENT", f'{{"team": "nlp", "api_key": "{SECRET}"}}', '"team": "nlp"'),
        ("SLURM_JOB_COMMENT", f"proxy me:{SECRET}@proxy:3128 for http://host", ""),
        ("NCCL_DEBUG", "INFO", "INFO"),
        ("NCCL_IB_HCA", "=mlx5_0:1,mlx5_1:1", "=mlx5_0:1,mlx5_1:1"),
    ],
)
def test_variables_go_in_without_secrets(name: str, value: str, kept: str) -> None:
    found = environment({name: value, "HOME": "/root", "AWS_SECRET_ACCESS_KEY": SECRET})
    assert list(found) == [name]
    assert SECRET not in found[name]
    assert kept in found[name]


def test_a_bundle_holds_the_files_the_verdict_and_the_incident_and_nothing_else(tmp_path: Path) -> None:
    folder, output = one_missing(tmp_path / "dumps", 4), tmp_path / "case.tar.gz"
    (folder / "train.log").write_text(SECRET)
    (folder / "otel_fr_nccl_ras_gpu-17.json").write_text("{}")
    (folder / "otel_fr_nccl_ras_gpu-18.json").symlink_to(folder / "train.log")
    with VirtualCollector() as collector, collector.serving(), collector.job(3) as job:
        job.step()
        job.skip(1)
        number = collector.wait_cause()["id"]
        asked = ("--collector", collector.http, "--incident", number[:12])
        done = otel_fr("bundle", str(folder), "-o", str(output), *asked, OTEL_FR_TOKEN=SECRET)
    assert done.returncode == 0, done.stderr
    found = texts(output)
    made = {"CONTENTS.txt", "verdict.txt", "verdict.json", "about.json", "incident.json", "topology.txt"}
    assert found.keys() - made == {"files/otel_fr_nccl_ras_gpu-17.json", *(f"files/trace_{rank}" for rank in range(4))}
    assert made - found.keys() <= {"topology.txt"}
    assert found["files/trace_2"] == (folder / "trace_2").read_bytes()
    assert json.loads(found["verdict.json"])["incidents"][0]["culprit_ranks"] == [2]
    assert json.loads(found["incident.json"])["id"] == number
    about = json.loads(found["about.json"])
    assert {"torch", "otel-fr"} <= about["packages"].keys()
    assert SECRET.encode() not in b"".join(found.values())
    assert all(name in done.stdout for name in found.keys() - {"CONTENTS.txt"})
    assert stat.S_IMODE(output.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["absent"], 2, "no such file"),
        (["empty"], 2, "no readable flight-recorder file"),
        (["dumps", "-o", "there"], 2, "there: File exists"),
        (["dumps", "-o", "absent/x"], 2, "absent/x: No such file"),
        (["dumps", "--incident", "3f", "--collector", "http://127.0.0.1:1"], 3, "cannot reach a collector"),
        (["dumps", "--incident", "3f", "--collector", "nowhere"], 3, "'nowhere' is not an http"),
    ],
)
def test_bad_input_is_refused_in_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    status: int,
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    one_missing(tmp_path / "dumps", 2)
    (tmp_path / "empty").mkdir()
    (tmp_path / "there").write_text("mine")
    before = sorted(tmp_path.iterdir())
    assert main(["bundle", *arguments]) == status
    said = capsys.readouterr()
    assert said.out == ""
    assert says in said.err
    assert len(said.err.splitlines()) == 1
    assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "there").read_text() == "mine"
