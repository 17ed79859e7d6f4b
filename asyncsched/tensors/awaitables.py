"""Awaitables that are no handles: a number and an array to come, and `gather`, which takes all of them.

What `t.item()` and `t.numpy()` give is a coroutine that is not the number or the array, and says so to whoever takes it
for that: a coroutine of Python's is true in an `if`, whatever the number will be, and of arithmetic with it Python says
only that a coroutine has none.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable, Coroutine, Generator, Iterable
from types import CoroutineType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, NoReturn, TypeAlias, TypeVar, cast, overload

import numpy as np

from .._core.model import Value, failure_above
from .._instead import no_attribute
from ..errors import ImplicitBarrierError
from ..runtime.waiting import wait
from .handles import Handle, copied_at_once, copy_out, deliver, reach, runtime_of

T = TypeVar("T")
U = TypeVar("U")
V = TypeVar("V")
Read: TypeAlias = Callable[[Value], Coroutine[Any, Any, Any]]

_BINARY: Final = ("add", "sub", "mul", "truediv", "floordiv", "mod", "divmod", "pow", "matmul")
_REFUSED: Final = (
    "bool", "float", "int", "complex", "index", "round", "trunc", "floor", "ceil", "format", "neg", "pos", "abs", "lt",
    "le", "gt", "ge", "len", "iter", "getitem", "setitem", "array", *_BINARY, *[f"r{name}" for name in _BINARY],
)  # fmt: skip
_COMPARED: Final = (bool, int, float, complex, np.number, np.bool_, np.ndarray)


class ToCome(Coroutine[Any, Any, T]):
    """A value to come: `await` it. It may be given to whatever takes a coroutine, `asyncio.create_task` too."""

    __slots__ = ("__weakref__", "_coroutine", "_value")

    _CALL: ClassVar[str]
    _WHAT: ClassVar[str]
    _read: ClassVar[Any]  # a `Read`: gives what it is, of a value that is there
    _wait: ClassVar[Any]  # the same, of one that is to come

    def __init__(self, value: Value) -> None:
        self._value: Value | None = value  # until it is awaited: what is kept after that holds no bytes
        self._coroutine: Coroutine[Any, Any, T] = self._wait(value)

    def _take(self) -> Value:
        """Its value, for whoever waits in its place."""
        value = self._value
        if value is None:
            raise RuntimeError(f"{self._CALL} was awaited already, as a coroutine can be once: ask for it again")
        self.close()
        return value

    def __await__(self) -> Generator[Any, Any, T]:
        self._value = None
        return self._coroutine.__await__()

    def send(self, value: Any, /) -> Any:
        self._value = None
        return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:
        self._value = None
        return self._coroutine.throw(*error)

    def close(self) -> None:
        self._value = None
        self._coroutine.close()

    def __repr__(self) -> str:
        return f"<{self._CALL}, {self._WHAT}: use `await {self._CALL}`>"

    def _refuse(self) -> NoReturn:
        """Raise that it is not the value."""
        _forget(self)
        raise ImplicitBarrierError(f"{self._CALL} is {self._WHAT}: use `await {self._CALL}`")

    # Type checkers know that a coroutine has none of these.
    if not TYPE_CHECKING:

        def __eq__(self, other: object) -> Any:
            return self._refuse() if isinstance(other, _COMPARED) else NotImplemented

        __hash__ = object.__hash__

        def __getattr__(self, name: str) -> Any:
            if name.startswith("cr_") or name == "__qualname__":  # what a debugger asks
                return getattr(self._coroutine, name)
            cure = {} if name.startswith("_") else {name: f"`(await {self._CALL}).{name}`"}
            raise no_attribute(self._CALL, name, cure, type(self))


def _waiting(call: str, read: Read) -> Any:
    """What waits for a value and reads it; by its name it is called where it was never awaited."""

    async def wait(value: Value) -> Any:
        try:
            await reach(value)
            if value.failure is not None:
                value.failure.rethrow()
            if read is _number and value.device.inline:  # written out: most are of these
                return value.array.item()
            return await read(value)
        finally:
            del value  # see `Handle.__await__`

    wait.__qualname__ = call.removesuffix("()")
    return staticmethod(wait)


async def _number(value: Value) -> Any:
    array = value.array if value.device.inline else await copy_out(runtime_of(value), value)
    return array.item()


def _host_copy(value: Value) -> Coroutine[Any, Any, Any]:
    return copy_out(runtime_of(value), value)


class Number(ToCome[bool | int | float]):
    """What `t.item()` gives."""

    __slots__ = ()

    _CALL, _WHAT = "t.item()", "a number to come"
    _read, _wait = staticmethod(_number), _waiting(_CALL, _number)


class HostCopy(ToCome[np.ndarray[Any, Any]]):
    """What `t.numpy()` gives."""

    __slots__ = ()

    _CALL, _WHAT = "t.numpy()", "an array to come"
    _read, _wait = staticmethod(_host_copy), _waiting(_CALL, _host_copy)


def _refusing(name: str) -> Callable[..., NoReturn]:
    def refuse(self: ToCome[Any], *_: object, **__: object) -> NoReturn:
        self._refuse()

    refuse.__name__ = name
    return refuse


for _name in _REFUSED:
    setattr(ToCome, f"__{_name}__", _refusing(f"__{_name}__"))


def _truth(self: ToCome[Any]) -> bool:
    """Python 3.14 asks a task's coroutine whether there is one, for the task's repr."""
    return sys._getframe(1).f_globals.get("__name__") == "asyncio.base_tasks" or self._refuse()


setattr(ToCome, "__bool__", _truth)  # noqa: B010  # type checkers are to know of none


Gathered: TypeAlias = Handle[U] | Coroutine[Any, Any, U]  # mypy tells of those forgotten, but not of a class of ours


class gather(Generic[T]):
    """One awaitable for many: `a, b = await asc.gather(x, y)`.

    Takes tensors, tasks, and what `.item()` and `.numpy()` return, mixed. Gives the list of results in the order of the
    arguments; of one that is given twice, twice. Raises the first failure as soon as there is one; the other tasks go
    on. Cancelling the waiter leaves all tasks alone.

    >>> async def main():
    ...     async with asc.Scheduler("cpu") as s:
    ...         x = await s.put(np.arange(3))
    ...         low, high = await asc.gather(x.min(), x.max())
    ...         print(low, high, await asc.gather(*[n.item() for n in (x.sum(), x.mean())]))
    >>> asc.run(main)
    0 2 [3, 1.0]

    Raises:
        TypeError: at once, for what is none of these.
        RuntimeError: at once, for a `t.item()` or `t.numpy()` that was awaited already.
    """

    # Of several types the list is given the type of a tuple, as `asyncio.gather` is: a list can have one type alone.
    @overload
    def __init__(self: gather[list[U]], *awaitables: Gathered[U]) -> None: ...
    @overload
    def __init__(self: gather[tuple[U, V]], a: Gathered[U], b: Gathered[V], /) -> None: ...
    @overload
    def __init__(self: gather[list[Any]], *awaitables: Gathered[Any]) -> None: ...
    def __init__(self, *awaitables: Gathered[Any]) -> None:
        self._reads: list[Read] | None = None  # how each value is read; None if all are handles
        for one in awaitables:
            if not isinstance(one, Handle):
                break
        else:
            self._values = [handle._value for handle in cast(tuple[Handle[Any], ...], awaitables)]
            return
        try:  # what is there twice is taken once: a number to come can be awaited once
            found = {id(one): _value_and_read(one) for one in {id(one): one for one in awaitables}.values()}
        except BaseException:
            for one in awaitables:
                _forget(one)
            raise
        pairs = [found[id(one)] for one in awaitables]
        self._values, self._reads = [value for value, _ in pairs], [read for _, read in pairs]

    def __await__(self) -> Generator[Any, None, T]:
        values = self._values
        pending = {task: runtime_of(v) for v in values if not v.settled and (task := v.task) is not None}
        try:
            if failure_above(values) or not pending:
                yield
            else:
                runtime, *others = dict.fromkeys(pending.values())
                yield from wait(runtime, list(pending), eager=True, others=others)
            if failure_above(values):
                deliver(next(v for v in values if v.failure))
            if self._reads is None and not any(value.device.remote for value in values):
                return cast(T, [deliver(value) for value in values])
            return cast(T, (yield from _read_all(self._reads or [_result] * len(values), values).__await__()))
        finally:
            del self, values, pending  # see `Handle.__await__`


def _value_and_read(one: object) -> tuple[Value, Read]:
    if isinstance(one, Handle):
        return one._value, _result
    if isinstance(one, ToCome):
        return one._take(), type(one)._read
    several = isinstance(one, Iterable)
    cure = "`asc.gather(*them)` takes them one by one" if several else "use asyncio.gather for coroutines"
    raise TypeError(f"gather takes tensors, tasks, `t.item()` and `t.numpy()`, not {type(one).__name__}: {cure}")


async def _read_all(reads: list[Read], values: list[Value]) -> list[Any]:
    """What done values give: one after the other, where none has to wait for a copy, and else all at once."""
    pairs = list(zip(reads, values, strict=True))
    if any(value.device.remote or (read is not _result and not copied_at_once(value)) for read, value in pairs):
        return await asyncio.gather(*[read(value) for read, value in pairs])
    return [await read(value) for read, value in pairs]


async def _result(value: Value) -> Any:
    """The result of a done value, wherever it is."""
    return await copy_out(runtime_of(value), value) if value.device.remote else deliver(value)


def _forget(one: object) -> None:
    """Nobody will await this, and the error that says why is enough: no warning that nobody did."""
    if isinstance(one, ToCome):
        if one._value is not None:
            one.close()
    elif isinstance(one, CoroutineType) and inspect.getcoroutinestate(one) == inspect.CORO_CREATED:
        one.close()
