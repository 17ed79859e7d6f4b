"""The memory of one CUDA device: a private pool, how table rows run, and copies in and out."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

import numpy as np

from ..._core.completions import Completions
from ..._core.model import Task, Value
from ...ops.row import Row, resolve
from .. import execution as body
from ..memory import Memory
from ..torch_interop import call
from .staging import Ring, without_gaps

if TYPE_CHECKING:
    from .device import CUDADevice

GRANULE = 512  # CuPy's pool hands out multiples of this (`ALLOCATION_UNIT_SIZE` in cupy/cuda/memory.pyx)
_WARM_LIMIT = 16_384
# One at a time in the process: two threads that meet the same new kernel would both compile it.
_compiling = threading.Lock()


class CUDAMemory(Memory):
    """CuPy's arrays, in a private pool whose reserved bytes are kept under the scheduler's limit."""

    def __init__(self, device: CUDADevice, completions: Completions, max_bytes: int | None) -> None:
        super().__init__(completions)
        self.xp = device.cupy
        self.arrays = (device.cupy.ndarray, np.ndarray)
        self._device = device
        self._pool = device.cupy.cuda.MemoryPool(self._grow)
        self._loop_thread = threading.get_ident()
        self._limit = max_bytes or 0
        # What kernels need for themselves comes on top of what is tracked. Both numbers are guesses.
        self._most = self._limit + max(self._limit // 4, 64 << 20) if self._limit else 0
        self._up, self._down = Ring(device.cupy), Ring(device.cupy)
        self._warm: set[Hashable] = set()

    # -- the pool -----------------------------------------------------------------------------------------------

    def footprint(self, nbytes: int) -> int:
        return -(-nbytes // GRANULE) * GRANULE

    def reserved(self) -> int:
        """Bytes the pool took from the device: arrays, and free blocks in the arenas of the streams."""
        with self._device.current():
            return int(self._pool.total_bytes())

    def malloc(self, nbytes: int) -> Any:
        """CuPy's allocator."""
        try:
            return self._pool.malloc(nbytes)
        except self.xp.cuda.memory.OutOfMemoryError as error:
            error.add_note("the device is full, with what others hold and what kernels need: lower max_bytes")
            raise

    def _grow(self, nbytes: int) -> Any:
        """What the pool calls for more memory, once `nbytes` are counted among its total.

        At the limit, free blocks that lie in the arenas of other streams go back to the device first. The pool has no
        limit of its own, since it would free those on whatever thread. What kernels need for themselves comes on top.
        """
        self._must_not_block_the_loop()
        cuda = self.xp.cuda
        if self._limit:
            self._make_room()
            if self.reserved() > self._most:
                raise cuda.memory.OutOfMemoryError(nbytes, self.reserved() - nbytes, self._most)
        return cuda.MemoryPointer(cuda.Memory(nbytes), 0)

    def _make_room(self) -> None:
        """Give free blocks back while that helps: freeing waits for the device, and by then there may be more."""
        before = 0
        while (now := self.reserved()) > self._limit and now != before:
            before = now
            self._pool.free_all_blocks()

    def _must_not_block_the_loop(self) -> None:
        if threading.get_ident() == self._loop_thread:
            raise body.MustBlock

    def trim(self) -> None:
        """Give free blocks back to the device. May block."""
        self._pool.free_all_blocks()

    # -- table rows ---------------------------------------------------------------------------------------------

    def run_row(self, task: Task) -> None:
        value = task.value
        assert value is not None
        if task.lane is not None and task.lane.copies:
            array = self.bring(task.inputs[0] if task.inputs else task.args[0], task.lane.stream.cuda)
            self._finish(task, value, array)
            return
        key = self._key(task)
        if key in self._warm:
            self._apply(task, value)
            return
        with _compiling:
            self._apply(task, value)
        if len(self._warm) >= _WARM_LIMIT:
            self._warm.clear()
        self._warm.add(key)

    def _apply(self, task: Task, value: Value) -> None:
        row, options = task.call, task.options or {}
        args = body.arguments(task, [read.array for read in task.inputs])
        kernel = resolve(row, self.xp)
        reused = (
            body.reusable(task, isinstance(kernel, self.xp.ufunc), lambda v: _fits(v, value)) if row.inplace else None
        )
        array = kernel(*args, **options) if reused is None else kernel(*args, out=reused.array, **options)
        if not isinstance(array, self.xp.ndarray):
            array = self.xp.asarray(array)
        if value.meta.contiguous and not array.flags.c_contiguous:  # CuPy's argsort along another axis than the last
            array = self.xp.ascontiguousarray(array)
        self._finish(task, value, array, None if reused is not None else body.source_of(task, array))

    def _finish(self, task: Task, value: Value, array: Any, source: Value | None = None) -> None:
        if value.failure is None:  # else it was cancelled meanwhile
            value.base = source
            body.finish(task, value, array, 0 if source is not None else self.footprint(array.nbytes))

    def warm(self, task: Task) -> bool:
        """Whether the task may be issued from the event loop's thread: a row that ran before with such operands.

        Only one that is a single kernel, or a view. Others may have to begin again after they wrote over an operand,
        and may want a handle of a library (cuBLAS makes one for each thread, which blocks).
        """
        row = task.call
        assert task.lane is not None
        if not isinstance(row, Row) or task.lane.copies or self._key(task) not in self._warm:
            return False
        return row.view or isinstance(resolve(row, self.xp), self.xp.ufunc)

    @staticmethod
    def _key(task: Task) -> Hashable:
        args = body.arguments(task, [read.array for read in task.inputs])
        return task.name, tuple([_kind(a) for a in args]), tuple((task.options or {}).items())

    def run_callable(self, task: Task, args: list[Any]) -> Any:
        assert task.lane is not None
        return task.context.run(call, task.call, args, task.lane.stream.cuda, self._device.number)

    # -- copies -------------------------------------------------------------------------------------------------

    def bring(self, source: Any, stream: Any) -> Any:
        """A copy on this device of an array that is anywhere, enqueued on `stream`, the current one."""
        if type(source) is Value:
            source = self._reachable(source)
        if isinstance(source, np.ndarray):
            dense = without_gaps(source)
            target = self._like(dense)
            self._up.upload(dense, target, stream)
            return target
        if source.device.id == self._device.number:
            return source.copy(order="K")
        target = self._like(source)
        pointers = (target.data.ptr, self._device.number, source.data.ptr, source.device.id)
        if source.nbytes:  # else there is no pointer
            self.xp.cuda.runtime.memcpyPeerAsync(*pointers, source.nbytes, stream.ptr)
        return target

    def _reachable(self, value: Value) -> Any:
        """The value's array if this device can copy it as it lies; else a copy on the host."""
        array = value.array
        if isinstance(array, np.ndarray) or array.flags.c_contiguous or array.flags.f_contiguous:
            return array
        return value.device.fetch(array)

    def _like(self, dense: Any) -> Any:
        return self.xp.ndarray(dense.shape, dense.dtype, self.malloc(dense.nbytes), dense.strides)

    def fetch(self, array: Any, stream: Any) -> np.ndarray[Any, Any]:
        """A host copy of an array of this device. Blocks."""
        return self._down.download(without_gaps(array), stream)


def _kind(arg: Any) -> Hashable:
    if arg is None:  # the producer has not been issued yet
        return ()
    is_array = hasattr(arg, "strides") and not isinstance(arg, np.generic)
    return (arg.shape, arg.dtype, arg.strides) if is_array else type(arg).__name__


def _fits(candidate: Value, result: Value) -> bool:
    """Whether a result may be written over a candidate."""
    array, form = candidate.array, result.meta
    return array.shape == form.shape and array.dtype == form.dtype and bool(array.flags.c_contiguous)
