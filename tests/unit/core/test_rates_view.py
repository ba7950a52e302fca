"""Rates as text for a terminal."""

from __future__ import annotations

import pytest

from otel_fr.console.rates_view import bytes_text, rates_cells, rates_lines, slowest_lines
from otel_fr.rate_answers import LatestRates

RATES: LatestRates = {
    "collectives_per_s": 118.4,
    "bytes_per_s": 3.21e6,
    "wait_share": 0.487,
    "bus_bandwidth": 1.1e9,
    "step_s": 0.244,
    "slowest": {"rank": 3, "process_group": "dp\x1b[2J", "waited": 0.487, "over_s": 12.0, "lost_per_step_s": 0.119},
}
UNKNOWN: LatestRates = {
    "collectives_per_s": None,
    "bytes_per_s": None,
    "wait_share": None,
    "bus_bandwidth": None,
    "step_s": None,
    "slowest": None,
}


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (1_000, "1 kB"), (3.21e6, "3.21 MB"), (2.5e18, "2.5e+03 PB")]
)
def test_bytes_have_decimal_prefixes(count: float, text: str) -> None:
    assert bytes_text(count) == text


def test_rates_are_one_line_and_the_rank_that_costs_most_another() -> None:
    assert rates_lines(RATES) == [
        "118 collectives/s, 3.21 MB/s, bus bandwidth 1.1 GB/s, groups wait for their last rank for 49 % of the time,"
        " a step takes 244 ms"
    ]
    (line,) = slowest_lines(RATES)
    assert line.startswith("rank 3 in dp")
    assert "\x1b" not in line
    assert line.endswith(": its group waited for it for 49 % of the latest 12.0 s; each step loses 119 ms")
    assert rates_cells(RATES) == ("118", "1.1 GB/s", "49 %")


@pytest.mark.parametrize("rates", [None, UNKNOWN])
def test_what_is_not_known_is_left_out(rates: LatestRates | None) -> None:
    assert (rates_lines(rates), slowest_lines(rates), rates_cells(rates)) == ([], [], ("-", "-", "-"))
