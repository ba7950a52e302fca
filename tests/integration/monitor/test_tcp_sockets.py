"""TCP sockets, as this machine's kernel describes them."""

from __future__ import annotations

import contextlib
import os
import socket
import struct

import pytest

from otel_fr.monitor.process.connections import Connections
from otel_fr.monitor.process.state import Process
from otel_fr.monitor.process.tcp_sockets import ESTABLISHED, read_sockets


def test_a_process_has_the_sockets_of_its_open_files() -> None:
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        client = stack.enter_context(socket.create_connection(server.getsockname()))
        other = stack.enter_context(server.accept()[0])
        client.sendall(b"x" * 100)
        other.recv(100, socket.MSG_WAITALL)
        inode = str(os.fstat(client.fileno()).st_ino)
        assert inode in Process(os.getpid()).socket_inodes()
        found = {one.inode: one for one in read_sockets()}
        if not found:
            pytest.skip("this kernel has no tcp_diag")
        own, peer = (f"{host}:{port}" for host, port in (client.getsockname(), server.getsockname()))
        (round_trip,) = struct.unpack_from("=68xI", client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 72))
        assert found[inode][:4] == (inode, own, peer, ESTABLISHED)
        assert found[inode].round_trip == round_trip / 1e6
        assert found[inode].acknowledged == 101, "the first number counts, too"
    assert Process(os.getpid()).connections().unreached == ()
    assert Process(0).connections() == Connections(), "it has ended"
