"""Process groups of torchft, which `torch.distributed` does not know.

A torchft job consists of several replicas, each a separate torchrun job. For each quorum, the ranks *g* of all replicas
form a new group (``ProcessGroupWrapper.configure``, torchft 0.2). It contains a plain ``ProcessGroup``, so its calls
reach the operators that otel-fr records. But it has no name, and is not registered.

The ranks of one quorum are a separate run. In this run, each process has the rank
``replica_rank * group_world_size + group_rank``, because torchrun numbers the ranks of each replica from 0.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import inspect
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final
from urllib.parse import urlsplit

from otel_fr import identity
from otel_fr.encodable import encodable

_LIGHTHOUSE: Final = "TORCHFT_LIGHTHOUSE"
_OWN_JOB: Final = "OTEL_FR_JOB_ID"


class _Latest(threading.local):
    """The Lighthouse's last answer to this thread, which then forms the group.

    Attributes:
        members: the replicas' full ids, the same in all replicas. Each id contains a random part, new in each process.
    """

    members: tuple[str, ...] = ()


_latest = _Latest()


@dataclass(frozen=True, slots=True)
class Quorum:
    """One quorum, as this process takes part in it.

    Attributes:
        number: torchft's ``quorum_id``.
        replica: torchft's ``replica_id``.
        replica_rank, replicas: the replica's rank in the quorum, and the number of replicas.
        group_rank, group_size: the process's rank in its replica, and the number of processes of a replica.
        members: see `_Latest`; empty: unknown.
    """

    number: int
    replica: str
    replica_rank: int
    replicas: int
    group_rank: int
    group_size: int
    members: tuple[str, ...]

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Quorum | None:
        """Read the arguments of ``configure``. None: the group has no quorum, as when no ``Manager`` forms it."""
        if given.get("quorum_id") is None:
            return None
        group_rank = int(given.get("group_rank") or 0)
        return cls(
            number=int(given["quorum_id"]),
            replica=encodable(str(given["replica_id"])),
            replica_rank=int(given["rank"]),
            replicas=int(given["world_size"]),
            group_rank=group_rank,
            group_size=max(1, int(given.get("group_world_size") or 1)),
            members=_latest.members,
        )

    @property
    def first_rank(self) -> int:
        """The lowest rank of the replica's processes in the run."""
        return self.replica_rank * self.group_size

    @property
    def group_name(self) -> str:
        """The name of the group that torchft passes to backends."""
        return f"torchft_quorum_{self.number}_rank_{self.group_rank}"

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks in the run of the members of the group across the replicas."""
        return tuple(range(self.group_rank, self.replicas * self.group_size, self.group_size))

    def run(self, job_id: str) -> dict[str, object]:
        """Return the keys of the ring's meta that identify this process as a rank of the quorum's run."""
        nonce = identity.run_id(job_id, self.number, ",".join(sorted(self.members)))
        return {
            "rank": self.first_rank + self.group_rank,
            "world_size": self.replicas * self.group_size,
            "job_id": job_id,
            "attempt": self.number,
            "nonce": nonce,
            "run_id": identity.run_id(job_id, self.number, nonce),
            "replica_id": self.replica,
            "quorum_id": self.number,
            "replicas": self.replicas,
        }


def folders() -> tuple[str, ...]:
    """Return the folder of torchft, with a trailing separator, or nothing if torchft is not installed.

    torchft need not be imported yet, and need not be installed beside torch.
    """
    with contextlib.suppress(Exception):  # finders and specs of other packages may raise anything
        spec = importlib.util.find_spec("torchft")
        if spec is not None and spec.origin is not None:
            return (f"{Path(spec.origin).parent}/",)
    return ()


def noticing(
    module: ModuleType, creating: Callable[[], None], formed: Callable[..., None], original: Callable[..., Any]
) -> Callable[..., Any]:
    """Return the replacement of ``ProcessGroupWrapper.configure``, which notices each group that is formed.

    Args:
        module: ``torchft.process_group``.
        creating: called before the group is formed, without arguments. Must not raise.
        formed: called with the signature of ``configure``, the call's arguments (a tuple and a mapping), and torch's
            ``ProcessGroup``. Must not raise.
    """
    signature = inspect.signature(original)

    def configure(self: Any, *args: Any, **kwargs: Any) -> Any:
        creating()
        result = original(self, *args, **kwargs)
        group = getattr(self, "_pg", None)
        # A wrapper around another group of torchft has passed the call on to that group.
        if group is not None and not isinstance(group, module.ProcessGroup):
            formed(signature, (self, *args), kwargs, group)
        return result

    configure.__doc__ = original.__doc__
    return configure


class _Client:
    """Wraps torchft's ``ManagerClient`` and notes its answers. Only they show what makes two quorums distinct."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def _quorum(self, *args: Any, **kwargs: Any) -> Any:
        found = self._client._quorum(*args, **kwargs)
        with contextlib.suppress(Exception):  # torchft's own call must not see an error of ours
            _latest.members = tuple(encodable(str(member)) for member in found.replica_ids)
        return found


def with_client(original: Callable[..., None]) -> Callable[..., None]:
    """Return the replacement of ``Manager.__init__``, to notice the Lighthouse's answers."""

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        client = getattr(self, "_client", None)
        if client is not None:
            self._client = _Client(client)

    return init


def job_of(configured: str, env: Mapping[str, str] = os.environ) -> str:
    """Return the job id that all replicas share: OTEL_FR_JOB_ID if set, else a name with the Lighthouse's address.

    Args:
        configured: the configured job id. If neither variable is set, it is the id that one replica's torchrun or
            scheduler gives.
    """
    if env.get(_OWN_JOB, ""):
        return configured
    lighthouse = urlsplit(env.get(_LIGHTHOUSE, "")).netloc.rpartition("@")[2]
    return encodable(f"torchft-{lighthouse}") if lighthouse else configured or "torchft"
