"""Whether operations are recorded."""

from __future__ import annotations

import contextvars
import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from .._arguments import is_coroutine_function

F = TypeVar("F", bound=Callable[..., Any])

recording: contextvars.ContextVar[bool] = contextvars.ContextVar("asyncsched.recording", default=True)


class no_grad:
    """Record nothing: `with no_grad():`, or `@no_grad()` above a function or a coroutine function.

    It holds for this context alone: for the coroutine it is used in, and for tasks that one creates inside. Above a
    generator function it raises TypeError, since a generator's body runs after the call.

    >>> async def main():
    ...     async with asc.Scheduler("cpu") as s:
    ...         x = await s.put(np.ones(3))
    ...         x.requires_grad = True
    ...         with asc.no_grad():
    ...             y = x * 2
    ...         return y.requires_grad, (x * 2).requires_grad
    >>> asc.run(main)
    (False, True)
    """

    def __init__(self) -> None:
        self._tokens: list[contextvars.Token[bool]] = []

    def __enter__(self) -> None:
        self._tokens.append(recording.set(False))

    def __exit__(self, *error: object) -> None:
        recording.reset(self._tokens.pop())

    def __call__(self, function: F) -> F:
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError("the body of a generator runs after the call: use `with no_grad():` in it")

        async def awaited(*args: Any, **kwargs: Any) -> Any:
            with no_grad():
                return await function(*args, **kwargs)

        def called(*args: Any, **kwargs: Any) -> Any:
            with no_grad():
                return function(*args, **kwargs)

        wrapped = awaited if is_coroutine_function(function) else called
        return functools.wraps(function)(wrapped)  # type: ignore[return-value]
