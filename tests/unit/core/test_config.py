"""Environment variables: what switches otel-fr on and off, which names win, and that bad values cost nothing."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

from otel_fr.config import ENDPOINTS, VARIABLES, Config, SpanBatching, disabled_by, is_enabled, resource_attributes
from otel_fr.option_names import misspelt, unknown_variables
from tests.support.paths import DOCS

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4317"}


@pytest.mark.parametrize(
    ("env", "enabled"),
    [
        ({}, False),
        (ENDPOINT, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4317"}, True),
        ({"OTEL_FR_ENABLED": "1"}, True),
        ({**ENDPOINT, "OTEL_FR_ENABLED": "0"}, False),
        ({**ENDPOINT, "OTEL_SDK_DISABLED": "true"}, False),
        ({"OTEL_FR_ENABLED": "1", "OTEL_SDK_DISABLED": "true"}, False),
        ({**ENDPOINT, "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "flask, otel_fr"}, False),
        ({**ENDPOINT, "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "flask"}, True),
    ],
)
def test_what_switches_recording_on(env: dict[str, str], enabled: bool) -> None:
    assert is_enabled(env) is enabled


def test_what_switches_recording_off_has_a_name() -> None:
    assert not disabled_by({})
    assert not disabled_by(ENDPOINT)
    assert disabled_by({**ENDPOINT, "OTEL_FR_ENABLED": "off"}) == "OTEL_FR_ENABLED"
    assert disabled_by({**ENDPOINT, "OTEL_SDK_DISABLED": "TRUE"}) == "OTEL_SDK_DISABLED"
    of_python = "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS"
    assert disabled_by({**ENDPOINT, of_python: "flask,*"}) == of_python


def test_the_variables_are_those_of_the_documentation() -> None:
    text = (DOCS / "reference" / "environment.md").read_text()
    assert set(re.findall(r"^\| .*?`(OTEL_FR_\w+)`", text, re.MULTILINE)) == VARIABLES


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("OTEL_FR_NCCL_RAS", "OTEL_FR_NCCL_RAS"),
        ("OTEL_FR_STALL_SECOND", "OTEL_FR_STALL_SECOND (did you mean OTEL_FR_STALL_SECONDS?)"),
        ("OTEL_FR_CHECK_CLOCK_SECONDS", "OTEL_FR_CHECK_CLOCK_SECONDS"),
        ("OTEL_FR_EXPORT", "OTEL_FR_EXPORT"),
        ("OTEL_FR_STALL_SECONDS", ""),
        ("OTEL_FR_COLLECTOR_GRPC", ""),
        ("OTEL_FR_GATEWAY_SERVICE_PORT_OTLP", ""),  # of Kubernetes
        ("OTEL_EXPORTER_OTLP_BOGUS", ""),
    ],
)
def test_a_variable_that_nobody_reads_is_named(name: str, said: str) -> None:
    found = unknown_variables({"PATH": "", name: ""}, VARIABLES)
    assert found.rpartition(": ")[2] == said


@pytest.mark.parametrize(
    ("own", "of_torch", "of_nccl", "size", "capture"),
    [
        (None, None, None, 20_000, "auto"),
        (None, None, "7", 7, "auto"),
        (None, "8", "7", 8, "auto"),
        ("9", "8", None, 9, "auto"),
        (None, "", "7", 7, "auto"),
        (None, None, "2097152", 100_000, "auto"),  # often given in bytes, and counts entries
        ("2097152", None, None, 2_097_152, "auto"),
        (None, None, "0", 20_000, "hook"),  # PyTorch's recorder is switched off
        (None, "-1", None, 20_000, "hook"),
        (None, "0", "7", 20_000, "hook"),
        ("9", None, "-1", 9, "hook"),
    ],
)
def test_pytorch_names_are_fallbacks_of_the_buffer_size(
    own: str | None,
    of_torch: str | None,
    of_nccl: str | None,
    size: int,
    capture: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    given = {"OTEL_FR_BUFFER_SIZE": own, "TORCH_FR_BUFFER_SIZE": of_torch, "TORCH_NCCL_TRACE_BUFFER_SIZE": of_nccl}
    config = Config.from_env({name: value for name, value in given.items() if value is not None})
    assert (config.buffer_size, config.capture, caplog.text) == (size, capture, "")


@pytest.mark.parametrize(("value", "capture"), [("1", "hook"), ("TRUE", "hook"), ("0", "auto"), ("", "auto")])
def test_pytorchs_recorder_is_not_read_where_no_watchdog_retires_calls(value: str, capture: str) -> None:
    assert Config.from_env({"TORCH_NCCL_BLOCKING_WAIT": value}).capture == capture


def test_a_value_that_cannot_be_used_is_named_and_the_next_one_taken(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "otel_fr"):
        config = Config.from_env(
            {"OTEL_FR_BUFFER_SIZE": "many", "TORCH_FR_BUFFER_SIZE": "50", "OTEL_FR_STALL_SECONDS": "-1"}
        )
    assert (config.buffer_size, config.stall_seconds) == (50, 5.0)
    assert "OTEL_FR_BUFFER_SIZE='many' is not a number from 1 to 1e+07; using 50" in caplog.text
    assert "OTEL_FR_STALL_SECONDS='-1' is not a number from 0.1 to 86400; using 5" in caplog.text
    bytes_of_torch = {"OTEL_FR_BUFFER_SIZE": "20k", "TORCH_FR_BUFFER_SIZE": "2097152"}
    assert Config.from_env(bytes_of_torch).buffer_size == 100_000


def test_values_of_any_length_and_number_are_one_short_line_for_each_variable(caplog: pytest.LogCaptureFixture) -> None:
    names = ("OTEL_FR_BUFFER_SIZE", "OTEL_FR_ON_PEER_FAILURE", "OTEL_FR_SECTION_TIMEOUTS")
    with caplog.at_level(logging.WARNING, "otel_fr"):
        Config.from_env(dict.fromkeys(names, 100_000 * "x" + 9 * ",x"))
    assert len(caplog.messages) == len(names)
    assert max(map(len, caplog.messages)) < 300


def test_local_rank_is_that_of_torchrun_else_of_slurm_else_of_open_mpi() -> None:
    env = {"OMPI_COMM_WORLD_LOCAL_RANK": "3"}
    assert Config.from_env(env).local_rank == 3
    env |= {"SLURM_LOCALID": "2"}
    assert Config.from_env(env).local_rank == 2
    assert Config.from_env({**env, "LOCAL_RANK": "1"}).local_rank == 1  # torchrun, started by srun


def test_the_job_is_the_launchers_run_or_the_schedulers() -> None:
    assert Config.from_env({"TORCHELASTIC_RUN_ID": "abc", "SLURM_JOB_ID": "42"}).job_id == "abc"
    assert Config.from_env({"TORCHELASTIC_RUN_ID": "none", "SLURM_JOB_ID": "42"}).job_id == "42"
    assert Config.from_env({"TORCHELASTIC_RUN_ID": "none"}).job_id == ""
    assert Config.from_env({"TORCHELASTIC_RESTART_COUNT": "3"}).attempt == 3


def test_dump_names_follow_their_owners_and_our_folder_wins() -> None:
    torch_prefix = {"TORCH_FR_DUMP_TEMP_FILE": "/d/trace_"}
    assert Config.from_env(torch_prefix).dump_prefix == "/d/trace_"
    whole = {"TORCHCOMM_FR_DUMP_TEMP_FILE": "/d/comm", "TORCHCOMM_FR_DUMP_DYNAMIC_FILE_NAME": "1"}
    assert Config.from_env(whole).dump_whole_name is True
    assert Config.from_env({**torch_prefix, **whole}).dump_whole_name is False
    own = Config.from_env({**torch_prefix, "OTEL_FR_DUMP_DIR": "/mine"})
    assert (own.dump_dir, own.dump_prefix) == (Path("/mine"), None)


def test_export_can_be_switched_off_while_recording_goes_on() -> None:
    assert Config.from_env(ENDPOINT).export is True
    assert Config.from_env({**ENDPOINT, "OTEL_TRACES_EXPORTER": "none"}).export is False
    assert Config.from_env({"OTEL_FR_ENABLED": "1"}).export is False


def test_resource_attributes_are_read_as_opentelemetry_writes_them() -> None:
    found = resource_attributes(
        {"OTEL_RESOURCE_ATTRIBUTES": "k8s.pod.name=llama%2D0, k8s.node.name = gpu-17,odd,team=a=b"}
    )
    assert found == {"k8s.pod.name": "llama-0", "k8s.node.name": "gpu-17", "team": "a=b"}
    assert resource_attributes({}) == {}


@pytest.mark.parametrize(
    ("sampler", "argument", "ratio"),
    [
        ("", "", 1.0),
        ("always_on", "0.1", 1.0),
        ("ALWAYS_OFF", "", None),
        ("parentbased_always_off", "", None),
        ("traceidratio", "0.01", 0.01),
        ("parentbased_traceidratio", "0", 0.0),
    ],
)
def test_the_share_of_the_traces_is_that_of_opentelemetrys_sampler(
    sampler: str, argument: str, ratio: float | None, caplog: pytest.LogCaptureFixture
) -> None:
    env = {"OTEL_TRACES_SAMPLER": sampler, "OTEL_TRACES_SAMPLER_ARG": argument}
    assert Config.from_env(env).sampling_ratio == ratio
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("sampler", "argument", "said"),
    [
        ("jaeger_remote", "", "OTEL_TRACES_SAMPLER='jaeger_remote' is not one of parentbased_always_on, "),
        ("traceidratio", "", "OTEL_TRACES_SAMPLER=traceidratio without OTEL_TRACES_SAMPLER_ARG; using 1"),
        ("traceidratio", "1%", "OTEL_TRACES_SAMPLER_ARG='1%' is not a number from 0 to 1; using 1"),
        ("traceidratio", "1.5", "OTEL_TRACES_SAMPLER_ARG='1.5' is not a number from 0 to 1; using 1"),
    ],
)
def test_a_sampler_that_cannot_be_used_is_named_and_all_spans_are_sent(
    sampler: str, argument: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert Config.from_env({"OTEL_TRACES_SAMPLER": sampler, "OTEL_TRACES_SAMPLER_ARG": argument}).sampling_ratio == 1.0
    assert said in caplog.text
    assert len(caplog.records) == 1


def test_spans_are_sent_as_the_variables_of_the_batch_span_processor_say(caplog: pytest.LogCaptureFixture) -> None:
    names = ("SCHEDULE_DELAY", "MAX_QUEUE_SIZE", "MAX_EXPORT_BATCH_SIZE", "EXPORT_TIMEOUT")

    def batching(*values: str) -> SpanBatching:
        return Config.from_env(
            {f"OTEL_BSP_{name}": value for name, value in zip(names, values, strict=True)}
        ).span_batching

    assert batching("250", "4000", "100", "2000") == SpanBatching(0.25, 4_000, 100, 2.0)
    assert batching("", "100", "", "") == SpanBatching(queue_size=100, batch_size=100)
    assert caplog.text == ""
    assert batching("0", "-1", "9999", "x") == SpanBatching()
    assert sorted(text.split("=")[0] for text in caplog.messages) == sorted(f"OTEL_BSP_{name}" for name in names)


@pytest.mark.parametrize(
    ("name", "is_meant"),
    [
        ("OTEL_EXPORTER_OLTP_ENDPOINT", True),
        ("OTEL_EXPORTER_OTLP_ENDPONT", True),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", False),
        ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", False),
        ("OTEL_EXPORTER_OTLP_HEADERS", False),
        ("PATH", False),
    ],
)
def test_a_name_that_is_nearly_that_of_an_endpoint_is_told(name: str, is_meant: bool) -> None:
    assert misspelt({name: "x"}, ENDPOINTS) == (
        f"{name} (did you mean OTEL_EXPORTER_OTLP_ENDPOINT?)" if is_meant else ""
    )
