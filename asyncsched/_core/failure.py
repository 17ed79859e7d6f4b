"""The failure of a task: its exception, whether anybody has seen it, and its path to dependents."""

from __future__ import annotations

import traceback
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NoReturn

from ..errors import TaskCancelled, notes_of, passable
from .callsite import CallSite, line_of
from .exception_copies import clear, copied, without_runner

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
    keeper: Any = None  # where an unseen root is kept or counted: see `unseen`
    seq: int = 0
    _root: Failure | None = None  # never itself: that would pin frames until the collector runs
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
            frames: keep the traceback, as for a user's function. A frame keeps its callers and their variables: the
                user's on the event loop's thread, those that hold the task on a stream's thread.
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
        """The failure of a task that is no dependent and ends for the same reason. Each is reported once."""
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
        """The same copy, for instruments. Does not count as seeing the failure."""
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
