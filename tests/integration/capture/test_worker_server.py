"""torch's worker server in a rank, where the monitor asks PyTorch's recorder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import single_rank

pytestmark = pytest.mark.usefixtures("warm")

GLOO = """
import ctypes, json, stat, tempfile, time
from otel_fr.timed_http import ask_unix
from otel_fr.torch_recorder import SOCKET_KEY
session_module.is_wanted = lambda capture, backends: capture == "auto"

def start_gloo():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

def socket_path():
    return ring().meta.get(SOCKET_KEY)

def ask(target="/handler/ping", method="POST"):
    return ask_unix(socket_path(), method, target, seconds=20, most=1 << 25)

"""

needs_fr_trace = pytest.mark.skipif(
    'tuple(map(int, __import__("torch").__version__.split(".")[:2])) < (2, 10)',
    reason="the recorder of gloo's groups cannot be asked in this torch",
)


def run(folder: Path, body: str, **env: str) -> list[str]:
    done = single_rank.run(folder, GLOO + body, **env)
    assert done.returncode == 0, done.stderr[-4000:]
    said = done.stderr.replace(str(folder), "")  # the folder's name contains the test's name
    assert "erver" not in said, done.stderr[-4000:]  # no warnings of torch about its server
    return done.stdout.split()


@needs_fr_trace
def test_it_answers_while_the_gil_is_held_from_a_socket_of_this_user_alone(tmp_path: Path) -> None:
    out = run(
        tmp_path,
        """
start_gloo()
dist.all_reduce(torch.ones(3))
path = socket_path()
print(stat.filemode(os.stat(path).st_mode), stat.filemode(os.stat(os.path.dirname(path)).st_mode))
code = (
    "import sys; from otel_fr.timed_http import ask_unix; sys.stdin.read(1); "
    "print(len(ask_unix(sys.argv[1], 'POST', '/handler/fr_trace_json', seconds=60, most=1 << 25)) > 100)"
)
import subprocess
asker = subprocess.Popen([sys.executable, "-c", code, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
os.write(asker.stdin.fileno(), b"!")
# Wait in C with the GIL held, until the asker has its answer.
pidfd = os.pidfd_open(asker.pid)
fds = (ctypes.c_short * 4)()
ctypes.c_int.from_buffer(fds).value = pidfd
fds[2] = 1
print(ctypes.PyDLL(None).poll(fds, 1, 120_000))
print(asker.communicate()[0].decode())
dist.destroy_process_group()
""",
    )
    assert out == ["srw-------", "drwx------", "1", "True"]


def test_it_is_there_only_where_it_is_wanted(tmp_path: Path) -> None:
    body = """
start_gloo()
print(socket_path())
"""
    assert run(tmp_path, body, OTEL_FR_CAPTURE="hook") == ["None"]


def test_the_socket_is_gone_after_the_end_and_a_fork_leaves_it_alone(tmp_path: Path) -> None:
    out = run(
        tmp_path,
        """
start()  # a child of a rank on gloo does not survive its exit, with or without otel-fr
path = socket_path()
child = os.fork()
if not child:
    sys.exit(3)  # through all destructors
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), ask().decode(), path)
""",
    )
    assert out[:2] == ["3", "pong"]
    assert not Path(out[2]).exists()


def test_without_a_monitor_the_rank_ends_as_well(tmp_path: Path) -> None:
    out = run(
        tmp_path,
        """
session_module.start_monitor = no_monitor
start_gloo()
print(socket_path())
sys.exit(0)
""",
    )
    assert not Path(out[0]).exists()


def test_a_server_of_the_program_is_left_alone(tmp_path: Path) -> None:
    out = run(
        tmp_path,
        """
from torch._C._distributed_c10d import _WorkerServer
start_gloo()
import otel_fr
path = socket_path()
theirs = os.path.join(os.environ["OTEL_FR_RING_DIR"], "own")
level = os.dup(2)
os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # it warns of itself
server = _WorkerServer(theirs)
os.dup2(level, 2)
otel_fr.uninstrument()
print(os.path.exists(path), ask_unix(theirs, "POST", "/handler/ping", seconds=20, most=100).decode())
os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
server.shutdown()
os.dup2(level, 2)
""",
    )
    assert out == ["False", "pong"]


def test_a_folder_with_a_long_path_has_its_socket_elsewhere(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 20)
    out = run(
        tmp_path,
        """
start_gloo()
print(len(socket_path()) < 108, ask().decode(), ring().meta[SOCKET_KEY].startswith(tempfile.gettempdir()))
""",
        OTEL_FR_RING_DIR=str(folder),
        TMPDIR="/tmp",
    )
    assert out == ["True", "pong", "True"]
