"""A lock that is free again when a signal's exception comes as it is taken.

Python 3.14 handles signals between a lock's `__enter__` and the block, so that Ctrl-C leaves the lock taken for good:
nobody who asks for it later goes on. (A loop of `with lock: pass` under a timer left it so in half of all interrupts;
3.11, 3.13 and 3.15 in none; but on 3.15 a profiler's exception comes there, too.) Where `__enter__` is written in
Python, it does not handle them there. `__exit__` stays C's, which nothing interrupts before the lock is free.
"""

from __future__ import annotations

import sys
from _thread import RLock


class InterruptibleLock(RLock):  # type: ignore[misc]  # C allows it, in every version
    """It knows whether this thread has it, also where nobody could note that it was acquired."""

    def __enter__(self) -> bool:  # type: ignore[override]  # `with` gives it no arguments
        try:
            return self.acquire()
        except BaseException:
            if self._is_owned():  # type: ignore[attr-defined]  # as `threading.Condition` asks
                self.release()
            raise


Lock = InterruptibleLock if sys.version_info >= (3, 14) else RLock
