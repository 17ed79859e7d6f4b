"""Interrupts: exceptions that signals raise, as Ctrl-C does. They are not lost in a finaliser, and leave locks free.

Python handles signals where it enters a function, and after it has called one that is written in C.

*Finalisers.* They are entered, too: `__del__`, the callbacks of weak references, hooks. What is raised there, Python
drops: it calls `sys.unraisablehook` and goes on, as if nobody had pressed Ctrl-C. No line of a finaliser can catch what
comes as it is entered. So those of the package are marked (`finaliser`), and written so that they may be called again.
This hook does so, or their bytes would stay charged for ever. Then it has the interrupt raised again at the next line
that is in no finaliser. So it does for the `__del__` and the generators of others: a collection ends their objects and
ours together, and an interrupt that came meanwhile is raised in the first. The hook that was set before is told of all
the rest.

Alternatives. A handler that waits while a protected function runs, as trio's: notebooks and `asyncio.run` set their
own, which do not wait. Sending the signal again: a handler may count how often Ctrl-C was pressed.

*Locks.* Python 3.14 handles signals between a lock's `__enter__` and the block, so that Ctrl-C may leave the lock
acquired for good: every later caller waits for ever. (In a loop of `with lock: pass` under a timer, half of all
interrupts left it so; with 3.11, 3.13 and 3.15 none did; but on 3.15 a profiler's exception comes there, too.) With an
`__enter__` written in Python, signals are not handled there. `__exit__` stays in C, where nothing interrupts before the
lock is free.
"""

from __future__ import annotations

import ctypes
import sys
from _thread import RLock, get_ident
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from traceback import clear_frames
from types import CodeType
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary, ref

F = TypeVar("F", bound=Callable[..., Any])

# Raises an exception of a class in a thread, at the next place where Python looks for signals.
_raise_in = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_ulong, ctypes.py_object)(
    ("PyThreadState_SetAsyncExc", ctypes.pythonapi)
)

# The finalisers by their code, each with what to call if some of its lines have run.
_finalisers: Final[dict[CodeType, tuple[Callable[..., Any], Callable[..., Any]]]] = {}
_GENERATORS: Final = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR  # one that is dropped runs its `finally`
_at_the_end: Final[list[Any]] = []  # a weak reference whose callback raises an exception again


def finaliser(rest: Callable[..., Any] | None = None) -> Callable[[F], F]:
    """Mark a function that Python calls as an object ends: an interrupt is raised again after it, and not lost in it.

    Args:
        rest: called with the function and its arguments if some of its lines had run. By default it calls it again.
    """

    def mark(function: F) -> F:
        _finalisers[function.__code__] = function, function if rest is None else partial(rest, function)
        return function

    return mark


_container: Any
for _container in (WeakSet(), WeakKeyDictionary(), WeakValueDictionary()):  # their callbacks are written in Python
    finaliser()(_container._remove)


def watch_for_interrupts() -> None:
    """Set the hook. One that was set later may call it, so it may be set twice."""
    if getattr(sys.unraisablehook, "func", None) is not _finish:
        sys.unraisablehook = partial(_finish, sys.unraisablehook)


def _finish(before: Callable[[sys.UnraisableHookArgs], object], lost: sys.UnraisableHookArgs) -> None:
    trace, error = lost.exc_traceback, lost.exc_value
    if trace is None or error is None:  # it came from C
        before(lost)
        return
    code = trace.tb_frame.f_code  # it identifies the finaliser: from Python 3.14 on `lost.object` is None
    if (found := _finalisers.get(code)) is None:
        interrupts = isinstance(error, KeyboardInterrupt) and (code.co_name == "__del__" or code.co_flags & _GENERATORS)
    else:
        interrupts, kept = not isinstance(error, Exception), trace.tb_frame.f_locals
        args = [kept[name] for name in code.co_varnames[: code.co_argcount]]
        if type(kept) is dict:  # before Python 3.13 a copy, which the frame keeps
            kept.clear()
        with suppress(BaseException):  # a fault of its own comes again, and is told below
            found[trace.tb_lineno != code.co_firstlineno](*args)
        del args
        clear_frames(trace)  # hooks may keep the exception, and so the dropped object
    if not interrupts:
        before(lost)
        return
    # No line of Python may run between this and the line that goes on: there it would be lost again. So it is raised as
    # this set dies with the frame: by parts in C, which take a class, and make the exception by calling it.
    raised, last = [BaseException.with_traceback(error, None)], set[None]()
    kind = type(type(error).__name__, (type(error),), {"__new__": lambda *_: raised.pop()})
    _at_the_end[:] = [ref(last, partial(next, iter(partial(_raise_in, get_ident(), kind), 0)))]


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
