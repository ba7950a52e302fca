"""Plays a rank: starts a real monitor, and writes a real ring. Standard input has commands, one JSON object a line.

Argument: a folder. It prints one JSON line when it is ready, and one after each command.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import signal
import socket
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from otel_fr import identity
from otel_fr.fault_tolerance import sections
from otel_fr.ring import (
    KIND_COLLECTIVE,
    KIND_P2P,
    GroupDef,
    ProcessState,
    RecordState,
    RingWriter,
    SiteDef,
)
from otel_fr.torch_recorder import SOCKET_KEY
from tests.support import warm
from tests.support.rings import FRAME, RANKS, float_signature


class Player:
    def __init__(self, folder: Path) -> None:
        rank = int(os.environ.get("RANK", "0"))
        self.stack_file = folder / "stacks.txt"
        self.stacks = self.stack_file.open("w")
        faulthandler.register(signal.SIGUSR2, self.stacks, all_threads=True)
        self.pause = threading.Event()
        responder = threading.Thread(target=self.respond, daemon=True)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket = ours
        self.bye = threading.Event()
        responder.start()
        meta = {
            "rank": rank,
            "world_size": 4,
            "local_rank": rank,
            "job_id": "job-7",
            "attempt": 1,
            "nonce": "n0",
            "run_id": identity.run_id("job-7", 1, "n0"),
            "host": "node-1",
            "stack_signal": int(signal.SIGUSR2),
            "stack_file": str(self.stack_file),
            "responder_tid": responder.native_id,
        }
        if "RECORDER" in os.environ:  # the Unix socket of a server that plays PyTorch's recorder
            meta[SOCKET_KEY] = os.environ["RECORDER"]
        self.meta: dict[str, object] = {**meta}
        self.writer = RingWriter.create(
            [Path(os.environ.get("RINGS", folder))], f"rank{rank}", int(os.environ.get("CAPACITY", "2000")), meta
        )
        backend = os.environ.get("BACKEND", "gloo")
        self.group_def = GroupDef(identity.group_id("0", RANKS), "0", "default_pg", RANKS, backend, 0)
        self.group = self.writer.add_group(self.group_def)
        self.seq = 0
        self.p2p = 0
        self.issued = 0
        self.open: list[tuple[int, int]] = []
        command = [sys.executable, "-m", "otel_fr.monitor", "--ring", str(self.writer.path), "--fd", "3"]
        with open(os.devnull, "rb") as nothing:
            files = {0: nothing.fileno(), 1: 1, 2: 2, 3: theirs.fileno()}
            self.monitor = warm.start_service(command, files)
        theirs.close()
        self.started = time.time_ns()

    def respond(self) -> None:
        while data := self.socket.recv(1 << 20):
            message = json.loads(data)
            if message.get("cmd") == "stacks":
                frames = sys._current_frames()
                main = frames[threading.main_thread().ident or 0]
                text = "Thread main (most recent call last):\n" + "".join(traceback.format_stack(main))
                answer = {"id": message["id"], "stacks": text, "site": "train.py:7 load"}
                self.socket.send(json.dumps(answer).encode())
            elif message.get("ok") == "bye":
                self.bye.set()

    # ---- commands

    def issue(self, n: int = 1, complete: str | None = "completed", every: float = 0.0, **values: Any) -> None:
        """Enqueue ``n`` calls. ``complete``: how they end; None: they stay in flight."""
        kind = KIND_P2P if values.get("operation") in ("send", "recv") else KIND_COLLECTIVE
        timeout_ms = values.pop("timeout_ms", 600_000)
        key = json.dumps(values)
        for _ in range(n):
            writer = self.writer
            sig = writer.signatures.get(key) or writer.define_signature(key, float_signature(**values))
            site = writer.sites.get("site") or writer.define_site("site", SiteDef((FRAME, ("/x/run.py", 1, "main"))))
            thread = writer.threads.get(1) or writer.define_thread(1, "MainThread")
            if kind == KIND_P2P:
                self.p2p += 1
            else:
                self.seq += 1
            self.issued += 1
            sequence = (self.seq, self.p2p, self.issued)
            numbers = (*sequence, self.p2p - 1 if kind == KIND_P2P else 0, timeout_ms, time.monotonic_ns())
            ticket = writer.append(self.group, sig, site, thread, writer.generation, kind, 0, *numbers)
            if complete is None:
                self.open.append((ticket, self.seq))
            else:
                state = RecordState[complete.upper()]
                writer.complete(ticket, self.group, self.seq, state, time.monotonic_ns())
            if every:
                time.sleep(every)

    def finish(self, state: str = "completed") -> None:
        for ticket, seq in self.open:
            self.writer.complete(ticket, self.group, seq, RecordState[state.upper()], time.monotonic_ns())
        self.open.clear()

    def hold_gil(self, seconds: int = 0) -> int:
        """Enqueue a call that does not end, and hold the GIL for so long; 0: until a byte comes. Returns its length.

        One command does both, because the call may count as stalled before a second command takes the GIL.
        """
        print(json.dumps({"holding": True}), flush=True)
        self.issue(complete=None)
        libc = ctypes.PyDLL(None)
        found: int = libc.sleep(seconds) if seconds else libc.read(0, ctypes.create_string_buffer(1), 1)
        return found

    def say(self, message: dict[str, Any]) -> None:
        self.socket.send(json.dumps(message).encode())

    def say_bye(self) -> float:
        start = time.monotonic()
        self.say({"cmd": "bye"})
        assert self.bye.wait(60), "the monitor does not answer"
        return time.monotonic() - start

    def hang_up(self) -> None:
        self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()

    def record_exception(self, message: str, type: str = "ValueError") -> None:
        self.writer.set_exception(
            {"type": type, "message": message, "stack": "Traceback ...", "site": "train.py:9 load"}
        )

    def record_thread_exception(self, message: str) -> None:
        self.writer.add_thread_exception(
            {"type": "OSError", "message": message, "site": "io.py:3 g", "thread": "loader"}
        )

    def enter_run(self, rank: int, world_size: int) -> None:
        """Destroy the default group, and create it again with other ranks."""
        self.writer.remove_group(self.group)
        session = {"session": 1, "first_record": self.writer.head}
        run = {"rank": rank, "world_size": world_size, "nonce": "n1", "run_id": identity.run_id("job-7", 1, "n1")}
        self.meta.update({**session, **run})
        self.writer.set_meta(self.meta)
        ranks = tuple(range(world_size))
        self.group_def = GroupDef(identity.group_id("0", ranks), "0", "default_pg", ranks, "gloo", 1)
        self.group = self.writer.add_group(self.group_def)
        self.seq = 0

    def mark_clean(self) -> None:
        self.writer.set_state(ProcessState.CLEAN)

    def leave(self, code: int = 0, clean: bool = False) -> None:
        if clean:
            self.writer.set_state(ProcessState.CLEAN)
        os._exit(code)

    def overrun(self, timeout: float, seconds: float, code: int) -> None:
        """Stay in a section for so long, then end."""
        sections.attach(self.writer.activity)
        sections.start_section("load", timeout)
        time.sleep(seconds)
        os._exit(code)

    def die(self, number: int) -> None:
        os.kill(os.getpid(), number)
        signal.pause()


def main() -> None:
    player = Player(Path(sys.argv[1]))
    ready = {"pid": os.getpid(), "monitor": player.monitor, "ring": str(player.writer.path)}
    print(json.dumps(ready), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        result = getattr(player, command.pop("do"))(**command)
        print(json.dumps({"done": result}), flush=True)


if __name__ == "__main__":
    main()
