"""Streams and the end of the interpreter: they end before it does, unless their bodies take long.

A process that ends its BLAS while a thread is in it crashes or hangs: OpenBLAS waits for threads of its own, and a
product that begins meanwhile has one of them forget that it was to end. Streams are daemons, which Python does not wait
for, so what ran when a program gave up on it could keep it from ending.
"""

from __future__ import annotations

import atexit
from threading import Thread
from time import monotonic
from typing import Final, Protocol
from weakref import WeakSet

_SECONDS: Final = 2.0  # that the interpreter waits for bodies at most: a guess
_LOOK: Final = 0.01  # seconds between two looks whether any runs


class Stream(Protocol):
    """A stream, as the end sees it."""

    worker: Thread

    def leave(self) -> None:
        """Begin nothing more."""

    def computes(self) -> bool:
        """Whether its thread is about to end, or to go on, and not waiting for what may never come."""


streams: Final[WeakSet[Stream]] = WeakSet()  # of host memory, for as long as their threads run, which hold them


@atexit.register
def _leave() -> None:
    until, left = monotonic() + _SECONDS, [stream for stream in streams if stream.worker.is_alive()]
    for stream in left:
        stream.leave()
    while (busy := [stream for stream in left if stream.computes()]) and monotonic() < until:
        busy[0].worker.join(_LOOK)
