"""The methods that NumPy's arrays have, for those who expect them: each is a function of the package, or an error.

What works in place in NumPy, or gives what is no tensor, has no place here: asking for it names the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from numpy.typing import DTypeLike

from .._instead import TENSOR, no_attribute
from ..ops.table import TABLE
from .array_handle import ArrayHandle
from .keywords import name_keywords
from .options import axes, dtype_of, dtype_or_none

_Axis = int | Sequence[int] | None


class Methods(ArrayHandle):
    """The methods. `Tensor` says how an operation is applied."""

    __slots__ = ()

    def _op(self, name: str, *operands: object, **options: Any) -> Self:
        raise NotImplementedError

    # -- along axes, which may be given by position -------------------------------------------------------------

    def sum(self, axis: _Axis = None, dtype: DTypeLike | None = None, *, keepdims: bool = False) -> Self:
        """The sum along the axes."""
        return self._summed("sum", axis, dtype, keepdims)

    def prod(self, axis: _Axis = None, dtype: DTypeLike | None = None, *, keepdims: bool = False) -> Self:
        """The product along the axes."""
        return self._summed("prod", axis, dtype, keepdims)

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
        """Where the first largest element is."""
        return self._op("argmax", axis=axes(axis), keepdims=keepdims)

    def argmin(self, axis: int | None = None, *, keepdims: bool = False) -> Self:
        """Where the first smallest element is."""
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

    def flatten(self) -> Self:
        """A copy with one axis."""
        return self._op("reshape", shape=(-1,), copy=True)

    def ravel(self) -> Self:
        """All elements along one axis: a view where NumPy's is."""
        return self._op("reshape", shape=(-1,))

    def squeeze(self, axis: _Axis = None) -> Self:
        """A view without the axes of length one that are named, or any."""
        return self._op("squeeze", axis=axes(axis))

    def transpose(self, *order: Any) -> Self:
        """A view with the axes in another order, or in reverse."""
        given = order[0] if len(order) == 1 and isinstance(order[0], tuple | list) else order
        return self._op("permute_dims", axes=tuple(given) or tuple(reversed(range(self.ndim))))

    def repeat(self, repeats: int, axis: int | None = None) -> Self:
        """Each element several times."""
        return self._op("repeat", repeats=repeats, axis=axes(axis))

    def take(self, indices: Any, axis: int | None = None) -> Self:
        """Slices along an axis, by a tensor of indices."""
        return self._op("take", indices, axis=axes(axis))

    # -- the rest -----------------------------------------------------------------------------------------------

    def astype(self, dtype: DTypeLike) -> Self:
        """A copy in another dtype."""
        return self._op("astype", dtype=dtype_of(dtype))

    def copy(self) -> Self:
        """A copy in the same layout."""
        return self._op("copy")

    def clip(self, min: Any, max: Any) -> Self:
        """The elements limited to between two others; `asc.clip` takes one alone."""
        return self._op("clip", min, max)

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
        """The imaginary part: a view; of real numbers new zeros."""
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

    if not TYPE_CHECKING:  # for which any name would be there then

        def __getattr__(self, name: str) -> Any:
            cures = TENSOR
            if name in TABLE and name in self.__array_namespace__().__all__:
                cures = {name: f"`asc.{name}(t)`"} | TENSOR
            elif name.endswith("_") and not name.startswith("_"):
                cures = {name: "`t = ...` or `t[...] = value`: nothing else changes a tensor"} | TENSOR
            raise no_attribute("a Tensor", name, cures, type(self))

    def _summed(self, name: str, axis: _Axis, dtype: DTypeLike | None, keepdims: bool) -> Self:
        if dtype is None:
            return self._op(name, axis=axes(axis), keepdims=keepdims)
        return self._op(name, axis=axes(axis), keepdims=keepdims, dtype=dtype_of(dtype))

    def _running(self, name: str, axis: int | None, dtype: DTypeLike | None) -> Self:
        lines = self.ravel() if axis is None and self.ndim != 1 else self
        return lines._op(name, axis=axes(axis), dtype=dtype_or_none(dtype))

    name_keywords(locals(), tuple(locals()))
