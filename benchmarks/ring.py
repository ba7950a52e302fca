"""What a record, a heartbeat, a section, a step and a decision cost: ratios to a bare ``struct.pack_into`` on an mmap.

    python benchmarks/ring.py [CALLS] [REPEATS]

Each figure is CPU time: the median over REPEATS of the mean over CALLS, without the cost of the loop itself. They are
measured in turns, so that other load on the machine affects all of them.
"""

from __future__ import annotations

import mmap
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from otel_fr.fault_tolerance import decisions, sections, steps
from otel_fr.ring import GroupDef, RingReader, RingWriter, SignatureDef, SiteDef

CAPACITY = 20_000
SIGNATURE = SignatureDef(
    "all_reduce", "gloo", ((1024, 1024),), ((1024, 1024),), ("Float",), ("Float",), "sum", None, None, None, None, None,
    4 << 20, 4 << 20,
)  # fmt: skip


def nothing(calls: int) -> None:
    for _ in range(calls):
        pass


def measure(functions: dict[str, Callable[[int], None]], calls: int, repeats: int) -> dict[str, float]:
    """Return each function's median nanoseconds per call. The functions take turns."""
    found: dict[str, list[float]] = {name: [] for name in functions}
    for function in functions.values():
        function(calls)
    for _ in range(repeats):
        for name, function in functions.items():
            start = time.thread_time_ns()
            function(calls)
            found[name].append((time.thread_time_ns() - start) / calls)
    return {name: statistics.median(values) for name, values in found.items()}


def main() -> None:  # noqa: C901, PLR0915
    calls = int(sys.argv[1]) if len(sys.argv) > 1 else CAPACITY
    repeats = int(sys.argv[2]) if len(sys.argv) > 2 else 15
    shared = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path(tempfile.gettempdir())
    with tempfile.TemporaryDirectory(dir=shared) as folder:
        writer = RingWriter.create([Path(folder)], "bench", CAPACITY, {})
        group = writer.add_group(GroupDef("0" * 16, "0", "default_pg", (0, 1, 2, 3), "gloo", 0))
        sig = writer.define_signature("s", SIGNATURE)
        site = writer.define_site("t", SiteDef((("train.py", 42, "step"),)))
        thread = writer.define_thread(1, "MainThread")
        ticket = 0

        with open(Path(folder) / "bare", "w+b") as file:
            file.truncate((CAPACITY + 1) * 96)
            bare = mmap.mmap(file.fileno(), 0)
        pack_into = struct.Struct("<QqQQQIIIIIBBHIIIIqQ").pack_into

        def pack(calls: int) -> None:
            for number in range(calls):
                pack_into(
                    bare, number % CAPACITY * 96, number, 123_456_789, number, 0, number, 1, 2, 3, 1, 0, 0, 0, 0,
                    600_000, 4, 5, 0, 0, 0,
                )  # fmt: skip

        def append(calls: int) -> None:
            nonlocal ticket
            for number in range(calls):
                ticket = writer.append(
                    group, sig, site, thread, 1, 0, 0, number, 0, number, 0, 600_000, 123_456_789
                )  # fmt: skip

        def complete(calls: int) -> None:
            # Records that are still in the ring, newest first, again and again.
            newest = ticket
            for number in range(calls):
                writer.complete(newest - number % CAPACITY, group, number, 1, 123_456_999)

        sections.attach(writer.activity)

        def heartbeat(calls: int) -> None:
            for _ in range(calls):
                sections.heartbeat()

        def section(calls: int) -> None:
            for _ in range(calls):
                with sections.section("bench", timeout=30):
                    pass

        def step(calls: int) -> None:
            for number in range(calls):
                sections.step(number)

        def noticed(calls: int) -> None:
            """Record steps. Each contains a step of an optimizer, which otel-fr notices."""
            sections.watch_ends_by(steps._step_ended)
            for number in range(calls):
                sections.step(number)
                steps._begins(None, (), {})
            sections.watch_ends_by(None)

        decisions.attach(writer.decisions)

        def same(calls: int) -> None:
            for _ in range(calls):
                decisions.decision("skip_batch", False)

        def shape(calls: int) -> None:
            for _ in range(calls):
                decisions.decision("shape", (64, 2))

        def other(calls: int) -> None:
            for number in range(calls):
                decisions.decision("batch", number)

        functions: dict[str, Callable[[int], None]] = {
            "loop": nothing, "pack_into": pack, "append": append, "complete": complete,
            "heartbeat": heartbeat, "section": section, "step": step,
            "noticed": noticed, "same": same, "shape": shape, "other": other,
        }  # fmt: skip
        times = measure(functions, calls, repeats)
        loop = times.pop("loop")
        base = times["pack_into"] - loop
        for name, value in times.items():
            print(f"ring {name:10} {value - loop:8.0f} ns  x{(value - loop) / base:5.2f} of pack_into")

        print("(section: begun and ended, so two calls; together they are to take 2000 ns at most)")
        print("(noticed: a step and an optimizer in it; same, shape: a decision as before; other: another value)")
        start = time.perf_counter_ns()
        with RingReader.open(writer.path) as reader:
            count = sum(1 for _ in reader.records())
        each = (time.perf_counter_ns() - start) / count
        print(f"ring read       {each:8.0f} ns  x{each / base:5.2f} of pack_into, a record of {count}")


if __name__ == "__main__":
    main()
