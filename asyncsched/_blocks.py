"""`contextmanager` and `asynccontextmanager` for blocks with a user's code in them.

Those of `contextlib` assign to the `__traceback__` of an exception that passes. One that refuses this, such as a
frozen dataclass, is replaced by its refusal. These set it as C code does, which no class can refuse.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import wraps
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from ._arguments import is_async_generator_function, is_coroutine_function, is_generator_function

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


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
