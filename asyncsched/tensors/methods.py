"""Attributes and methods that NumPy's arrays have: attributes are known at once, methods issue operations.

Each method is a function of the package. NumPy's other methods, which work in place or return no tensor, are missing:
the error for such a name says what to write.

*Implicit barriers* are Python's and NumPy's ways to ask for a value without `await`. On a thread that runs an event
loop, and inside a task, each is an error; elsewhere it blocks.

*The way to autograd*, a room above. A recorded tensor carries a node of the tape, and an operation on it calls
`node.record`. The hook `autograd` serves what needs no node, makes one, or goes back along all nodes; the face of the
package fills it. (If `backward` were a method of the node, the tape would have to know the backward pass, which knows
the tape.)
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from queue import Empty
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, Self, TypeAlias

import numpy as np
from numpy.typing import DTypeLike

from .._core.callsite import line_of
from .._core.model import Value
from .._instead import NUMPY, TENSOR, given_to, is_numpys, naming_arguments, no_attribute, numpys_cure
from ..devices.contract import Device, in_stream_thread
from ..devices.memory import deliver
from ..errors import ImplicitBarrierError, SchedulerClosed
from ..ops.meta import Shape
from ..ops.table import TABLE
from ..runtime.life import Life, running_loop
from ..runtime.loops import ask_async
from ..runtime.runtime import Runtime
from ..runtime.waiting import awaited
from .arguments import axes, dtype_of, dtype_or_none, name_keywords
from .awaitables import HostCopy, Number
from .handles import Donated, Handle, runtime_of

_Axis = int | Sequence[int] | None


class Autograd(Protocol):
    """The functions behind a tensor's properties and methods. The module `asyncsched.autograd` defines them."""

    def track(self, tensor: Any, wanted: bool, /) -> None:
        """Carry out `tensor.requires_grad = wanted`."""

    def set_grad(self, tensor: Any, gradient: Any, /) -> None:
        """Carry out `tensor.grad = gradient`."""

    def backward(self, output: Any, gradient: Any, /, *, retain_graph: bool) -> None:
        """Carry out `output.backward(gradient)`."""


autograd: Callable[[], Autograd] = None  # type: ignore[assignment]  # imports the module at the first call


class _Size(int):
    """A number of elements. A call, as of PyTorch's `t.size(0)`, says what to write."""

    if not TYPE_CHECKING:

        def __call__(self, dim: object = None) -> NoReturn:
            cure = "t.shape" if dim is None else f"t.shape[{dim!r}]"
            raise TypeError(f"`t.size` is the number of elements, as NumPy's: use `{cure}`")


Pair: TypeAlias = tuple[int, int] | None  # in DLPack: a version, or a kind of device with its number


class ImplicitBarriers(Handle[np.ndarray[Any, Any]]):
    """Python's and NumPy's ways to ask for a value at once.

    On a thread that runs an event loop, and inside a task, each raises ImplicitBarrierError with the cure. On any other
    thread it blocks until the value is there.
    """

    __slots__ = ()

    def __bool__(self) -> bool:
        return bool(self._read("bool(t)", "use `await t.item()`"))

    def __float__(self) -> float:
        return float(self._read("float(t)", "use `await t.item()`"))

    def __int__(self) -> int:
        return int(self._read("int(t)", "use `await t.item()`"))

    def __complex__(self) -> complex:
        return complex(self._read("complex(t)", "use `await t.item()`"))

    def __index__(self) -> int:
        return operator.index(self._read("operator.index(t)", "use `await t.item()`"))

    def __round__(self, ndigits: int | None = None) -> Any:
        return round(self._read("round(t)", "use `round(await t.item())`, or `t.round()`").item(), ndigits)

    def __format__(self, spec: str) -> str:
        if not spec:
            return repr(self)
        return format(self._read(f"format(t, {spec!r})", "use `await t.item()`").item(), spec)

    def tolist(self) -> Any:
        """Blocks: for threads without an event loop. Elsewhere use `(await t).tolist()`."""
        return self._read("t.tolist()", "use `(await t).tolist()`").tolist()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        array = self._read("np.asarray(t)", "use `await t` or `await t.numpy()`")
        return np.array(array, dtype, copy=copy)

    def __dlpack__(
        self, *, stream: Any = None, max_version: Pair = None, dl_device: Pair = None, copy: bool | None = None
    ) -> Any:
        """The array for another library; a copy, unless `max_version` says that it supports read-only arrays."""
        array = blocking_read(self, "DLPack export", "export `await t` instead")
        told: dict[str, Any] = {"max_version": max_version, "dl_device": dl_device, "copy": copy}
        unaware = max_version is None or max_version < (1, 0)  # does not support read-only arrays
        if isinstance(array, np.ndarray) and unaware and copy is not False:
            array, told["copy"] = array.copy(order="K"), None
        return array.__dlpack__(stream=stream, **told)

    def __dlpack_device__(self) -> tuple[int, int]:
        device: Device = self._value.device
        return device.dlpack

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        name = f"{function.__module__.removeprefix('numpy')}.{function.__name__}"[1:]  # as in "linalg.norm"
        return self._through_numpy(name, function, args, kwargs)

    def _through_numpy(self, name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        self._read(f"np.{name}(t)", f"use {self._replacement(name)}")
        return function(*[np.asarray(a) if isinstance(a, ImplicitBarriers) else a for a in args], **kwargs)

    if TYPE_CHECKING:

        def __array_namespace__(self) -> ModuleType: ...

    def _replacement(self, name: str) -> str:
        """The replacement to name for NumPy's function, which is given as "exp" or "linalg.inv"."""
        if name in NUMPY:
            return NUMPY[name]
        theirs, _, last = name.rpartition(".")
        ours: Any = self.__array_namespace__()
        there = last in (getattr(ours, theirs) if theirs in ("linalg", "fft") else ours).__all__
        return f"`asyncsched.{name}(t)`" if there else "asyncsched's functions, or `await t` first"

    def _read(self, what: str, cure: str) -> Any:
        array = blocking_read(self, what, cure)
        return array if isinstance(array, np.ndarray) else self._value.device.fetch(array)


# Type checkers see none of these methods, since each raises on an event loop. Mypy accepts `if t:`. It would report the
# code after a `__bool__` that never returns as unreachable (`--warn-unreachable`).
if TYPE_CHECKING:

    class Unread(Handle[np.ndarray[Any, Any]]):
        def __bool__(self) -> NoReturn: ...
else:
    Unread = ImplicitBarriers


class Methods(Unread):
    """The attributes and methods of a handle on an array to come. `Tensor` issues the operations."""

    __slots__ = ()
    _node: Any  # its place on the tape of `autograd`, if it has one

    def _op(self, name: str, *operands: object, **options: Any) -> Self:
        raise NotImplementedError

    # -- known at once ------------------------------------------------------------------------------------------

    @property
    def shape(self) -> Shape:
        """Lengths of the axes; None for a length that depends on data still to come."""
        shape: Shape = self._value.meta.shape
        return shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The data type."""
        dtype: np.dtype[Any] = self._value.meta.dtype
        return dtype

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self._value.meta.shape)

    @property
    def size(self) -> int | None:
        """The number of elements, or None while it is unknown."""
        meta = self._value.meta
        return _Size(meta.nbytes // meta.dtype.itemsize) if meta.known and meta.dtype.itemsize else None

    @property
    def nbytes(self) -> int:
        """Bytes of the elements; while a length is unknown, those of the largest possible result."""
        nbytes: int = self._value.meta.nbytes
        return nbytes

    @property
    def device(self) -> Device:
        """The device on which the array is, or will be."""
        device: Device = self._value.device
        return device

    def __repr__(self) -> str:
        value: object = self._value
        if isinstance(value, Donated):
            return f"Tensor(donated to {value})"
        return f"Tensor(shape={self.shape}, dtype={self.dtype}, device={self.device.name}, {self._status()})"

    def _repr_html_(self) -> str:
        from ..pictures.record import preview, table

        self.done()  # takes in completions
        value, state = self._value, self._status()
        rows: list[tuple[str, Any]] = [
            ("shape", self.shape),
            ("dtype", self.dtype),
            ("device", self.device.name),
            ("state", state),
        ]
        if value.site is not None:
            rows.append(("submitted at", line_of(value.site)))
        there = state == "done" and type(value.array) is np.ndarray
        return table("Tensor", rows, preview(value.array) if there else "")

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a tensor without axes")
        if self.shape[0] is None:
            raise ImplicitBarrierError("the length depends on data: use `len(await t)`")
        return self.shape[0]

    # -- out of the scheduler -----------------------------------------------------------------------------------

    def numpy(self) -> HostCopy:
        """A host copy of your own: writable, and not charged to the scheduler. Waits only for this tensor.

        Returns a coroutine. Used as an array before it is awaited, it raises an error that says so. `asc.gather` takes
        many.

        Raises the task's exception, or TaskCancelled. Cancelling the wait leaves the tensor alone.

        >>> async def main():
        ...     async with asc.Scheduler("cpu") as s:
        ...         x = await s.put(np.zeros(3))
        ...         h = await x.numpy()
        ...         h[0] = 1
        ...         print(h, await x)
        >>> asc.run(main)
        [1. 0. 0.] [0. 0. 0.]
        """
        return HostCopy(self._value)

    def item(self) -> Coroutine[object, None, bool | int | float]:
        """The only element, as a Python scalar. Returns a coroutine: `await t.item()`.

        Used as a number before it is awaited, it raises an error that says so. `await asc.gather(*[loss.item() for loss
        in losses])` reads many at once.

        >>> async def main():
        ...     async with asc.Scheduler("cpu") as s:
        ...         x = await s.put(np.arange(4.0))
        ...         if await (x.max() > 2).item():
        ...             return await x.sum().item()
        >>> asc.run(main)
        6.0

        For type checkers it is a real number, as in PyTorch. Complex elements come as `complex` all the same.

        Raises:
            ValueError: if there is not exactly one element.
            Exception: the task's own; TaskCancelled if it was cancelled. Cancelling the wait leaves the tensor alone.
            ImplicitBarrierError: if the coroutine is used as a number.
        """
        if self.size not in (1, None):
            raise ValueError(f"item() needs exactly one element, and the shape is {self.shape}: use `await t.numpy()`")
        return Number(self._value)

    # -- gradients ----------------------------------------------------------------------------------------------

    @property
    def requires_grad(self) -> bool:
        """Whether operations on this tensor are recorded, so that `backward()` finds the way back to it.

        Set it to True to collect gradients of a floating-point tensor in `grad`; to False to end that.
        """
        return self._node is not None

    @requires_grad.setter
    def requires_grad(self, wanted: bool) -> None:
        autograd().track(self, wanted)

    @property
    def grad(self) -> Self | None:
        """The sum of the gradients that `backward()` has brought here; None before the first."""
        node = self._node
        gradient: Self | None = None if node is None else node.grad
        return gradient

    @grad.setter
    def grad(self, gradient: Self | None) -> None:
        autograd().set_grad(self, gradient)

    def backward(self, gradient: Self | None = None, *, retain_graph: bool = False) -> None:
        """Add the gradient of this tensor to `grad` of every tensor it depends on that has `requires_grad` set.

        Issues its tasks, all or none, ahead of other pending tasks in their scope, and returns at once. Drops the
        recorded operations afterwards, so a second call raises RuntimeError unless this one had `retain_graph`. See
        `asyncsched.autograd`.

        Args:
            gradient: of the final result with respect to this tensor, in its shape; 1 by default for a single number.
            retain_graph: keep the recorded operations for a second call.

        Raises:
            ValueError: if this tensor was not recorded, or has several elements and no gradient is given.
            QueueFull: if the backlog has no room for all tasks; then nothing has changed.
        """
        autograd().backward(self, gradient, retain_graph=retain_graph)

    # -- along axes, which may be positional arguments ----------------------------------------------------------

    def sum(self, axis: _Axis = None, dtype: DTypeLike | None = None, *, keepdims: bool = False) -> Self:
        """The sum along the axes."""
        return self._op("sum", axis=axes(axis), dtype=dtype_or_none(dtype), keepdims=keepdims)

    def prod(self, axis: _Axis = None, dtype: DTypeLike | None = None, *, keepdims: bool = False) -> Self:
        """The product along the axes."""
        return self._op("prod", axis=axes(axis), dtype=dtype_or_none(dtype), keepdims=keepdims)

    def max(self, axis: _Axis = None, *, keepdims: bool = False) -> Self:
        """The largest element along the axes."""
        return self._op("max", axis=axes(axis), keepdims=keepdims)

    def min(self, axis: _Axis = None, *, keepdims: bool = False) -> Self:
        """The smallest element along the axes."""
        return self._op("min", axis=axes(axis), keepdims=keepdims)

    def mean(self, axis: _Axis = None, *, keepdims: bool = False) -> Self:
        """The mean along the axes."""
        return self._op("mean", axis=axes(axis), keepdims=keepdims)

    def all(self, axis: _Axis = None, *, keepdims: bool = False) -> Self:
        """Whether all elements along the axes are true (not zero)."""
        return self._op("all", axis=axes(axis), keepdims=keepdims)

    def any(self, axis: _Axis = None, *, keepdims: bool = False) -> Self:
        """Whether any element along the axes is true (not zero)."""
        return self._op("any", axis=axes(axis), keepdims=keepdims)

    def std(self, axis: _Axis = None, *, ddof: float = 0, keepdims: bool = False) -> Self:
        """The standard deviation along the axes."""
        return self._op("std", axis=axes(axis), correction=ddof, keepdims=keepdims)

    def var(self, axis: _Axis = None, *, ddof: float = 0, keepdims: bool = False) -> Self:
        """The variance along the axes."""
        return self._op("var", axis=axes(axis), correction=ddof, keepdims=keepdims)

    def argmax(self, axis: int | None = None, *, keepdims: bool = False) -> Self:
        """The index of the first largest element."""
        return self._op("argmax", axis=axes(axis), keepdims=keepdims)

    def argmin(self, axis: int | None = None, *, keepdims: bool = False) -> Self:
        """The index of the first smallest element."""
        return self._op("argmin", axis=axes(axis), keepdims=keepdims)

    def cumsum(self, axis: int | None = None, dtype: DTypeLike | None = None) -> Self:
        """Running sums along an axis; without one, of the flattened tensor."""
        return self._running("cumulative_sum", axis, dtype)

    def cumprod(self, axis: int | None = None, dtype: DTypeLike | None = None) -> Self:
        """Running products along an axis; without one, of the flattened tensor."""
        return self._running("cumulative_prod", axis, dtype)

    # -- shapes -------------------------------------------------------------------------------------------------

    def reshape(self, *shape: Any) -> Self:
        """The same elements in another shape; one length may be -1. A view where NumPy's is."""
        lengths = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape
        return self._op("reshape", shape=tuple(lengths))

    @naming_arguments
    def flatten(self) -> Self:
        """A copy with one axis."""
        return self._op("reshape", shape=(-1,), copy=True)

    def ravel(self) -> Self:
        """All elements along one axis: a view where NumPy's is."""
        return self._op("reshape", shape=(-1,))

    def squeeze(self, axis: _Axis = None) -> Self:
        """A view without the named axes of length one; by default, without all of them."""
        return self._op("squeeze", axis=axes(axis))

    def transpose(self, *order: Any) -> Self:
        """A view with the axes in another order; by default, reversed."""
        given = order[0] if len(order) == 1 and isinstance(order[0], tuple | list) else order
        return self._op("permute_dims", axes=tuple(given) or tuple(reversed(range(self.ndim))))

    def repeat(self, repeats: int, axis: int | None = None) -> Self:
        """Each element several times."""
        return self._op("repeat", repeats=repeats, axis=axes(axis))

    def take(self, indices: Any, axis: int | None = None) -> Self:
        """Slices along an axis, by a tensor of indices."""
        return self._op("take", indices, axis=axes(axis))

    # -- others -------------------------------------------------------------------------------------------------

    def astype(self, dtype: DTypeLike) -> Self:
        """A copy in another dtype."""
        return self._op("astype", dtype=dtype_of(dtype))

    def copy(self) -> Self:
        """A copy in the same layout."""
        return self._op("copy")

    def clip(self, min: Any = None, max: Any = None) -> Self:
        """The elements limited to a range; None is no limit."""
        return self.__array_namespace__().clip(self, min, max)  # type: ignore[attr-defined, no-any-return]

    @naming_arguments
    def round(self) -> Self:
        """The nearest integers, ties to even."""
        return self._op("round")

    def conj(self) -> Self:
        """The complex conjugate."""
        return self._op("conj")

    def dot(self, other: Any) -> Self:
        """NumPy's `dot`."""
        return self._op("dot", other)

    @property
    def real(self) -> Self:
        """The real part: a view."""
        return self._op("real")

    @property
    def imag(self) -> Self:
        """The imaginary part: a view; new zeros for real numbers."""
        return self._op("imag")

    @property
    def T(self) -> Self:
        """The transpose of a tensor with two axes: a view."""
        if self.ndim != 2:
            raise ValueError(f"T needs two axes, not {self.ndim}: use `.mT` or `permute_dims`")
        return self.mT

    @property
    def mT(self) -> Self:
        """A view with the last two axes exchanged."""
        return self._op("matrix_transpose")

    if not TYPE_CHECKING:  # type checkers would accept any name

        def __getattr__(self, name: str) -> Any:
            cures, numpys = TENSOR, is_numpys(np, name)
            if (name in TABLE or numpys) and name in self.__array_namespace__().__all__:
                given = given_to(getattr(self.__array_namespace__(), name), "t")
                cures = {name: f"`asc.{name}({given})`"} | TENSOR
            elif numpys:
                cures = {name: numpys_cure(name)} | TENSOR
            elif name.endswith("_") and not name.startswith("_"):
                cures = {name: "`t = ...` or `t[...] = value`: nothing else changes a tensor"} | TENSOR
            raise no_attribute("a Tensor", name, cures, type(self))

    def _running(self, name: str, axis: int | None, dtype: DTypeLike | None) -> Self:
        lines = self.ravel() if axis is None and self.ndim != 1 else self
        return lines._op(name, axis=axes(axis), dtype=dtype_or_none(dtype))

    name_keywords(locals(), tuple(locals()))


def blocking_read(handle: Handle[Any], what: str, cure: str) -> Any:
    """The array of a handle's present value, read on a thread that may block.

    Raises:
        ImplicitBarrierError: on a thread that runs an event loop, or inside a task body.
    """
    if in_stream_thread():
        raise ImplicitBarrierError(f"{what} inside a task would wait for another task: pass the tensor as an argument")
    if running_loop() is not None:
        raise ImplicitBarrierError(f"{what} is an implicit barrier, which would block the event loop: {cure}")
    kept = handle._lease()
    value = kept._value
    _block(runtime_of(value), value)
    if value.device.remote and value.failure is None:
        return value.device.fetch(value.array)
    return deliver(value)


def _block(runtime: Runtime, value: Value) -> None:
    """Block the calling thread, which runs no loop, until the value is there."""
    if runtime.life is Life.FORKED:
        runtime.refuse()
    loop = runtime.loop
    if value.settled:
        return
    if loop is None or not loop.is_running():
        raise SchedulerClosed("the value is pending, and its event loop is not running: read it before the loop ends")

    async def register() -> None:
        task = value.task
        if task is not None:
            await awaited(runtime, [task])

    answer = ask_async(loop, register)
    while loop.is_running():
        with suppress(Empty):
            answer.get(timeout=1.0)
            break
    if not value.settled:
        raise SchedulerClosed("the value's event loop ended before the value was there: read it before the loop ends")
