"""Threads that are kept for the next scheduler, and their turns at compiling a kernel.

CuPy makes a cuBLAS handle for each thread that multiplies matrices, and the handle takes a workspace on the device,
beside all pools. It goes with its thread, but that takes a while, and making one blocks. So a thread whose work has
ended waits for more work of the same name. A program that opens one scheduler after the other thus has as many threads
and handles as one scheduler needs. A thread that still runs a body is never shared.

These threads do not disturb captures. While a thread of the program captures a graph in CUDA's global mode, which is
PyTorch's default, other threads may not allocate memory or query events: CUDA refuses it, and spoils the capture.
Threads in relaxed mode may, so these threads are relaxed.

A new kernel is compiled once, though several threads meet it at the same time: they take turns at its first run. Each
kernel has a turn of its own, since compiling takes up to seconds. The thread whose turn it is ends it before it waits
for the device. Then another thread may compile the kernel, too, which costs time and nothing else.

CUDA ends with the process, and a thread that calls it then dies of a signal. So the interpreter's end waits a moment
for these threads, unless they rest.
"""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator
from queue import SimpleQueue
from typing import Final, ParamSpec, TypeVar

from ..._blocks import contextmanager
from ..._system import start
from ..contract import wait_at_exit
from . import driver

P = ParamSpec("P")
R = TypeVar("R")
_idle: defaultdict[str, list[_Kept]] = defaultdict(list)
_turns: dict[Hashable, threading.Event] = {}  # of kernels that a thread runs for the first time just now
_mine = threading.local()
_busy: Final = set[threading.Thread]()  # those that may call CUDA
if hasattr(os, "register_at_fork"):
    # a child of a fork has none of them
    os.register_at_fork(after_in_child=_idle.clear)
    os.register_at_fork(after_in_child=_busy.clear)


def run(work: Callable[[], None], name: str) -> None:
    """Run something on a thread of this name: one that is kept, or a new one."""
    try:
        kept = _idle[name].pop()
    except IndexError:
        kept = _Kept(name)
    kept.give(work)


def prepare(names: Iterable[str]) -> None:
    """Have a thread ready for each of these names: afterwards `run` does not fail for want of threads.

    Raises:
        RuntimeError: if the system has none left. Those that were started are kept.
    """
    for name in names:
        if not _idle[name]:
            _idle[name].append(_Kept(name))


def resting(wait: Callable[P, R], *args: P.args, **options: P.kwargs) -> R:
    """Call something, on one of these threads, that may wait for ever and does not call CUDA."""
    thread = threading.current_thread()
    _busy.discard(thread)
    try:
        return wait(*args, **options)
    finally:
        _busy.add(thread)


def leave() -> None:
    """Wait until all threads rest, or are idle. Called when the interpreter is about to end."""
    wait_at_exit(lambda: _busy)


class _Kept(threading.Thread):
    """A thread that is kept, and started where it is made."""

    def __init__(self, what: str) -> None:
        super().__init__(name=f"idle, for {what}", daemon=True)  # one that was prepared may never be needed
        self._what = what
        self._work: SimpleQueue[Callable[[], None]] = SimpleQueue()
        start(self)

    def give(self, work: Callable[[], None]) -> None:
        self.name = self._what
        _busy.add(self)
        self._work.put(work)

    def run(self) -> None:
        driver.mind_no_captures()
        while True:
            work = self._work.get()
            work()
            del work
            _busy.discard(self)
            self.name = f"idle, was {self._what}"
            _idle[self._what].append(self)


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
