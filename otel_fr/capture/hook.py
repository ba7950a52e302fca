"""Notices that this process creates or destroys a process group. Until then no other code of otel-fr runs.

In all torch versions from 2.6 on, every way to create a group (``init_process_group``, ``new_group``, ``split_group``,
device meshes) calls ``distributed_c10d._register_process_group``. Every way to destroy a group calls
``_unregister_process_group`` or ``_unregister_all_process_groups`` there. When imported, this module imports nothing of
otel-fr except `replaced`.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

from otel_fr.capture.replaced import C10D, COMPILER, GRAPHS, PACKAGE, TORCHFT, TORCHFT_MANAGER, Attribute, Replacements

if TYPE_CHECKING:
    from otel_fr.capture.recorder import Recorder
    from otel_fr.capture.session import Session
    from otel_fr.fault_tolerance.gloo_connections import GlooConnections

_log = logging.getLogger("otel_fr")


class _State:
    """What otel-fr has installed in this process."""

    def __init__(self) -> None:
        self.installed = False
        self.failed = False
        self.fork_handler = False
        self.session: Session | None = None
        self.notices_creations = False
        self.connections: GlooConnections | None = None
        self.replaced = Replacements()


_state = _State()


class _Finder(importlib.abc.MetaPathFinder):
    """Patches a module once it has been imported, by any code."""

    def __init__(self, name: str, patch: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._patch = patch
        self._is_searching = False

    def watch(self) -> None:
        """Patch the module now if it is imported, else once it is."""
        module = sys.modules.get(self._name)
        if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
            self._patch(module)
        else:
            sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name or self._is_searching:
            return None
        self._is_searching = True  # the search below calls this finder again
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._is_searching = False
        if spec is None or spec.loader is None or not hasattr(spec.loader, "exec_module"):
            return None
        load = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)  # if this raises, the program may import the module again
            self.withdraw()
            self._patch(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec

    def withdraw(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)


def install() -> None:
    """Watch for process groups. Idempotent. Does not import torch."""
    if _state.installed:
        return
    _state.installed = True
    if not _state.fork_handler:
        _state.fork_handler = True
        os.register_at_fork(after_in_child=_after_fork)
    for finder in _finders:
        finder.watch()


def uninstall() -> None:
    """Undo `install`: hooks, kernels, thread and monitor are gone when this returns (the monitor within 2 s)."""
    if not _state.installed:
        return
    _state.installed = False
    _state.failed = False
    for finder in _finders:
        finder.withdraw()
    _state.replaced.undo()
    _state.notices_creations = False
    _state.connections = None
    session, _state.session = _state.session, None
    if session is not None:
        session.stop()


def request_dump(reason: str) -> None:
    """See `otel_fr.dump`."""
    session = _state.session
    if session is not None:
        session.request_dump(reason)


def _patch(module: ModuleType) -> None:
    needed = (Attribute.GROUP_REGISTERED, Attribute.GROUP_UNREGISTERED, Attribute.GROUPS_UNREGISTERED)
    missing = [one.path for one in needed if not hasattr(module, one.path)]
    if missing:
        _log.warning("otel-fr is off: unsupported torch (it has no %s)", ", ".join(missing))
        return
    notes: tuple[Callable[..., None], ...] = (partial(_on_created, module), _on_gone, partial(_on_gone, None))
    for attribute, note in zip(needed, notes, strict=True):
        _replace(attribute, module, partial(_noting, note))
    for patch in (_notice_creations, _notice_destructions, _notice_splits):
        try:
            patch(module)
        except Exception:  # noqa: BLE001 - this torch works in another way: its other calls are still recorded
            _log.debug("otel-fr: %s", patch.__name__, exc_info=True)


def _replace(attribute: Attribute, module: ModuleType, make: Callable[[Any], Any]) -> None:
    """Replace an attribute in the module, and in the package that imports the module's public functions."""
    _state.replaced.put(attribute, module, make, sys.modules.get(PACKAGE))


def _noting(note: Callable[..., None], original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``original``: once it has returned, call ``note`` with the same arguments."""

    def call(*args: Any, **named: Any) -> Any:
        result = original(*args, **named)
        _guard(note, *args, *named.values())
        return result

    return call


def _notice_creations(module: ModuleType) -> None:
    from otel_fr.capture.new_groups import Creations

    if Creations.are_known(module):
        creations = Creations(module, _recorder, _comes_again, note_creation)
        _replace(Attribute.NEW_GROUP, module, creations.outer)
        _replace(Attribute.GROUP_CREATION, module, creations.inner)
        _state.notices_creations = True


def _notice_destructions(module: ModuleType) -> None:
    from otel_fr.capture import destroy

    for attribute, operation in ((Attribute.DESTROY, destroy.DESTROY), (Attribute.ABORT, destroy.ABORT)):
        _replace(attribute, module, partial(destroy.recorded, module, _recorder, operation))


def _notice_splits(module: ModuleType) -> None:
    from otel_fr.capture import new_groups, split_groups

    def begin(parent: Any, given: Mapping[str, Any]) -> Any:
        own = _recorder()
        return None if own is None else new_groups.begin_split(module, own, parent, given)

    def end(token: Any, error: BaseException | None) -> None:
        new_groups.end(_recorder(), token, error)

    made = partial(_guard, _on_split, module)
    _replace(Attribute.SPLIT, module, partial(split_groups.observed, begin, made, end))


def _patch_torchft(module: ModuleType) -> None:
    try:
        from otel_fr.capture import torchft

        def formed(*args: Any) -> None:
            _guard(_on_quorum, *args)

        make = partial(torchft.noticing, module, note_creation, formed)
        is_known = _state.replaced.put(Attribute.CONFIGURE, module, make)
    except Exception:  # noqa: BLE001 - another torchft: its import and its groups still work
        is_known = False
        _log.debug("otel-fr: torchft.process_group", exc_info=True)
    if not is_known:
        _log.warning("otel-fr does not record this version of torchft's process groups")


def _patch_torchft_client(module: ModuleType) -> None:
    with contextlib.suppress(Exception):  # another torchft: quorums with equal numbers are treated as the same quorum
        from otel_fr.capture import torchft

        _state.replaced.put(Attribute.MANAGER, module, torchft.with_client)


def _patch_compiler(module: ModuleType) -> None:
    with contextlib.suppress(Exception):  # another torch: compilations are not noticed
        from otel_fr.capture import compilations as ours

        _state.replaced.put(Attribute.COMPILATIONS, module, ours.with_note, give_back=ours.give_back)


def _patch_graphs(module: ModuleType) -> None:
    with contextlib.suppress(Exception):  # another torch: replays are not counted
        from otel_fr.capture import graph_replays

        _state.replaced.put(Attribute.REPLAY, module, graph_replays.counting)


_finders = (
    _Finder(C10D, _patch),
    _Finder(TORCHFT, _patch_torchft),
    _Finder(TORCHFT_MANAGER, _patch_torchft_client),
    _Finder(COMPILER, _patch_compiler),
    _Finder(GRAPHS, _patch_graphs),
)


def note_creation() -> None:
    """Note that a process group is about to be created. otel-fr must know its connections to end its calls later."""
    _guard(_on_creation)


def _on_creation() -> None:
    from otel_fr import config

    if _state.connections is None:
        if not config.acts_on_peer_failure():
            return
        from otel_fr.fault_tolerance.gloo_connections import GlooConnections

        _state.connections = GlooConnections()
    _state.connections.begin()


def _recorder() -> Recorder | None:
    """Return the recorder of this process, or None if it does not record."""
    session = _state.session
    return session.recorder if session is not None and _state.installed and not _state.failed else None


def _comes_again(size: int) -> bool:
    session = _state.session
    return session is not None and session.comes_again(size)


def _guard(action: Callable[..., None], *args: Any) -> None:
    if not _state.installed or _state.failed:
        return
    try:
        action(*args)
    except Exception as error:  # noqa: BLE001 - torch's own call has succeeded; its caller must not see an error of ours
        session = _state.session
        if session is not None:
            session.recorder.failed()
            _log.debug("otel-fr: could not record a process group", exc_info=True)
        else:
            # Do not retry for each group: the job would log the same warning thousands of times.
            _state.failed = True
            _log.warning("otel-fr does not record this rank: %s: %s", type(error).__name__, error)


def _on_created(module: ModuleType, name: str, group: Any, *_: Any) -> None:
    from otel_fr import config

    if _state.connections is not None:
        _state.connections.created(name)
    session = _state.session
    if session is None:
        if not config.is_enabled():
            return
        session = _start_session(module, group)
    session.group_created(name, group)


def _start_session(module: ModuleType, group: Any, run: Mapping[str, object] | None = None) -> Session:
    from otel_fr.capture.session import Session

    session = _state.session = Session.start(module, group, _state.notices_creations, _state.connections, run)
    return session


def _on_quorum(signature: Any, args: Any, kwargs: Any, group: Any) -> None:
    from otel_fr import config
    from otel_fr.capture import torchft

    session = _state.session
    quorum = torchft.Quorum.of(signature.bind(*args, **kwargs).arguments)
    if quorum is None or (session is None and not config.is_enabled()):
        return
    job_id = torchft.job_of(config.Config.from_env().job_id)
    run = quorum.run(job_id)
    name = quorum.group_name
    group._set_group_name(name)
    group._set_group_desc(f"torchft quorum {quorum.number}, rank {quorum.group_rank} of {quorum.replicas} replicas")
    _note_unregistered(group, [rank - quorum.first_rank for rank in quorum.ranks])
    if _state.connections is not None:
        _state.connections.created(name)
    if session is None:
        session = _start_session(sys.modules[C10D], group, run)
    session.quorum_formed(group, quorum, run)


def _on_split(module: ModuleType, parent: Any, ranks: Sequence[int], group: Any) -> None:
    from otel_fr.capture import groups

    above = groups.torch_ranks(module, parent) or ()
    _note_unregistered(group, [above[rank] for rank in ranks] if above else ())
    _on_created(module, str(group.group_name), group)


def _note_unregistered(group: Any, ranks: Sequence[int]) -> None:
    """Remember a group that torch's Python code does not register, and forget earlier such groups that have ended."""
    from otel_fr.capture import split_groups

    for name in split_groups.gone():
        _on_gone(name)
    split_groups.note(group, ranks)


def group_reconfigured(group: Any, nonce: str) -> None:
    """Note that the default group has new connections.

    Args:
        nonce: shared by the group's new members; "" if the members are the same as before.
    """
    _guard(_on_reconfigured, group, nonce)


def _on_reconfigured(group: Any, nonce: str) -> None:
    if _state.connections is not None:
        _state.connections.created(str(group.group_name))
    if _state.session is not None and nonce:
        _state.session.group_reconfigured(group, nonce)


def _on_gone(name: str | None, *_: Any) -> None:
    from otel_fr.capture import split_groups

    split_groups.forget(name)
    if _state.connections is not None:
        _state.connections.gone(name)
    if _state.session is not None:
        _state.session.group_gone(name)


def _after_fork() -> None:
    """A forked child of a rank is not a rank: it must not write into its parent's ring or use its connection."""
    session, _state.session = _state.session, None
    _state.connections = None
    if session is not None:
        _state.failed = True
        session.abandon()
