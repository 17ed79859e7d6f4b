"""The place of an array: a whole storage, or a part of it, by a path of views.

Theory of operation. A tensor is a value. An array of the standard is a place in memory that other arrays may share. So
a storage has the newest version, which is a tensor's value, and an array has a path from there to its elements:
operations that make views. Reading goes along the path from the newest version. Writing is one assignment at the end of
the path. It makes the next version, in place if nobody holds the one before, as `x[i] = v` of a tensor does. Tasks
issued before have their version, and the write waits for their end. Only if something else may hold the version, such
as an array that left by DLPack, a second array is charged and made.

Versions move only on the event loop's thread, each in one step. So threads may share arrays, and there are no locks.

Programs ask for the same views again and again. So views of the newest version are kept with it. They are dropped
before the next version is made, since they hold the buffer that is to be written over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

import numpy as np

from .._core.model import DONE, Lease, Task, Value
from .._tree import map_leaves
from ..ops.index_keys import Path, through
from ..ops.kernels.index import check_in_place
from ..ops.meta import Meta, meta
from ..ops.op import Op, plan
from ..ops.rules import proxy
from ..ops.table import TABLE
from ..runtime.runtime import Runtime
from ..runtime.waiting import ENDED, awaited
from ..tensors.handles import runtime_of
from ..tensors.tensor import Tensor, apply, handle

_KEPT: Final = 64  # views of one version; a guess
_MAY_BE_VIEWS: Final = ("diff", "einsum")  # operations that make views, though they are declared as copying
_READ_ONLY: Final = ("broadcast_to", "diagonal", "sliding_window_view")  # as NumPy's are
_COPY, _GETITEM, _SELECT, _SETITEM = [TABLE[name] for name in ("copy", "getitem", "getitem_advanced", "setitem")]


class Storage:
    """The storage that arrays share: the newest version, and views of it by their paths."""

    __slots__ = ("lease", "views", "written")

    def __init__(self, value: Value) -> None:
        self.lease: Lease = Lease(value)  # of the newest version. Other threads that read it take this object
        self.written: bool = False  # whether `write` made the newest version
        self.views: dict[Path, Lease] = {}

    @property
    def value(self) -> Value:
        """The newest version. Where it is kept for longer than a step, keep `lease`."""
        return self.lease._value

    def move(self, value: Value, written: bool = False) -> None:
        """Go on to the next version."""
        self.views.clear()
        self.lease, self.written = Lease(value), written

    def write(self, new: Any, indices: Sequence[Tensor], options: Mapping[str, Any]) -> None:
        """Have a new version made: this one with a part assigned."""
        self.views.clear()
        after = self._readers()
        if after:
            read = [operand._value.task for operand in (new, *indices) if isinstance(operand, Tensor)]
            after = [task for task in after if task not in read]  # the write waits for their end in any case
        try:
            made = apply(_SETITEM, (Tensor(self.value), new, *indices), options, hold=True, after=after)._value
        except Exception as error:
            raise error.with_traceback(None) from None  # the frames would hold the version
        self.move(made, True)
        runtime_of(made).dispatch()  # put off until the version before is dropped: see `Tensor.__setitem__`

    def _readers(self) -> list[Task] | None:
        """The unfinished tasks that read the newest version. When they have ended, its buffer will be free for the next
        version, unless somebody else holds it. None if it will not be, or if that is not known.

        If the task that makes it is no write, its buffer is not known yet.
        """
        value = self.value
        unfinished = value.task is not None and value.task.state < DONE
        if (unfinished and not self.written) or not value.device.memory.may_recycle(value):
            return None
        return _readers_of(value)

    async def unread(self, runtime: Runtime) -> None:
        """Wait until no unfinished task makes the newest version, or reads it."""
        while tasks := [task for task in runtime.engine.root.tasks if self._concerns(task)]:
            await awaited(runtime, tasks, ENDED)

    def _concerns(self, task: Task) -> bool:
        return task is self.value.task or _reads(task, self.value)

    def keep(self, path: Path, view: Value) -> None:
        """Keep a view of the newest version for the next request."""
        if len(self.views) >= _KEPT:
            self.views.clear()
        self.views[path] = Lease(view)


class Place:
    """A storage and a path in it.

    An array is passed as a handle of a tensor that carries the place, where a tensor of autograd has a node of the
    tape. So each operation on the handle calls the place, and a view gets a place of its own.
    """

    __slots__ = ("path", "read_only", "storage")
    leads_back = False  # gradients do not go this way

    def __init__(self, storage: Storage, path: Path = (), read_only: bool = False) -> None:
        self.storage: Storage = storage
        self.path: Path = path
        self.read_only: bool = read_only

    def tensor(self) -> Tensor:
        """A handle on the present value, which carries this place."""
        return cast(Tensor, handle(self.lease(), self))

    def now(self) -> Value:
        """The present value."""
        return self.lease()._value

    def lease(self) -> Lease:
        """A lease of the present value."""
        storage = self.storage
        found = storage.views.get(self.path) if self.path else storage.lease
        if found is not None:
            return found
        view = Tensor(storage.value)
        for op, options in self.path:
            view = apply(op, (view,), dict(options))
        storage.keep(self.path, view._value)
        return view

    def record(
        self, op: Op, operands: Sequence[Any], nodes: Sequence[Any], options: Mapping[str, Any], result: Tensor
    ) -> None:
        """Give the result of an operation its place, if it is a view."""
        if op.name == "broadcast_to" and options["shape"] == operands[0].meta.shape:
            result._node = self  # `np.broadcast_arrays` leaves such an array alone, too
        elif op.view and self._shares(op, operands[0].meta, options):
            self._give_place(op, options, result)

    def _give_place(self, op: Op, options: Mapping[str, Any], view: Tensor) -> None:
        path = (*self.path, (op, tuple(options.items())))
        view._node = Place(self.storage, path, self.read_only or op.name in _READ_ONLY)

    def part(self, key: Any) -> Tensor:
        """A view of a part, or a copy of the elements that tensors in the key select."""
        here = Tensor(self.now())
        key, indices = here._encoded(map_leaves(_tensor_of, key))
        options = {"key": key}
        if indices:
            return apply(_SELECT, (here, *indices), options)
        found = apply(_GETITEM, (here,), options)
        self._give_place(_GETITEM, options, found)
        return placed(found)

    def _shares(self, op: Op, form: Meta, options: Mapping[str, Any]) -> bool:
        if op.name != "reshape" or form.contiguous:
            return not plan(op, (form,), options).nbytes
        if options.get("copy"):
            return False
        whole = self.storage.value.meta
        # The part's strides follow from those of the whole. An array without memory takes its place here: nobody reads
        # it. If the whole may be in any order, the array has a gap behind each axis: a view of that is a view in any
        # case.
        gap = 0 if whole.contiguous else 1
        stand_in = proxy(meta(tuple([n + gap for n in whole.bound]), whole.dtype))
        try:
            part = through(np, stand_in[tuple([slice(n) for n in whole.bound])], self.path)
            np.reshape(part, options["shape"], copy=False)
        except ValueError:
            return False
        return True

    def assign(self, key: Any, new: Any) -> None:
        """Write to a part of it. Arrays in the value are places here, so that nothing else holds what they show now."""
        key, indices = Tensor(self.storage.value)._encoded(map_leaves(_tensor_of, key))
        own = isinstance(new, Place) and new.storage is self.storage
        if own and not self.read_only and new.path == (*self.path, (_GETITEM, (("key", key),))):
            return  # as after `x[1:] += 1`: Python ends that by assigning the updated view to `x[1:]`
        self._write(new, indices, key=key)

    def update(self, function: Callable[[Any, Any], Tensor], ufunc: Op | None, other: Any) -> None:
        """Write to all of it the result of an operator with another operand. If there is a universal function for the
        operator, no second array is needed."""
        whole = self.storage.value
        if ufunc is not None and (self.path or whole.device.memory.may_recycle(whole)):
            return self._write(other, (), key=(...,), op=ufunc)
        here, found = self.now().meta, apply_to(function, self, other)._value
        check_in_place(here, found.meta)
        if self.path or (whole.meta.contiguous and not found.meta.contiguous):
            # A path may lead through an operation that makes a view only in this layout.
            return self.assign(..., Tensor(found))
        return self.storage.move(found)

    def _write(self, new: Any, indices: Sequence[Tensor], **options: Any) -> None:
        if self.read_only:
            raise ValueError("this view is read-only, as NumPy's is: `xp.asarray(x, copy=True)` can be written to")
        if isinstance(new, Place):
            of_its_own = new.storage is self.storage  # it would hold the buffer that is to be written over
            new = apply(_COPY, (Tensor(new.now()),)) if of_its_own else Tensor(new.now())
        self.storage.write(new, indices, {**options, "path": self.path})


def placed(tensor: Tensor) -> Tensor:
    """The result of an operation, for an array. One element by plain numbers is a copy, as in NumPy, and no view."""
    place = tensor._node
    if place is None or not place.path:
        return tensor
    op, options = place.path[-1]
    if op is _GETITEM and not tensor._value.meta.shape and Ellipsis not in dict(options)["key"]:
        return apply(_COPY, (Tensor(tensor._value),))
    place.storage.keep(place.path, tensor._value)
    return tensor


def apply_to(function: Callable[[Any, Any], Tensor], a: Any, b: Any) -> Tensor:
    """The result of an operator for two operands, which may be places."""
    return function(_tensor_of(a), _tensor_of(b))


def _tensor_of(operand: Any) -> Any:
    return Tensor(operand.now()) if type(operand) is Place else operand


def _readers_of(value: Value) -> list[Task] | None:
    """The unfinished tasks that read a value, or a view of it; None if a result may be in the value's buffer."""
    readers: list[Task] = []
    for task in reversed(value.account.runtime.engine.root.tasks):
        if task is value.task:
            break  # older tasks cannot read it
        if _reads(task, value):
            op = task.call  # None also if a stream's thread is about to drop the task's input
            if op is not None and (op.name in _MAY_BE_VIEWS or (op.view and task.plan.nbytes)):
                return None
            readers.append(task)
    return readers


def _reads(task: Task, value: Value) -> bool:
    """Whether a task reads a value, or a view of it."""
    return any(read.owner is value for read in task.inputs)
