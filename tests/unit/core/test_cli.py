"""What the ``otel-fr`` command answers to a usage error."""

from __future__ import annotations

import pytest

from otel_fr.cli import main


@pytest.mark.parametrize("arguments", [["analyze", "--bogus", "folder"], ["dump", "--bogus"]])
def test_an_unknown_option_is_reported_with_the_usage_of_its_subcommand(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    errors = capsys.readouterr().err
    assert errors.startswith(f"usage: otel-fr {arguments[0]} ")
    assert errors.endswith(f"otel-fr {arguments[0]}: error: unrecognized arguments: --bogus\n")


def test_the_exit_statuses_of_dump_are_in_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["dump", "--help"])
    assert "Exit status: 0 at least one file was requested; 1 none was; 2 usage error." in capsys.readouterr().out
