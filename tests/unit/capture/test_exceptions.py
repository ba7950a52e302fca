"""What is said of an exception: its text, and what led to it."""

from __future__ import annotations

import pytest

from otel_fr.capture.exceptions import described


def raised(body: str) -> BaseException:
    """The exception that this program ends with."""
    with pytest.raises(BaseException) as caught:  # noqa: PT011 - of any kind
        exec(body, {})
    return caught.value


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("raise ValueError('\\n\\n  3 channels\\n')", "ValueError: 3 channels"),
        (
            "try:\n    raise OSError('disk')\nexcept OSError:\n    1 / 0",
            "ZeroDivisionError: division by zero (from OSError: disk)",
        ),
        (
            "try:\n    raise OSError('disk')\nexcept OSError:\n    raise ValueError('no sample') from None",
            "ValueError: no sample",
        ),
        (
            "try:\n    try:\n        raise OSError('disk')\n    except OSError:\n        raise KeyboardInterrupt\n"
            "except KeyboardInterrupt:\n    raise RuntimeError('interrupted')",
            "RuntimeError: interrupted (from KeyboardInterrupt)",
        ),
        (
            "one, two = OSError('disk'), ValueError('loop')\none.__cause__, two.__cause__ = two, one\nraise two",
            "ValueError: loop (from OSError: disk)",
        ),
    ],
)
def test_the_first_of_a_chain_is_named(body: str, text: str) -> None:
    assert described(raised(body)) == text
