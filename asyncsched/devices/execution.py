"""Running the body of a task, on any device: its arguments, its result, and the charge of that.

The device's memory runs operations its own way; a user's callable runs the same everywhere.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import nullcontext
from typing import Any, Protocol

import numpy as np

from .._arguments import refuse_mask_or_unit
from .._core.audit import failure_above
from .._core.endings import Move
from .._core.failure import Failure
from .._core.free_threading import FREE_THREADED, merge, merge_if_unknown, merged_at_birth
from .._core.model import Lease, Task, Value
from .._core.ownership import sole
from .._tree import find, map_leaves
from ..ops.meta import Meta
from ..ops.op import Op
from ..ops.program import Ref
from .guests import allocated
from .memory import Memory, hand_out, held_bytes, owner_of

_WEIGHTLESS = (type(None), bool, int, float, complex, np.generic, str, bytes)  # results of these are not charged


class Lesson(Protocol):
    """Learns the memory that a callable takes. Called on the stream's thread.

    Attributes:
        allocated: most bytes that PyTorch's allocator will give it, as far as is known.
    """

    allocated: int

    def wanted(self) -> bool:
        """Whether this task is to be measured."""

    def learn(self, peak: int, kept: int, made: int) -> None:
        """The body took `peak` bytes at most, and left `kept` behind. The arrays that it returned have `made`."""


class Body:
    """The body of a task that is neither an operation nor a user's function. It reads the values of its inputs, and
    sets its own value's result."""

    def run(self, task: Task) -> None:
        """Give the task's value its `array` and its `charge`, and the task its `refund` (or its failure). Called on the
        stream's thread, when all inputs are there."""
        raise NotImplementedError


def run(task: Task, memory: Memory) -> None:
    """Run a task's body. Afterwards its value has its array or its failure. The task still holds its operands."""
    task.refund = task.cost
    try:
        if task.move is not None and not moves(task, task.move, memory):
            return
        is_op, upstream = type(task.call) is Op, None
        if task.reads and (type(task.reads) is not Value or task.reads.task is not None):
            upstream = failure_above(task.reads) if is_op else memory.certain(task.inputs)
        if upstream is not None:
            fail(task, upstream.passed_to(task.name, task.site))
        elif not task.cancelled:
            if is_op:
                memory.run_op(task)
            elif isinstance(task.call, Body):
                task.call.run(task)
            else:
                _run_call(task, memory)
    except BaseException as error:  # any exception of a body belongs to its awaiter
        memory.explain(error)
        # Take back the charge, too: a signal may come after the value got it.
        void(task, Failure.of(error, task.name, task.site, frames=not isinstance(task.call, Op)))
    finally:
        del task  # avoids a cycle: the exception's traceback holds this frame, and the task the exception


def release(task: Task) -> None:
    """Drop every reference a task holds, before its completion is reported.

    Keeps a value that is larger than what was charged: the engine may have to name the line that asked for it. (Not a
    version in a commit: if it is written over the one before, the charge of that one comes back.)
    """
    larger = task.refund < 0 and task.move is None and task.site is not None
    kept = task.value if larger else None
    task.let_go()
    task.value = kept


def fail(task: Task, failure: Failure) -> None:
    """Give a task its failure, unless it has one."""
    if task.failure is None:
        task.failure = failure


def finish(task: Task, value: Value, array: Any, charge: int) -> None:
    """Give the value its array, the task its refund, and hand on the buffers that it has written over.

    Of a buffer that is handed on, the array is set last. The loop's thread may ask meanwhile whether the next task can
    write over the new value, and it looks at the block as soon as the array is there.
    """
    for place, new in task.takes:
        old = task.inputs[place]
        new.block, old.block = old.block, None
        new.charge, old.charge = old.charge, 0
        new.seq = old.seq
        new.array = old.array
    value.array = array
    value.charge = value.nbytes = charge
    task.refund = task.cost - charge


def void(task: Task, failure: Failure) -> None:
    """A task's result is void, and gives its charge back: its body raised, or its device was lost before that ended.

    The array stays, since another stream may be about to read it, and will find out by itself.
    """
    fail(task, failure)
    task.refund = task.cost
    if task.value is not None:
        task.value.charge = 0


def moves(task: Task, move: Move, memory: Memory) -> bool:
    """Whether a task of a commit is to compute its value. If not, the value is there now: see `Commit`."""
    value, commit = task.value, move.commit
    assert value is not None
    if task is commit.gate:
        commit.decide(memory.certain(task.inputs) is None)
        task.unread()  # at once: members may run before this end is reported, and then need to be the only holders
        finish(task, value, np.array(True), task.cost)
    elif commit.decide(False):
        return True
    elif move.hands_on:
        _hand_on(task, value, move.place, memory)
    return False


def _hand_on(task: Task, value: Value, place: int | None, memory: Memory) -> None:
    """Give a value the version before it: its buffer if nobody else holds it, else a view of it.

    A version that is charged to another account becomes a view, too: this account may have no room for it.
    """
    if place is None:
        form = value.meta  # zeros, in the memory of one number: so the array is not contiguous, even if `form` is
        finish(task, value, memory.xp.broadcast_to(memory.xp.zeros((), form.dtype), form.shape), 0)
        return
    old = task.inputs[place]
    if old.failure is not None:  # there is no version before to hand on
        fail(task, old.failure.passed_to(task.name, task.site))
        return
    own = old.base is None and old.account.open is value.account.open
    if own and sole(old, task.inputs.count(old)) and not old.escaped:
        value.block, old.block = old.block, None
        finish(task, value, old.array, old.charge)
        return
    value.base = Lease(old.owner)
    finish(task, value, old.array, 0)


def arguments(template: Sequence[Any] | None, arrays: list[Any]) -> list[Any]:
    """The arguments of an operation: the arrays of its inputs, with the constants between them."""
    return arrays if template is None else [arrays[a.slot] if type(a) is Ref else a for a in template]


def source_of(task: Task, array: Any) -> Value | None:
    """The input of which `array` is a view."""
    owner = owner_of(array)
    return next((v for v in task.inputs if type(v.array) is type(array) and owner_of(v.array) is owner), None)


def fits(value: Value, form: Meta) -> bool:
    """Whether a result of this form may be written over a value's array."""
    if value.meta is form and form.contiguous and form.known:
        return True
    array = value.array
    return array.shape == form.shape and array.dtype == form.dtype and bool(array.flags.c_contiguous)


def reusable(task: Task, any_input: bool, kind: type, form: Meta) -> Value | None:
    """The input whose buffer the output may take: only this task holds it, and it has a block of this kind.

    A ufunc may write over any of its inputs; other operations only over the first.

    The holders are counted first, and `escaped` is read second. The loop's thread, which may be handing the array out
    meanwhile, sets `escaped` first and drops its lease second: so whichever comes later sees the other.
    """
    reads = task.reads
    inputs = (reads,) if type(reads) is Value else reads  # `Task.inputs`, written out: each operation comes here
    if task.in_place is not None and _decided(task):
        return inputs[0]
    for value in inputs if any_input else inputs[:1]:
        if type(value.block) is not kind or not sole(value, inputs.count(value)):
            continue
        if not value.escaped and value.base is None and fits(value, form):
            return value
    return None


def _decided(task: Task) -> bool:
    """Whether the ledger has decided that the task writes over its first input. If not, it can no longer do so."""
    if type(task.in_place) is not list:
        return False
    try:
        task.in_place.pop()
    except IndexError:
        return True
    task.in_place = None
    return False


def _run_call(task: Task, memory: Memory) -> None:
    """Call a user's function in its own context, and charge its result."""
    value = task.value
    assert value is not None
    # An array is handed out as a new view, anything else as it is.
    inputs = task.inputs if task.reads else ()
    arrays = [hand_out(v) if type(v.array) in v.device.memory.arrays else v.array for v in inputs]
    given = [_filled(arg, arrays) for arg in task.args] if arrays else list(task.args)
    options = task.options
    lesson: Lesson | None = options["lesson"] if options else None
    with allocated(memory.number) if lesson and lesson.wanted() else nullcontext() as found:
        result = memory.run_callable(task, given)
    form = value.meta
    if form is not None:
        result = as_declared(task.name, form.shape, form.dtype, result, memory.xp, memory.arrays)
    if task.failure is not None:
        return
    charge = made = 0
    if FREE_THREADED and type(result) in memory.arrays and result.base is None:
        merge_if_unknown(result)
    if not isinstance(result, _WEIGHTLESS):  # these need not be charged, whoever holds them
        value.escaped, value.block = True, ()  # the function may have kept it
        if owners := _made(result, arrays, task.args, memory.arrays):
            value.block = tuple([_charged(owner, memory.footprint(held_bytes(owner))) for owner in owners])
            if FREE_THREADED:
                merge(value.block)
            charge = made = sum([nbytes for _, nbytes in value.block])
        elif options and not isinstance(result, memory.arrays):
            charge = options["unmeasured"] if found is None else found.kept  # charged until the handle drops
    if lesson and found:
        lesson.learn(found.peak, found.kept, made)
    finish(task, value, result, charge)


@merged_at_birth
def _charged(owner: Any, nbytes: int) -> tuple[Any, int]:
    return owner, nbytes


def as_declared(
    name: str, shape: tuple[int, ...], dtype: np.dtype[Any], result: Any, xp: Any, arrays: tuple[type, ...]
) -> Any:
    """The result of a callable as the declared array, in this machine's byte order."""
    refuse_mask_or_unit(result)
    array = xp.asarray(result).view()  # the body may keep the array, and change its shape
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if array.shape == shape and array.dtype == dtype:
        return array
    told = f"{name} was submitted with shape={shape}, dtype={dtype} and returned"
    if array.dtype.hasobject and not isinstance(result, arrays):
        raise TypeError(f"{told} {type(result).__name__}: return the array, or submit it without shape= and dtype=")
    raise ValueError(f"{told} shape={array.shape}, dtype={array.dtype}: declare what the function returns")


def _filled(arg: Any, arrays: list[Any]) -> Any:
    """An argument with its inputs' values in place of the references to them."""
    if type(arg) is Ref:
        return arrays[arg.slot]
    if not find((Ref,), arg):
        return arg
    return map_leaves(lambda leaf: arrays[leaf.slot] if type(leaf) is Ref else leaf, arg)


def _made(result: Any, inputs: list[Any], args: Sequence[Any], kinds: tuple[type, ...]) -> Collection[Any]:
    """The arrays that own a result's memory, also inside lists, tuples and dicts; but not those of the arguments."""
    owners = {id(owner): owner for owner in map(owner_of, find(kinds, result))}
    if owners:
        for array in (*inputs, *find(kinds, args)):
            if isinstance(array, kinds):
                owners.pop(id(owner_of(array)), None)
    return owners.values()
