"""Threads that are kept for the next scheduler.

CuPy makes a cuBLAS handle for each thread that multiplies matrices, and the handle takes memory of the device to work
in, beside all pools. It goes with its thread, but that takes a while, and making one blocks. So a thread whose work
has ended waits for more of the same name: whoever opens one scheduler after the other has as many threads and handles
as one needs. A thread that still runs a body has not ended its work, and so is never shared.

They mind nobody's captures. Where a thread of the program captures a graph in CUDA's global mode, as PyTorch does
unless told otherwise, CUDA refuses all other threads to take memory or to ask for events, and spoils the capture if
they do: but for those that said they are relaxed.
"""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Callable
from queue import SimpleQueue

from . import driver

_idle: defaultdict[str, list[_Kept]] = defaultdict(list)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_idle.clear)  # none of them is there


def run(work: Callable[[], None], name: str) -> None:
    """Run something on a thread of this name: one that is kept, or a new one."""
    try:
        kept = _idle[name].pop()
    except IndexError:
        kept = _Kept(name)
        kept.start()
    kept.give(work)


class _Kept(threading.Thread):
    def __init__(self, what: str) -> None:
        super().__init__(name=what, daemon=True)
        self._what = what
        self._work: SimpleQueue[Callable[[], None]] = SimpleQueue()

    def give(self, work: Callable[[], None]) -> None:
        self.name = self._what
        self._work.put(work)

    def run(self) -> None:
        driver.mind_no_captures()
        while True:
            work = self._work.get()
            work()
            del work
            self.name = f"idle, was {self._what}"
            _idle[self._what].append(self)
