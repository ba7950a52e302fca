"""Lists all attributes of torch, torchft and Python that otel-fr replaces in a rank, and later restores.

The table does not contain the loader that imports a module (`hook`), which is used once; kernels in torch's dispatcher
(`dispatcher`, `native.dispatcher`); signal handlers (`responder`); and OpenTelemetry's encoder
(`otel_fr.otlp_sender`), which is not used in ranks.

This module imports only the standard library: it is loaded with torch, even if nothing is recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, unique
from types import ModuleType
from typing import Any, Final, NamedTuple

PACKAGE: Final = "torch.distributed"
C10D: Final = "torch.distributed.distributed_c10d"
TORCHFT: Final = "torchft.process_group"
TORCHFT_MANAGER: Final = "torchft.manager"
COMPILER: Final = "torch._dynamo.callback"
GRAPHS: Final = "torch.cuda.graphs"


@unique
class Attribute(Enum):
    """The table: module, attribute, which part of otel-fr replaces it, and why. Missing attributes are not replaced."""

    # Replaced from the import of the module until `otel_fr.uninstrument`.
    GROUP_REGISTERED = C10D, "_register_process_group", "hook: a group was made"
    GROUP_UNREGISTERED = C10D, "_unregister_process_group", "hook: a group is gone"
    GROUPS_UNREGISTERED = C10D, "_unregister_all_process_groups", "hook: all groups are gone"
    NEW_GROUP = C10D, "_new_group_with_tag", "new_groups: what new_group and torch's own callers of it call"
    GROUP_CREATION = C10D, "_new_process_group_helper", "new_groups: creates a group, once its name is known"
    DESTROY = C10D, "destroy_process_group", "destroy: the call, and what must be over before it"
    ABORT = C10D, "_abort_process_group", "destroy: ends the group's calls instead of waiting for them"
    SPLIT = C10D, "ProcessGroup.split_group", "split_groups: makes groups that Python code does not register"
    CONFIGURE = TORCHFT, "ProcessGroupWrapper.configure", "torchft: forms a group"
    MANAGER = TORCHFT_MANAGER, "Manager.__init__", "torchft: its client hears what makes a quorum distinct"
    COMPILATIONS = COMPILER, "callback_handler.start_callbacks", "compilations: called before a function is compiled"
    REPLAY = GRAPHS, "CUDAGraph.replay", "graph_replays: launches a CUDA graph"
    # Replaced while the process records.
    EXCEPTHOOK = "sys", "excepthook", "exceptions: what ends the main thread"
    UNRAISABLE_HOOK = "sys", "unraisablehook", "exceptions: what ends a thread of _thread"
    THREAD_HOOK = "threading", "excepthook", "exceptions: what ends a thread"
    EXIT = "sys", "exit", "exits: how the main thread calls it"
    SIGNAL = "signal", "signal", "responder: a handler of the program's on the signal for stacks"
    END_BATCH = C10D, "ProcessGroup._end_coalescing", "native.batches: the Work of a batch"
    # Replaced while the process records, from the first need on.
    WAIT = C10D, "Work.wait", "waits: the end of calls without a future, and errors of calls that were ended"
    BACKWARD = "torch.autograd", "_engine_run_backward", "peer_actions: runs the backward pass (torch 2.6 to 2.14)"
    OUTERMOST_EXCEPTHOOK = "sys", "excepthook", "peer_actions: above all other hooks once calls were ended"

    @property
    def module(self) -> str:
        return self.value[0]

    @property
    def path(self) -> str:
        return self.value[1]


class _Replaced(NamedTuple):
    owner: Any
    name: str
    original: Any
    ours: Any
    give_back: Callable[[Any, Any], None] | None


class Replacements:
    """Replaces attributes for one part of otel-fr, and restores them."""

    def __init__(self) -> None:
        self._done: list[_Replaced] = []

    def put(
        self,
        attribute: Attribute,
        module: Any,
        make: Callable[[Any], Any],
        *copies: ModuleType | None,
        give_back: Callable[[Any, Any], None] | None = None,
    ) -> bool:
        """Replace an attribute.

        Args:
            module: the module that has the attribute.
            make: returns the replacement of the present value.
            copies: modules that may have imported the attribute by name.
            give_back: called with the original and the replacement before the original is restored.

        Returns:
            False if there is no such attribute.
        """
        *above, name = attribute.path.split(".")
        owner = module
        for part in above:
            owner = getattr(owner, part, None)
        found = None if owner is None else getattr(owner, name, None)
        if found is None:
            return False
        original, ours = vars(owner).get(name, found), make(found)
        self._set(owner, name, original, ours, give_back)
        for copy in copies:
            if copy is not None and vars(copy).get(name) is original:
                self._set(copy, name, original, ours, None)
        return True

    def _set(
        self, owner: Any, name: str, original: Any, ours: Any, give_back: Callable[[Any, Any], None] | None
    ) -> None:
        setattr(owner, name, ours)
        self._done.append(_Replaced(owner, name, original, ours, give_back))

    def undo(self) -> None:
        """Restore all attributes, the latest first. An attribute that other code has replaced meanwhile stays.
        That code may still call otel-fr's replacement, which then only calls the original."""
        while self._done:
            one = self._done.pop()
            if vars(one.owner).get(one.name) is one.ours:
                if one.give_back is not None:
                    one.give_back(one.original, one.ours)
                setattr(one.owner, one.name, one.original)
