"""What `t.item()` gives: a coroutine that is not the number, and says so to whoever takes it for that.

A coroutine of Python's is true in an `if`, whatever the number will be, and of arithmetic with it Python says only that
a coroutine has none.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import numpy as np

from ..errors import ImplicitBarrierError

T = TypeVar("T")

_BINARY: Final = ("add", "sub", "mul", "truediv", "floordiv", "mod", "divmod", "pow")
_REFUSED: Final = (
    "bool", "float", "int", "complex", "index", "round", "trunc", "floor", "ceil", "format", "neg", "pos", "abs", "lt",
    "le", "gt", "ge", *_BINARY, *[f"r{name}" for name in _BINARY],
)  # fmt: skip
_NUMBERS: Final = (bool, int, float, complex, np.number, np.bool_)


class Number(Coroutine[Any, Any, T]):
    """A number to come: `await` it. It may be given to whatever takes a coroutine, `asyncio.create_task` too."""

    __slots__ = ("__weakref__", "_coroutine")

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine

    def __await__(self) -> Generator[Any, Any, T]:
        return self._coroutine.__await__()

    def send(self, value: Any, /) -> Any:
        return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:
        return self._coroutine.throw(*error)

    def close(self) -> None:
        self._coroutine.close()

    def __repr__(self) -> str:
        return "<t.item(), a number to come: use `await t.item()`>"

    def _refuse(self) -> NoReturn:
        self._coroutine.close()  # the error is enough: no warning that it was never awaited
        raise ImplicitBarrierError("t.item() is a number to come: use `await t.item()`")

    if not TYPE_CHECKING:  # type checkers know that a coroutine has none of these

        def __eq__(self, other: object) -> Any:
            return self._refuse() if isinstance(other, _NUMBERS) else NotImplemented

        __hash__ = object.__hash__


def _refusing(name: str) -> Callable[..., NoReturn]:
    def refuse(self: Number[Any], *_: object) -> NoReturn:
        self._refuse()

    refuse.__name__ = name
    return refuse


for _name in _REFUSED:
    setattr(Number, f"__{_name}__", _refusing(f"__{_name}__"))
