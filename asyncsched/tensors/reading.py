"""Reading a tensor's value by implicit barriers.

An implicit barrier is one of Python's or NumPy's ways to ask for a value without `await`. On a thread that runs an
event loop, and inside a task, it is an error; elsewhere it blocks.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from contextlib import suppress
from queue import Empty
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import numpy as np

from .._core.model import Value
from .._instead import NUMPY
from ..devices.contract import Device, in_stream_thread
from ..devices.memory import deliver
from ..errors import ImplicitBarrierError, SchedulerClosed
from ..runtime.life import Life, running_loop
from ..runtime.loops import ask_async
from ..runtime.runtime import Runtime
from ..runtime.waiting import awaited
from .handles import Handle, runtime_of

Pair: TypeAlias = tuple[int, int] | None  # in DLPack: a version, or a kind of device with its number


class ImplicitBarriers(Handle[np.ndarray[Any, Any]]):
    """Python's and NumPy's ways to ask for a value at once.

    On a thread that runs an event loop, and inside a task, each raises ImplicitBarrierError with the cure. On any other
    thread it blocks until the value is there.
    """

    __slots__ = ()

    def __bool__(self) -> bool:
        return bool(self._read("bool(t)", "use `await t.item()`"))

    def __float__(self) -> float:
        return float(self._read("float(t)", "use `await t.item()`"))

    def __int__(self) -> int:
        return int(self._read("int(t)", "use `await t.item()`"))

    def __complex__(self) -> complex:
        return complex(self._read("complex(t)", "use `await t.item()`"))

    def __index__(self) -> int:
        return operator.index(self._read("operator.index(t)", "use `await t.item()`"))

    def __round__(self, ndigits: int | None = None) -> Any:
        return round(self._read("round(t)", "use `round(await t.item())`, or `t.round()`").item(), ndigits)

    def __format__(self, spec: str) -> str:
        if not spec:
            return repr(self)
        return format(self._read(f"format(t, {spec!r})", "use `await t.item()`").item(), spec)

    def tolist(self) -> Any:
        """Blocks: for threads without an event loop. Elsewhere use `(await t).tolist()`."""
        return self._read("t.tolist()", "use `(await t).tolist()`").tolist()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        array = self._read("np.asarray(t)", "use `await t` or `await t.numpy()`")
        return np.array(array, dtype, copy=copy)

    def __dlpack__(
        self, *, stream: Any = None, max_version: Pair = None, dl_device: Pair = None, copy: bool | None = None
    ) -> Any:
        """The array for another library; a copy, unless `max_version` says that it supports read-only arrays."""
        array = blocking_read(self, "DLPack export", "export `await t` instead")
        told: dict[str, Any] = {"max_version": max_version, "dl_device": dl_device, "copy": copy}
        unaware = max_version is None or max_version < (1, 0)  # does not support read-only arrays
        if isinstance(array, np.ndarray) and unaware and copy is not False:
            array, told["copy"] = array.copy(order="K"), None
        return array.__dlpack__(stream=stream, **told)

    def __dlpack_device__(self) -> tuple[int, int]:
        device: Device = self._value.device
        return device.dlpack

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        name = f"{function.__module__.removeprefix('numpy')}.{function.__name__}"[1:]  # as in "linalg.norm"
        return self._through_numpy(name, function, args, kwargs)

    def _through_numpy(self, name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        self._read(f"np.{name}(t)", f"use {self._replacement(name)}")
        return function(*[np.asarray(a) if isinstance(a, ImplicitBarriers) else a for a in args], **kwargs)

    if TYPE_CHECKING:

        def __array_namespace__(self) -> ModuleType: ...

    def _replacement(self, name: str) -> str:
        """The replacement to name for NumPy's function, which is given as "exp" or "linalg.inv"."""
        if name in NUMPY:
            return NUMPY[name]
        theirs, _, last = name.rpartition(".")
        ours: Any = self.__array_namespace__()
        there = last in (getattr(ours, theirs) if theirs in ("linalg", "fft") else ours).__all__
        return f"`asyncsched.{name}(t)`" if there else "asyncsched's functions, or `await t` first"

    def _read(self, what: str, cure: str) -> Any:
        array = blocking_read(self, what, cure)
        return array if isinstance(array, np.ndarray) else self._value.device.fetch(array)


# Type checkers see none of these methods, since each raises on an event loop. Mypy accepts `if t:`. It would report the
# code after a `__bool__` that never returns as unreachable (`--warn-unreachable`).
if TYPE_CHECKING:

    class Unread(Handle[np.ndarray[Any, Any]]):
        def __bool__(self) -> NoReturn: ...
else:
    Unread = ImplicitBarriers


def blocking_read(handle: Handle[Any], what: str, cure: str) -> Any:
    """The array of a handle's present value, read on a thread that may block.

    Raises:
        ImplicitBarrierError: on a thread that runs an event loop, or inside a task body.
    """
    if in_stream_thread():
        raise ImplicitBarrierError(f"{what} inside a task would wait for another task: pass the tensor as an argument")
    if running_loop() is not None:
        raise ImplicitBarrierError(f"{what} is an implicit barrier, which would block the event loop: {cure}")
    kept = handle._lease()
    value = kept._value
    _block(runtime_of(value), value)
    if value.device.remote and value.failure is None:
        return value.device.fetch(value.array)
    return deliver(value)


def _block(runtime: Runtime, value: Value) -> None:
    """Block the calling thread, which runs no loop, until the value is there."""
    if runtime.life is Life.FORKED:
        runtime.refuse()
    loop = runtime.loop
    if value.settled:
        return
    if loop is None or not loop.is_running():
        raise SchedulerClosed("the value is pending, and its event loop is not running: read it before the loop ends")

    async def register() -> None:
        task = value.task
        if task is not None:
            await awaited(runtime, [task])

    answer = ask_async(loop, register)
    while loop.is_running():
        with suppress(Empty):
            answer.get(timeout=1.0)
            break
    if not value.settled:
        raise SchedulerClosed("the value's event loop ended before the value was there: read it before the loop ends")
