"""A new kernel is compiled once, though several threads meet it at the same time: they take turns at its first run.

Each kernel has a turn of its own, since compiling takes up to seconds. The thread whose turn it is ends it before it
waits for the device. Then another thread may compile the kernel, too, which costs time and nothing else.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator

from ..._blocks import contextmanager

_turns: dict[Hashable, threading.Event] = {}  # of kernels that a thread runs for the first time just now
_mine = threading.local()


@contextmanager
def first_run(kernel: Hashable) -> Iterator[None]:
    """Inside, no other thread runs this kernel for the first time, until `end_turn`."""
    turn = threading.Event()
    while (other := _turns.setdefault(kernel, turn)) is not turn:
        other.wait()
    _mine.kernel = kernel
    try:
        yield
    finally:
        end_turn()


def end_turn() -> None:
    """Let others run the kernel that this thread runs for the first time, if it does. Called before a wait."""
    kernel = getattr(_mine, "kernel", None)
    if kernel is not None:
        _mine.kernel = None
        _turns.pop(kernel).set()
