"""Awaitables that are no handles: a number to come, an array to come, and `gather`, which takes all kinds.

`t.item()` and `t.numpy()` return a coroutine of a class of ours. Used as if it were the number or the array, it raises
an error that names the cure. A plain coroutine would be true in an `if`, whatever the number, and its arithmetic errors
would only say that a coroutine has none.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable, Coroutine, Generator, Iterable
from types import CoroutineType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, NoReturn, TypeAlias, TypeVar, cast, overload

import numpy as np

from .._core.audit import failure_above
from .._core.model import Lease, Value
from .._instead import no_attribute
from ..devices.memory import deliver
from ..errors import ImplicitBarrierError
from ..runtime.waiting import wait
from .handles import Handle, copied_at_once, copy_out, reach, runtime_of

T = TypeVar("T")
U = TypeVar("U")
V = TypeVar("V")
Read: TypeAlias = Callable[[Value], Coroutine[Any, Any, Any]]

_BINARY: Final = ("add", "sub", "mul", "truediv", "floordiv", "mod", "divmod", "pow", "matmul")
_REFUSED: Final = (
    "float", "int", "complex", "index", "round", "trunc", "floor", "ceil", "format", "neg", "pos", "abs", "lt",
    "le", "gt", "ge", "len", "iter", "getitem", "setitem", "array", *_BINARY, *[f"r{name}" for name in _BINARY],
)  # fmt: skip
_COMPARED: Final = (bool, int, float, complex, np.number, np.bool_, np.ndarray)


class ToCome(Coroutine[Any, Any, T]):
    """A value to come: `await` it. It may be given to whatever takes a coroutine, `asyncio.create_task` too."""

    __slots__ = ("__weakref__", "_coroutine", "_lease")

    _CALL: ClassVar[str]
    _WHAT: ClassVar[str]
    _read: ClassVar[Any]  # a `Read`: gives the result of a value that is there
    _wait: ClassVar[Any]  # the same, for a value to come

    def __init__(self, value: Value) -> None:
        self._lease: Lease | None = Lease(value)  # until it is awaited: afterwards it holds no bytes
        self._coroutine: Coroutine[Any, Any, T] = self._wait(self._lease)

    def _take(self) -> Lease:
        """Its value, for another awaiter in its place."""
        lease = self._lease
        if lease is None:
            raise RuntimeError(f"{self._CALL} was awaited already, and a coroutine can be awaited once: call it again")
        self.close()
        return lease

    def __await__(self) -> Generator[Any, Any, T]:
        self._lease = None
        return self._coroutine.__await__()

    def send(self, value: Any, /) -> Any:
        self._lease = None
        return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:
        self._lease = None
        return self._coroutine.throw(*error)

    def close(self) -> None:
        if self._lease is None:
            self._coroutine.close()
        else:  # by `throw`: from Python 3.12 on a coroutine that is closed before it began keeps its arguments
            super().close()

    def __repr__(self) -> str:
        return f"<{self._CALL}, {self._WHAT}: use `await {self._CALL}`>"

    def _refuse(self) -> NoReturn:
        """Raise an error: it is not the value."""
        _forget(self)
        raise ImplicitBarrierError(f"{self._CALL} is {self._WHAT}: use `await {self._CALL}`")

    # Type checkers know that a coroutine has none of these.
    if not TYPE_CHECKING:

        def __eq__(self, other: object) -> Any:
            return self._refuse() if isinstance(other, _COMPARED) else NotImplemented

        __hash__ = object.__hash__

        def __bool__(self) -> bool:
            """Answer Python 3.14, which asks whether a task has a coroutine, for the task's repr; raise for others."""
            return sys._getframe(1).f_globals.get("__name__") == "asyncio.base_tasks" or self._refuse()

        def __getattr__(self, name: str) -> Any:
            if name.startswith("cr_") or name == "__qualname__":  # asked by debuggers
                return getattr(self._coroutine, name)
            cure = {} if name.startswith("_") else {name: f"`(await {self._CALL}).{name}`"}
            raise no_attribute(self._CALL, name, cure, type(self))


def _make_wait(call: str, read: Read) -> Any:
    """A coroutine function that waits for a value and reads it. Warnings and tracebacks show `call` as its name."""

    async def wait(lease: Lease) -> Any:
        value = lease._value
        try:
            await reach(value)
            if value.failure is not None:
                value.failure.rethrow()
            if read is _read_number and value.device.inline:  # written out: the most frequent case
                return value.array.item()
            return await read(value)
        finally:
            del lease, value  # see `Handle.__await__`

    wait.__qualname__ = call.removesuffix("()")
    return staticmethod(wait)


async def _read_number(value: Value) -> Any:
    array = value.array if value.device.inline else await copy_out(value)
    return array.item()


class Number(ToCome[bool | int | float]):
    """The return type of `t.item()`."""

    __slots__ = ()

    _CALL, _WHAT = "t.item()", "a number to come"
    _read, _wait = staticmethod(_read_number), _make_wait(_CALL, _read_number)


class HostCopy(ToCome[np.ndarray[Any, Any]]):
    """The return type of `t.numpy()`."""

    __slots__ = ()

    _CALL, _WHAT = "t.numpy()", "an array to come"
    _read, _wait = staticmethod(copy_out), _make_wait(_CALL, copy_out)


def _refusal(name: str) -> Callable[..., NoReturn]:
    def refuse(self: ToCome[Any], *_: object, **__: object) -> NoReturn:
        self._refuse()

    refuse.__name__ = name
    return refuse


for _name in _REFUSED:
    setattr(ToCome, f"__{_name}__", _refusal(f"__{_name}__"))


# Mypy reports forgotten handles and coroutines, but not a class of ours
Gathered: TypeAlias = Handle[U] | Coroutine[Any, Any, U]


class gather(Generic[T]):
    """One awaitable for many: `a, b = await asc.gather(x, y)`.

    Takes tensors, tasks, and the results of `.item()` and `.numpy()`, mixed. Gives the list of results in the order of
    the arguments; one given twice appears twice. Raises the first failure as soon as there is one; the other tasks go
    on. Cancelling the waiter leaves all tasks alone.

    >>> async def main():
    ...     async with asc.Scheduler("cpu") as s:
    ...         x = await s.put(np.arange(3))
    ...         low, high = await asc.gather(x.min(), x.max())
    ...         print(low, high, await asc.gather(*[n.item() for n in (x.sum(), x.mean())]))
    >>> asc.run(main)
    0 2 [3, 1.0]

    Raises:
        TypeError: at once, for any other argument.
        RuntimeError: at once, for a `t.item()` or `t.numpy()` that was awaited already.
    """

    # For arguments of several types, the list is typed as a tuple, as for `asyncio.gather`: a list has only one type.
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
            self._leases = [handle._lease() for handle in cast(tuple[Handle[Any], ...], awaitables)]
            return
        try:  # an argument given twice is taken once: a number to come can be awaited once
            found = {id(one): _lease_and_read(one) for one in {id(one): one for one in awaitables}.values()}
        except BaseException:
            for one in awaitables:
                _forget(one)
            raise
        pairs = [found[id(one)] for one in awaitables]
        self._leases, self._reads = [lease for lease, _ in pairs], [read for _, read in pairs]

    def __await__(self) -> Generator[Any, None, T]:
        leases = self._leases
        values = [lease._value for lease in leases]
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
            del self, leases, values, pending  # see `Handle.__await__`


def _lease_and_read(one: object) -> tuple[Lease, Read]:
    if isinstance(one, Handle):
        return one._lease(), _result
    if isinstance(one, ToCome):
        return one._take(), type(one)._read
    several = isinstance(one, Iterable)
    cure = "`asc.gather(*them)` takes them one by one" if several else "use asyncio.gather for coroutines"
    raise TypeError(f"gather takes tensors, tasks, `t.item()` and `t.numpy()`, not {type(one).__name__}: {cure}")


async def _read_all(reads: list[Read], values: list[Value]) -> list[Any]:
    """Read done values: one after the other if none has to wait for a copy, else all at once."""
    pairs = list(zip(reads, values, strict=True))
    if any(value.device.remote or (read is not _result and not copied_at_once(value)) for read, value in pairs):
        return await asyncio.gather(*[read(value) for read, value in pairs])
    return [await read(value) for read, value in pairs]


async def _result(value: Value) -> Any:
    """The result of a done value, also if it is in another process."""
    return await copy_out(value) if value.device.remote else deliver(value)


def _forget(one: object) -> None:
    """Close an object that nobody will await, without Python's warning: the error raised says enough."""
    if isinstance(one, ToCome):
        if one._lease is not None:
            one.close()
    elif isinstance(one, CoroutineType) and inspect.getcoroutinestate(one) == inspect.CORO_CREATED:
        one.close()
