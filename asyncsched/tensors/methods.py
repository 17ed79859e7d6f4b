"""Attributes and methods that NumPy's arrays have: attributes are known at once, methods issue operations.

Each method is a function of the package. NumPy's other methods, which work in place or return no tensor, are missing:
the error for such a name says what to write.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Self

import numpy as np
from numpy.typing import DTypeLike

from .._core.callsite import line_of
from .._instead import TENSOR, given_to, is_numpys, naming_arguments, no_attribute, numpys_cure
from ..devices.contract import Device
from ..errors import ImplicitBarrierError
from ..ops.meta import Shape
from ..ops.table import TABLE
from .arguments import axes, dtype_of, dtype_or_none, name_keywords
from .awaitables import HostCopy, Number
from .handles import Donated
from .reading import Unread

_Axis = int | Sequence[int] | None


class _Size(int):
    """A number of elements. A call, as of PyTorch's `t.size(0)`, says what to write."""

    if not TYPE_CHECKING:

        def __call__(self, dim: object = None) -> NoReturn:
            cure = "t.shape" if dim is None else f"t.shape[{dim!r}]"
            raise TypeError(f"`t.size` is the number of elements, as NumPy's: use `{cure}`")


class Methods(Unread):
    """The attributes and methods of a handle on an array to come. `Tensor` issues the operations."""

    __slots__ = ()

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
