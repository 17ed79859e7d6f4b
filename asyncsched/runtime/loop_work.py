"""What may still happen in an event loop. If nothing may, a deadlock is certain; else this says which tasks may end.

Theory of operation. A coroutine goes on when a callback of its loop runs. A callback runs because another one scheduled
it, because a timer fires, because a file or a socket is ready, or because a signal's handler or a thread asks for it.
So if no callback is due, no timer is armed, nothing is watched, and no thread is at work, then no coroutine will ever
go on, whatever it waits for and whoever holds what. Nothing need be known about coroutines, futures or the heap.

The callbacks of the package that only look, and the wake-ups by which idle streams report, do not count. Nor do
handlers of the signals by which a person or a watchdog ends a program, unless they are the loop's. What cannot be seen
counts as something that may happen. One thing is not seen: a thread without a line of Python, as of a library in C or
Rust, that sets a future.

Otherwise `bound` says which asyncio tasks a timer or a thread may end: those that it leads to.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
import threading
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import thread as executors
from functools import partial
from traceback import walk_stack
from typing import Any, Final

from .context import opened
from .holders import awaits_unseen, is_namespace, leads_on, steps_of, variables_of
from .loops import Wakeup
from .threads import running_code, under_way, waits_for_work

# Private names, and the versions that they were tried with. Without one of them, no deadlock is certain.
NAMES: Final = {
    "asyncio": ["_ready", "_scheduled", "_selector", "_ssock", "_signal_handlers"],  # CPython 3.11 to 3.15
    "uvloop": ["deque", "WeakValueDictionary", "TimerHandle", "Handle", "UVPoll"],  # 0.23
    "executors": ["_threads_queues"],  # CPython 3.11 to 3.15
}
# The package's callbacks and handlers that only look at something, and asyncio's that only empties its own wake-up
LOOKING: set[Callable[..., Any]] = {getattr(asyncio.SelectorEventLoop, "_read_from_self", print)}
# Signals by which a person or a watchdog ends a program. (Windows has no SIGALRM.)
_ENDING: Final = {signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGALRM", signal.SIGINT)}
_WORKER: Final = getattr(getattr(executors, "_worker", None), "__code__", None)  # in it an executor's thread waits
_PREFIX: Final = "asyncsched "  # of the names of the package's threads
_FAR: Final = 3  # a timer or a thread leads to a task through fewer objects than this, `_PLAIN` ones not counted
_MOST: Final = 100_000  # objects looked at
_WAKES: Final = (types.BuiltinMethodType, asyncio.Future)
_PLAIN: Final = (
    list, tuple, dict, set, frozenset, deque, partial, types.MethodType, types.BuiltinMethodType, types.FunctionType,
    types.CellType, types.CoroutineType, types.GeneratorType, types.AsyncGeneratorType, asyncio.Future, asyncio.Handle,
)  # fmt: skip


def work_of(loop: Any) -> tuple[list[Any], list[Any], bool] | None:
    """What a loop will do: callbacks that are due, armed timers, and whether it watches anything. Without callbacks in
    `LOOKING` and the streams' wake-ups. None if the loop does not show these."""
    try:
        due, timers, watches = (_of_uvloop if type(loop).__module__ == "uvloop" else _of_asyncio)(loop)
    except (AttributeError, ValueError):
        return None
    armed = [timer for timer in list(timers) if not (timer.cancelled() or _only_looks(timer))]
    return [one for one in list(due) if not _only_looks(one)], armed, watches


def may_happen(loop: asyncio.AbstractEventLoop) -> str | None:
    """What may still happen in a loop, in words; None if nothing may. Call it in a callback of that loop."""
    work = work_of(loop)
    if work is None:
        return f"the event loop, a {type(loop).__name__}, does not show what is left in it"
    if any(one.ledger.in_flight or one.completions.items for one in opened() if one.loop is loop) or under_way:
        return "streams are at work"
    due, timers, watches = work
    if due:
        return "callbacks of the event loop are due"
    if timers:
        soonest = min([timer.when() for timer in timers])
        return f"a timer of the event loop fires in {max(0.0, soonest - loop.time()):.3g} s"
    if watches:
        return "the event loop watches a socket, a file, a signal or another program"
    return next(_actors(loop), None)


def _actors(loop: asyncio.AbstractEventLoop) -> Iterator[str]:
    """Who may act on a loop in which nothing is left, in words."""
    for number in signal.valid_signals() - _ENDING:
        handler = signal.getsignal(number)
        if callable(handler) and handler not in LOOKING:
            yield f"the program handles the signal {number}"
    for what, _ in foreign_threads(threading.get_ident()):
        yield f"{what} may act"
    parked = {waiter for one in opened() if one.loop is loop for waiter, _ in one.parked.values()}
    for task in asyncio.all_tasks(loop) - parked:
        if awaits_unseen(task):  # such as libuv's look-up of a host's name
            yield f"the task {task.get_name()!r} waits for something that is not seen"


def bound(loop: asyncio.AbstractEventLoop, thread: int) -> set[asyncio.Task[Any]]:
    """The asyncio tasks that a timer or another thread may end, or wake to end them; all if that is not known: the loop
    shows no timers, or they lead to too much.

    A timer leads to a task by its callback: through methods, variables, containers, and at most two other objects. Then
    it may end the task, and who awaits that. A future wakes the task that awaits it, as after a sleep: this leads on to
    what the task holds, as a watchdog does; but not to a group of tasks, which others end only by an error.

    Args:
        thread: the number of the loop's thread. This may be called on another one.
    """
    work = work_of(loop)
    if work is None:
        return asyncio.all_tasks(loop)
    found, seen = set[asyncio.Task[Any]](), dict[int, int]()
    todo = deque([(part, _FAR, True) for one in work[0] + work[1] for part in gc.get_referents(one)])
    for _, frames in foreign_threads(thread):
        todo += [(held, _FAR, True) for frame in frames for _, held in variables_of(frame)]
    while todo and len(seen) < _MOST:
        one, far, ends = todo.popleft()
        kind = type(one)  # not `isinstance`, which asks the object, and that may be any object
        if kind is types.FrameType or is_namespace(one) or not leads_on(kind):
            continue
        far -= not issubclass(kind, _PLAIN)
        if 2 * far + ends <= seen.get(id(one), 1) or (kind is asyncio.TaskGroup and not ends):
            continue
        seen[id(one)] = 2 * far + ends
        if issubclass(kind, asyncio.Task):
            found.add(one)
            todo += [(part, far, ends) for step in steps_of(one) for part in gc.get_referents(step)]
            todo += [(callback, far, True) for callback, _ in (one._callbacks if ends else None) or ()]
        else:
            for part in filter(gc.is_tracked, gc.get_referents(one)):  # the others lead nowhere
                # A task's method wakes it. So does a future: from Python 3.14 on it refers to the task that awaits it
                wakes = issubclass(kind, _WAKES) and issubclass(type(part), asyncio.Task)
                todo.append((part, 2, False) if wakes else (part, far, ends))
    return asyncio.all_tasks(loop) if todo else found


def foreign_threads(loops: int) -> Iterator[tuple[str, list[types.FrameType]]]:
    """The threads that may be at work for a loop, in words, without this one and the loop's own, whose number is given.
    Each with its frames, the innermost first."""
    here = {loops, threading.get_ident()}
    # First who is there: a thread that gives work to an idle one and then ends counts as at work
    threads = {thread.ident: thread for thread in threading.enumerate() if thread.ident not in here}
    tops = {number: top for number, top in sys._current_frames().items() if number not in here}
    for number in tops.keys() | threads.keys():
        thread, top = threads.get(number), tops.get(number or 0)
        frames = [] if top is None else [frame for frame, _ in walk_stack(top)]
        if not (waits_for_work(number) or _is_idle(thread, frames)):
            yield ("a thread" if thread is None else f"the thread {thread.name!r}"), frames


def _is_idle(thread: threading.Thread | None, frames: list[types.FrameType]) -> bool:
    """Whether a thread ends, since `threading` no longer lists it; or is the package's own; or an executor's that waits
    for work."""
    if thread is None:
        return frames[-1].f_code.co_filename == threading.__file__
    if thread.name.startswith(_PREFIX) and thread not in running_code:
        return True
    queues = getattr(executors, NAMES["executors"][0], {})
    return thread in queues and queues[thread].empty() and bool(frames) and frames[0].f_code is _WORKER


def _of_asyncio(loop: Any) -> tuple[Iterable[Any], Iterable[Any], bool]:
    due, timers, selector, wakeup, handlers = NAMES["asyncio"]
    watches = type(loop) is not asyncio.SelectorEventLoop
    if not watches:
        own = getattr(loop, wakeup).fileno()
        keys = [key for key in list(getattr(loop, selector).get_map().values()) if key.fd != own]
        watches = bool(getattr(loop, handlers)) or not all(_is_wakeup(key.data) for key in keys)
    return getattr(loop, due), getattr(loop, timers), watches


def _of_uvloop(loop: Any) -> tuple[Iterable[Any], Iterable[Any], bool]:
    """uvloop has no attributes for these. But the garbage collector sees them: each is a container of its own kind."""
    due, transports, timer, callback, poll = NAMES["uvloop"]
    parts = {id(part): part for part in gc.get_referents(loop)}.values()
    (ready,) = [part for part in parts if type(part).__name__ == due]
    (open_,) = [part for part in parts if type(part).__name__ == transports]
    found = [one for part in parts if type(part) is set for one in list(part) if type(one) is not int]
    timers = [one for one in found if type(one).__name__ == timer]
    watches = bool(open_) or len(found) > len(timers)  # servers, other programs, streams that write
    for one in [one for part in parts if type(part) is dict for one in list(part.values())]:
        handles = [part for part in gc.get_referents(one) if type(part).__name__ == callback]
        # The poll of uvloop's own wake-up has a handle that calls no Python function
        only_wakes = type(one).__name__ == poll and handles and _is_wakeup(handles, "loop")
        watches = watches or not (only_wakes or type(one).__name__ in ("int", "socket"))
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
