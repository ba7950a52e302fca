"""Times of an incident's root span: those of files may be any number."""

from __future__ import annotations

import pytest

from otel_fr.incident_trace import root_span
from tests.support.incident_data import incident_data


@pytest.mark.parametrize("odd", [-1.0, -3.8e9, 1e10, 1e300, float("inf"), float("-inf"), float("nan")])
def test_a_time_that_no_clock_has_is_left_out(odd: float) -> None:
    data = incident_data(trace_id="ab" * 16)
    for started, detected in ((odd, 1.8e9), (1.7e9, odd), (odd, odd), (None, odd)):
        span = root_span(data, started, detected)
        assert span is not None
        for found, given in ((span.start_time_unix_nano, started), (span.end_time_unix_nano, detected)):
            assert found in (0, 1.7e9 * 1e9, 1.8e9 * 1e9), (started, detected, given)
