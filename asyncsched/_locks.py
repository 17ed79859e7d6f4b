"""A lock that is released again if a signal's exception comes while it is being acquired.

Python 3.14 handles signals between a lock's `__enter__` and the block, so that Ctrl-C may leave the lock acquired for
good: every later caller waits for ever. (In a loop of `with lock: pass` under a timer, half of all interrupts left it
so; with 3.11, 3.13 and 3.15 none did; but on 3.15 a profiler's exception comes there, too.) With an `__enter__` written
in Python, signals are not handled there. `__exit__` stays in C, where nothing interrupts before the lock is free.
"""

from __future__ import annotations

import sys
from _thread import RLock


class InterruptibleLock(RLock):  # type: ignore[misc]  # C allows it, in every version
    """A lock that knows whether this thread has it, even if the caller could not note that it was acquired."""

    def __enter__(self) -> bool:  # type: ignore[override]  # `with` passes no arguments
        try:
            return self.acquire()
        except BaseException:
            if self._is_owned():  # type: ignore[attr-defined]  # as `threading.Condition` asks
                self.release()
            raise


Lock = InterruptibleLock if sys.version_info >= (3, 14) else RLock
