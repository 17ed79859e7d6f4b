"""Whether anything is left to happen in an event loop: the proof of a deadlock that needs no guess.

Theory of operation. A coroutine goes on when a callback of its loop runs. A callback runs because another one scheduled
it, because a timer fires, because a file or a socket is ready, or because a signal's handler or a thread asks for it.
So if no callback is due, no timer is armed, nothing is watched, and no thread is at work, then no coroutine will ever
go on, whatever it waits for and whoever holds what. Nothing need be known about coroutines, futures or the heap.

The callbacks of the package that only look, and the wake-ups by which idle streams report, do not count. Nor do
handlers of the signals by which a person or a watchdog ends a program, unless they are the loop's. What cannot be seen
counts as something that may happen. One thing is not seen: a thread without a line of Python, as of a library in C or
Rust, that sets a future.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import thread as executors
from typing import Any, Final, NamedTuple

from .awaiting import awaits_unseen
from .context import opened
from .threads import running_code, under_way, waits_for_work
from .wakeup import Wakeup

# Private names of asyncio (tried with CPython 3.11) and uvloop (0.23). Without one of them, no deadlock is certain.
NAMES: Final[dict[str, str]] = {
    "asyncio: callbacks that are due": "_ready",
    "asyncio: timers": "_scheduled",
    "asyncio: what watches files": "_selector",
    "asyncio: the end of its own wake-up": "_ssock",
    "asyncio: handlers of signals": "_signal_handlers",
    "uvloop: callbacks that are due": "deque",
    "uvloop: transports": "WeakValueDictionary",
    "uvloop: a timer": "TimerHandle",
    "uvloop: a callback": "Handle",
    "uvloop: a watched file": "UVPoll",
    "executors: queues of their threads": "_threads_queues",
    "tasks: what they wait for": "_fut_waiter",
}
LOOKING: set[Callable[..., Any]] = set()  # the package's callbacks and handlers that only look
# Signals by which a person or a watchdog ends a program. (Windows has no SIGALRM.)
_ENDING: Final = {signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGALRM", signal.SIGINT)}
_PREFIX: Final = "asyncsched "  # of the names of the package's threads


class Work(NamedTuple):
    """What a loop shows: callbacks that are due, armed timers, and whether it watches anything else."""

    due: list[Any]
    timers: list[Any]
    watches: bool


def work_of(loop: Any) -> Work | None:
    """What a loop will do, without what only looks. None if it does not show that. On the loop's thread."""
    name = f"{type(loop).__module__}.{type(loop).__qualname__}"
    try:
        if name == "asyncio.unix_events._UnixSelectorEventLoop":
            due, timers, watches = _of_asyncio(loop)
        elif name == "uvloop.Loop":
            due, timers, watches = _of_uvloop(loop)
        else:
            return None
    except (AttributeError, ValueError):
        return None
    armed = [timer for timer in timers if not (timer.cancelled() or _only_looks(timer))]
    return Work([one for one in due if not _only_looks(one)], armed, watches)


def may_happen(loop: asyncio.AbstractEventLoop, work: Work | None) -> str | None:
    """What may still happen in a loop that shows this work, in words; None if nothing may. In its callback."""
    if work is None:
        return f"the event loop, a {type(loop).__name__}, does not show what is left in it"
    if any(one.ledger.in_flight or one.completions.items for one in opened() if one.loop is loop) or under_way:
        return "streams are at work"
    if work.due:
        return "callbacks of the event loop are due"
    if work.timers:
        return f"a timer of the event loop fires in {max(0.0, min(_when(work.timers)) - loop.time()):.3g} s"
    if work.watches:
        return "the event loop watches a socket, a file, a signal or another program"
    return _handler() or _thread_at_work() or _unseen(loop)


def _when(timers: list[Any]) -> Iterable[float]:
    return (timer.when() for timer in timers)


def foreign_threads() -> Iterable[threading.Thread]:
    """The threads that may be at work for a loop that runs on this one."""
    for thread in threading.enumerate():
        idle = waits_for_work(thread.ident) or thread.ident == threading.get_ident() or _is_idle_worker(thread)
        if not (idle or (thread.name.startswith(_PREFIX) and thread not in running_code)):
            yield thread


def _thread_at_work() -> str | None:
    for thread in foreign_threads():
        return f"the thread {thread.name!r} may act"
    known = {thread.ident for thread in threading.enumerate()}
    return "a thread may act" if sys._current_frames().keys() - known else None


def _is_idle_worker(thread: threading.Thread) -> bool:
    """Whether it is the thread of an executor that waits for work."""
    queues = getattr(executors, NAMES["executors: queues of their threads"], {})
    frame = sys._current_frames().get(thread.ident or 0)
    return thread in queues and queues[thread].empty() and frame is not None and frame.f_code is _WORKER


_WORKER: Final = executors._worker.__code__  # in it a thread waits for work


def _handler() -> str | None:
    for number in signal.valid_signals() - _ENDING:
        handler = signal.getsignal(number)
        if callable(handler) and handler not in LOOKING:
            return f"the program handles the signal {number}"
    return None


def _unseen(loop: asyncio.AbstractEventLoop) -> str | None:
    """A task that waits for what Python does not see, such as libuv's look-up of a host's name."""
    for task in asyncio.all_tasks(loop):
        if task is not asyncio.current_task(loop) and awaits_unseen(task):
            return f"the task {task.get_name()!r} waits for something that is not seen"
    return None


def _of_asyncio(loop: Any) -> tuple[Iterable[Any], Iterable[Any], bool]:
    due, timers, selector, wakeup, handlers = [
        getattr(loop, name) for what, name in NAMES.items() if what.startswith("asyncio")
    ]
    keys = [key for key in selector.get_map().values() if key.fd != wakeup.fileno()]
    return due, timers, bool(handlers) or not all(_is_wakeup(key.data) for key in keys)


def _of_uvloop(loop: Any) -> tuple[Iterable[Any], Iterable[Any], bool]:
    """uvloop has no attributes for these. But the garbage collector sees them: each is a container of its own kind."""
    due, transports, timer, callback, poll = [name for what, name in NAMES.items() if what.startswith("uvloop")]
    parts = {id(part): part for part in gc.get_referents(loop)}.values()
    (ready,) = [part for part in parts if type(part).__name__ == due]
    (open_,) = [part for part in parts if type(part).__name__ == transports]
    found = [one for part in parts if type(part) is set for one in part if type(one) is not int]
    timers = [one for one in found if type(one).__name__ == timer]
    watches = bool(open_) or len(found) > len(timers)  # servers, other programs, streams that write
    for one in [one for part in parts if type(part) is dict for one in part.values()]:
        kind = type(one).__name__
        if kind == poll:
            handles = [part for part in gc.get_referents(one) if type(part).__name__ == callback]
            # The poll of uvloop's own wake-up has a handle without a function
            watches = watches or not (handles and all(_is_wakeup([handle], "loop") for handle in handles))
        else:
            watches = watches or kind not in ("int", "socket")
    return ready, timers, watches


def _is_wakeup(handles: Iterable[Any], also: str = "") -> bool:
    """Whether these handles of a watched file are those of a stream's wake-up (or, for uvloop, of its own)."""
    called = [part for handle in handles if handle is not None for part in _called(handle)]
    return all(isinstance(getattr(part, "__self__", None), Wakeup) for part in called) and bool(called or also)


def _called(handle: Any) -> list[Any]:
    """The function that a handle calls. (uvloop's have no attribute for it.)"""
    return [part for part in gc.get_referents(handle) if callable(part) and not isinstance(part, type)]


def _only_looks(handle: Any) -> bool:
    return any(getattr(part, "__func__", part) in LOOKING for part in _called(handle))
