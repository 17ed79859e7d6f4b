"""What is remembered of a failed task: the exception, who saw it, and the way it took to its dependents."""

from __future__ import annotations

import contextlib
import inspect
import sys
import traceback
from types import TracebackType
from typing import Any, NoReturn

from ..errors import TaskCancelled, passable
from .callsite import CallSite, line_of

_PATH_SHOWN = 6
_HEAP_TYPE = 1 << 9  # `Py_TPFLAGS_HEAPTYPE`: the class was made while running, and not in C


class Failure:
    """Why a value will never exist.

    The root of a failure belongs to the task whose body raised (or was cancelled); a dependent has a failure of its own
    with a link upstream. Each delivery raises a copy of the root's exception: identity is not promised.
    """

    __slots__ = (
        "_context",
        "_exception",
        "_notes",
        "_root",
        "_traceback",
        "depth",
        "keeper",
        "name",
        "seen",
        "seq",
        "site",
        "upstream",
    )

    def __init__(
        self, exception: BaseException, name: str, site: CallSite | None, upstream: Failure | None = None
    ) -> None:
        self.name = name
        self.site = site
        self.upstream = upstream
        self._root = None if upstream is None else upstream.root  # not itself: that would pin frames until collected
        self.depth: int = 0 if upstream is None else upstream.depth + 1
        self.seen = False
        self.keeper: dict[Failure, None] | Unkept | None = None  # where it is kept, or counted, until someone sees it
        self.seq = 0
        self._exception = exception
        self._notes: list[Any] = []
        self._traceback: TracebackType | None = None
        self._context: BaseException | None = None

    @classmethod
    def of(cls, exception: BaseException, name: str, site: CallSite | None) -> Failure:
        """The failure of a body that raised `exception`. Drops the locals of the frames it passed."""
        try:
            return cls._of(exception, name, site)
        except Exception as error:  # by what its class overrides: whoever runs bodies must not end by that
            raised, kept_by = type(exception).__name__, type(error).__name__
        return cls._of(
            RuntimeError(f"the task raised {raised}, which does not let itself be kept ({kept_by})"), name, site
        )

    @classmethod
    def _of(cls, exception: BaseException, name: str, site: CallSite | None) -> Failure:
        clear(exception)
        exception = exception.with_traceback(_without_runner(exception.__traceback__))
        exception = passable(exception, "the task raised")
        failure = cls(exception, name, site)
        failure._traceback = exception.__traceback__
        failure._context = exception.__context__
        notes = getattr(exception, "__notes__", None)
        failure._notes = [note for note in notes if type(note) is not _Note] if isinstance(notes, list) else []
        if not isinstance(exception, TaskCancelled):
            failure._notes.append(_Note(f"raised by the task {name!r}, submitted at {line_of(site)}"))
        return failure

    def passed_to(self, name: str, site: CallSite | None) -> Failure:
        """The failure of a task that reads this failed value."""
        return Failure(self._exception, name, site, self)

    def alongside(self, name: str, site: CallSite | None) -> Failure:
        """The failure of a task that does not read this one, and ends for the same reason: told once for both."""
        failure = Failure(self._exception, name, site)
        failure._root = self.root
        return failure

    @property
    def root(self) -> Failure:
        """The failure of the task whose body raised, or which was cancelled."""
        return self if self._root is None else self._root

    @property
    def cancelled(self) -> bool:
        """Whether this is a cancellation, which is no failure to report."""
        return isinstance(self._exception, TaskCancelled)

    @property
    def kind(self) -> str:
        """The exception's type, by name. Does not count as seeing it."""
        return type(self._exception).__name__

    @property
    def exception(self) -> BaseException:
        """A copy of the exception with the body's traceback, context and notes. Counts as seen.

        What is raised gathers the frames it passes, and one of those holds the handle that leads back here: raised
        itself, what is kept would pin them all until the collector runs, and from Python 3.12 on also the frames of
        whoever awaits those, since a coroutine's frame that is kept keeps its awaiter's.
        """
        root = self.root
        root.see()
        return copied(self._exception, root._traceback, root._context, root._notes + self._path())

    def told(self) -> list[str]:
        """What was raised, and by which way it came, in words. Does not count as seeing it."""
        root = self.root
        what = traceback.TracebackException(type(root._exception), root._exception, None).format_exception_only()
        return ["".join(what).strip(), *map(str, root._notes), *self._path()]

    def add_note(self, text: str) -> None:
        """Have every copy of the exception say more."""
        self.root._notes.append(_Note(text))

    def see(self) -> None:
        """Mark the root cause as seen: nothing needs to report it any more."""
        self.seen = True
        keeper, self.keeper = self.keeper, None
        if keeper is not None:
            keeper.pop(self, None)

    def rethrow(self) -> NoReturn:
        """Raise the exception, leaving nothing behind in this frame that would pin it."""
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


class Unkept:
    """Failures that are only counted, until someone sees them."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def pop(self, failure: Failure, default: None) -> None:
        """As a dict's that keeps them: one of them was seen."""
        self.count -= 1


class _Note(str):
    """A note of ours: when another task raises an exception again that it was given, it is left out."""

    __slots__ = ()


def copied(
    exception: BaseException, traceback: TracebackType | None, context: BaseException | None, notes: list[Any]
) -> BaseException:
    """A copy to be raised in one of several places, with all that may grow there: its own, from here on. The exception
    itself, where its class does not let that be done."""
    try:
        copy = _copy(exception).with_traceback(traceback)
        # Not by assignment, which an exception may refuse: a frozen dataclass does.
        object.__setattr__(copy, "__context__", context)
        object.__setattr__(copy, "__notes__", notes)
    except Exception:  # by what it overrides
        return exception
    return copy


def _copy(exception: BaseException) -> BaseException:
    """A copy that can be raised in an exception's place; the exception itself where none is certain to be equal.

    Its class is not called, since it may have made these arguments out of others. The few kinds that Python keeps
    in a form of their own copy themselves; classes derived from those are left alone.
    """
    copied: BaseException
    kind = built_in = type(exception)
    while built_in.__flags__ & _HEAP_TYPE:
        built_in = built_in.__base__ or object
    if built_in.__basicsize__ == BaseException.__basicsize__:
        copied = built_in.__new__(kind, *exception.args)
        state: Any = object.__getstate__(exception)
        for attributes in state if isinstance(state, tuple) else (state,):
            for name, held in (attributes or {}).items():
                object.__setattr__(copied, name, held)
    elif kind in (built_in, ExceptionGroup):
        # As `copy.copy` does, but for what others have it do instead: libraries that pickle tracebacks.
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


def _without_runner(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the first frame that is not ours: the runner's frames still hold their locals."""
    while trace is not None and str(trace.tb_frame.f_globals.get("__name__")).startswith("asyncsched."):
        trace = trace.tb_next
    return trace


def clear(exception: BaseException) -> None:
    """Drop the locals of every finished frame that `exception` and its causes hold, so that no array is pinned."""
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

    Before Python 3.13 clearing a suspended coroutine closes it. Such frames come in by the causes of an exception. A
    generator that has moved on since it raised is suspended.
    """
    frame = trace.tb_frame
    if sys.version_info < (3, 13):
        flags = frame.f_code.co_flags
        moved = frame.f_lasti != trace.tb_lasti
        if flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR) or (flags & inspect.CO_GENERATOR and moved):
            return
    with contextlib.suppress(RuntimeError):  # it runs
        frame.clear()
