"""Copies of exceptions to be raised, and clearing the frames that a stored exception would keep alive."""

from __future__ import annotations

import contextlib
import inspect
import sys
from types import TracebackType
from typing import Any, Final

_HEAP_TYPE: Final = 1 << 9  # `Py_TPFLAGS_HEAPTYPE`: the class was made at run time, not in C


def copied(
    exception: BaseException, traceback: TracebackType | None, context: BaseException | None, notes: list[Any]
) -> BaseException:
    """A copy with this traceback, context and notes, to be raised in one of several places.

    Returns the exception itself if its class prevents a copy.
    """
    try:
        copy = _copy(exception)
        # Not by assignment, which an exception may refuse, as a frozen dataclass does.
        BaseException.with_traceback(copy, traceback)
        object.__setattr__(copy, "__context__", context)
        object.__setattr__(copy, "__notes__", notes)
    except Exception:  # from a method that its class overrides
        return exception
    return copy


def _copy(exception: BaseException) -> BaseException:
    """A copy that can be raised in an exception's place, or the exception itself if no copy is certain to be equal.

    The class is not called, since it may have made these arguments from others. The few built-in classes with a layout
    of their own (OSError, UnicodeError, ...) are copied by `__reduce__`; classes derived from those are not copied.
    """
    copied: BaseException
    kind = type(exception)
    built_in = built_in_of(kind)
    if built_in.__basicsize__ == BaseException.__basicsize__:
        copied = built_in.__new__(kind, *exception.args)
        state: Any = object.__getstate__(exception)
        for attributes in state if isinstance(state, tuple) else (state,):
            for name, held in (attributes or {}).items():
                object.__setattr__(copied, name, held)
    elif kind in (built_in, ExceptionGroup):
        # As `copy.copy`, but without the reducers that libraries register to pickle tracebacks.
        reduced: Any = exception.__reduce__()
        make, given, *more = reduced
        copied = make(*given)
        if more and more[0]:
            copied.__setstate__(more[0])
    else:
        return exception
    object.__setattr__(copied, "__cause__", exception.__cause__)
    object.__setattr__(copied, "__suppress_context__", exception.__suppress_context__)
    return copied


def built_in_of(kind: type) -> Any:
    """The class in C from which an exception's class is derived."""
    while kind.__flags__ & _HEAP_TYPE:
        kind = kind.__base__ or object
    return kind


def without_runner(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the first frame outside the package: the package's frames still hold their locals."""
    while trace is not None and str(trace.tb_frame.f_globals.get("__name__")).startswith("asyncsched."):
        trace = trace.tb_next
    return trace


def clear(exception: BaseException) -> None:
    """Drop the locals of every finished frame of `exception` and its causes, so that no array is pinned."""
    seen: set[int] = set()
    todo: list[BaseException | None] = [exception]
    while todo:
        error = todo.pop()
        if error is None or id(error) in seen:
            continue
        seen.add(id(error))
        trace = error.__traceback__
        while trace is not None:
            _clear_frame(trace)
            trace = trace.tb_next
        todo += (error.__cause__, error.__context__)
        if isinstance(error, BaseExceptionGroup):
            todo += error.exceptions


def _clear_frame(trace: TracebackType) -> None:
    """Drop a frame's locals, unless it still runs or may go on.

    Before Python 3.13, clearing a suspended coroutine closes it. The causes of an exception may lead to such frames. A
    generator that has moved on since it raised is suspended.
    """
    frame = trace.tb_frame
    if sys.version_info < (3, 13):
        flags = frame.f_code.co_flags
        moved = frame.f_lasti != trace.tb_lasti
        if flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR) or (flags & inspect.CO_GENERATOR and moved):
            return
    with contextlib.suppress(RuntimeError):  # the frame is running
        frame.clear()
