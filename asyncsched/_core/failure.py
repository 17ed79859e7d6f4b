"""What is remembered of a failed task: the exception, who saw it, and the way it took to its dependents."""

from __future__ import annotations

import traceback
from types import CodeType, TracebackType
from typing import NoReturn

from ..errors import TaskCancelled

Where = tuple[CodeType, int]  # a line, cheap to keep: resolved only when someone asks

# Wrapped, because each of them means something else to whoever drives a coroutine.
_WRAPPED = (StopIteration, StopAsyncIteration, GeneratorExit)
_PATH_SHOWN = 6


def line_of(where: Where | None) -> str:
    """`where` as text: file and line."""
    if where is None:
        return "an unknown line"
    code, lasti = where
    line = next((line for start, end, line in code.co_lines() if start <= lasti < end), None)
    return f"{code.co_filename}:{line or code.co_firstlineno} in {code.co_name}"


class Failure:
    """Why a value will never exist.

    The root of a failure belongs to the task whose body raised (or was cancelled); a dependent has a failure of its own
    with a link upstream. All raise the same exception.
    """

    __slots__ = ("_exception", "_notes", "_traceback", "name", "root", "seen", "seq", "upstream", "where")

    def __init__(self, exception: BaseException, name: str, where: Where | None, upstream: Failure | None = None) -> None:
        self.name = name
        self.where = where
        self.upstream = upstream
        self.root: Failure = self if upstream is None else upstream.root
        self.seen = False
        self.seq = 0
        self._exception = exception
        self._notes: list[str] = []
        self._traceback: TracebackType | None = None

    @classmethod
    def of(cls, exception: BaseException, name: str, where: Where | None) -> Failure:
        """The failure of a body that raised `exception`. Drops the locals of the frames it passed."""
        clear(exception)
        exception.__traceback__ = _without_runner(exception.__traceback__)
        if isinstance(exception, _WRAPPED) or type(exception).__name__ == "CancelledError":
            wrapper = RuntimeError(f"the task raised {type(exception).__name__}, which cannot pass through `await`")
            wrapper.__cause__ = exception
            exception = wrapper
        failure = cls(exception, name, where)
        failure._traceback = exception.__traceback__
        failure._notes = list(getattr(exception, "__notes__", ()))
        if not isinstance(exception, TaskCancelled):
            failure._notes.append(f"raised by the task {name!r}, submitted at {line_of(where)}")
        return failure

    def passed_to(self, name: str, where: Where | None) -> Failure:
        """The failure of a task that reads this failed value."""
        return Failure(self._exception, name, where, self)

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
        """The exception, its traceback and notes reset. Counts as seen."""
        self.root.seen = True
        exception = self._exception.with_traceback(self.root._traceback)
        exception.__notes__ = self.root._notes + self._path()
        return exception

    def rethrow(self) -> NoReturn:
        """Raise the exception, leaving nothing behind in this frame that would pin it."""
        try:
            raise self.exception
        finally:
            del self

    def _path(self) -> list[str]:
        if self.upstream is None:
            return []
        names, step = [self.name], self.upstream
        hops = 0
        while step.upstream is not None:
            hops += 1
            if hops < _PATH_SHOWN:
                names.append(step.name)
            step = step.upstream
        if hops >= _PATH_SHOWN:
            names.append(f"({hops - _PATH_SHOWN + 1} more)")
        names.append(step.name)
        return [f"reached through {' <- '.join(names)}; the last was submitted at {line_of(self.where)}"]


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
        traceback.clear_frames(error.__traceback__)
        todo += (error.__cause__, error.__context__)
