"""The wake-up by which any thread makes the event loop take in completions: an event counter, if the system has any.

Theory of operation. `loop.call_soon_threadsafe` works everywhere and is expensive: it makes a handle and writes a byte
to a socket of the loop, and asyncio reads that socket until an exception says that it is empty. On Linux, with a loop
that supports `add_reader`, the loop watches an `eventfd` of ours instead: one write, one read, and the reader is the
callback. (On asyncio this saves a tenth of a hop to a stream and back; on uvloop little.)

Ownership. The loop holds the `Wakeup` while it watches, and a thread holds it while it wakes the loop. The descriptor
is closed with the last reference, so no thread writes to a descriptor whose number belongs to another file by then. The
`Wakeup` holds the scheduler only by a weak reference, so that an abandoned scheduler can be collected. Then the loop
stops watching.

The child of a fork shares the counter with its parent, and the parent's loop watches it. So the child neither writes
nor reads: see `forget`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import weakref
from collections.abc import Callable
from typing import Protocol

from .._interrupts import finaliser


class Wakes(Protocol):
    """The target of a wake-up: `on_wake` is called on its loop's thread."""

    loop: asyncio.AbstractEventLoop | None

    def on_wake(self) -> None: ...


def plain_wakeup(target: Wakes) -> Callable[[], None]:
    """A function that schedules `target.on_wake()` by `call_soon_threadsafe`. It may be called on any thread.

    It holds the target only by a weak reference.
    """
    reference = weakref.ref(target)

    def wake() -> None:
        target = reference()
        if target is not None and target.loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to wake
                target.loop.call_soon_threadsafe(_on_wake, target)

    return wake


def _on_wake(target: Wakes) -> None:
    try:
        target.on_wake()
    except BaseException:  # perhaps a signal's: the remaining work is done if the loop goes on
        plain_wakeup(target)()  # a new one, since one that held itself would be a cycle for the collector
        raise


class Wakeup:
    """Schedules `target.on_wake()` on the running loop's thread. It may be called on any thread.

    Raises:
        NotImplementedError, OSError: there are no event counters or none is left, or the loop watches no files.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, target: Wakes) -> None:
        self._fd = -1
        if not hasattr(os, "eventfd"):
            raise NotImplementedError
        self._loop: asyncio.AbstractEventLoop | None = loop
        self._target: Callable[[], Wakes | None] = weakref.ref(target, self.stop)
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        loop.add_reader(self._fd, self._read)

    def __call__(self) -> None:
        if self._loop is not None:
            os.eventfd_write(self._fd, 1)

    def _read(self) -> None:
        try:
            try:  # noqa: SIM105  # `suppress` takes longer than the rest of this
                os.eventfd_read(self._fd)
            except BlockingIOError:
                pass
            target = self._target()
            if target is not None:
                target.on_wake()
        except BaseException:  # perhaps a signal's: the remaining work is done if the loop goes on
            self()
            raise

    def forget(self) -> None:
        """Leave everything to the parent: this is the child of a fork."""
        self._loop = None

    @finaliser()
    def stop(self, _: object = None) -> None:
        """Stop calling the target. On any thread, and in the middle of anything."""
        self._target = lambda: None  # breaks a cycle: the weak reference holds its callback, which holds this object
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: it watches nothing
                self._loop.call_soon_threadsafe(self._unwatch)

    def _unwatch(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._fd)

    @finaliser()
    def __del__(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
