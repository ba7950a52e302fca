"""The threads that issue calls, as the ring knows them.

A thread's ident is used again once it has ended, so what is known of a thread is kept in the thread itself.
"""

from __future__ import annotations

import threading

from otel_fr.capture.writers import Writer


class Here(threading.local):
    """What is known of the current thread.

    Attributes:
        known: generation of the ring's definitions, and the thread's reference in it.
    """

    known = (0, 0)


class Threads:
    """Defines threads in the ring. The caller holds the recorder's lock.

    Attributes:
        here: of the current thread.
    """

    def __init__(self, writer: Writer) -> None:
        self.here = Here()
        self._writer = writer

    def reference(self) -> int:
        """The current thread's reference in this generation. May start a generation."""
        writer = self._writer
        generation, ref = self.here.known
        if generation == writer.generation:
            return ref
        thread = threading.current_thread()
        ident = threading.get_ident()
        if isinstance(thread, threading._DummyThread):
            # A thread of C++, which may have a new state in Python at each call. Python names it by its ident, too.
            ref = writer.threads.get(ident) or writer.define_thread(ident, thread.name)
        else:
            ref = writer.define_thread(ident, thread.name)
            writer.threads.pop(ident, None)
        self.here.known = (writer.generation, ref)
        return ref
