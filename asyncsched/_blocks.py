"""Blocks of `with` with a user's code in them: those that every exception passes, and those in async generators.

*Exceptions.* `contextmanager` and `asynccontextmanager` of `contextlib` assign to the `__traceback__` of an exception
that passes. One that refuses this, such as a frozen dataclass, is replaced by its refusal. Those here set it as C code
does, which no class can refuse.

*Async generators*, whose consumer drops the generator: their blocks end for the consumer at once. A generator that
nobody refers to any more is closed a turn of the loop later, in a task of the loop. But Python calls the hook for this
(`sys.set_asyncgen_hooks`) in the middle of the line that dropped it, so in the consumer's context. Then the generator's
blocks are marked as left; their own end comes later, and in another context.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from contextvars import ContextVar
from functools import partial, wraps
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from types import AsyncGeneratorType, FrameType, TracebackType
from typing import Any, Final, ParamSpec, Protocol, TypeVar

from ._arguments import is_async_generator_function, is_coroutine_function, is_generator_function
from ._interrupts import finaliser

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
AWAITS: Final = CO_ASYNC_GENERATOR | CO_COROUTINE | CO_GENERATOR
_WITH: Final = (f"{__package__}.", "contextlib")  # modules whose frames are between a `with` and what it enters


def contextmanager(function: Callable[P, Iterator[T]]) -> Callable[P, AbstractContextManager[T]]:
    """As `contextlib.contextmanager`."""

    @wraps(function)
    def make(*args: P.args, **options: P.kwargs) -> AbstractContextManager[T]:
        return _Block(lambda: function(*args, **options))

    return make


def asynccontextmanager(function: Callable[P, AsyncIterator[T]]) -> Callable[P, AbstractAsyncContextManager[T]]:
    """As `contextlib.asynccontextmanager`."""

    @wraps(function)
    def make(*args: P.args, **options: P.kwargs) -> AbstractAsyncContextManager[T]:
        return _AsyncBlock(function(*args, **options))

    return make


def decorated(function: F, block: Callable[[], AbstractContextManager[Any]]) -> F:
    """A function or a coroutine function whose body runs in a new block each time."""
    if is_generator_function(function) or is_async_generator_function(function):
        raise TypeError("the body of a generator runs after the call: use a `with` block in it")

    async def awaited(*args: Any, **options: Any) -> Any:
        with block():
            return await function(*args, **options)

    def called(*args: Any, **options: Any) -> Any:
        with block():
            return function(*args, **options)

    return wraps(function)(awaited if is_coroutine_function(function) else called)  # type: ignore[return-value]


class _Block(AbstractContextManager[T]):
    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._body = make()

    def __call__(self, function: F) -> F:
        return decorated(function, lambda: _Block(self._make))

    def __enter__(self) -> T:
        try:
            entered: T = next(self._body)
        except StopIteration:
            raise RuntimeError("a context manager's generator did not yield") from None
        return entered

    def __exit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> bool | None:
        try:
            next(self._body) if error is None else self._body.throw(error)
        except BaseException as raised:
            if (handled := _handled(error, raised, trace)) is None:
                raise
            return handled
        raise RuntimeError("a context manager's generator yields more than once")


class _AsyncBlock(AbstractAsyncContextManager[T]):
    def __init__(self, body: Any) -> None:
        self._body = body

    async def __aenter__(self) -> T:
        try:
            entered: T = await anext(self._body)
        except StopAsyncIteration:
            raise RuntimeError("a context manager's generator did not yield") from None
        return entered

    async def __aexit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> bool | None:
        try:
            await (anext(self._body) if error is None else self._body.athrow(error))
        except BaseException as raised:
            if (handled := _handled(error, raised, trace)) is None:
                raise
            return handled
        raise RuntimeError("a context manager's generator yields more than once")


def _handled(error: BaseException | None, raised: BaseException, trace: TracebackType | None) -> bool | None:
    """Whether the generator handled the block's exception. None: it raised another one.

    If it let the exception pass, the traceback of that is the block's again.
    """
    stopped = StopIteration, StopAsyncIteration
    if isinstance(raised, stopped) and raised is not error:  # the generator has ended
        return error is not None
    # Python turns these into a RuntimeError when they leave a generator.
    if error is not None and (raised is error or (isinstance(error, stopped) and raised.__cause__ is error)):
        BaseException.with_traceback(error, trace)
        return False
    return None


# -- in async generators ---------------------------------------------------------------------------------------------


class Leavable(Protocol):
    """What is left early.

    Attributes:
        noted, frames: where it is noted, and by which frames, if it was entered in async generators.
    """

    noted: Dropped | None
    frames: tuple[int, ...]

    def leave_early(self) -> None:
        """The generator was dropped, in this context."""


class Dropped:
    """The hook for async generators that nobody refers to any more, before the loop's own.

    Generators are known by their frames, which last as long as their blocks are open.
    """

    def __init__(self, close: Callable[[Any], None]) -> None:
        self._close = close  # the loop's
        self._links: dict[int, dict[Leavable, None]] = {}  # by the identity of the frame
        self._begun_before: set[weakref.ref[Any]] = set()

    def note(self, link: Leavable, frame: FrameType, *, new: bool) -> None:
        """A block is entered, and the generator with this frame awaits that. If the hook is new, the generator has
        begun without it."""
        self._links.setdefault(id(frame), {})[link] = None
        link.noted, link.frames = self, (*link.frames, id(frame))
        if new:
            self._watch(frame)

    def forget(self, link: Leavable) -> None:
        """A block is left."""
        for frame in link.frames:
            links = self._links.get(frame, {})
            links.pop(link, None)
            if not links:
                self._links.pop(frame, None)

    @finaliser()
    def __call__(self, generator: Any) -> None:
        """On any thread, in the context of whoever dropped it."""
        self._close(generator)  # first: the task that closes it is in its blocks
        self._leave(id(generator.ag_frame))

    def _leave(self, frame: int) -> None:
        for link in [*self._links.get(frame, ())]:
            link.leave_early()
        self._links.pop(frame, None)

    def _watch(self, frame: FrameType) -> None:
        """Find a frame's generator, and have it noticed without the hook. It is slow to look for, the more so the older
        it is, but is looked for at the first block in a run of the loop alone."""
        for generation in range(3):
            for found in gc.get_objects(generation):
                if type(found) is AsyncGeneratorType and found.ag_frame is frame:
                    self._begun_before.add(weakref.ref(found, partial(self._dropped, id(frame))))
                    return

    @finaliser()
    def _dropped(self, frame: int, reference: weakref.ref[Any]) -> None:
        self._begun_before.discard(reference)
        self._leave(frame)


def note(block: Leavable, frame: FrameType | None) -> None:
    """A block is entered in this frame: note it for the async generators that wait for this."""
    hook, new = sys.get_asyncgen_hooks().finalizer, False
    if type(hook) is not Dropped and hook is not None:  # an event loop sets the hooks anew whenever it runs
        hook, new = Dropped(hook), True
        sys.set_asyncgen_hooks(finalizer=hook)
    while frame is not None and (flags := frame.f_code.co_flags) & AWAITS:
        if flags & CO_ASYNC_GENERATOR and hook is not None:
            hook.note(block, frame, new=new)
        frame = frame.f_back


def set_variable(variable: ContextVar[T], value: T) -> None:
    """Set a context variable while no finaliser can run.

    Before Python 3.12 the collector may run within `ContextVar.set`. A finaliser that sets a variable then frees the
    table that is being read, and the interpreter crashes. (So it may while asyncio copies a context.) The finalisers of
    the old value run after it, too, since in every version they could free the new one, which `set` goes on to use.
    """
    _old = variable.get(None)
    collects = sys.version_info < (3, 12) and gc.isenabled()
    try:
        if collects:
            gc.disable()
        variable.set(value)
    finally:
        if collects:
            gc.enable()


class Mark:
    """A block in which something holds for the coroutine that is in it, and for the tasks that it starts there."""

    def __init__(self, marks: ContextVar[tuple[Mark, ...]]) -> None:
        self._marks = marks
        task = current_task()
        self._by = None if task is None else weakref.ref(task)
        self.left_elsewhere = False  # by another task, or early: so it holds for nobody any more
        self.noted: Dropped | None = None
        self.frames: tuple[int, ...] = ()

    def enter(self) -> None:
        set_variable(self._marks, (*[mark for mark in self._marks.get() if not mark.left_elsewhere], self))
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and str(frame.f_globals.get("__name__")).startswith(_WITH):
            frame = frame.f_back
        note(self, frame)

    def leave(self) -> None:
        if self.noted is not None:
            self.noted.forget(self)
        set_variable(self._marks, tuple([mark for mark in self._marks.get() if mark is not self]))
        by = self._by and self._by()
        self.left_elsewhere = self.left_elsewhere or (by is not None and current_task() is not by)

    def leave_early(self) -> None:
        if self._by is not None and self._by() is current_task():
            self.left_elsewhere = True  # and no more, in the middle of anything: see `Ambient.leave_early`


def holds(marks: tuple[Mark, ...]) -> bool:
    """Whether a context is in one of these blocks."""
    return bool(marks) and not all(mark.left_elsewhere for mark in marks)


def current_task() -> asyncio.Task[Any] | None:
    """The asyncio task that runs. None on a thread without a running loop, which may have been given a context."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
