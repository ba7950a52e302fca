"""The report of a run on GPUs, from made rows."""

from __future__ import annotations

from tests.gpu.report import Row, text


def test_a_report_says_where_it_ran_what_passed_and_what_was_found() -> None:
    rows = [
        Row("test_a[one GPU-missing]", "passed", 11.4, found={"named after": "4.2 s", "calls": "7"}),
        Row("test_b[GPUs]", "skipped", 0.0, "only one GPU: NVIDIA H100"),
        Row("test_c[one GPU]", "failed", 3.0, "AssertionError: a | b\n  c"),
    ]
    machine = {"gpus": ["NVIDIA H100"] * 2, "torch": "2.13.0+cu130", "nccl": "2.28.9", "driver": ""}
    found = text(rows, machine, "2026-11-22", "make test-gpu")
    assert found.splitlines() == [
        "### 2026-11-22",
        "",
        "GPUs: 2 x NVIDIA H100; torch 2.13.0+cu130; nccl 2.28.9. `make test-gpu`: 1 passed, 1 failed, 1 skipped.",
        "",
        "| test | outcome | seconds | found |",
        "|---|---|---|---|",
        "| test_a[one GPU-missing] | passed | 11 | named after: 4.2 s; calls: 7 |",
        "| test_b[GPUs] | skipped | 0 | only one GPU: NVIDIA H100 |",
        "| test_c[one GPU] | failed | 3 | AssertionError: a \\| b c |",
    ]
