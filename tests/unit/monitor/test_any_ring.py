"""Whatever a ring holds, its rank's report is one that a collector reads."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from otel_fr.identity import encode_ranks
from otel_fr.monitor.nccl.device_calls import Tracked
from otel_fr.monitor.telemetry.report_builder import reported_call, reported_group
from otel_fr.rank_report import RankReport, build, fitted, parse
from otel_fr.rank_report.bounds import MAX_DIMENSIONS, MAX_DTYPE, MAX_NAME, MAX_NUMBER, MAX_TENSORS
from otel_fr.ring import GroupProgress, Record, RecordState, SignatureDef
from tests.unit.ring.test_definitions import groups, signatures, sites, u64

many = st.sampled_from([1, MAX_TENSORS + 1])


def longer(signature: SignatureDef, times: int) -> SignatureDef:
    """With each list of the inputs so many times as long."""
    own = signature.input_splits
    return replace(
        signature,
        input_sizes=tuple([shape * times for shape in signature.input_sizes * times])[: MAX_TENSORS + 9],
        input_dtypes=signature.input_dtypes * times,
        input_splits=None if own is None else own * times,
        operation=signature.operation * times,
    )


records = st.builds(
    Record, u64, u64, st.none() | u64, st.none() | u64, st.sampled_from(RecordState), u64, u64, u64, u64,
    st.integers(0, 3), u64, u64, st.text(max_size=5), groups, st.builds(longer, signatures, many), sites,
)  # fmt: skip
calls = st.builds(Tracked, records, st.none() | st.floats(-1, 1e20))


@given(calls, st.builds(GroupProgress, groups, *[u64] * 7), u64)
def test_a_call_and_a_group_of_any_values_are_told(item: Tracked, row: GroupProgress, now: int) -> None:
    call, group = reported_call(item, now), reported_group(row, now)
    report = RankReport(3, 7, (group,), in_flight=(call,), last=call)
    read = parse(build(report))
    assert read == fitted(report)
    record, told = item.record, read.in_flight[0]
    assert (told.group, told.sequence) == (record.group.id[:256], min(record.sequence_id, MAX_NUMBER))
    assert told.input_dtypes == tuple([name[:MAX_DTYPE] for name in record.signature.input_dtypes[:MAX_TENSORS]])
    assert [len(one) for one in told.input_sizes] == [
        min(len(one), MAX_DIMENSIONS) for one in record.signature.input_sizes[:MAX_TENSORS]
    ]
    assert told.site == record.site.text[:MAX_NAME]
    assert read.groups[0].ranks == encode_ranks(row.group.ranks)
