"""The failure of a task: its exception, whether anybody has seen it, and its path to dependents.

Here are also the copies of exceptions that are raised, the clearing of frames that a stored exception would keep alive,
and a scope's unseen failures, which its end or a barrier reports.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
import traceback
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, NoReturn

from ..errors import TaskCancelled, notes_of, passable
from .callsite import CallSite, line_of

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


_PATH_SHOWN = 6


@dataclass(slots=True, eq=False, repr=False)
class Failure:
    """Why a value will never exist.

    The root of a failure belongs to the task whose body raised, or which was cancelled. Each dependent has a failure of
    its own with a link upstream. Each delivery raises a copy of the root's exception: identity is not promised.
    """

    _exception: BaseException
    name: str
    site: CallSite | None
    upstream: Failure | None = None
    depth: int = 0
    seen: bool = False
    keeper: Any = None  # where an unseen root is kept or counted: see `Unseen`
    seq: int = 0  # the number of its task, for a root that is recorded
    _root: Failure | None = None  # None for a root: a reference to itself would pin frames until the collector runs
    _notes: list[Any] = field(default_factory=list)
    _traceback: TracebackType | None = None
    _context: BaseException | None = None

    def __post_init__(self) -> None:
        if self.upstream is not None:
            self._root = self.upstream.root
            self.depth = self.upstream.depth + 1

    @classmethod
    def of(cls, exception: BaseException, name: str, site: CallSite | None, *, frames: bool = True) -> Failure:
        """The failure of a body that raised `exception`. Drops the locals of the frames in its traceback.

        Args:
            frames: keep the traceback, as for a user's function. Frames keep their callers alive, with their variables:
                on the event loop's thread those of the user, on a stream's thread those that hold the task.
        """
        try:
            clear(exception)
            if not frames:
                exception.__traceback__ = exception.__context__ = None
            return cls._of(exception, name, site)
        except (MemoryError, RecursionError) as error:
            return cls._of(error, name, site)
        except Exception as error:  # from a method its class overrides: it must not end the thread that runs bodies
            raised, kept_by = type(exception).__name__, type(error).__name__
        told = f"the task raised {raised}, which cannot be stored ({kept_by})"
        return cls._of(RuntimeError(told), name, site)

    @classmethod
    def _of(cls, exception: BaseException, name: str, site: CallSite | None) -> Failure:
        exception = exception.with_traceback(without_runner(exception.__traceback__))
        exception = passable(exception, "the task raised")
        failure = cls(exception, name, site)
        failure._traceback = exception.__traceback__
        failure._context = exception.__context__
        failure._notes = [note for note in notes_of(exception) if type(note) is not _Note]
        if not isinstance(exception, TaskCancelled):
            failure._notes.append(_Note(f"raised by the task {name!r}, submitted at {line_of(site)}"))
        return failure

    def passed_to(self, name: str, site: CallSite | None) -> Failure:
        """The failure of a task that reads this failed value."""
        return Failure(self._exception, name, site, self)

    def alongside(self, name: str, site: CallSite | None) -> Failure:
        """The failure of a task that ends for the same reason, and is no dependent. Only their root is reported."""
        failure = Failure(self._exception, name, site)
        failure._root = self.root
        return failure

    @property
    def root(self) -> Failure:
        """The failure of the task whose body raised, or which was cancelled."""
        return self if self._root is None else self._root

    @property
    def cancelled(self) -> bool:
        """Whether this is a cancellation, which is not reported as a failure."""
        return isinstance(self._exception, TaskCancelled)

    @property
    def kind(self) -> str:
        """The exception's type, by name. Reading it does not count as seeing the failure."""
        return type(self._exception).__name__

    @property
    def exception(self) -> BaseException:
        """A copy of the exception with the body's traceback, context and notes. Counts as seeing the failure.

        A raised exception collects the frames that it passes. One of these holds the handle, which refers back to this
        failure. Raising the stored exception itself would make a cycle that keeps all those frames alive until the
        garbage collector runs; from Python 3.12 on, also the frames of the awaiting coroutines.
        """
        self.root.see()
        return self.error

    @property
    def error(self) -> BaseException:
        """A copy as `exception` gives, for instruments. Does not count as seeing the failure."""
        root = self.root
        return copied(self._exception, root._traceback, root._context, root._notes + self._path())

    def told(self) -> list[str]:
        """The exception, its notes and its path, as lines of text. Does not count as seeing the failure."""
        root = self.root
        what = traceback.TracebackException(type(root._exception), root._exception, None)
        what.__notes__ = None  # `_notes` has them
        return ["".join(what.format_exception_only()).strip(), *map(str, root._notes), *self._path()]

    def see(self) -> None:
        """Mark the root cause as seen: nothing needs to report it any more."""
        self.seen = True
        keeper, self.keeper = self.keeper, None
        if keeper is not None:
            keeper.pop(self, None)

    def rethrow(self) -> NoReturn:
        """Raise the exception, and leave nothing in this frame that would pin it."""
        try:
            raise self.exception
        finally:
            del self

    def _path(self) -> list[str]:
        if self.upstream is None:
            told_once = _Note(f"the task {self.name!r}, submitted at {line_of(self.site)}, ended for the same reason")
            return [] if self._root is None else [told_once]
        names, step = [self.name], self.upstream
        while step.upstream is not None and len(names) < _PATH_SHOWN:
            names.append(step.name)
            step = step.upstream
        more = self.depth - len(names)
        if more:
            names.append(f"({more} more)")
        names.append(self.root.name)
        return [_Note(f"reached through {' <- '.join(names)}; the last was submitted at {line_of(self.site)}")]


class _Note(str):
    """A note of the package's own. It is left out when a task raises again an exception it received."""

    __slots__ = ()


KEPT_FAILURES: Final = 100


@dataclass(slots=True, eq=False)
class _Counted:
    """Counts failures without keeping them, until someone sees them."""

    number: int = 0

    def pop(self, failure: Failure, default: None, /) -> None:
        """Count one less: it was seen. Takes the arguments of `dict.pop`, since kept failures are in a dict."""
        self.number -= 1


@dataclass(slots=True, eq=False)
class Unseen:
    """Root causes that nobody has seen: the first `KEPT_FAILURES` are kept, the others are counted."""

    _kept: dict[Failure, None] = field(default_factory=dict)
    _counted: _Counted = field(default_factory=_Counted)

    def __bool__(self) -> bool:
        return bool(self._kept or self._counted.number)

    def add(self, failure: Failure) -> None:
        """Keep a root cause until someone sees it. (Once seen, it would keep the frames of its awaiters alive.)"""
        if len(self._kept) < KEPT_FAILURES:
            self._kept[failure] = None
            failure.keeper = self._kept
        else:
            self._counted.number += 1
            failure.keeper = self._counted

    def take(self, before: int | None) -> tuple[list[Failure], int]:
        """Take the failures of tasks numbered under `before`, in the order of their tasks, and mark them as seen.

        Returns them, and how many others were only counted.
        """
        found = [failure for failure in list(self._kept) if before is None or failure.seq < before]
        found.sort(key=lambda failure: failure.seq)
        for failure in found:
            failure.see()
        counted, self._counted = self._counted, _Counted()
        return found, counted.number
