"""Plays a monitor: reads a live ring until it has the last record, and checks all records. Arguments: ring, records,
shapes, bytes of a call site. Prints JSON: how many it saw, how many it lost, what was wrong."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from otel_fr.ring import RecordState, RingReader
from tests.support.ring_model import COMPLETION_LAG, GROUP, Program


def main() -> None:
    path, total = Path(sys.argv[1]), int(sys.argv[2])
    program = Program(int(sys.argv[3]), int(sys.argv[4]))
    seen = 0
    wrong: list[str] = []
    since = 0
    with RingReader.open(path) as reader:
        print("ready", flush=True)
        while since < total:
            head = reader.head
            for record in reader.records(since):
                seen += 1
                try:
                    assert record.record_id >= since
                    program.check(record)
                    # A call this old has surely completed. It must not look in flight, even while overwritten.
                    if record.record_id < head - COMPLETION_LAG - 2:
                        assert record.state is not RecordState.IN_FLIGHT, f"{record.record_id} of {head} in flight"
                except AssertionError as error:
                    wrong.append(str(error)[:2000])
                since = record.record_id + 1
            wrong += [str(row) for row in reader.groups() if row.group != GROUP or row.issued > reader.head]
        print(json.dumps({"seen": seen, "lost": reader.lost, "torn": reader.torn, "wrong": wrong[:5]}), flush=True)


if __name__ == "__main__":
    main()
