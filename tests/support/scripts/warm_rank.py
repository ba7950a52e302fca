"""Imports torch, then becomes each program asked for, in a process of its own; see tests/support/warm_rank.py."""

import json
import os
import socket
import sys
import types

import torch.distributed
import torch.testing._internal.distributed.fake_pg  # noqa: F401

import otel_fr.capture.session
import otel_fr.ring  # noqa: F401
from otel_fr._activate import torch_backend_loaded


def next_program(channel: socket.socket) -> tuple[str, dict[str, str], list[int]]:
    """Returns in a new process, for each program: its path, its environment, its standard output and error."""
    while True:
        request, files, _, _ = socket.recv_fds(channel, 1 << 20, 2)
        if not request:
            sys.exit()
        child = os.fork()
        if child == 0:
            channel.close()
            program, environment = json.loads(request)
            return program, environment, files
        for file in files:
            os.close(file)
        channel.send(str(child).encode())
        channel.send(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])).encode())


program, environment, files = next_program(socket.socket(fileno=int(sys.argv[1])))
for standard, file in zip((1, 2), files, strict=True):
    os.dup2(file, standard)
    os.close(file)
os.environ.clear()
os.environ.update(environment)
os.chdir(os.path.dirname(program))
sys.argv = [program]
sys.path[0] = os.path.dirname(program)
torch_backend_loaded()
main = types.ModuleType("__main__")
main.__file__ = program
sys.modules["__main__"] = main
with open(program, encoding="utf-8") as source:
    code = compile(source.read(), program, "exec")
exec(code, main.__dict__)
