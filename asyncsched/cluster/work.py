"""What travels to a worker, and what is done there.

A task of Dask's is `perform` with the `Work` of one task of ours, which says what to call, and the results of other
tasks, which Dask brings to the worker; or with that of several of ours, see `stream`. On a worker's card it is called
with CuPy's arrays, and else with NumPy's.

Views make no task. A value that is a view is held as its base and the steps that lead from there, and these are taken
where it is used (`Step`).

Operations of the table travel by name, since the worker has the same table. A captured step travels as its program
(`Fused`), pickled once, which the worker keeps: it comes again and again.
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

NUMBERS = (type(None), bool, int, float, complex, np.generic)  # results that are not worth being counted
_FAILED = "_asyncsched_work"  # an attribute of errors
_KEPT_PROGRAMS = 64
_KEPT_BYTES = 128 * 2**20  # a guess, as the other
# Buffers of intermediate results, used again: Dask has its workers give freed memory back to the system at once, so
# new ones would cost a page fault for every 4 KiB.
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
    """One of the results of a call that gives them all, where a `Step` would stand."""

    number: int

    def of(self, results: Any, xp: Any) -> Any:
        return results[self.number]


@dataclass(frozen=True, slots=True)
class Work:
    """What a worker is to do with its operands.

    Attributes:
        call: an operation of the table, or a user's function.
        args: the arguments, with a reference by place for each operand; None if they are the operands.
        options: of an operation.
        reads: the operands, by their places among all of the call's; -1 for the result of its first work, -2 for that
            of the next, and so on.
        views: for each operand the steps to the view of it that is meant.
        form: shape and dtype of what a function is to return, if that was said; and of what a captured step gives.
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
    """Do one work after the other, on the worker. Gives all their results; or that of the last, where each of the
    others is read by the next alone."""
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
    add_note(failed, f"raised on the worker {_worker()}")
    setattr(failed, _FAILED, (key, number))
    try:
        raise failed  # here, where it has no context: Dask pickles that, too
    finally:
        del failed


def failed_at(error: BaseException | None, key: str, last: int) -> tuple[bool, int]:
    """Whether an error is that of the call with this key, and not of what it reads; and by which work. What Dask itself
    raised counts as the last's."""
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
    """What was brought to be put anew, with memory of its own. What is for a card is brought there when it is read."""
    return np.array(found) if isinstance(found, np.ndarray) else found


async def over(keys: Sequence[str], dask_worker: Any) -> None:
    """Return when this worker runs none of the tasks of these keys, and will run none. Runs on its event loop."""
    from asyncio import sleep

    # Polled, since a worker tells nobody when a cancelled task has left its thread.
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
    """An array for a user's function: read-only, since other tasks read the same one. CuPy's cannot be."""
    return read_only(found) if isinstance(found, np.ndarray) else found


def _worker() -> str:
    from distributed import get_worker

    try:
        worker = get_worker()
    except ValueError:  # this runs on none, in a test
        return "(none)"
    return f"{worker.name} ({worker.address})"


# -- operations and captured programs on their way --------------------------------------------------------------------


class Fused:
    """A captured program as a worker runs it. Pickled once, whatever the number of its replays."""

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
    """Whether it is a captured step's, and no operation of the table."""
    return op.out and op.name not in TABLE


def _op(name: str, exactly: bool) -> Op:
    op = UNPACK if name == UNPACK.name else TABLE[name]
    return (op.exact or op) if exactly else op


def _reduce_op(op: Op) -> tuple[Callable[..., Op], tuple[Any, ...]]:
    known = UNPACK if op.name == UNPACK.name else TABLE.get(op.name)
    if known is not None and op in (known, known.exact):
        return _op, (op.name, op is not known)
    return Op, (op.name, op.kernel, None)  # of a captured step; nobody asks its rule


def _reduce_meta(form: Meta) -> tuple[Callable[..., Meta], tuple[Any, ...]]:
    return meta, (form.shape, form.dtype, form.contiguous, None if form.known else form.bound)


copyreg.pickle(Op, _reduce_op)
copyreg.pickle(Meta, _reduce_meta)
