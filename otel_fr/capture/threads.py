"""Defines the threads that enqueue calls in the ring.

A thread's ident may be reused once the thread has ended, so each thread's reference is kept in the thread itself.
"""

from __future__ import annotations

import threading

from otel_fr.capture.writers import Writer


class Here(threading.local):
    """The current thread's definition in the ring.

    Attributes:
        known: a generation of the ring's definitions, and the thread's reference in this generation.
    """

    known = (0, 0)


class Threads:
    """Defines threads in the ring. The caller holds the recorder's lock.

    Attributes:
        here: the definition of the current thread.
    """

    def __init__(self, writer: Writer) -> None:
        self.here = Here()
        self._writer = writer

    def reference(self) -> int:
        """Return the current thread's reference in this generation. May start a new generation."""
        writer = self._writer
        generation, ref = self.here.known
        if generation == writer.generation:
            return ref
        thread = threading.current_thread()
        ident = threading.get_ident()
        if isinstance(thread, threading._DummyThread):
            # A C++ thread may have a new Python thread state at each call. Its Python name also depends on its ident.
            ref = writer.threads.get(ident) or writer.define_thread(ident, thread.name)
        else:
            ref = writer.define_thread(ident, thread.name)
            writer.threads.pop(ident, None)
        self.here.known = (writer.generation, ref)
        return ref
