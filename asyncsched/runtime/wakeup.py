"""How any thread has the event loop take in what ended: by a file descriptor of our own, where there are such.

Theory of operation. `loop.call_soon_threadsafe` works everywhere and is expensive: it makes a handle, writes a byte to
a socket of the loop's, and asyncio reads that socket until an exception says that it is empty. On Linux, with a loop
that supports `add_reader`, the loop watches an `eventfd` of ours instead: one write, one read, and the reader is the
callback. (That spared a tenth of a hop to a stream and back on asyncio, and little on uvloop.)

Ownership. The loop holds the `Wakeup` while it watches, and so does a thread while it wakes the loop. The descriptor is
closed with the last reference, so no thread writes to a descriptor whose number was given to another file. The
scheduler is held by a weak reference alone, so that an abandoned one can be collected; then the loop stops watching.

A child of a fork shares the counter with its parent, and what the parent's loop watches, too. So it writes nothing,
and takes nothing out: see `forget`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import weakref
from collections.abc import Callable
from typing import Protocol


class Wakes(Protocol):
    """What is called on its loop's thread."""

    loop: asyncio.AbstractEventLoop | None

    def on_wake(self) -> None: ...


def plain_wakeup(target: Wakes) -> Callable[[], None]:
    """Has `target.on_wake()` called by `call_soon_threadsafe`, when it is called itself, on any thread.

    It holds the target by a weak reference alone.
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
    except BaseException:  # a signal's, perhaps: what is left undone is done if the loop goes on
        plain_wakeup(target)()  # another: one that held itself would be a cycle for the collector
        raise


class Wakeup:
    """Has `target.on_wake()` called on the running loop's thread, soon after it was called itself, on any thread.

    Raises:
        NotImplementedError, OSError: where there are no event counters or none is left, or the loop watches no files.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, target: Wakes) -> None:
        self._fd = -1
        if not hasattr(os, "eventfd"):
            raise NotImplementedError
        self._loop: asyncio.AbstractEventLoop | None = loop
        self._thread = threading.get_ident()
        self._target: Callable[[], Wakes | None] = weakref.ref(target, lambda _: self._stop_soon())
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
        except BaseException:  # a signal's, perhaps: what is left undone is done if the loop goes on
            self()
            raise

    def stop(self) -> None:
        """Call the target no more. On any thread."""
        if threading.get_ident() != self._thread:
            self._stop_soon()
            return
        self._target = _nobody
        self._unwatch()

    def forget(self) -> None:
        """This is the child of a fork: leave all of it to the parent."""
        self._loop = None

    def _stop_soon(self) -> None:
        """Like `stop`, but on any thread and in the middle of anything."""
        self._target = _nobody  # breaks a cycle: the weak reference holds its callback, and that holds this
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: it watches nothing
                self._loop.call_soon_threadsafe(self._unwatch)

    def _unwatch(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._fd)

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)


def _nobody() -> None:
    return None
