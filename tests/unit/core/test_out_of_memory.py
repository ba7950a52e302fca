"""Whether the kernel killed a rank, from files as cgroups and /proc have them."""

from __future__ import annotations

import json
from pathlib import Path

from otel_fr.out_of_memory import MemoryGroup, OutOfMemory, count_of, find_group

V2 = "31 22 0:27 / {} rw,relatime - cgroup2 cgroup rw\n"
V1 = "31 22 0:27 {} {} rw,relatime - cgroup cgroup rw,memory\n"


def machine(tmp_path: Path, cgroup: str, mountinfo: str) -> Path:
    proc = tmp_path / "proc"
    for pid in ("self", "4711"):
        (proc / pid).mkdir(parents=True)
    (proc / "self" / "mountinfo").write_text(mountinfo)
    (proc / "4711" / "cgroup").write_text(cgroup)
    (proc / "vmstat").write_text("oom_kill 1\nnr_free_pages 5\n")
    return proc


def version_2(tmp_path: Path) -> tuple[Path, Path]:
    """/proc, and the cgroup of process 4711, which has no limit; the one above has 4 GiB."""
    top = tmp_path / "cgroup"
    own = top / "job" / "worker"
    own.mkdir(parents=True)
    (own / "memory.events").write_text("low 0\nhigh 0\nmax 7\noom 2\noom_kill 2\noom_group_kill 0\n")
    (own / "memory.max").write_text("max\n")
    (top / "job" / "memory.max").write_text(f"{4 << 30}\n")
    return machine(tmp_path, "0::/job/worker\n", V2.format(top)), own


def test_a_count_that_rose_shows_the_kernel_and_the_limit(tmp_path: Path) -> None:
    proc, own = version_2(tmp_path)
    memory = OutOfMemory(4711, proc)
    memory.look(100.0)
    assert memory.reason(100.5) == ""
    (own / "memory.events").write_text("oom 3\noom_kill 3\n")
    assert memory.reason(101.0) == "out of memory (cgroup limit 4.0 GiB)"
    memory.look(101.0)  # the rank's memory is being freed while the monitor looks again
    assert memory.reason(105.0) == "out of memory (cgroup limit 4.0 GiB)"


def test_a_rank_that_was_killed_before_its_monitor_looked(tmp_path: Path) -> None:
    """The rank had looked itself, and what it saw is in the ring."""
    proc, own = version_2(tmp_path)
    first = json.loads(json.dumps(OutOfMemory(4711, proc).as_data()))
    (own / "memory.events").write_text("oom 3\noom_kill 3\n")
    (proc / "4711" / "cgroup").unlink()
    memory = OutOfMemory(4711, proc, first)
    assert memory.reason(memory._looks[0][0] + 1) == "out of memory (cgroup limit 4.0 GiB)"
    for other in (None, [], [*first[:3], None], ["", "", 0], "text", {**dict.fromkeys("abcd", 1)}):
        unknown = OutOfMemory(4711, proc, other)
        assert unknown.reason(unknown._looks[0][0] + 1) == ""


def test_a_count_that_rose_long_before_is_not_this_rank(tmp_path: Path) -> None:
    proc, own = version_2(tmp_path)
    memory = OutOfMemory(4711, proc)
    (own / "memory.events").write_text("oom_kill 3\n")
    start = memory._looks[0][0]
    for second in range(1, 30):
        memory.look(start + second)
    assert memory.reason(start + 30) == ""


def test_version_1(tmp_path: Path) -> None:
    top = tmp_path / "memory"
    (top / "a").mkdir(parents=True)
    (top / "a" / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 0\n")
    (top / "a" / "memory.limit_in_bytes").write_text("314572800\n")
    (top / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    proc = machine(tmp_path, "9:name=systemd:/\n4:memory:/a\n0::/\n", V1.format("/", top))
    memory = OutOfMemory(4711, proc)
    (top / "a" / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
    assert memory.reason(memory._looks[0][0] + 1) == "out of memory (cgroup limit 300.0 MiB)"


def test_without_a_cgroup_the_count_of_the_machine_holds(tmp_path: Path) -> None:
    proc = machine(tmp_path, "0::/\n", "")
    memory = OutOfMemory(4711, proc)
    (proc / "vmstat").write_text("oom_kill 2\n")
    assert memory.reason(memory._looks[0][0] + 1) == "out of memory (of the machine)"
    (proc / "vmstat").unlink()
    assert memory.reason(memory._looks[0][0] + 1) == ""


def test_where_the_files_of_a_cgroup_are() -> None:
    inside = V1.format("/docker/abc", "/sys/fs/cgroup/memory")
    assert find_group("4:memory:/docker/abc/x\n", inside) == MemoryGroup(
        Path("/sys/fs/cgroup/memory/x"), Path("/sys/fs/cgroup/memory"), 1
    )
    assert find_group("4:cpu,memory:/other\n", inside) is None
    assert find_group("nonsense\n", "nonsense - \n") is None


def test_counts() -> None:
    assert count_of("oom_kill x\n") is None
    assert count_of("") is None
