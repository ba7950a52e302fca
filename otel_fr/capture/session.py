"""One recording, from the first process group of this process to its exit.

A program may destroy its process groups and create the default group again with other ranks. Each time is a separate
run, with its own ranks and nonce. The recording continues in the same ring.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import logging
import os
import platform
import sys
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from otel_fr._version import __version__
from otel_fr.capture import engines, groups, split_groups, torchft
from otel_fr.capture.completion import let_go_of_futures
from otel_fr.capture.dynamo import exclude_our_frames
from otel_fr.capture.exceptions import ExceptionHooks
from otel_fr.capture.exits import ExitHook
from otel_fr.capture.launch import start_monitor
from otel_fr.capture.peer_actions import PeerActions
from otel_fr.capture.place import place_of, spawned_rank
from otel_fr.capture.replaced import Replacements
from otel_fr.capture.responder import Responder, StackSignal
from otel_fr.capture.runs import Runs, run_of, share_nonce
from otel_fr.capture.torchft import Quorum
from otel_fr.capture.worker_server import WorkerServer, is_wanted
from otel_fr.config import Config, service_name
from otel_fr.fault_tolerance import decisions, sections, steps
from otel_fr.fault_tolerance.gloo_connections import GlooConnections
from otel_fr.fault_tolerance.peers import peers
from otel_fr.out_of_memory import OutOfMemory
from otel_fr.ring import ProcessState, pid_namespace
from otel_fr.ring.files import ring_folders
from otel_fr.torch_recorder import SOCKET_KEY

_log = logging.getLogger("otel_fr")

EXIT_SECONDS: Final = 2.0
"""Seconds by which otel-fr may delay a rank's exit."""
_CREATIONS: Final = "creations"
"""Key of the ring's meta: true if the creation of groups is recorded."""
MAX_MONITORS: Final = 4
"""How many monitors one rank may start. A killed monitor is replaced, but a monitor that always ends must not be."""
_AGAIN_SECONDS: Final = 1.0
"""Seconds before the second monitor is started. The third waits twice as long, the fourth three times."""


class Session:
    """The recording of one process. Starts its parts and shuts them down.

    Attributes:
        engine: how calls are recorded.
        recorder: the kernels of the operators call it.
    """

    def __init__(
        self,
        c10d: ModuleType,
        config: Config,
        meta: dict[str, object],
        notices_creations: bool,
        connections: GlooConnections,
    ) -> None:
        """See `start`."""
        self._notices_creations = notices_creations
        torch = sys.modules["torch"]
        self._c10d = c10d
        self._pid = os.getpid()
        self._over = self._had_group = False
        self._quorum_group = ""
        self._job_id = config.job_id
        self._meta = meta
        self._runs = Runs(meta)
        self._responder: Responder | None = None
        self._monitors = 0
        # Held while a monitor is started, so that none is started once the recording is over.
        self._starting = threading.Lock()
        self._stack_signal: StackSignal | None = None
        self._capture = config.capture
        self._worker_server: WorkerServer | None = None
        folders = ring_folders(config.ring_dir)
        if config.ring_dir:
            with contextlib.suppress(OSError):  # the writer reports what is wrong
                config.ring_dir.mkdir(parents=True, exist_ok=True)
        engine = self.engine = engines.choose(config.capture_engine, torch)
        meta["capture_engine"] = engine.name
        engines.report(engine, config)
        self._writer = engine.create_ring(folders, f"rank{meta['rank']}-{self._pid}.ring", config.buffer_size, meta)
        try:
            # Only the package between the user's call and the operator, not all of otel-fr: the demo is user code.
            libraries = tuple(f"{Path(str(file)).parent}/" for file in (torch.__file__, __file__))
            libraries += torchft.folders()
            self.recorder, self._kernels = engine.start(c10d, torch, self._writer, libraries)
            exclude_our_frames(torch)
        except BaseException:
            self._writer.unlink()
            raise
        sites, replaced = self.recorder.sites, Replacements()
        self._replaced = replaced
        self._hooks = ExceptionHooks(
            partial(self._write, self._writer.set_exception),
            partial(self._write, self._writer.add_thread_exception),
            sites,
            replaced,
        )
        self._exit_hook = ExitHook(sites, replaced)
        sections.attach(self._writer.activity)
        decisions.attach(self._writer.decisions)
        steps.install()
        self._peer_actions = PeerActions(
            c10d, torch, config, peers, connections, self._find_group, self.recorder.waits, replaced
        )
        self._connect()
        atexit.register(self._at_exit)
        # Runs before the interpreter waits for threads, and before handlers of `atexit`: both may block.
        with contextlib.suppress(AttributeError, RuntimeError):
            threading._register_atexit(self._note_exit)  # type: ignore[attr-defined]

    @classmethod
    def start(
        cls,
        c10d: ModuleType,
        group: Any,
        notices_creations: bool,
        connections: GlooConnections | None,
        run: Mapping[str, object] | None = None,
    ) -> Session:
        """Start recording.

        Args:
            c10d: ``torch.distributed.distributed_c10d``.
            group: the process group that was just created, the first since recording was switched on.
            notices_creations: True if the creation of groups is noticed, so that it can be recorded.
            connections: connections of the process groups; None if otel-fr will end no calls.
            run: identifies this process as a rank of a run; None: derived from the group.

        Raises:
            OSError: no folder has room for the ring.
            RuntimeError: this torch cannot be hooked.
        """
        config = Config.from_env()
        if (index := spawned_rank()) is not None:
            config = dataclasses.replace(config, local_rank=index)
        default = c10d._world.default_pg
        world = group if default is None else default
        main = getattr(sys.modules.get("__main__"), "__file__", None) or (sys.argv[0] if sys.argv else "")
        meta: dict[str, object] = {
            "local_rank": config.local_rank,
            **place_of(sys.modules["torch"], world, config.local_rank),
            "pid": os.getpid(),
            "pid_namespace": pid_namespace(),
            "attempt": config.attempt,
            "service_name": service_name() or os.path.basename(sys.argv[0] if sys.argv else "") or "python",
            "torch_version": str(sys.modules["torch"].__version__),
            "otel_fr_version": __version__,
            "python_version": platform.python_version(),
            "backend": str(c10d._world.pg_map.get(world, ("",))[0]),
            "memory": OutOfMemory(os.getpid()).as_data(),
            "stall_seconds": config.stall_seconds,
            "buffer_size": config.buffer_size,
            "script": str(main),
            # How many groups were created in an older default group is unknown.
            _CREATIONS: notices_creations and default is None,
        }
        meta.update(
            run or run_of(world, config.job_id, config.attempt, share_nonce(c10d, world, attempt=config.attempt))
        )
        return cls(c10d, config, meta, notices_creations, connections or GlooConnections())

    def _write(self, write: Callable[[Any], None], value: Any) -> None:
        """Write into the ring, unless the recording is over."""
        with self.recorder.lock:
            if self.recorder.on:
                write(value)

    def _find_group(self, name: str) -> Any:
        """Return torch's ``ProcessGroup`` of that name, or None if it no longer exists."""
        split = split_groups.find(name)
        if split is not None:
            return split
        return next((group for group, known in list(self._c10d._world.pg_names.items()) if known == name), None)

    def _connect(self) -> None:
        """Start the monitor. If that fails, the ring is still written, and can be read after a crash."""
        ring = self._writer.path
        self._monitors += 1
        note_monitor = partial(self._write, self._writer.set_monitor_pid)
        try:
            connection = start_monitor(ring, is_first=self._monitors == 1)
            self._responder = Responder(
                connection, self.recorder.sites, note_monitor, self._peer_actions.handle, self._replace_monitor
            )
        except Exception as error:  # noqa: BLE001 - no process or no thread can be started
            _log.warning("otel-fr: this rank has no monitor: %s", error)
            return
        sections.set_link(self._responder.send)
        self._meta["responder_tid"] = self._responder.thread_id
        if self._monitors == 1:
            self._add_stack_signal(ring.with_name(ring.name + ".stacks"))
        self._write(self._writer.set_meta, self._meta)

    def _add_stack_signal(self, path: Path) -> None:
        try:
            self._stack_signal = StackSignal(path, self._replaced)
        except (OSError, RuntimeError) as error:
            _log.debug("otel-fr: no stacks while the GIL is held: %s", error)
        else:
            self._meta["stack_signal"] = self._stack_signal.number
            self._meta["stack_file"] = str(self._stack_signal.path)

    def _replace_monitor(self) -> None:
        """Start another monitor if the rank still runs: the connection has ended, so the monitor was killed."""
        if self._over or self._monitors >= MAX_MONITORS:
            return
        time.sleep(_AGAIN_SECONDS * self._monitors)
        with self._starting:
            if not self._over:
                _log.warning("otel-fr: the monitor of rank %s has ended; starting a new one", self._meta["rank"])
                self._connect()

    # ---- from the hook on process groups

    def group_created(self, name: str, group: Any) -> None:
        """Note that torch has registered a ``ProcessGroup``."""
        if self._is_between_runs():
            self.recorder.end_run()
            self._enter_run(group)
        self._had_group = True
        self.recorder.group_created(name, group)
        self._show_recorder(group)

    def _is_between_runs(self) -> bool:
        """Return True if the program has destroyed all its groups."""
        return self._had_group and self._c10d._world.default_pg is None and not self.recorder.groups

    def comes_again(self, size: int) -> bool:
        """Return True if a default group of this size, about to be created, will have the members of this run."""
        return self._is_between_runs() and size == self._meta["world_size"]

    def _show_recorder(self, group: Any) -> None:
        """Let the monitor ask PyTorch's recorder, if the recorder knows more about the group's calls than otel-fr."""
        meta = self._meta
        if SOCKET_KEY in meta or not is_wanted(self._capture, groups.backends_of(self._c10d, group)):
            return
        meta[SOCKET_KEY] = ""  # once only
        try:
            self._worker_server = WorkerServer(sys.modules["torch"], self._writer.path)
        except Exception as error:  # noqa: BLE001 - a torch without it, a folder that can hold no socket
            _log.info("otel-fr: cannot read PyTorch's recorder: %s", error)
            return
        meta[SOCKET_KEY] = str(self._worker_server.path)
        self._write(self._writer.set_meta, meta)

    def group_reconfigured(self, default: Any, nonce: str) -> None:
        """Note that the default group was re-formed with other members (`otel_fr.capture.reconfigure`)."""
        name = str(default.group_name)
        self.recorder.group_gone(name)
        self._enter_run(default, nonce)
        self.recorder.group_created(name, default)

    def quorum_formed(self, group: Any, quorum: Quorum, run: Mapping[str, object]) -> None:
        """Note that torchft has formed a group across its replicas (`otel_fr.capture.torchft`)."""
        self._had_group = True
        groups.set_first_rank(quorum.first_rank)
        if run["run_id"] != self._meta["run_id"]:
            self.group_gone(self._quorum_group)
            self._enter(run)
            self.recorder.renumber(self._find_group)
        self._quorum_group = quorum.group_name
        self.recorder.group_created(quorum.group_name, group)

    def _enter_run(self, default: Any, nonce: str = "") -> None:
        """Enter another run, because the default group was created again.

        Args:
            nonce: random text that all ranks of that run share; "": they share one over the job's store.
        """
        attempt = int(str(self._meta["attempt"]))
        nonce = nonce or share_nonce(self._c10d, default, str(self._meta["nonce"]), attempt)
        self._enter(run_of(default, self._job_id, attempt, nonce))

    def _enter(self, run: Mapping[str, object]) -> None:
        peers.forget_all()  # the ranks of another run have other numbers
        if run["nonce"] != self._meta["nonce"]:
            groups.forget_created()
        with self.recorder.lock:
            if not self.recorder.on:
                return
            errors = None if self.recorder.groups else self._writer.counted("hook_errors")
            # Written before any group or call of the run, so that a reader of such a call also finds this meta.
            self._meta |= self._runs.following(run, self._writer.head, errors) | {_CREATIONS: self._notices_creations}
            self._writer.set_meta(self._meta)

    def group_gone(self, name: str | None) -> None:
        """Note that torch has unregistered the group of that name, or all groups (None)."""
        peers.forget_group(name)
        self.recorder.group_gone(name)

    def request_dump(self, reason: str) -> None:
        """Ask the monitor to write the flight-recorder file. Never waits."""
        if self._responder is not None and not self._responder.send({"cmd": "dump", "reason": str(reason)[:1000]}):
            _log.warning("otel-fr: the monitor of this rank does not answer; no flight-recorder file was requested")

    # ---- the end

    def stop(self) -> None:
        """Stop recording in a process that continues."""
        atexit.unregister(self._at_exit)
        confirmed = self._finish(EXIT_SECONDS, clean=True)
        self._writer.unlink()
        if self._stack_signal is not None:
            self._stack_signal.close(may_come=not confirmed)

    def _at_exit(self) -> None:
        if os.getpid() != self._pid:
            return
        start = time.monotonic()
        try:
            self._hooks.note_last()
            self._note_exit()
            with self.recorder.lock:
                self.recorder.follow_ends = False
                self._writer.set_state(ProcessState.EXITING)
            outstanding, every = self.recorder.outstanding, self._c10d._world.pg_map
            has_raised = self._hooks.recorded
            clean = let_go_of_futures(outstanding, every, EXIT_SECONDS / 2, has_raised=has_raised) and not has_raised
            left = EXIT_SECONDS - (time.monotonic() - start)
            self._finish(max(EXIT_SECONDS / 2, left), clean)
            # The stack signal keeps its handler: the monitor may still send it, and without a handler it would kill.
        except Exception:  # noqa: BLE001 - the job's exit code is its own
            _log.debug("otel-fr: shutting down the recording failed", exc_info=True)

    def _note_exit(self) -> None:
        """Record that the interpreter ends, and what was passed to ``sys.exit``. Never raises."""
        try:
            if self._over or self._meta.get("exiting") or os.getpid() != self._pid:
                return
            hook = self._exit_hook
            values = {"exiting": True, "exit_message": hook.message, "exit_site": hook.site}
            self._meta.update({key: value for key, value in values.items() if value})
            self._write(self._writer.set_meta, self._meta)
        except Exception:  # noqa: BLE001 - the job's exit is its own
            _log.debug("otel-fr: could not record the exit", exc_info=True)

    def _finish(self, seconds: float, clean: bool) -> bool:
        """Shut everything down. Return True if the monitor has confirmed that it sent its data, or there is none."""
        if self._over:
            return True
        self._over = True
        with self._starting:  # wait for a monitor that is being started: it must receive the goodbye
            pass
        self._remove_hooks()
        self._kernels.remove()
        with self.recorder.lock:
            self._writer.set_state(ProcessState.CLEAN if clean else ProcessState.EXITING)
        responder = self._responder
        confirmed = responder is None or responder.say_goodbye(seconds)
        if clean and (responder is None or responder.has_lost_monitor):
            self._writer.unlink()  # as the monitor would have done
            if self._stack_signal is not None:
                self._stack_signal.remove_file()
        if self._worker_server is not None:  # no request is under way once the monitor has confirmed
            self._worker_server.close(is_idle=confirmed and responder is not None and not responder.has_lost_monitor)
        steps.uninstall()
        sections.detach()
        decisions.detach()
        self.recorder.close()
        if responder is not None:
            responder.close()
        return confirmed

    def _remove_hooks(self) -> None:
        self._hooks.stop()
        self._exit_hook.stop()
        self._replaced.undo()

    def abandon(self) -> None:
        """Stop in a forked child of a recording rank. Touch neither the parent's state nor locks that it may hold."""
        self._over = True
        self.recorder.on = False
        self.recorder.waits.stop_tracking()
        self._remove_hooks()
        peers.after_fork()
        if self._responder is not None:
            self._responder.abandon()
        if self._worker_server is not None:
            self._worker_server.abandon()
        with contextlib.suppress(Exception):
            atexit.unregister(self._at_exit)
