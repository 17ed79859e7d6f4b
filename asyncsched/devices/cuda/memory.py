"""The memory of one CUDA device: running operations in it, arrays that leave it, and copies in and out."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import nullcontext
from contextvars import ContextVar
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from ..._core.audit import failure_above
from ..._core.completions import Completions
from ..._core.failure import Failure
from ..._core.model import Lease, Task, Value
from ..._system import Log
from ...ops.kernels import checks
from ...ops.op import CARD_GRANULE, Plan, resolve
from ...ops.program import Ref
from .. import execution, guests
from ..guests import cached, call, is_guest
from ..memory import Memory, owner_of
from .context import CUDAContext, of_memory
from .deferred_errors import DeferredErrors, certain
from .fused import FusedSteps, Launches, fusible
from .janitor import Body, Janitor, Loan, keeper_of, kept_for
from .pool import PrivatePool, Spare, untracked
from .staging import Staging, without_gaps
from .threads import first_run

_DEFAULT = (0, 1, 2)  # pointers of default streams: the null stream has two, and the calling thread's own one
_MOST_FUNCTIONS = 16_384  # so many are remembered. Then all are forgotten, and those still in use are soon back
_MOST_MARKS = 8  # so many stay in a plan. Then all are forgotten
# The block of a value that owns its memory: where its array is kept for later results. This one keeps none.
_DROPPED = Spare()
_DROPPED.end()
_SLOW = 0.1  # if the first call of a kind takes more seconds, it was compiling
_COMPILED = (
    "%s took %.1f s at first on %s: CuPy compiles kernels, and keeps them on disk for later processes (CUPY_CACHE_DIR);"
    " `await s.warm_up(fn, *examples)` does so ahead"
)
_FOR_LIBRARIES = 192 << 20  # bytes: on an H200 a handle of cuBLAS takes 64 MiB, one of cuSOLVER 96, a plan of cuFFT 6
_FULL = "the device seems to be full, and libraries of CUDA's need memory beside max_bytes: lower that"
_log = Log(__name__)
# In a function's context: by the device's number, the stream that was current where the function was submitted. It is
# set if the user's own arrays are among the arguments.
pending_on: ContextVar[dict[int, Any]] = ContextVar("pending_on")


class CUDAMemory(Memory):
    """CuPy's arrays, in the device's private pool."""

    granule = CARD_GRANULE

    def __init__(self, context: CUDAContext, janitor: Janitor, completions: Completions) -> None:
        super().__init__(completions)
        self._context = context
        self._janitor = janitor
        self.xp: Any = context.cupy
        self.arrays: tuple[type, ...] = (context.cupy.ndarray, np.ndarray)
        self.pool: PrivatePool = context.pool
        self.number: int = context.number
        self.deferred_errors: DeferredErrors = DeferredErrors(context.cupy)
        self._up, self._down = Staging(context.cupy), Staging(context.cupy)
        self._ran_before: set[Hashable] = set()  # code of functions
        self._mark = object()  # plans of which the same is known: see `_mark_of`
        self._steps = FusedSteps(context.cupy)

    def explain(self, error: BaseException) -> None:
        self._context.explain(error)

    # -- operations ---------------------------------------------------------------------------------------------

    def run_op(self, task: Task) -> None:
        lane: Any = task.lane
        plan: Any = task.plan
        value: Any = task.value
        if lane.copies:
            source = task.inputs[0] if task.inputs else task.args[0]
            self._finish(task, value, self.with_room(self.bring, source, lane.stream.cuda))
            return
        if self._mark in plan.compiled_in or self._noted(task):
            self._run(task, value, plan.compiled_in.get(self._mark), lane.stream)
            return
        known, whole = value.meta.known, all(v.meta is not None and v.meta.known for v in task.inputs)
        # If it waits for its stream, to learn the shape, others do not wait, and a kernel may be compiled twice.
        with first_run(self._kernel(task)) if known else nullcontext():
            began = perf_counter()
            mark, launches = self._mark_of(task), self._launches(task)
            if launches is not None:
                self.with_room(launches.__getitem__, task.args)  # compiles and loads the kernel
            self._run(task, value, launches, lane.stream)
            seconds = perf_counter() - began
        if known and seconds > _SLOW:
            _log.info(_COMPILED, task.name, seconds, self._context.name)
        if whole:
            if len(plan.compiled_in) >= _MOST_MARKS:
                plan.compiled_in.clear()
            plan.compiled_in[mark] = launches

    def _noted(self, task: Task) -> bool:
        """Whether the plan says that nothing is compiled for the task: it ran before on operands of this form."""
        noted = task.plan.compiled_in  # type: ignore[attr-defined]
        return bool(noted) and self._mark_of(task) in noted

    def _mark_of(self, task: Task) -> Hashable:
        """The plan has the whole form of operands without gaps. Of others it lacks the strides."""
        others = [v.array for v in task.inputs if v.meta is not None and not v.meta.contiguous]
        return (self._mark, *[getattr(array, "strides", None) for array in others]) if others else self._mark

    def _launches(self, task: Task) -> Launches | None:
        plan: Any = task.plan
        forms = [*[read.meta for read in _operands(task)], plan.meta]
        return self._steps.launches(task.call, task.options or {}, forms, self.footprint(plan.meta.nbytes))

    def _run(self, task: Task, value: Value, launches: Launches | None, stream: Any) -> None:
        launch, given = None if launches is None else launches[task.args], []
        for read in () if launch is None else _operands(task):
            given.append(read.array)
            # A function's result may have gaps, and so have zeros in the memory of one (see `moves`).
            if type(read.block) is not Spare and not read.array.flags.c_contiguous:
                launch = None
            del read  # this frame may last longer than the task
        if launch is None:
            self._apply(task, value, stream)
            return
        form = value.meta
        reused = execution.reusable(task, True, Spare, form) if task.call.inplace else None
        out, spare = self._new(form, stream) if reused is None else (reused.array, reused.block)
        given.append(out)
        given += launch.numbers
        try:
            launch.function(launch.size, given)
        except Exception as error:  # as in `with_room`: written out, since most operations come this way
            if not of_memory(error):
                raise
            self._with_more_room(launch.function, launch.size, given)
        if task.failure is None:  # it was not cancelled meanwhile
            if reused is not None:
                reused.block = None
            value.block = spare
            execution.finish(task, value, out, launch.charge)

    def _new(self, form: Any, stream: Any) -> tuple[Any, Spare]:
        """An array for a stream's result of a form, and where it is kept once nobody holds it."""
        spare: Spare = stream.spares[form]
        try:
            return spare.pop(), spare
        except IndexError:  # a dtype's letter: CuPy looks dtypes up, and the hash of one takes longer
            return self.xp.ndarray(form.shape, form.dtype.char, self.pool.malloc(form.nbytes)), spare

    def _apply(self, task: Task, value: Value, stream: Any) -> None:
        op, options, form = task.call, task.options or {}, value.meta
        args = execution.arguments(task.args, [read.array for read in task.inputs])
        kernel = resolve(op, self.xp)
        single, reused, out, block = isinstance(kernel, self.xp.ufunc), None, None, _DROPPED
        if op.inplace:
            reused = execution.reusable(task, single, Spare, form)
        if reused is not None:
            out, block = reused.array, reused.block
        elif single and op.out and form.known and form.contiguous and form.nbytes:
            out, block = self._new(form, stream)
        array = self.with_room(self._steps.run, op, args, options, form, out) if fusible(op) else None
        if array is None:
            if out is not None:
                options = {**options, "out": out}
            compute = partial(self._computed, task, kernel, args, options)
            # A single kernel that fails has not run. Several may have written over an input by then.
            again = (out is None or single) and not task.takes
            array = self.with_room(compute) if again else compute()
        if array is out:
            if reused is not None:
                reused.block = None
        else:
            block = _DROPPED
            if not isinstance(array, self.xp.ndarray):
                array = self.xp.asarray(array)
            if form.contiguous and not array.flags.c_contiguous:  # CuPy's argsort along another axis than the last
                array = self.xp.ascontiguousarray(array)
        # A kernel that takes `out` would else make an array of its own.
        source = None if op.out else execution.source_of(task, array)
        self._finish(task, value, array, source, block)

    def _computed(self, task: Task, kernel: Callable[..., Any], args: list[Any], options: Mapping[str, Any]) -> Any:
        if not task.call.checks:
            return kernel(*args, **options)
        assert task.lane is not None
        with checks.deferred() as found:
            array = kernel(*args, **options)
        if found:
            self.deferred_errors.raised(task, task.lane.stream, found)
        return array

    def needs(self, plan: Plan) -> tuple[int, int]:
        return plan.needs_on_card

    def certain(self, values: Sequence[Value]) -> Failure | None:
        return failure_above(values) or (certain(values) if self.deferred_errors.any else None)

    def _finish(
        self, task: Task, value: Value, array: Any, source: Value | None = None, block: Spare = _DROPPED
    ) -> None:
        if value.failure is None:  # it was not cancelled meanwhile
            value.base = None if source is None else Lease(source)
            value.block = block if source is None else None
            execution.finish(task, value, array, 0 if source is not None else self.footprint(array.nbytes))

    def may_share_an_event(self, task: Task) -> bool:
        """Whether issuing the task neither blocks nor waits: if it is an operation that is compiled and states its
        launches. (Decompositions of matrices state none: they take a card far longer than their number of elements
        suggests.)

        Not in a commit, nor if its errors are deferred: their numbers take pinned memory.
        """
        plan: Any = task.plan
        lane: Any = task.lane
        if not plan.shares_event or task.move is not None or lane.copies:
            return False
        return self._mark in plan.compiled_in or self._noted(task)

    def _kernel(self, task: Task) -> Hashable:
        """The operation and dtypes and numbers of axes of its operands: most often a kernel serves all such forms."""
        return task.name, tuple([(read.array.dtype, read.array.ndim) for read in _operands(task)])

    def run_callable(self, task: Task, args: list[Any]) -> Any:
        """Call a user's function, which may keep any array that it makes."""
        value = task.value
        assert task.lane is not None
        assert value is not None
        stream = task.lane.stream.cuda
        pending = task.context.get(pending_on, {}).get(self.number)
        if pending is not None:
            # Other threads cannot name a thread's own default stream, but the null stream waits for it.
            self._context.follow(stream, 0 if pending.ptr in _DEFAULT else pending.ptr)
        self._make_room_for(task)
        body = Body(stream)
        with self.xp.cuda.using_allocator(partial(self._malloc, body)):
            try:
                result = task.context.run(call, task.call, args, stream, self.number)
            finally:
                body.over = True
                captured = self._context.restore(stream)
        if captured:
            raise RuntimeError(
                f"{task.name} left a capture open on its stream: end it there with `stream.end_capture()`, or capture"
                " on a stream of its own"
            )
        if value.meta is not None and isinstance(result, self.xp.ndarray) and not self._here(result):
            raise ValueError(
                f"{task.name} was submitted to {self._context.name} with a shape and returned an array of"
                f" {result.device}: copy it over in the function, or submit it with device="
            )
        return result

    def _make_room_for(self, task: Task) -> None:
        """Before a guest, which takes memory from an allocator of its own; and before the first call of a function,
        which may be the first to call some library. The function is not run again: it may have written over an input.
        """
        lesson: execution.Lesson | None = task.options["lesson"] if task.options else None
        nbytes = task.cost if is_guest(task.call) else lesson.allocated if lesson else 0
        code = getattr(getattr(task.call, "func", task.call), "__code__", task.name)
        if code not in self._ran_before:
            if len(self._ran_before) >= _MOST_FUNCTIONS:
                self._ran_before.clear()
            self._ran_before.add(code)
            nbytes = max(nbytes, _FOR_LIBRARIES)
        self.make_room(nbytes, partial(cached, self.number))

    def make_room(self, nbytes: int, elsewhere: Callable[[], int] = lambda: 0) -> None:
        """Before somebody takes memory beside the pool: give the pool's idle memory back to the device, if that has
        less, and `elsewhere` too little."""
        if not nbytes or not self.pool.reserved():
            return
        free = self._context.free_bytes()
        if nbytes > free:
            self.pool.make_room(nbytes - free - elsewhere())

    def with_room(self, call: Callable[..., Any], *args: Any) -> Any:
        """Call something that does nothing if it fails.

        If a library of CUDA's finds no memory on the device, the pool's idle memory goes back there, and it is called
        once more.
        """
        try:
            return call(*args)
        except Exception as error:
            if not of_memory(error):
                raise
        return self._with_more_room(call, *args)

    def _with_more_room(self, call: Callable[..., Any], *args: Any) -> Any:
        self.pool.free()
        guests.empty_caches()
        try:
            return call(*args)
        except Exception as error:
            if of_memory(error):
                error.add_note(_FULL)
            raise

    # -- arrays that leave --------------------------------------------------------------------------------------

    def share(self, array: Any) -> Any:
        if not array.nbytes or not self._here(array):
            return super().share(array)
        owner = owner_of(array)
        start = self._lent(self.anchor(owner), owner.data.mem)
        return self.xp.ndarray(array.shape, array.dtype, start + (array.data.ptr - start.ptr), array.strides)

    def _here(self, array: Any) -> bool:
        """Whether an array is of this device. A function may return others: those do not belong to the scheduler."""
        return bool(array.data.device_id == self.number)

    def reclaim(self, value: Value) -> None:
        if value.escaped:
            super().reclaim(value)
            return
        array, value.array = value.array, None  # the memory first, its bytes second: the loop may be waiting for them
        if array is not None and type(value.block) is Spare:
            value.block.keep(array)

    def anchor(self, owner: Any) -> Any:
        """The block under the array. The collector sees the array, but not the block, and never ends it early. If a
        function took memory elsewhere there is no block: then it is the array.
        """
        keeper = keeper_of(owner)
        return owner if keeper is None else keeper.held[0] if isinstance(keeper, Loan) else keeper

    def _malloc(self, body: Body, nbytes: int) -> Any:
        """CuPy's allocator in a callable's body. The body may have made another device the current one."""
        if self.xp.cuda.runtime.getDevice() != self.number:
            return self.xp.get_default_memory_pool().malloc(nbytes)
        pointer = self.pool.malloc(nbytes)
        if not nbytes:
            return pointer
        return self._lent(kept_for(pointer.mem), pointer.mem, body)

    def _lent(self, held: Any, memory: Any, body: Body | None = None) -> Any:
        """A pointer to the start of some memory. For CuPy a new loan owns the memory."""
        cuda, loan = self.xp.cuda, untracked(Loan(held, self._janitor, body))
        return cuda.MemoryPointer(cuda.UnownedMemory(memory.ptr, memory.size, loan, self.number), 0)

    # -- copies -------------------------------------------------------------------------------------------------

    def bring(self, source: Any, stream: Any) -> Any:
        """A copy on this device of an array from anywhere, enqueued on `stream`, the current one."""
        if type(source) is Value:
            source = self._reachable(source)
        if isinstance(source, np.ndarray):
            dense = without_gaps(source)
            target = self._like(dense)
            self._up.upload(dense, target, stream)
            return target
        if source.device.id == self.number:
            return source.copy(order="K")
        self._context.reach(source.device.id)
        target = self._like(source)
        pointers = (target.data.ptr, self.number, source.data.ptr, source.device.id)
        if source.nbytes:  # else there is no pointer
            self.xp.cuda.runtime.memcpyPeerAsync(*pointers, source.nbytes, stream.ptr)
        return target

    def _reachable(self, value: Value) -> Any:
        """The value's array if this device can copy it directly; else a copy on the host."""
        array = value.array
        if isinstance(array, np.ndarray) or array.flags.c_contiguous or array.flags.f_contiguous:
            return array
        return value.device.fetch(array)

    def _like(self, dense: Any) -> Any:
        dtype = dense.dtype.newbyteorder("=")
        return self.xp.ndarray(dense.shape, dtype, self.pool.malloc(dense.nbytes), dense.strides)

    def fetch(self, array: Any, stream: Any) -> np.ndarray[Any, Any]:
        """A host copy of an array of this device. Blocks."""
        return self._down.download(without_gaps(array), stream)


def _operands(task: Task) -> Sequence[Value]:
    """The values among an operation's arguments. (A task of a commit also reads its gate's.)"""
    if type(task.reads) is Value:
        return (task.reads,)
    reads, args = task.reads, task.args
    return reads if args is None else [reads[arg.slot] for arg in args if type(arg) is Ref]
