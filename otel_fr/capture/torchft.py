"""Process groups of torchft, which `torch.distributed` never hears of.

A torchft job is several replicas, each a torchrun job of its own. Rank *g* of every replica forms one group with rank
*g* of the others, anew for each quorum (``ProcessGroupWrapper.configure``, torchft 0.2). Inside is a plain
``ProcessGroup``, so its calls reach the operators that otel-fr records; it only has no name, and is not registered.

The ranks of one quorum are a run of their own, in which each process has the number
``replica_rank * group_world_size + group_rank``: by the numbers that torchrun gives, each replica has a rank 0.
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
    """What the Lighthouse last answered to this thread, which then forms the group.

    Attributes:
        members: the replicas' full ids, each with a random part of its present process: the same in all replicas.
    """

    members: tuple[str, ...] = ()


_latest = _Latest()


@dataclass(frozen=True, slots=True)
class Quorum:
    """One quorum, as this process takes part in it.

    Attributes:
        number: torchft's ``quorum_id``.
        replica: torchft's ``replica_id``.
        replica_rank, replicas: of the replica in the quorum, and their number.
        group_rank, group_size: of the process in its replica, and their number.
        members: see `_Latest`; empty: not known.
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
        """From the arguments of ``configure``. None: the group is of no quorum, as one that no ``Manager`` forms."""
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
        """Of the replica's processes in the run."""
        return self.replica_rank * self.group_size

    @property
    def group_name(self) -> str:
        """The text that torchft gives to backends as the name of the group."""
        return f"torchft_quorum_{self.number}_rank_{self.group_rank}"

    @property
    def ranks(self) -> tuple[int, ...]:
        """Of the group across the replicas, in the run."""
        return tuple(range(self.group_rank, self.replicas * self.group_size, self.group_size))

    def run(self, job_id: str) -> dict[str, object]:
        """What identifies this process as a rank of the quorum's run: keys of the ring's meta."""
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
    """Where torchft is installed, which need be neither imported yet nor beside torch; with a trailing separator."""
    with contextlib.suppress(Exception):  # finders and specs of other packages may raise anything
        spec = importlib.util.find_spec("torchft")
        if spec is not None and spec.origin is not None:
            return (f"{Path(spec.origin).parent}/",)
    return ()


def noticing(
    module: ModuleType, creating: Callable[[], None], formed: Callable[..., None], original: Callable[..., Any]
) -> Callable[..., Any]:
    """A method in place of ``ProcessGroupWrapper.configure`` that notices each group that is formed.

    Args:
        module: ``torchft.process_group``.
        creating: is called before, without arguments.
        formed: is called with what `quorum_of` takes, and torch's ``ProcessGroup``. Neither may raise.
    """
    signature = inspect.signature(original)

    def configure(self: Any, *args: Any, **kwargs: Any) -> Any:
        creating()
        result = original(self, *args, **kwargs)
        group = getattr(self, "_pg", None)
        # A wrapper around a group of torchft has passed the call on to that.
        if group is not None and not isinstance(group, module.ProcessGroup):
            formed(signature, (self, *args), kwargs, group)
        return result

    configure.__doc__ = original.__doc__
    return configure


class _Client:
    """torchft's ``ManagerClient``, whose answers are noted: what makes two quorums distinct is passed to no group."""

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
    """What takes the place of ``Manager.__init__``, to notice the Lighthouse's answers."""

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        client = getattr(self, "_client", None)
        if client is not None:
            self._client = _Client(client)

    return init


def quorum_of(signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Quorum | None:
    """Of a call of ``configure`` that has returned."""
    return Quorum.of(signature.bind(*args, **kwargs).arguments)


def job_of(configured: str, env: Mapping[str, str] = os.environ) -> str:
    """What a job's replicas have in common: the name they are given, else their Lighthouse.

    Args:
        configured: what one replica's torchrun or scheduler calls its job, if there is neither.
    """
    if env.get(_OWN_JOB, ""):
        return configured
    lighthouse = urlsplit(env.get(_LIGHTHOUSE, "")).netloc
    return encodable(f"torchft-{lighthouse}") if lighthouse else configured or "torchft"
