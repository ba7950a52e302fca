"""`otel-fr doctor` on this machine."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path

import pytest
import torch

from otel_fr.capture.dispatcher import operators_of
from tests.support import engines, single_rank
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.usefixtures("warm")

PROGRAM = """
import sys
from otel_fr.cli import main

sys.stdout = open(1, "w", closefd=False)  # the process that forked had a file there
sys.exit(main(["doctor"]))
"""


def doctor(folder: Path, **extra: str) -> tuple[int, dict[str, str]]:
    """Run the doctor. Return its exit status, and its messages by topic."""
    program = folder / "doctor.py"
    program.write_text(PROGRAM)
    done = single_rank.start(program, single_rank.environment(folder, **extra), PATIENCE)
    assert not done.stderr
    return done.returncode, {key: text.strip() for key, _, text in (x.partition(":") for x in done.stdout.splitlines())}


def test_a_machine_where_ranks_record(tmp_path: Path) -> None:
    status, found = doctor(tmp_path, OTEL_FR_ENABLED="1", OTEL_FR_DUMP_DIR=str(tmp_path / "a" / "b"))
    assert status == 0, found
    assert found["file folder"] == str(tmp_path / "a" / "b")
    assert found["engine"] == "python (OTEL_FR_CAPTURE_ENGINE is python)"
    assert int(found["operators"].split()[0]) == len(operators_of(torch))
    assert found["enabled"] == "yes"


def test_an_endpoint_must_answer_if_anything_is_sent_there(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        status, found = doctor(tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT=url, OTEL_METRICS_EXPORTER="none")
        assert (status, found["not sent"]) == (0, "metrics: OTEL_METRICS_EXPORTER=none"), found
    status, found = doctor(tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT=url)
    assert status == 1
    assert "refused" in found["endpoint"]
    status, found = doctor(tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT=url, OTEL_TRACES_EXPORTER="none")
    assert (status, found["not sent"]) == (0, "everything: OTEL_TRACES_EXPORTER=none"), found
    assert "endpoint" not in found


def test_files_must_have_a_folder_that_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for variable in ("OTEL_FR_DUMP_DIR", "TORCH_FR_DUMP_TEMP_FILE"):
        given = {"OTEL_FR_DUMP_DIR": "", variable: str(tmp_path / "file" / "rank_")}
        status, found = doctor(tmp_path, OTEL_FR_ENABLED="1", **given)
        assert status == 1
        assert found["file folder"].endswith("cannot be written")


def test_what_prevents_recording_is_said(tmp_path: Path) -> None:
    status, found = doctor(tmp_path, OTEL_FR_RING_DIR="/dev/null", OTEL_FR_NCCL_RAS="off")
    assert status == 1
    assert "OTEL_FR_NCCL_RAS" in found["variables"]
    assert found["enabled"].startswith("no: set OTEL_EXPORTER_OTLP_ENDPOINT")
    assert found["ring folder"].startswith("none of /dev/null")


@pytest.mark.parametrize(("variable", "value"), [("TORCH_DEVICE_BACKEND_AUTOLOAD", "0"), ("OTEL_SDK_DISABLED", "true")])
def test_a_variable_that_switches_recording_off_is_named(tmp_path: Path, variable: str, value: str) -> None:
    status, found = doctor(tmp_path, OTEL_FR_ENABLED="1", **{variable: value})
    assert status == 1
    assert found["enabled"].startswith(f"no: {variable}={value}")


def test_the_kernel_that_is_found_is_named(tmp_path: Path) -> None:
    kernel = engines.kernel()
    own = {"OTEL_FR_CAPTURE_ENGINE": "auto", "XDG_CACHE_HOME": str(tmp_path)}
    missing = f"there is no compiled kernel for torch {torch.__version__}: none was compiled on this machine"
    assert doctor(tmp_path, **own)[1]["engine"] == f"python ({missing}; to compile one: otel-fr kernel build)"
    (tmp_path / "otel-fr").mkdir(mode=0o700)
    cached = shutil.copytree(kernel.parent, tmp_path / "otel-fr" / "kernels") / kernel.name
    assert doctor(tmp_path, **own)[1]["engine"] == f"compiled ({cached})"


NO_HOME = """
import pathlib
def home():
    raise RuntimeError("Could not determine home directory.")
pathlib.Path.home = home
from otel_fr.capture import engines
print(engines.choose("auto", torch).reason)
start()
dist.all_reduce(torch.ones(1))
print(len(list(ring().records())))
"""


def test_a_user_without_a_home_folder(tmp_path: Path) -> None:
    """As in a container with a user that is not in /etc/passwd."""
    if not engines.HAS_RING_WRITER:
        engines.kernel()  # skips the test if there is none
    body = "session_module.start_monitor = no_monitor\n" + NO_HOME
    out = single_rank.succeed(tmp_path, body, XDG_CACHE_HOME="", OTEL_FR_CAPTURE_ENGINE="auto").splitlines()
    assert ": no cache folder: set HOME or XDG_CACHE_HOME; " in out[0]
    assert out[1] == "1"


@pytest.mark.parametrize(
    ("endpoint", "said"),
    [("collector:4317", "has no scheme: write http://collector:4317"), ("http://[::1", "host or port cannot be read")],
)
def test_a_mistake_in_an_endpoint_is_said(tmp_path: Path, endpoint: str, said: str) -> None:
    _, found = doctor(tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT=endpoint)
    assert said in found["endpoint"]
