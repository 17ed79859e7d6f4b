"""The calls that travel to Dask's workers (`Work`) and are made there, and the arrays on a worker's card (`OnCard`).

A task of Dask is `perform` with the `Work` of one task of ours, or of several (see `stream`). The work says what to
call, with the results of other tasks, which Dask moves to the worker. On a worker's card it is called with CuPy's
arrays, else with NumPy's.

Views make no task. A view is its base and the steps from there (`Step`), which are taken where the view is used.

Operations of the table travel by name, since the worker has the same table. A captured step travels as its program
(`Fused`). The program is pickled once, and the worker keeps it, since it comes again and again.

*On a card*. Dask hands a result from task to task as it is. It pickles the result where it leaves the process:
on its way to another worker, to the process that awaits it, to the disk. CuPy's own arrays would need CuPy wherever
they arrive. So a result is an `OnCard`. Where it was computed, it holds CuPy's array. Pickled, it is NumPy's, which the
sending worker makes. The process that awaits it takes that. A worker copies it to its card when the first task reads
it, and keeps the copy instead.

A thread that runs tasks has a stream of its own, which does not wait for the null stream. A task ends by waiting for
that stream, whether it raised or not. So other threads see only finished arrays, which they may read, pickle or drop.
No kernel reads a block any more when it is dropped. (CuPy would give it back to the stream that it came from, at once.)
Copies to the card are finished, too, before others find them. Not taken: events between the threads' streams. A task of
Dask takes a millisecond anyway, and because of the wait the worker knows the task's time, and which task an error of
the card belongs to.
"""

from __future__ import annotations

import asyncio
import copyreg
import pickle
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import import_module
from socket import gethostname
from typing import Any

import numpy as np

from .._blocks import contextmanager
from .._tree import map_leaves
from ..devices.cuda import driver
from ..devices.cuda.requirements import missing
from ..devices.execution import arguments, as_declared
from ..devices.guests import call
from ..devices.host.memory import Pool
from ..devices.memory import read_only
from ..errors import AsyncSchedError, add_note, notes_of
from ..ops.declare import UNPACK
from ..ops.fused import FusedProgram
from ..ops.meta import Meta, meta
from ..ops.op import Op, resolve
from ..ops.program import Program, Ref
from ..ops.table import TABLE

NUMBERS = (type(None), bool, int, float, complex, np.generic)  # types of results that are not counted
_FAILED = "_asyncsched_work"  # an attribute of errors
_KEPT_PROGRAMS = 64  # a guess, as the next
_KEPT_BYTES = 128 * 2**20
# Buffers of intermediate results are used again: Dask's workers give freed memory back to the system at once, so new
# buffers would cost a page fault for every 4 KiB.
_buffers = Pool(_KEPT_BYTES)
_UNFINISHED = ("waiting", "ready", "constrained", "executing", "long-running", "cancelled", "resumed")


@dataclass(frozen=True, slots=True)
class Step:
    """One view of an array: an operation of the table, with a reference in the array's place."""

    op: Op
    args: tuple[Any, ...] | None
    options: Mapping[str, Any]

    def of(self, array: Any, xp: Any) -> Any:
        """The view of an array of the namespace `xp`."""
        args = (array,) if self.args is None else [array if type(a) is Ref else a for a in self.args]
        return resolve(self.op, xp)(*args, **self.options)


@dataclass(frozen=True, slots=True)
class Item:
    """One result of a call that gives several, in the place of a `Step`."""

    number: int

    def of(self, results: Any, xp: Any) -> Any:
        return results[self.number]


@dataclass(frozen=True, slots=True)
class Work:
    """A call that a worker makes with its operands.

    Attributes:
        call: an operation of the table, or a user's function.
        args: the arguments, with a reference by place for each operand; None if the operands are the arguments.
        options: of an operation.
        reads: the operands, by their places among all operands of the call; -1 for the result of the call's first work,
            -2 for that of the next, and so on.
        views: for each operand the steps to the wanted view of it.
        form: the declared shape and dtype of a function's result; and those of a captured step's results.
        gpu: whether it is done on the worker's card.
    """

    call: Any
    args: Any
    options: Mapping[str, Any]
    reads: tuple[int, ...]
    views: tuple[tuple[Step | Item, ...], ...]
    form: tuple[tuple[int, ...], np.dtype[Any]] | None = None
    gpu: bool = False


def perform(key: str, works: Sequence[Work], operands: Sequence[Any], all_of_them: bool) -> Any:
    """Do one work after the other, on the worker. Gives all their results. Or only the last one, if each other result
    is read only by the next work."""
    made: list[Any] = []
    try:
        for number, work in enumerate(works):
            found = [operands[i] if i >= 0 else made[-1 - i] for i in work.reads]
            if not all_of_them:
                made = [None] * number
            made.append(_perform_on_card(work, found) if work.gpu else _perform(work, found, np))
        return made if all_of_them else made[-1]
    except BaseException as error:
        failed = told(error) if work.gpu else error
        if isinstance(error, SystemExit | KeyboardInterrupt):  # Dask would end this worker, and then try others
            failed = RuntimeError(f"the task raised {error!r}, which would end its worker")
    add_note(failed, f"raised on the worker {_worker()}")
    with suppress(Exception):  # its class may refuse attributes: then the last work counts as the one that failed
        object.__setattr__(failed, _FAILED, (key, number))
    try:
        raise failed  # outside of the `except`, so that it gets no context, which Dask would pickle, too
    finally:
        del failed


def failed_at(error: BaseException | None, key: str, last: int) -> tuple[bool, int]:
    """Whether an error is that of the call with this key, and not of an input; and the number of the work that failed.
    For an error of Dask itself that is `last`."""
    found, number = getattr(error, _FAILED, (key, last))
    return found == key, number


def view_of(array: Any, steps: Sequence[Step | Item], xp: Any = np) -> Any:
    """The view of an array that these steps lead to."""
    for step in steps:
        array = step.of(array, xp)
    return array


def copied(array: Any) -> Any:
    """A copy of a view, so that the rest of the array under it does not travel."""
    return array.copy(order="K")


def describe(array: Any) -> tuple[tuple[int, ...], Any, bool, int]:
    """Shape and dtype of an array, whether it is in C order, and bytes."""
    return array.shape, array.dtype, bool(array.flags.c_contiguous), int(array.nbytes)


def hold(found: Any) -> Any:
    """An array that was brought here to be put anew, with memory of its own. If it is for a card, it is copied there
    when it is read."""
    return np.array(found) if isinstance(found, np.ndarray) else found


async def over(keys: Sequence[str], dask_worker: Any) -> None:
    """Wait until this worker runs none of the tasks with these keys, and will run none. Called on its event loop."""
    # Polled, since a worker does not report when a cancelled task has left its thread.
    tasks = dask_worker.state.tasks
    while any(key in tasks and tasks[key].state in _UNFINISHED for key in keys):  # noqa: ASYNC110  # there is no event of it
        await asyncio.sleep(0.01)


def _perform(work: Work, operands: Sequence[Any], xp: Any) -> Any:
    arrays = [view_of(found, steps, xp) for found, steps in zip(operands, work.views, strict=True)]
    return _run_op(work, arrays, xp) if isinstance(work.call, Op) else _call(work, arrays, xp)


def _perform_on_card(work: Work, operands: Sequence[Any]) -> Any:
    with computing() as cupy:
        work = replace(work, args=on_card(work.args, cupy))
        return kept(_perform(work, [on_card(found, cupy) for found in operands], cupy), cupy)


def _run_op(work: Work, arrays: list[Any], xp: Any) -> Any:
    options = work.options
    if work.form is not None and not work.gpu:
        options = {**options, "out": np.empty(*work.form)}
    with np.errstate(all="ignore"):
        return xp.asarray(resolve(work.call, xp)(*arguments(work.args, arrays), **options))


def _call(work: Work, arrays: list[Any], xp: Any) -> Any:
    given = map_leaves(lambda leaf: _read_only(arrays[leaf.slot]) if type(leaf) is Ref else leaf, list(work.args))
    result = call(work.call, given, xp.cuda.get_current_stream() if work.gpu else None)
    if work.form is None:
        return result
    return as_declared("it", *work.form, result, xp, (np.ndarray, xp.ndarray))


def _read_only(found: Any) -> Any:
    """An array for a user's function: read-only, since other tasks read the same one. CuPy's arrays cannot be
    read-only."""
    return read_only(found) if isinstance(found, np.ndarray) else found


def _worker() -> str:
    from distributed import get_worker

    worker = get_worker()
    return f"{worker.name} ({worker.address})"


# -- operations and captured programs on their way --------------------------------------------------------------------


class Fused:
    """A captured program for workers. It is pickled once, however often it is replayed."""

    def __init__(self, program: Program) -> None:
        from cloudpickle import dumps

        self._pickled: bytes = dumps(program)

    def __call__(self, xp: Any, arrays: Sequence[Any], outs: Sequence[Any] | None = None) -> list[Any]:
        if xp is np:
            return _fused(self._pickled).run(xp, arrays, outs)
        return _program(self._pickled).run(xp, arrays)


@lru_cache(_KEPT_PROGRAMS)
def _program(pickled: bytes) -> Program:
    found: Program = pickle.loads(pickled)
    return found


@lru_cache(_KEPT_PROGRAMS)
def _fused(pickled: bytes) -> FusedProgram:
    return FusedProgram(_program(pickled), _buffers.take, _buffers.give)


def is_captured(op: Op) -> bool:
    """Whether it is a captured step, and no operation of the table."""
    return op.out and op.name not in TABLE


def _op(name: str, exactly: bool) -> Op:
    op = UNPACK if name == UNPACK.name else TABLE[name]
    return (op.exact or op) if exactly else op


def _reduce_op(op: Op) -> tuple[Callable[..., Op], tuple[Any, ...]]:
    known = UNPACK if op.name == UNPACK.name else TABLE.get(op.name)
    if known is not None and op in (known, known.exact):
        return _op, (op.name, op is not known)
    return Op, (op.name, op.kernel, None)  # of a captured step; its rule is never called


def _reduce_meta(form: Meta) -> tuple[Callable[..., Meta], tuple[Any, ...]]:
    return meta, (form.shape, form.dtype, form.contiguous, None if form.known else form.bound)


copyreg.pickle(Op, _reduce_op)
copyreg.pickle(Meta, _reduce_meta)


RESOURCE = "GPU"  # of Dask: a worker with this resource runs tasks on its card
HostArray = np.ndarray[Any, Any]
_here = threading.local()


class CardOutOfMemory(AsyncSchedError):
    """An array found no room on a worker's card."""


class OnCard:
    """An array for a worker's card. On its way, and until a task on a card reads it, it is in host memory."""

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
    """Gives CuPy, with this thread's own stream as the current one. At the end of the block its work is finished."""
    cupy = import_module("cupy")
    with cupy.cuda.Device(0), _stream(cupy) as stream:
        try:
            yield cupy
        finally:
            stream.synchronize()


def told(error: BaseException) -> BaseException:
    """The exception to raise for an error of a task on a card: CuPy's own cannot be unpickled without CuPy."""
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
        free = driver.free_bytes(driver.make_context(0))  # CuPy's call holds the GIL while it waits
        free = cupy.cuda.runtime.memGetInfo()[0] if free is None else free
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
