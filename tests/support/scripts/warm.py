"""Imports modules, then runs programs in forks of this process, which need not import them (tests/support/warm.py).

``warm.py NAME PATH SERVICES LISTENER HELD`` is the server of that name at the socket PATH, until HELD is closed.
SERVICES is the socket of the server of monitors. ``warm.py torchrun ...`` is torchrun with forked ranks.
"""

import contextlib
import fcntl
import gc
import importlib
import json
import os
import select
import socket
import sys
import tempfile
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

ROOT: Final = str(Path(__file__).resolve().parents[3])
sys.path.insert(1, ROOT)
from tests.support import warm  # noqa: E402

del sys.path[1]

RANKS: Final = (
    "torch._dynamo",  # DDP, FSDP and the first step of an optimizer import it
    "torch.distributed.run",
    "torch.testing._internal.distributed.fake_pg",
    "otel_fr.capture.session",
    "otel_fr.ring",
)
SERVICES: Final = (
    "otel_fr_collector",  # before gRPC: only at its import does gRPC read that it must start no threads in a child
    "otel_fr.monitor.__main__",
    "opentelemetry.exporter.otlp.proto.grpc._log_exporter",
    "opentelemetry.exporter.otlp.proto.grpc.metric_exporter",
    "opentelemetry.exporter.otlp.proto.grpc.trace_exporter",
    "otel_fr.cli",
    "otel_fr_collector.cli",
    "otel_fr.fault_tolerance.sections",
    "tests.support.rings",
)
ABOVE: Final = 20
"""Received descriptors are moved to this number and above, out of the way of the program's descriptors."""


def import_first(modules: Sequence[str]) -> dict[str, str]:
    """Import modules for the programs, without otel-fr's settings, so that otel-fr is not active here.

    Returns:
        the environment variables that the imports have set.
    """
    settings = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("OTEL_")}
    before = dict(os.environ)
    sys.path.insert(1, ROOT)
    for module in modules:
        importlib.import_module(module)
    del sys.path[1]
    tempfile.tempdir = None  # an import may have set it; each program has its own
    found = {name: value for name, value in os.environ.items() if before.get(name) != value}
    for module in ("otel_fr.monitor.__main__", "otel_fr.cli"):
        sys.modules.pop(module, None)  # Python runs them under another name
    os.environ.update(settings)
    return found


def serve(listener: socket.socket, held: int, variables: Mapping[str, str]) -> list[str]:
    """Fork a process for each program that a client asks for. Returns, in the fork, the program's command.

    The fork has the program's environment, folder and files.

    Args:
        variables: environment variables that the imports would set.
    """
    while True:
        ready, _, _ = select.select([listener.fileno(), held], [], [])
        if held in ready:
            os._exit(0)  # no exit handlers of the imported modules run
        channel, _ = listener.accept()
        request, received, _, _ = socket.recv_fds(channel, 1 << 20, 16)
        if not request:  # the client was killed meanwhile
            channel.close()
            continue
        asked = json.loads(request)
        if isinstance(asked, int):
            with contextlib.suppress(OSError):  # the client has stopped waiting
                pid, status = os.waitpid(asked, os.WNOHANG)
                channel.send(str(status).encode() if pid else b"runs")
        elif (child := os.fork()) == 0:
            command, environment, folder, files, is_detached = asked
            if is_detached and os.fork():
                os._exit(0)
            os.setsid()
            channel.send(str(os.getpid()).encode())
            for closed in (listener, channel):
                closed.close()
            os.close(held)
            take(dict(zip(files, received, strict=True)))
            os.environ.clear()
            os.environ.update({**environment, **variables})
            given = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
            sys.path[1:1] = [part for part in given if part not in sys.path]
            os.chdir(folder)
            return list(command)
        elif asked[-1]:
            os.waitpid(child, 0)
        for file in received:
            os.close(file)
        channel.close()


def take(files: Mapping[int, int]) -> None:
    """Make the descriptors ``files`` (keys) refer to the files of the received descriptors (values)."""
    moved = {target: fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, ABOVE) for target, file in files.items()}
    for file in files.values():
        os.close(file)
    for target, file in moved.items():
        os.dup2(file, target)
        os.close(file)


def start_monitor(arguments: Sequence[str], env: Mapping[str, str], actions: Sequence[tuple[Any, ...]] = ()) -> None:
    """Start the monitor as a fork, in place of `otel_fr.capture.launch.start_detached`."""
    with open(os.devnull, "rb") as nothing:
        files = {0: nothing.fileno(), 1: 1, 2: 2} | {target: file for _, file, target in actions}
        warm.start(warm.address(warm.SERVICES), arguments, env, os.getcwd(), files, is_detached=True)


def become(command: list[str]) -> None:
    """Run ``[python, [-u], program | -c code | -m module, arguments...]`` as Python does, with the imported modules."""
    is_unbuffered = command[1] == "-u"
    arguments = command[2:] if is_unbuffered else command[1:]
    # This process's own streams may be of another kind: a pipe, a file, a terminal.
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    if is_unbuffered:
        sys.stdout.reconfigure(write_through=True)
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    if arguments[0] == "-m":
        import runpy

        sys.argv, sys.path[0] = arguments[1:], os.getcwd()
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return
    if arguments[0] == "-c":
        sys.argv, sys.path[0] = ["-c", *arguments[2:]], ""
        code = compile(arguments[1], "<string>", "exec")
    else:
        sys.argv, sys.path[0] = arguments, os.path.dirname(arguments[0])
        main.__file__ = arguments[0]
        with open(arguments[0], encoding="utf-8") as source:
            code = compile(source.read(), arguments[0], "exec")
    if sys.executable in warm.known:
        from otel_fr._activate import torch_backend_loaded
        from otel_fr.capture import launch

        launch.start_detached = start_monitor
        torch_backend_loaded()
    exec(code, main.__dict__)


def torchrun() -> None:
    """Run torchrun with ranks that a server forks."""
    from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler
    from torch.distributed.run import main

    def popen(self: Any, args: tuple[str, ...], env: dict[str, str]) -> warm.Forked:
        return warm.Forked(warm.known[sys.executable], args, env=env, stdout=self._stdout, stderr=self._stderr)

    subprocess_handler.SubprocessHandler._popen = popen
    sys.argv = ["torchrun", *sys.argv[2:]]
    main()


def main() -> None:
    name, path, services, listener, held = sys.argv[1:]
    warm.known.update({warm.SERVICES: services, name: path})
    variables = import_first(SERVICES if name == warm.SERVICES else RANKS)
    gc.freeze()  # otherwise each program visits all of torch's objects at its end, which takes 0.2 s
    become(serve(socket.socket(fileno=int(listener)), int(held), variables))


if __name__ == "__main__":
    if sys.argv[1] == "torchrun":
        torchrun()
    else:
        main()
