"""Ranks with another malloc, as in training images, are recorded like other ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import single_rank
from tests.support.long_tests import all_but

ALLOCATORS = {"jemalloc": "libjemalloc.so.2", "tcmalloc": "libtcmalloc_minimal.so.4"}
"""From Debian's libjemalloc2 and libtcmalloc-minimal4."""

PROGRAM = """
session_module.start_monitor = no_monitor
start()
groups = [dist.new_group([0, 1]) for _ in range(3)]
def work(group):
    for number in range(400):
        dist.all_reduce(torch.ones(number % 40 + 1), group=group)
        dist.all_gather_into_tensor(torch.ones(2), torch.ones(1), group=group, async_op=True).wait()
threads = [threading.Thread(target=work, args=(group,)) for group in groups]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
own = hook._state.session
print(type(own.recorder).__name__,
      len([record for record in ring().records() if record.state.name == "COMPLETED"]), ring().counters["hook_errors"])
dist.destroy_process_group()
print(open("/proc/self/maps").read().count(os.environ["LD_PRELOAD"]) > 0)
"""


def _library(name: str) -> str:
    found = next((str(path) for path in Path("/usr/lib").glob(f"*/{ALLOCATORS[name]}")), "")
    return found or pytest.skip(f"{ALLOCATORS[name]} is not installed")


@pytest.mark.usefixtures("each_engine")
@pytest.mark.parametrize("allocator", all_but(("jemalloc",), ALLOCATORS))
def test_calls_of_threads_are_recorded_under_another_malloc(allocator: str, tmp_path: Path) -> None:
    out = single_rank.succeed(tmp_path, PROGRAM, LD_PRELOAD=_library(allocator), OTEL_FR_BUFFER_SIZE="4000")
    recorder, ended, errors, is_loaded = out.split()
    assert recorder == ("CompiledRecorder" if single_rank.ENGINE == "compiled" else "Recorder")
    assert (int(ended), errors, is_loaded) == (3 * 800 + 3, "0", "True")
