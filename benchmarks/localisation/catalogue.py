"""The programs of the benchmark and their truths. Each file of ``programs/`` has its truth in ``TRUTH``."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

PROGRAMS = Path(__file__).with_name("programs")
NEEDS_A_DEVICE = ("device", "simulated device")


@dataclass(frozen=True)
class Program:
    """One job.

    Attributes:
        name: of the file, or of a made-up job. kind: of the fault; "healthy": none.
        culprits: each of these sets of ranks is right, and no other; empty: nobody is at fault.
        world: number of ranks. needs: "device": the fault does not exist on a CPU. "simulated device": the simulated
            device makes the fault. "values": it branches on computed values, which are arbitrary on the simulated
            device. "plain start": the program finds its processes by their environment.
        is_timed: a tool's answer may depend on devices' times.
        script, arguments: torchrun's command.
    """

    name: str
    kind: str
    culprits: tuple[frozenset[int], ...]
    world: int
    script: Path
    needs: str = ""
    is_timed: bool = False
    arguments: tuple[str, ...] = ()

    @property
    def is_healthy(self) -> bool:
        return not self.culprits

    def runs_on(self, backend: str) -> bool:
        return self.needs not in NEEDS_A_DEVICE if backend == "gloo" else self.needs != "values"


def read(path: Path) -> list[Program]:
    """Return the program of a file, and the same with more ranks if its truth holds for them. The file is not executed.

    Raises:
        ValueError: the file has no ``TRUTH``.
    """
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "TRUTH":
            truth = ast.literal_eval(node.value)
            culprits, larger = tuple(map(frozenset, truth.pop("culprits"))), truth.pop("larger", None)
            own = Program(name=path.stem, script=path, culprits=culprits, **truth)
            return [own, *([replace(own, name=f"{path.stem}-{larger}", world=larger)] if larger else [])]
    raise ValueError(f"{path}: no TRUTH")


def catalogue(names: Iterable[str] = ()) -> list[Program]:
    """Return the programs, faults first. ``names``: only these; empty: all."""
    wanted = set(names)
    found = [one for path in sorted(PROGRAMS.glob("*.py")) for one in read(path) if not wanted or one.name in wanted]
    if missing := wanted - {program.name for program in found}:
        raise ValueError(f"no such program: {', '.join(sorted(missing))}")
    return sorted(found, key=lambda program: program.is_healthy)
