"""A worker's card: the arrays there between tasks, and the copies that travel.

Theory of operation. Dask hands a result from task to task as it is. It pickles the result where it leaves the process:
on its way to another worker, to the process that awaits it, to the disk. CuPy's own arrays would need CuPy wherever
they arrive. So a result is an `OnCard`. Where it was computed, it holds CuPy's array. Pickled, it is NumPy's, which the
sending worker makes. The process that awaits it takes that. A worker copies it to its card when the first task reads
it, and keeps the copy instead.

A thread that runs tasks has a stream of its own, which does not wait for the null stream. A task ends by waiting for
that stream, whether it raised or not. So other threads see only finished arrays, which they may read, pickle or drop.
No block is given back while a kernel reads it, though CuPy gives it back to the stream that it came from. Copies to the
card are finished, too, before others find them. (Not taken: events between the threads' streams. A task of Dask takes a
millisecond anyway, and by the wait the worker knows the task's time, and which task an error of the card belongs to.)
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from importlib import import_module
from socket import gethostname
from typing import Any

import numpy as np

from .._blocks import contextmanager
from .._tree import map_leaves
from ..devices.cuda import driver
from ..devices.cuda.requirements import missing
from ..errors import AsyncSchedError, notes_of

RESOURCE = "GPU"  # of Dask: a worker with this resource runs tasks on its card
HostArray = np.ndarray[Any, Any]
_here = threading.local()


class CardOutOfMemory(AsyncSchedError):
    """An array found no room on a worker's card."""


class OnCard:
    """An array of a worker's card. It is in host memory on its way, and until a task on a card reads it."""

    __slots__ = ("_array",)

    def __init__(self, array: Any) -> None:
        self._array = array

    def on_card(self, cupy: Any) -> Any:
        """The array on the card. Call it within `computing`."""
        array = self._array
        if isinstance(array, np.ndarray):
            array = _uploaded(cupy, array)
            cupy.cuda.get_current_stream().synchronize()
            self._array = array  # two threads may both copy it: either copy will do
        return array

    def on_host(self) -> HostArray:
        """The array in host memory: a copy of what is on the card, with its axes in the same order."""
        array = self._array
        return array if isinstance(array, np.ndarray) else _downloaded(array)

    @property
    def nbytes(self) -> int:
        return int(self._array.nbytes)

    def __sizeof__(self) -> int:  # so Dask knows the cost of moving it
        return self.nbytes + object.__sizeof__(self)

    def __reduce__(self) -> Any:
        dense, back = _in_order(self.on_host())
        return _arrived, (dense, back)


def on_card(found: Any, cupy: Any) -> Any:
    """The operand for a task on a card, on the card. Call it within `computing`."""
    return map_leaves(lambda leaf: leaf.on_card(cupy) if type(leaf) is OnCard else leaf, found)


def kept(made: Any, cupy: Any) -> Any:
    """The result of a task, as its worker keeps it."""
    return map_leaves(lambda leaf: OnCard(leaf) if isinstance(leaf, cupy.ndarray) else leaf, made)


def on_host(found: Any) -> Any:
    """A result for the process that awaits it: arrays on a card are copied to NumPy."""
    return map_leaves(lambda leaf: leaf.on_host() if type(leaf) is OnCard else leaf, found)


@contextmanager
def computing() -> Iterator[Any]:
    """Gives CuPy, whose current stream is this thread's. At the end of the block all is done."""
    cupy = import_module("cupy")
    with cupy.cuda.Device(0), _stream(cupy) as stream:
        try:
            yield cupy
        finally:
            stream.synchronize()


def told(error: BaseException) -> BaseException:
    """The exception that a task on a card raises for an error: CuPy's own cannot be unpickled without CuPy."""
    ours = _ours(import_module("cupy"), error)
    if ours is not None:
        for note in notes_of(error):
            ours.add_note(note)
        return ours.with_traceback(error.__traceback__)
    if error.__cause__ is not None:
        error.__cause__ = told(error.__cause__)
    elif error.__context__ is not None:
        error.__context__ = told(error.__context__)
    return error


def _ours(cupy: Any, error: BaseException) -> BaseException | None:
    if isinstance(error, cupy.cuda.memory.OutOfMemoryError):
        return CardOutOfMemory(
            f"{error} Cure: a smaller max_bytes=, fewer or smaller tasks with arrays of their own, or more workers with"
            " cards"
        )
    if isinstance(error, cupy.cuda.runtime.CUDARuntimeError):
        return RuntimeError(f"{error}. Cure: if all fails on this worker from here on, start it again")
    if type(error).__module__.startswith("cupy"):
        return RuntimeError(f"{type(error).__name__}: {error}")
    return None


async def look() -> dict[str, Any]:
    """Called on a worker: its `card`, by host and place there, and the card's free `bytes`; or what it `lacks`."""
    return await asyncio.to_thread(_look)


def _look() -> dict[str, Any]:
    if lacks := [f"{lack.how}: {lack.cure}" for lack in missing()]:
        return {"lacks": "; ".join(lacks)}
    with computing() as cupy:
        place = cupy.cuda.runtime.deviceGetPCIBusId(0)
        free = driver.free_bytes() or cupy.cuda.runtime.memGetInfo()[0]  # CuPy's call holds the GIL while it waits
        free += cupy.get_default_memory_pool().total_bytes()
    return {"card": (gethostname(), place), "bytes": int(free)}


def _stream(cupy: Any) -> Any:
    """This thread's own CUDA stream."""
    found = getattr(_here, "stream", None)
    if found is None:
        found = _here.stream = cupy.cuda.Stream(non_blocking=True)
    return found


def _uploaded(cupy: Any, array: HostArray) -> Any:
    dense, back = _in_order(array)
    native = np.ascontiguousarray(dense, dense.dtype.newbyteorder("="))
    return cupy.asarray(native).reshape(dense.shape).transpose(back)


def _downloaded(array: Any) -> HostArray:
    with computing():
        dense, back = _in_order(array)
        found: HostArray = dense.get().transpose(back)
    return found


def _in_order(array: Any) -> tuple[Any, tuple[int, ...]]:
    """An array with its axes in the order of memory, widest first; and the order of axes that gives the array back."""
    order = sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis]))
    return array.transpose(order), tuple(sorted(range(array.ndim), key=order.__getitem__))


def _arrived(dense: HostArray, back: tuple[int, ...]) -> OnCard:
    return OnCard(dense.transpose(back))
