"""Works: they travel to a worker, and are done there.

A task of Dask is `perform` with the `Work` of one task of ours, or of several (see `stream`). The work says what to
call, with the results of other tasks, which Dask moves to the worker. On a worker's card it is called with CuPy's
arrays, else with NumPy's.

Views make no task. A view is held as its base and the steps from there, which are taken where the view is used
(`Step`).

Operations of the table travel by name, since the worker has the same table. A captured step travels as its program
(`Fused`). It is pickled once, and the worker keeps it, since it comes again and again.
"""

from __future__ import annotations

import copyreg
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from .._tree import map_leaves
from ..devices.execution import as_declared
from ..devices.guests import call
from ..devices.host.pool import Pool
from ..devices.memory import read_only
from ..errors import add_note
from ..ops.fused import FusedProgram
from ..ops.meta import Meta, meta
from ..ops.op import Op, resolve
from ..ops.packed import UNPACK
from ..ops.program import Program, Ref
from ..ops.table import TABLE
from . import card

NUMBERS = (type(None), bool, int, float, complex, np.generic)  # types of results that are not counted
_FAILED = "_asyncsched_work"  # an attribute of errors
_KEPT_PROGRAMS = 64
_KEPT_BYTES = 128 * 2**20  # a guess, as the other
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
        for number in range(len(works)):
            work = works[number]
            found = [operands[i] if i >= 0 else made[-1 - i] for i in work.reads]
            if not all_of_them:
                made = [None] * number
            made.append(_perform_on_card(work, found) if work.gpu else _perform(work, found, np))
        return made if all_of_them else made[-1]
    except BaseException as error:
        failed = card.told(error) if work.gpu else error
        if isinstance(error, SystemExit | KeyboardInterrupt):  # Dask would end this worker, and then try others
            failed = RuntimeError(f"the task raised {error!r}, which would end its worker")
    add_note(failed, f"raised on the worker {_worker()}")
    setattr(failed, _FAILED, (key, number))
    try:
        raise failed  # here, where it has no context, since Dask pickles that, too
    finally:
        del failed


def failed_at(error: BaseException | None, key: str, last: int) -> tuple[bool, int]:
    """Whether an error is that of the call with this key, and not of an input; and of which work. An error of Dask
    itself counts as the last work's."""
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
    """Return when this worker runs none of the tasks with these keys, and will run none. Runs on its event loop."""
    from asyncio import sleep

    # Polled, since a worker does not report when a cancelled task has left its thread.
    tasks = dask_worker.state.tasks
    while any(key in tasks and tasks[key].state in _UNFINISHED for key in keys):  # noqa: ASYNC110  # there is no event of it
        await sleep(0.01)


def _perform(work: Work, operands: Sequence[Any], xp: Any) -> Any:
    arrays = [view_of(found, steps, xp) for found, steps in zip(operands, work.views, strict=True)]
    return _run_row(work, arrays, xp) if isinstance(work.call, Op) else _call(work, arrays, xp)


def _perform_on_card(work: Work, operands: Sequence[Any]) -> Any:
    with card.computing() as cupy:
        work = replace(work, args=card.on_card(work.args, cupy))
        return card.kept(_perform(work, [card.on_card(found, cupy) for found in operands], cupy), cupy)


def _run_row(work: Work, arrays: list[Any], xp: Any) -> Any:
    args = arrays if work.args is None else [arrays[a.slot] if type(a) is Ref else a for a in work.args]
    options = work.options
    if work.form is not None and not work.gpu:
        options = {**options, "out": np.empty(*work.form)}
    with np.errstate(all="ignore"):
        return xp.asarray(resolve(work.call, xp)(*args, **options))


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
    """A captured program for workers. It is pickled once, whatever the number of its replays."""

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
