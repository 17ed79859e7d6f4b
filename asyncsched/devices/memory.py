"""A device's memory: it runs operations, and knows the arrays that have left the scheduler and are still charged.

Theory of operation. The scheduler charges a value's bytes until its memory is free again. That is simple while only
values hold the array: when the last handle is dropped, `Value.__del__` has the buffer recycled and its bytes returned.
But an array that was awaited, or that a callable was given or returned, has *escaped*: a user may hold it, or a view of
it, for as long as they like. Then its buffer is never recycled, and `reclaim` leaves a weak reference behind, an
`Escape`, on the array that *owns* the memory. NumPy and CuPy let `.base` of every view point at that one, so it lives
exactly as long as anything shows its memory. When it dies, the callback tells the completions of its bytes.

All of this may run on any thread and in the middle of anything, since the last reference may go in a garbage
collection. So it takes no lock: it only changes one key of a dict and appends to deques. (Each is one step, with
the GIL and without it.)

Setting up an `Escape` costs several times as much as a plain weak reference. Most awaited results are small and dropped
soon. So `reclaim` drops the array and looks at such a reference first: if the array is gone, so are its bytes.

Alternatives. `weakref.finalize` keeps a registry of its own, and calls back at exit, too. Charging escaped arrays until
the scheduler closes would stop a server that awaits its results.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from gc import is_finalized
from typing import Any

import numpy as np

from .._core.audit import failure_above
from .._core.callsite import CallSite
from .._core.completions import NO_ROOM, Completions, report_again
from .._core.failure import Failure
from .._core.free_threading import FREE_THREADED, merge, references
from .._core.instrument import Instrument
from .._core.model import Account, Task, Value
from .._interrupts import finaliser
from ..ops.meta import CODES, Meta, meta
from ..ops.op import Plan
from .guests import call

Array = Any  # NumPy's or CuPy's: both collapse `.base` to the array that owns the memory
# Objects that may stand between an array and the owner of its memory: of `read_only`, and of `as_strided`.
_LINKS = (memoryview, type(np.lib.stride_tricks.as_strided(np.empty(1)).base))


class Memory:
    """One device's memory.

    Attributes:
        xp: the array namespace.
        arrays: the array types that are charged when a callable returns them.
        granule: arrays take multiples of so many bytes.
        number: of the CUDA device; None elsewhere.
        completions: told of the bytes of arrays that are gone.
        escapes: arrays that left and are still charged, by identity, for searches for holders.
        observer: told when bodies begin and end, if there is one.
        on_escape: called after an array has left, on a free-threaded build: its maker has to look up from then on.
    """

    xp: Any
    arrays: tuple[type, ...]
    granule = 1
    number: int | None = None
    on_escape: Callable[[], None] | None = None

    def __init__(self, completions: Completions) -> None:
        self.completions = completions
        self.escapes: dict[int, Escape] = {}
        self.observer: Instrument | None = None

    def explain(self, error: BaseException) -> None:
        """Add what the device knows to an exception of a body. On the stream's thread, before anybody sees it."""

    def run_op(self, task: Task) -> None:
        """Run a task that is an operation of the table, and give its value the result."""
        raise NotImplementedError

    def run_callable(self, task: Task, args: list[Any]) -> Any:
        """Call a user's function in its own context."""
        return task.context.run(call, task.call, args)

    def give(self, block: Any) -> None:
        """Take a buffer back, on any thread."""

    def share(self, array: Array) -> Array:
        """A view of an array that is not NumPy's, for a user who takes it from the scheduler."""
        return array.view()

    def anchor(self, owner: Array) -> Array:
        """The object whose end means that the memory is free: by default the array that owns it."""
        return owner

    def certain(self, values: Sequence[Value]) -> Failure | None:
        """Wait until it is known whether these values have failed. Returns the failure of one that has."""
        return failure_above(values)

    def footprint(self, nbytes: int) -> int:
        """The bytes that an array of `nbytes` really takes."""
        return nbytes + -nbytes % self.granule

    def needs(self, plan: Plan) -> tuple[int, int]:
        """Bytes that an operation's result takes, and those with its temporary memory."""
        nbytes = self.footprint(plan.nbytes)
        return nbytes, nbytes + plan.workspace

    def may_recycle(self, value: Value) -> bool:
        """Whether a result may certainly be written over a value's buffer, once nobody else holds it. The value may be
        pending."""
        return False

    def reclaim(self, value: Value) -> None:
        """Recycle the buffer of a value that nobody holds. If its array left, charge it until that array is gone.
        Whatever charge the value still has is given back next."""
        if value.base is not None and value.escaped:  # not `|=`: another thread may set it meanwhile
            value.base._value.escaped = True
        if not value.escaped:
            block, value.block = value.block, None  # first, so that it is given once, whatever comes in between
            if block is not None:
                self.give(block)
        elif not value.charge and not _pooled(value.block):
            return
        elif type(value.block) is tuple:
            some = bool(value.block)
            while value.block:
                owner, nbytes = value.block[0]
                self._watch(value, owner, nbytes, 0)
                value.block = value.block[1:]
            if some:
                value.charge = 0
        elif not self._came_back(value):
            self._watch(value, owner_of(value.array), value.charge, _pooled(value.block))
            value.charge, value.block = 0, None

    def _watch(self, value: Value, owner: Array, charge: int, pooled: int) -> None:
        anchor = self.anchor(owner)
        escape = Escape(anchor, gone)
        escape.memory, escape.account, escape.charge, escape.seq = self, value.account, charge, value.seq
        escape.pooled, escape.site, array = pooled, value.site, value.array
        if value.meta is None and isinstance(array, self.arrays):  # an object that a callable returned
            escape.given = None if array is anchor else weakref.ref(array)
        else:
            escape.given = getattr(value, "given", None)
        self.escapes[id(escape)] = escape
        if FREE_THREADED and self.on_escape is not None:
            self.on_escape()

    @staticmethod
    def _came_back(value: Value) -> bool:
        """Whether nobody else holds the array any more, so that no weak reference needs to stay. It is dropped then."""
        if value.array is None:  # before an interruption came
            return True
        if type(value.array) is not weakref.ref:
            if value.block is not None or type(value.array) is not np.ndarray or value.array.base is not None:
                return False
            if is_finalized(value):  # in a dead cycle: others may still read it
                return False
            value.array = weakref.ref(value.array)
        value.array = value.array()
        return value.array is None


class Escape(weakref.ref[Array]):
    """Watches the memory of an array that left the scheduler, and gives its bytes back when it is gone."""

    __slots__ = ("account", "charge", "given", "memory", "pooled", "seq", "site")
    memory: Memory
    account: Account  # where they are charged
    charge: int
    seq: int  # of the task that made it
    pooled: int  # of the host pool's live bytes
    site: CallSite | None  # the line that asked for it
    given: weakref.ref[Array] | None  # the array that users got, if it is one, and is not the watched owner itself

    def visible(self) -> Array | None:
        """The array through which users hold the memory, if it is the only one; else the owner of the memory.

        NumPy's arrays do not take part in garbage collection, so those who hold other views of the owner stay unseen.
        """
        given = self.given() if self.given is not None else None
        lone = references([self()], 0) <= 2  # of one view, and of the list made here
        owner = self()
        shown = lone and owner is not None and given is not None and self.memory.anchor(owner_of(given)) is owner
        return given if shown else owner


@finaliser(report_again)
def gone(escape: Any) -> None:
    """The memory that an escape watches is free: give back its bytes."""
    memory: Memory = escape.memory
    try:
        memory.escapes.pop(id(escape), None)
        if pooled := escape.pooled:
            escape.pooled = 0
            memory.give(pooled)
        if escape.charge:
            memory.completions.dropped(escape)
    except NO_ROOM as error:
        memory.completions.fatal = error


def deliver(value: Value) -> Any:
    """Hand the result of a done value out to the user, or raise its exception."""
    if value.task is not None and value.failure is not None:
        try:
            value.failure.rethrow()
        finally:
            del value
    if value.meta is not None:
        reveal(value)
        return hand_out(value)
    return value.array  # a callable's own result


def reveal(value: Value) -> None:
    """Make the lengths of a finished value known, since the program has waited for it."""
    if value.meta is not None and not value.meta.known:
        value.meta = form_of(value)


def hand_out(value: Value) -> Array:
    """A tensor's array as it leaves the scheduler: a new view, read-only if arrays can be.

    So a change that its holder makes (of its shape, say) changes neither another holder's array nor the tensor.
    """
    first, value.escaped = not value.escaped, True
    array = value.array
    if type(array) is not np.ndarray:
        shared = value.device.memory.share(array)
    elif value.base is not None or type(value.block) is tuple:  # a user may have it, and a writable view of it
        shared = read_only(array)
    else:
        array.setflags(write=False)
        if type(base := array.base) is np.ndarray:
            base.setflags(write=False)
        shared = array.view()
    if FREE_THREADED:
        merge(shared)
    if first or (given := getattr(value, "given", None)) is None or given() is None:
        value.given = weakref.ref(shared)
    return shared


def read_only(array: Array) -> np.ndarray[Any, Any]:
    """A view that cannot be made writable. (One that is only marked read-only could, by `setflags`.)"""
    if array.dtype.char in CODES:  # all that tensors have; not every other dtype has a buffer
        return np.asarray(memoryview(array).toreadonly())
    view: np.ndarray[Any, Any] = array.view()
    view.setflags(write=False)
    return view


def owner_of(array: Array) -> Array:
    """The array that owns the memory. NumPy and CuPy keep such chains short."""
    if array.base is None:
        return array
    kind, link = np.ndarray if isinstance(array, np.ndarray) else type(array), array.base
    while link is not None:
        if isinstance(link, kind):
            array = link
        elif not isinstance(link, _LINKS):
            break
        link = link.obj if type(link) is memoryview else link.base
    return array


def form_of(value: Value) -> Meta:
    """The form of a value that is there, with all lengths."""
    array = value.array
    return array.form if value.device.remote else meta(array.shape, array.dtype, array.flags.c_contiguous)


def held_bytes(owner: Array) -> int:
    """Bytes of an array's memory: fewer than those of its elements, if strides make elements share memory."""
    if owner.flags.c_contiguous or not owner.size:  # as most
        return int(owner.nbytes)
    extent: int = sum([(length - 1) * abs(step) for length, step in zip(owner.shape, owner.strides, strict=True)])
    return min(int(owner.nbytes), extent + int(owner.itemsize))


def _pooled(block: Any) -> int:
    """How many live bytes of the pool this array or buffer counts for."""
    return block.nbytes if isinstance(block, np.ndarray) else block if isinstance(block, int) else 0
