"""One process and its devices: streams that wait, events with true times, graphs, memory. Exit status 0: all was right.

SIMDEV_CONTROL names the control file; there are three devices of 1 GiB.
"""

import os
from pathlib import Path

import torch

SECOND = 2 * 10**9
"""Cycles of `torch.cuda._sleep`."""
NEVER = 10**12

# Devices and their memory.
assert torch.cuda.device_count() == 3
assert torch.cuda.mem_get_info(2) == (1 << 30, 1 << 30)
on_last = torch.full((1 << 20,), 2.0, device="cuda:2")
assert on_last.device.index == 2
assert torch.cuda.mem_get_info(2)[0] < 1 << 30
assert on_last.to("cuda:1").cpu().unique().tolist() == [2.0]
try:
    torch.empty(1 << 31, device="cuda:0")
    raise SystemExit("there was memory for more than the device has")
except torch.OutOfMemoryError:
    pass
assert torch.ones(3).pin_memory().is_pinned()

# Values: copies, fills of each width.
for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int8, torch.bool):
    assert torch.full((7,), 1, dtype=dtype, device="cuda").cpu().tolist() == [1] * 7, dtype
assert torch.arange(6.0).cuda().clone().cpu().tolist() == [0, 1, 2, 3, 4, 5]


def event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)


# Events have the device's times, not the host's.
begin, end = event(), event()
begin.record()
torch.cuda._sleep(SECOND // 5)
end.record()
assert not end.query()
end.synchronize()
assert begin.elapsed_time(end) >= 199, begin.elapsed_time(end)

# A stream waits for another stream's event, and does not block a third stream.
first, second, third = torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.Stream()
slept, waited = event(), event()
with torch.cuda.stream(first):
    torch.cuda._sleep(SECOND // 5)
    slept.record()
second.wait_event(slept)
waited.record(second)
with torch.cuda.stream(third):
    data = torch.ones(3, device="cuda")
third.synchronize()
waited.synchronize()
assert slept.elapsed_time(waited) >= 0

# If the host changes memory after a copy was enqueued, the change does not reach the device.
source, target = torch.ones(3), torch.zeros(3, device="cuda")
with torch.cuda.stream(first):
    torch.cuda._sleep(SECOND // 5)
    target.copy_(source, non_blocking=True)
source.fill_(5)
first.synchronize()
assert target.cpu().tolist() == [1, 1, 1]

# A graph executes nothing while it is captured, and everything on each replay.
source, target = torch.zeros(3, device="cuda"), torch.zeros(3, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    torch.cuda._sleep(SECOND // 10)
    target.copy_(source)
for value in (1.0, 2.0):
    source.copy_(torch.full((3,), value))
    begin, end = event(), event()
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    assert target.cpu().tolist() == [value] * 3
    assert begin.elapsed_time(end) >= 99

# kernel_ms: each kernel takes that long while the control file says so.
control = Path(os.environ["SIMDEV_CONTROL"])


def addition() -> float:
    begin, end = event(), event()
    begin.record()
    data.add_(1)
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end))


control.write_text("# each kernel is slow\nkernel_ms ms=150\n")
while addition() < 150:
    pass
control.write_text("kernel_ms\n")  # a mistake is reported once, and the previous faults stay
assert all(addition() >= 150 for _ in range(2))
control.unlink()
while addition() >= 150:
    pass

# A stream that is busy for ever does not block the others, and the process ends without waiting for it.
with torch.cuda.stream(first):
    torch.cuda._sleep(NEVER)
with torch.cuda.stream(second):
    assert data.clone().cpu().numel() == 3
assert not first.query()
os._exit(0)
