"""Which line of a stack is the user's."""

from __future__ import annotations

import pytest

from otel_fr.dumps.fields import users_frame
from otel_fr.stacks import site_of

PACKAGES = "/opt/env/lib/python3.11/site-packages"
TORCH = f"{PACKAGES}/torch/distributed/distributed_c10d.py:2900 all_gather"
USER = "/home/me/job/train.py:42 step"


@pytest.mark.parametrize(
    "wrapper",
    [
        f"{PACKAGES}/typing_extensions.py:3140 wrapper",
        f"{PACKAGES}/torch/distributed/c10d_logger.py:83 wrapper",
        f"{PACKAGES}/wrapt/wrappers.py:12 wrapper",
        "/usr/lib/python3/dist-packages/decorator.py:9 fun",
        "/opt/env/lib/python3.11/functools.py:81 inner",
        "/usr/lib/python3.12/contextlib.py:144 __exit__",
        "/usr/lib64/python3.9/warnings.py:7 wrapped",
        "<frozen runpy>:88 _run_code",
    ],
)
def test_the_line_that_called_a_collective_is_the_users_whatever_wraps_it(wrapper: str) -> None:
    assert users_frame((TORCH, wrapper, USER), whole=False) == USER


def test_an_installed_package_calls_collectives_of_its_own() -> None:
    package = f"{PACKAGES}/megatron/core/tensor_parallel/mappings.py:20 _reduce"
    assert users_frame((TORCH, package, USER), whole=False) == package


def test_where_no_line_is_the_users_the_innermost_one_is_shown() -> None:
    assert users_frame((TORCH, "<frozen runpy>:88 _run_code"), whole=False) == TORCH


def test_a_rank_is_in_the_users_code_also_where_a_package_runs() -> None:
    stack = f"""Thread 0x00007f (most recent call first):
  File "{PACKAGES}/datasets/table.py", line 5 in read
  File "{PACKAGES}/typing_extensions.py", line 3140 in wrapper
  File "/home/me/job/train.py", line 42 in step
"""
    assert site_of(stack) == USER
