"""Finds functions and loops in the source of a program."""

from __future__ import annotations

import ast
import os
import stat
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

MAX_SOURCE: Final = 320 * 1024
"""Largest file that is read: some 8,000 lines, which take 0.3 s and for a moment 25 MB."""
MAX_FILES: Final = 16
"""Most files that are read of one program."""
_STEP: Final = "step"
"""A loop over training steps calls functions with this in their names: ``optimizer.step``, ``train_step``."""

Place = tuple[str, int, str]
"""File, line and function of a frame, as in a ring's call sites."""


@dataclass(slots=True)
class SourceLoop:
    """A loop, from the line of its head to the last line of its body. ``has_steps``: it makes training steps."""

    first: int
    last: int
    has_steps: bool = False


@dataclass(slots=True)
class Function:
    """A function, a class's body or a module.

    Attributes:
        is_paused: True if it may leave the stack before it has ended, and come back (generators, coroutines).
        loops: its loops. Outer loops come before the loops inside them.
        comprehensions: first and last lines of comprehensions, which have no frames from Python 3.12 on.
    """

    name: str
    first: int
    last: int
    is_paused: bool = False
    loops: list[SourceLoop] = field(default_factory=list)
    comprehensions: list[tuple[int, int]] = field(default_factory=list)

    def loops_at(self, line: int) -> list[SourceLoop]:
        """Return the loops that contain the line."""
        return [loop for loop in self.loops if loop.first <= line <= loop.last]

    def repeats(self, line: int) -> bool:
        """Return True if this line may run repeatedly."""
        return bool(self.loops_at(line)) or any(first <= line <= last for first, last in self.comprehensions)


def functions_of(tree: ast.Module) -> list[Function]:
    """Return the module and its functions, in the order in which they begin."""
    module = Function("<module>", 0, sys.maxsize)
    found = [module]
    todo: list[tuple[ast.AST, Function, tuple[SourceLoop, ...]]] = [(node, module, ()) for node in tree.body]
    while todo:
        node, function, loops = todo.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            is_paused = isinstance(node, ast.AsyncFunctionDef)
            function, loops = Function(node.name, node.lineno, node.end_lineno or node.lineno, is_paused), ()
            found.append(function)
        elif isinstance(node, ast.For | ast.AsyncFor | ast.While):
            body = node.body[-1]
            loop = SourceLoop(node.lineno, body.end_lineno or body.lineno)
            function.loops.append(loop)
            todo += [(one, function, loops) for one in node.orelse]
            head = [node.test] if isinstance(node, ast.While) else [node.target, node.iter]
            todo += [(one, function, (*loops, loop)) for one in (*head, *node.body)]
            continue
        elif isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp):
            function.comprehensions.append((node.lineno, node.end_lineno or node.lineno))
        elif isinstance(node, ast.Yield | ast.YieldFrom):
            function.is_paused = True
        elif isinstance(node, ast.Call) and loops and _STEP in _name_of(node.func):
            for loop in loops:
                loop.has_steps = True
        todo += [(one, function, loops) for one in ast.iter_child_nodes(node)]
    for function in found:
        function.loops.sort(key=lambda loop: (loop.first, -loop.last))
    return sorted(found, key=lambda one: one.first)


def _name_of(called: ast.expr) -> str:
    name = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
    return name.lower()


class Sources:
    """The sources of a program. Each is read once.

    Args:
        started: Unix time at which the program started. A file that was changed later is not what the program runs.
    """

    def __init__(self, started: float) -> None:
        self._started = started
        self._known: dict[str, Sequence[Function]] = {}

    def function(self, place: Place) -> Function | None:
        """Return the function that contains this line. None: the source cannot be read, or does not match the frame."""
        file, line, name = place
        functions = self._known.get(file)
        if functions is None:
            if len(self._known) >= MAX_FILES:
                return None
            functions = self._known[file] = self._read(file)
        inner = next((one for one in reversed(functions) if one.first <= line <= one.last), None)
        return inner if inner is not None and inner.name == name else None

    def _read(self, path: str) -> Sequence[Function]:
        if not path.startswith("/"):  # notebooks and generated code
            return ()
        try:
            with open(path, "rb", opener=_opened) as file:
                status = os.fstat(file.fileno())
                is_file = stat.S_ISREG(status.st_mode) and status.st_size <= MAX_SOURCE
                if not is_file or max(status.st_mtime, status.st_ctime) >= self._started:
                    return ()
                return functions_of(ast.parse(file.read(MAX_SOURCE)))
        except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
            return ()


def _opened(path: str, flags: int) -> int:
    """Open a file. If the path is a pipe, do not wait for its other end."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
