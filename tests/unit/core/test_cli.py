"""What the ``otel-fr`` command answers to a usage error."""

from __future__ import annotations

import sys

import pytest

from otel_fr import cli
from otel_fr._version import __version__
from otel_fr.cli import main
from tests.support.paths import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["analyze", "--bogus", "folder"], "--bogus"),
        (["dump", "--pdi", "7"], "--pdi 7 (did you mean --pid?)"),
        (["collector", "--forwad=grpc://a"], "--forwad=grpc://a (did you mean --forward?)"),
        (["collector", "--gprc", ":1"], "--gprc :1 (did you mean --grpc?)"),
        (["collector", "--runbook-url", "x"], "--runbook-url x"),
        (["collector", "--forward-ratio", "0.1"], "--forward-ratio 0.1"),
    ],
)
def test_an_unknown_option_is_reported_with_the_usage_of_its_subcommand_and_the_nearest_one(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    errors = capsys.readouterr().err
    assert errors.startswith(f"usage: otel-fr {arguments[0]} ")
    assert errors.endswith(f"otel-fr {arguments[0]}: error: unrecognized arguments: {said}\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["incidents", "c2631e88"], "otel-fr incidents: to print one incident: otel-fr incidents show c2631e88\n"),
        (["analyze", "--format", "csv"], "tables of all calls are written by --output: -o calls.csv\n"),
    ],
)
def test_a_usual_mistake_is_answered_with_what_to_write(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith(said)


@pytest.mark.parametrize(
    ("command", "package"),
    [("analyze", "otel-fr"), ("collector", "'otel-fr[collector]'"), ("demo", "'otel-fr[collector]'")],
)
def test_a_module_that_is_not_installed_is_named_with_the_package_that_has_it(
    command: str, package: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = cli._COMMANDS[command][0]
    monkeypatch.setitem(sys.modules, module, None)
    assert main([command]) == 2
    said = f"otel-fr {command} needs the module {module}; to install it: pip install {package}\n"
    assert capsys.readouterr().err == said


def test_the_version_is_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"otel-fr {__version__}\n"


@pytest.mark.parametrize("command", [*cli._COMMANDS, "dump"])
def test_each_subcommand_shows_examples_that_fit_a_terminal(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main([command, "--help"])
    lines = capsys.readouterr().out.splitlines()
    examples = [line for line in lines[lines.index("examples:") + 1 :] if line.startswith("  ")]
    assert examples
    assert all(f"otel-fr {command}" in line for line in examples)
    assert max(map(len, lines)) <= 80
    assert any(line.startswith("Exit status: ") or ". Exit status: " in line for line in lines)


def test_options_of_the_collector_list_their_choices(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["collector", "--help"])
    shown = capsys.readouterr().out
    for choices in ("--forward-mode {all,incidents}", "--log-format {text,json}", "{debug,info,warning,error}"):
        assert choices in shown


def test_alone_it_shows_the_commands_and_what_each_extra_is_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    shown = capsys.readouterr().err
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(cli._EXTRAS) == set(project["optional-dependencies"]) - {"dev"}
    assert all(f"otel-fr[{name}]" in shown for name in cli._EXTRAS)
    assert max(map(len, shown.splitlines())) <= 80
