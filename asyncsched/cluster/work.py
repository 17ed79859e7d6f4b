"""What travels to a worker, and what is done there.

A task of ours is one task of Dask's: `perform` with a `Work`, which says what to call, and the results of other tasks,
which Dask brings to the worker. Rows of the table travel by name, since the worker has the same table; a captured step
travels as its program, which the worker keeps: it comes again and again.

Views make no task. A value that is a view is held as its base and the steps that lead from there, and these are taken
where it is used (`Step`).
"""

from __future__ import annotations

import copyreg
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from .._tree import map_leaves
from ..devices.guests import call
from ..ops.fused import FusedProgram
from ..ops.meta import Meta, meta
from ..ops.packed import UNPACK, UNPACK_FOUND
from ..ops.program import Program, Ref
from ..ops.row import Row, resolve
from ..ops.table import TABLE

_KEPT_PROGRAMS = 64
_UNFINISHED = ("waiting", "ready", "constrained", "executing", "long-running", "cancelled", "resumed")
_UNPACKING = {row.name: row for row in (UNPACK, UNPACK_FOUND)}


@dataclass(frozen=True, slots=True)
class Step:
    """One view of an array: a row of the table, with a reference in the array's place."""

    row: Row
    args: tuple[Any, ...] | None
    options: Mapping[str, Any]

    def of(self, array: Any) -> Any:
        """The view of an array."""
        args = (array,) if self.args is None else [array if type(a) is Ref else a for a in self.args]
        return resolve(self.row, np)(*args, **self.options)


@dataclass(frozen=True, slots=True)
class Work:
    """What a worker is to do with its operands.

    Attributes:
        call: a row of the table, or a user's function.
        args: the arguments, with a reference by place for each operand; None if they are the operands.
        options: of a row.
        views: for each operand the steps to the view of it that is meant.
        form: shape and dtype of what a function is to return, if that was said.
    """

    call: Any
    args: Any
    options: Mapping[str, Any]
    views: tuple[tuple[Step, ...], ...]
    form: tuple[tuple[int, ...], np.dtype[Any]] | None = None


def perform(work: Work, *operands: Any) -> Any:
    """Do it, on the worker."""
    try:
        arrays = [view_of(found, steps) for found, steps in zip(operands, work.views, strict=True)]
        return _run_row(work, arrays) if isinstance(work.call, Row) else _call(work, arrays)
    except BaseException as error:
        error.add_note(f"raised on the worker {_worker()}")
        raise


def view_of(array: Any, steps: Sequence[Step]) -> Any:
    """An array as a view of it."""
    for step in steps:
        array = step.of(array)
    return array


def describe(found: Any) -> tuple[Any, Any, bool, int]:
    """Of a result: shape and dtype, if it is an array; whether it is in C order; bytes."""
    from dask.sizeof import sizeof

    if isinstance(found, np.ndarray):
        return found.shape, found.dtype, found.flags.c_contiguous, found.nbytes
    return None, None, False, sizeof(found)


def hold(found: Any) -> Any:
    """What was brought to be put anew, with memory of its own."""
    return np.array(found) if isinstance(found, np.ndarray) else found


async def over(keys: Sequence[str], dask_worker: Any) -> None:
    """Return when this worker runs none of the tasks of these keys, and will run none. Runs on its event loop."""
    from asyncio import sleep

    # Of a task that was cancelled a worker tells nobody when its thread is free again.
    tasks = dask_worker.state.tasks
    while any(key in tasks and tasks[key].state in _UNFINISHED for key in keys):  # noqa: ASYNC110  # there is no event of it
        await sleep(0.01)


def _run_row(work: Work, arrays: list[Any]) -> Any:
    args = arrays if work.args is None else [arrays[a.slot] if type(a) is Ref else a for a in work.args]
    with np.errstate(all="ignore"):
        return np.asarray(resolve(work.call, np)(*args, **work.options))


def _call(work: Work, arrays: list[Any]) -> Any:
    given = map_leaves(lambda leaf: _read_only(arrays[leaf.slot]) if type(leaf) is Ref else leaf, list(work.args))
    result = call(work.call, given)
    if work.form is None:
        return result
    result, (shape, dtype) = np.asarray(result), work.form
    if result.shape != shape or result.dtype != dtype:
        raise ValueError(
            f"it was submitted with shape={shape}, dtype={dtype} and returned shape={result.shape},"
            f" dtype={result.dtype}: declare what the function returns"
        )
    return result


def _read_only(found: Any) -> Any:
    """As a function gets it: other tasks read the same array."""
    if isinstance(found, np.ndarray):
        found = found.view()
        found.setflags(write=False)
    return found


def _worker() -> str:
    from distributed import get_worker

    try:
        worker = get_worker()
    except ValueError:  # this runs on none, in a test
        return "(none)"
    return f"{worker.name} ({worker.address})"


class Fused:
    """A captured program as a worker runs it. Pickled once, whatever the number of its replays."""

    def __init__(self, program: Program) -> None:
        from cloudpickle import dumps

        self._pickled: bytes = dumps(program)

    def __call__(self, xp: Any, arrays: Sequence[Any], outs: Sequence[Any] | None = None) -> list[Any]:
        return _program(self._pickled).run(xp, arrays, outs)


@lru_cache(_KEPT_PROGRAMS)
def _program(pickled: bytes) -> FusedProgram:
    from pickle import loads

    return FusedProgram(loads(pickled), _take, _give)


def _take(nbytes: int) -> Any:
    return np.empty(nbytes, np.uint8)


def _give(block: Any) -> None:
    """It goes by itself."""


def _row(name: str, exactly: bool) -> Row:
    row = _UNPACKING[name] if name in _UNPACKING else TABLE[name]
    return (row.exact or row) if exactly else row


def _reduce_row(row: Row) -> tuple[Callable[..., Row], tuple[Any, ...]]:
    known = _UNPACKING.get(row.name) or TABLE.get(row.name)
    if known is not None and row in (known, known.exact):
        return _row, (row.name, row is not known)
    return Row, (row.name, row.kernel, None)  # of a captured step; nobody asks its rule


def _reduce_meta(form: Meta) -> tuple[Callable[..., Meta], tuple[Any, ...]]:
    return meta, (form.shape, form.dtype, form.contiguous, None if form.known else form.bound)


copyreg.pickle(Row, _reduce_row)
copyreg.pickle(Meta, _reduce_meta)
