"""Running tasks on host memory. Outputs go into recycled buffers, and every reference is dropped at the end.

Shared by the devices whose arrays are NumPy's (`cpu`, `sim`).

Allocating large arrays in a worker thread costs a page fault for every 4 KiB, many times the cost of the arithmetic. So
outputs go into buffers that were just given back, last in first out. Few of them cycle, and stay in cache.

Theory of operation. Streams take buffers on their threads. Buffers come back on any thread, perhaps from a garbage
collection that begins inside `take`, which holds the lock. So `give` takes no lock: it appends to a deque. The next
`take` gives out the last of them, if that has the size, or sorts all into the stacks. Until then their bytes count as
live, so the bound holds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..._core.completions import Completions
from ..._core.free_threading import FREE_THREADED, merge, merged_at_birth
from ..._core.model import Lease, Task, Value
from ..._core.ownership import POOLED_BYTES
from ..._interrupts import Lock
from ...ops import cut, parallel
from ...ops.fused import FusedProgram
from ...ops.op import NO_OPTIONS, Op, Plan, resolve
from ...ops.program import Program, ref
from .. import execution
from ..contract import Device
from ..memory import Memory
from .allowed import allowed_memory

Array = np.ndarray[Any, Any]
Block = NDArray[np.uint8]
_FIRST = ref(0)
_ndarray = np.ndarray
_array_on, _new_array = merged_at_birth(np.ndarray), merged_at_birth(np.empty)
# Most free bytes kept when the scheduler has no byte limit. A guess: a few large batches.
UNBOUNDED_FREE = 256 * 2**20
_LINE = 64
_POISON = 0xA5


def execute(task: Task, memory: HostMemory) -> None:
    """Run one task to its end. Afterwards the value has its array or its failure, and the task holds nothing."""
    observer = memory.observer
    if observer is not None:
        observer.body_began(task)
        began = perf_counter()
    if not run_small(task):
        execution.run(task, memory)
        if memory.completions.wants_bytes:
            memory.completions.ending = True
        execution.release(task)
    if observer is not None:
        observer.body_ended(task, began, perf_counter())
    del task  # as in `execution.run`


def run_small(task: Task) -> bool:
    """Run an operation with a small result to its end, in few steps: most operations are such.

    Returns False in all unusual cases, such as an operand that is not there or a kernel that raises. Then nothing has
    happened, and `execution.run` and `execution.release` do the same and more.
    """
    op, value = task.call, task.value
    if type(op) is not Op or not op.out or task.cancelled or task.takes:
        return False
    if value is None or value.nbytes >= POOLED_BYTES or value.meta.bound is not value.meta.shape:
        return False
    arrays = _operands(task.reads, task.args)
    if arrays is None or (task.move is not None and not task.move.commit.decide(False)):
        return False
    try:
        array = (op.kernels.get(np) or resolve(op, np))(*arrays, **(task.options or NO_OPTIONS))
    except Exception:
        return False
    if type(array) is not _ndarray:
        array = np.asarray(array)
    if FREE_THREADED:
        merge(array)  # new, since this operation could write into a given one as well
    task.refund = task.cost
    if task.failure is None:  # as `execution.finish`, for a result that is known to have the promised shape
        value.array = array
        value.charge = value.nbytes = nbytes = array.nbytes
        task.refund -= nbytes
    task.let_go()
    return True


def _operands(reads: Any, template: Any) -> Sequence[Any] | None:
    """The arguments of an operation; None if an input is not there."""
    if not reads:  # constants alone, as a host array that is put
        return tuple(template or ())
    arrays: list[Any] = []
    if type(reads) is Value:  # the most frequent case: a loop would take twice as long
        producer, array = reads.task, reads.array
        if type(array) is not _ndarray or (producer is not None and producer.failure is not None):
            return None
        if template is not None and template[0] is _FIRST and len(template) == 2:  # with a number, as most of all
            return array, template[1]
        arrays = [array]
    else:
        for value in reads:
            producer, array = value.task, value.array
            if type(array) is not _ndarray or (producer is not None and producer.failure is not None):
                return None
            arrays.append(array)
    return execution.arguments(template, arrays)


class Pool:
    """Buffers keyed by size (rounded up to a cache line). The oldest free ones are dropped first.

    Live and free bytes together stay under `limit`; without a limit, free bytes stay under 256 MiB. With `poison`,
    returned buffers are overwritten at once, so that late reads are found out.
    """

    def __init__(self, limit: int | None, *, poison: bool = False) -> None:
        self.live: int = 0
        self.free: int = 0
        self._limit = limit
        self._poison = poison
        self._stacks: dict[int, deque[tuple[int, Block]]] = {}
        self._clock = count()
        self._lock = Lock()
        self._returned: deque[Block | int] = deque()
        if not poison:  # a method in C: a signal's exception comes before it, and the caller tries again, or after it
            self.give = self._returned.append  # type: ignore[assignment, method-assign]

    def take(self, nbytes: int) -> Block:
        """A buffer of at least `nbytes`, its contents undefined."""
        size = -(-nbytes // _LINE) * _LINE
        with self._lock:
            if self._returned:
                last = self._returned.pop()
                if type(last) is _ndarray and last.nbytes == size:  # mostly, in a chain of operations
                    return last
                self._returned.append(last)
                self._collect()
            self.live += size
            try:
                stack = self._stacks.get(size)
                if stack:
                    self.free -= size
                    return stack.pop()[1]
                if self.free:
                    self._trim()
            except BaseException:  # a signal came
                self.live -= size
                raise
        try:
            return _new_array(size, np.uint8)
        except BaseException:  # there is no memory, or a signal came
            try:
                self.give(size)
            except MemoryError:  # not even for the number
                with self._lock:
                    self.live -= size
                raise
            with self._lock:
                self._collect()
            raise

    def adopt(self, nbytes: int) -> None:
        """Count live memory that was not taken from here. Give it back with `give(nbytes)`."""
        with self._lock:
            self._collect()
            self.live += nbytes
            self._trim()

    def give(self, item: Block | int) -> None:
        """Return a buffer, or the number of bytes of one that is gone for good. Never blocks."""
        if self._poison and not isinstance(item, int):
            item.fill(_POISON)
        self._returned.append(item)

    def _collect(self) -> None:
        while self._returned:
            item = self._returned.popleft()
            if isinstance(item, int):
                self.live -= item
                continue
            self.live -= item.nbytes  # first: where there is no memory to list it, it is dropped
            self._stacks.setdefault(item.nbytes, deque()).append((next(self._clock), item))
            self.free += item.nbytes
        self._trim()

    def _trim(self) -> None:
        allowed = UNBOUNDED_FREE if self._limit is None else self._limit - self.live
        while self.free and self.free > allowed:
            size = min((s for s, stack in self._stacks.items() if stack), key=lambda s: self._stacks[s][0][0])
            self._stacks[size].popleft()
            self.free -= size
            if not self._stacks[size]:
                del self._stacks[size]


class HostDevice(Device):
    """The part of the contract that all devices on host memory share."""

    dlpack: tuple[int, int] = (1, 0)
    xp: Any = np
    memory: HostMemory

    def prepare(self) -> None:
        allowed_memory()

    def default_bytes(self) -> int | None:
        """Half of the memory that this process may use; no limit if that is not known."""
        allowed = allowed_memory()  # read by `prepare`
        return allowed and allowed // 2

    def capture(self, program: Program, inputs: int) -> tuple[Callable[..., list[Any]], int, int]:
        fused = FusedProgram(program, self.memory.pool.take, self.memory.give)
        return fused.run, program.peak(self.memory.footprint), 0

    def fetch(self, array: Any) -> Any:
        return np.array(array)


class HostMemory(Memory):
    """The memory of one host device: NumPy's arrays, in buffers from a pool."""

    xp: Any = np
    arrays: tuple[type, ...] = (np.ndarray,)

    def __init__(self, completions: Completions, max_bytes: int | None, *, poison: bool = False) -> None:
        super().__init__(completions)
        self.pool: Pool = Pool(max_bytes, poison=poison)
        self.threads: int = 1  # that share the work of one operation
        self.give: Callable[[Any], None] = self.pool.give  # type: ignore[assignment]

    def needs(self, plan: Plan) -> tuple[int, int]:
        helpers = min(plan.shared.most, self.threads) - 1
        return plan.nbytes, plan.nbytes + plan.workspace + plan.shared.each * helpers

    def may_recycle(self, value: Value) -> bool:
        pooled = value.nbytes >= POOLED_BYTES if value.array is None else type(value.block) is np.ndarray
        return pooled and value.base is None and not value.escaped and bool(value.meta.contiguous)

    def run_op(self, task: Task) -> None:
        """Run an operation, in a buffer of the pool, or over an input that nobody else holds."""
        op, options = task.call, task.options or NO_OPTIONS
        form, nbytes = task.value.meta, task.value.nbytes  # type: ignore[union-attr]  # the value in no variable: below
        args = _operands(task.reads, task.args)
        if args is None:  # some are on another device
            args = execution.arguments(task.args, [_on_host(v) for v in task.inputs])
        kernel = op.kernels.get(np) or resolve(op, np)
        pools = op.out and not op.view and nbytes >= POOLED_BYTES and form.known
        # `out` is in C order, so the result must be, too: it is declared so, or it follows from the operands.
        if not pools or not (form.contiguous or all(map(_contiguous, args))):
            self._finish(task, np.asarray(kernel(*args, **options)))
            return
        reused = execution.reusable(task, isinstance(kernel, np.ufunc), np.ndarray, form) if op.inplace else None
        if reused is None:
            block = self.pool.take(nbytes)
        else:
            block, reused.block = reused.block, None
        try:
            out = _array_on(form.shape, form.dtype, buffer=block) if reused is None else reused.array
            if task.plan.alone < parallel.WHOLE * parallel.PART_SECONDS:  # as most are: nothing else is asked
                made = kernel(*args, out=out, **options)
            else:
                made = cut.run(op, kernel, args, out, options)
            if task.failure is not None:  # cancelled meanwhile
                self.pool.give(block)
            else:
                assert task.value is not None
                task.value.block = block
                execution.finish(task, task.value, made, nbytes)
            if reused is not None and task.in_place is not None:
                # The ledger counts on it that this charge comes back in the same step as the task's own end.
                task.in_place, reused.charge = (reused.charge, reused.seq), 0
        except BaseException:
            if task.value is None or task.value.block is not block:
                self.pool.give(block)
            raise

    def _finish(self, task: Task, array: Array) -> None:
        """Take in a result that is in no buffer of the pool."""
        value = task.value
        assert value is not None
        if task.failure is not None:  # cancelled meanwhile
            return
        charge = 0
        if not array.flags.owndata and (source := execution.source_of(task, array)) is not None:
            value.base = Lease(source)
        else:
            charge = array.nbytes
            if FREE_THREADED and array.flags.owndata and all(v.array is not array for v in task.inputs):
                merge(array)
            if charge >= POOLED_BYTES:
                self.pool.adopt(charge)
                value.block = charge
        execution.finish(task, value, array, charge)


def _on_host(value: Value) -> Any:
    """The value's array, copied here first if it is another device's."""
    array = value.array
    return array if isinstance(array, np.ndarray) else value.device.fetch(array)


def _contiguous(array: Any) -> bool:
    return not isinstance(array, np.ndarray) or array.flags.c_contiguous
