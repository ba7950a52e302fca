"""What is checked: the environment, --rdzv-conf, and the tasks that follow from them."""

from __future__ import annotations

import pkgutil

import pytest

from otel_fr.checks import child, plan
from otel_fr.checks.model import KINDS, Task
from otel_fr.checks.settings import (
    AttributionSettings,
    CheckSettings,
    SettingsError,
)


def tasks(
    env: dict[str, str],
    conf: dict[str, object] | None = None,
    *,
    is_restart: bool = False,
    mounts: tuple[str, ...] = (),
) -> list[Task]:
    return plan.tasks(CheckSettings.read(env, conf), is_restart=is_restart, mounts=mounts)


def targets(found: list[Task], kind: str) -> list[str]:
    return [task.target for task in found if task.kind == kind]


def test_each_path_and_mount_is_a_task_of_its_own() -> None:
    found = tasks({"OTEL_FR_CHECK_PATHS": "/data: /ckpt/a:"}, mounts=("/home", "/scratch"))
    assert targets(found, "paths") == ["/data", "/ckpt/a"]
    assert targets(found, "mounts") == ["/home", "/scratch"]


def test_without_options_space_and_gpus_are_checked_only() -> None:
    assert {task.kind for task in tasks({})} == {"space", "gpu"}
    assert targets(tasks({"TMPDIR": "/var/tmp"}), "space") == ["/dev/shm", "/var/tmp"]


def test_the_memory_of_gpus_is_waited_for_at_a_restart_only() -> None:
    assert targets(tasks({}, is_restart=True), "gpu_memory") == ["all GPUs"]
    assert not targets(tasks({"OTEL_FR_CHECK_GPU_MEMORY_TIMEOUT": "0"}, is_restart=True), "gpu_memory")
    (task,) = (task for task in tasks({}, is_restart=True) if task.kind == "gpu_memory")
    assert dict(task.arguments) == {"timeout": 50.0, "tolerance_mb": 512.0, "poll": 2.0}
    assert task.limit > 50.0


def test_conf_is_preferred_to_the_environment() -> None:
    env = {"OTEL_FR_CHECK_PATHS": "/a", "OTEL_FR_CHECK_TIMEOUT": "3", "OTEL_FR_CHECKS": "paths"}
    found = tasks(env, {"check_paths": "/b:/c", "join_timeout": "5", "checks": "paths:space"})
    assert targets(found, "paths") == ["/b", "/c"]
    assert {task.limit for task in found} == {3.0}
    assert {task.kind for task in found} == {"paths", "space"}


def test_no_check_runs_if_none_is_named() -> None:
    assert tasks({"OTEL_FR_CHECKS": "none", "OTEL_FR_CHECK_PATHS": "/a"}) == []


def test_clock_and_collector_keep_no_node_out_unless_asked() -> None:
    env = {"OTEL_FR_COLLECTOR": "http://c:8080", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317"}
    advisory = {task.kind for task in tasks(env) if task.is_advisory}
    assert advisory == {"clock", "collector"}
    assert targets(tasks(env), "collector") == ["http://c:4317", "http://c:8080"]
    assert not [task for task in tasks({**env, "OTEL_FR_CHECK_ADVISORY": "none"}) if task.is_advisory]


def test_no_target_shows_the_password_of_a_url() -> None:
    env = {"OTEL_FR_COLLECTOR": "http://me:secret@c:8080", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://me:secret@c:4317"}
    found = tasks({**env, "OTEL_FR_CHECKS": "collector,clock"})
    assert [task.target for task in found] == ["http://...@c:4317", "http://...@c:8080", "http://...@c:8080"]
    assert {task.arguments["url"] for task in found} == set(env.values())


def test_sizes_have_units() -> None:
    settings = CheckSettings.read({"OTEL_FR_CHECK_SPACE": "/a=5:/b=1.5k:/c=2MiB:/d=3GB"})
    assert settings.space == {"/a": 5, "/b": 1500, "/c": 2 << 20, "/d": 3_000_000_000}
    assert CheckSettings.read({"OTEL_FR_CHECK_SPACE": "none"}).space == {}


def test_the_health_socket_may_be_a_url() -> None:
    for text in ("unix:///run/nvhcd.sock", "unix:/run/nvhcd.sock", "/run/nvhcd.sock"):
        assert CheckSettings.read({"OTEL_FR_CHECK_NODE_HEALTH": text}).node_health == "/run/nvhcd.sock"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_FR_CHECKS", "paths,disks"),
        ("OTEL_FR_CHECK_TIMEOUT", "soon"),
        ("OTEL_FR_CHECK_TIMEOUT", "-1"),
        ("OTEL_FR_CHECK_TIMEOUT", "nan"),
        ("OTEL_FR_CHECK_GPUS", "2.5"),
        ("OTEL_FR_CHECK_SPACE", "/tmp"),
        ("OTEL_FR_CHECK_SPACE", "/tmp=much"),
        ("OTEL_FR_CHECK_GPUS", "0"),
        ("OTEL_FR_CHECK_NODE_HEALTH_ARGS", "--name='a b"),
    ],
)
def test_what_cannot_be_used_is_an_error_that_names_it(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=name):
        CheckSettings.read({name: value})
    key = name.removeprefix("OTEL_FR_").lower()
    with pytest.raises(SettingsError, match=f"--rdzv-conf {key}"):
        CheckSettings.read({}, {key: value})


def test_every_kind_has_a_check() -> None:
    assert set(KINDS) < set(child._CHECKS)
    assert all(callable(pkgutil.resolve_name(f"otel_fr.checks.{name}")) for name in child._CHECKS.values())


def test_a_misspelt_option_is_refused_and_not_ignored() -> None:
    with pytest.raises(SettingsError, match=r"^OTEL_FR_CHECK_PATH is not an option .*OTEL_FR_CHECK_PATHS"):
        CheckSettings.read({"OTEL_FR_CHECK_PATH": "/data"})
    with pytest.raises(SettingsError, match=r"^--rdzv-conf check_timeouts is not an option .*check_timeout\W"):
        CheckSettings.read({}, {"check_timeouts": "3", "join_timeout": "5"})
    with pytest.raises(SettingsError, match=r"^--rdzv-conf attribution_mode is not an option$"):
        AttributionSettings.read({}, {"attribution_mode": "act"})


def test_no_path_is_left_out_silently() -> None:
    with pytest.raises(SettingsError, match=r"^OTEL_FR_CHECK_PATHS names 300 paths; at most 200 are checked$"):
        CheckSettings.read({"OTEL_FR_CHECK_PATHS": ":".join(f"/data/{number}" for number in range(300))})
    assert len(CheckSettings.read({"OTEL_FR_CHECK_PATHS": "/data:" * 300}).paths) == 1


def test_of_very_many_mounts_a_warning_says_how_many_are_left_out() -> None:
    found = [
        task for task in tasks({}, mounts=tuple(f"/home/{number}" for number in range(300))) if task.kind == "mounts"
    ]
    assert len(found) == 201
    assert found[-1].target == "100 more"
    assert found[-1].is_advisory
    assert child.check("mounts", dict(found[-1].arguments)).text == "not checked: at most 200 mounts are"
    assert {task.kind for task in tasks({})} == {"space", "gpu"}
