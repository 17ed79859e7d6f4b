"""Fourier transforms: `asc.fft`, with the names of the standard's extension.

`n` (or `s`, several) is the number of points used: the operand is cut off there or padded with zeros; by default all
points. `norm` is the direction that is scaled by 1/n: "backward" or "forward"; "ortho" scales both by its root. Single
precision stays single; integers are computed in double. On CUDA all transforms run on one stream, since CuPy's plans
must not be shared by several.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import index
from typing import Any, Literal

from ... import _instead
from ..arguments import axes as _axes
from ..arguments import dtype_of, name_keywords
from ..tensor import Tensor
from ._common import Axis, Dtype, known_shape, op
from .creation import arange
from .dtypes import astype
from .elementwise import conj
from .manipulation import roll

Norm = Literal["backward", "ortho", "forward"]
_Several = Sequence[int] | None


def fft(x: Tensor, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Tensor:
    """The discrete Fourier transform along an axis: complex.

    >>> async def main():
    ...     async with asc.Scheduler("cpu") as s:
    ...         return await asc.fft.fft(await s.put(np.ones(4)))
    >>> asc.run(main)
    array([4.+0.j, 0.+0.j, 0.+0.j, 0.+0.j])
    """
    return _along("fft", x, n, axis, norm)


def ifft(x: Tensor, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Tensor:
    """The inverse of `fft`.

    >>> await asc.fft.ifft(asc.ones(4))
    array([1.+0.j, 0.+0.j, 0.+0.j, 0.+0.j])
    """
    return _along("ifft", x, n, axis, norm)


def rfft(x: Tensor, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Tensor:
    """The transform of real numbers: n // 2 + 1 complex numbers, since the others mirror them.

    >>> await asc.fft.rfft(asc.ones(4))
    array([4.+0.j, 0.+0.j, 0.+0.j])
    """
    return _along("rfft", x, n, axis, norm)


def irfft(x: Tensor, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Tensor:
    """The inverse of `rfft`: n real numbers, by default 2 (m - 1) for m inputs.

    >>> x = await s.put(np.array([2.0 + 0j, 0j]))
    >>> await asc.fft.irfft(x)
    array([1., 1.])
    """
    return _along("irfft", x, n, axis, norm)


def hfft(x: Tensor, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Tensor:
    """The transform of a Hermitian sequence, given by its half: n real numbers, by default 2 (m - 1) for m inputs.

    >>> x = await s.put(np.array([1.0, 1.0 + 0j]))
    >>> await asc.fft.hfft(x)
    array([2., 0.])
    """
    return _along("irfft", conj(x), n, axis, _opposite("hfft", norm))


def ihfft(x: Tensor, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Tensor:
    """The inverse of `hfft`, for real numbers: n // 2 + 1 complex numbers.

    >>> await asc.fft.ihfft(asc.ones(4))
    array([1.-0.j, 0.-0.j, 0.-0.j])
    """
    return conj(_along("rfft", x, n, axis, _opposite("ihfft", norm)))


def fftn(x: Tensor, /, *, s: _Several = None, axes: _Several = None, norm: Norm = "backward") -> Tensor:
    """The transform along several axes, by default all.

    >>> await asc.fft.fftn(asc.ones((2, 2)))
    array([[4.+0.j, 0.+0.j],
           [0.+0.j, 0.+0.j]])
    """
    return _along_several("fftn", x, s, axes, norm)


def ifftn(x: Tensor, /, *, s: _Several = None, axes: _Several = None, norm: Norm = "backward") -> Tensor:
    """The inverse of `fftn`.

    >>> await asc.fft.ifftn(asc.ones((2, 2)))
    array([[1.+0.j, 0.+0.j],
           [0.+0.j, 0.+0.j]])
    """
    return _along_several("ifftn", x, s, axes, norm)


def rfftn(x: Tensor, /, *, s: _Several = None, axes: _Several = None, norm: Norm = "backward") -> Tensor:
    """The transform of real numbers along several axes; the last of them has length n // 2 + 1 in the result.

    >>> asc.fft.rfftn(asc.ones((2, 4))).shape
    (2, 3)
    """
    return _along_several("rfftn", x, s, axes, norm)


def irfftn(x: Tensor, /, *, s: _Several = None, axes: _Several = None, norm: Norm = "backward") -> Tensor:
    """The inverse of `rfftn`; the last axis has length 2 (m - 1) in the result unless `s` gives another.

    >>> asc.fft.irfftn(asc.ones((2, 3)) + 0j).shape
    (2, 4)
    """
    return _along_several("irfftn", x, s, axes, norm)


def fftfreq(n: int, /, *, d: float = 1.0, dtype: Dtype = None, device: object = None, scheduler: Any = None) -> Tensor:
    """The frequencies of a transform of `n` samples that lie `d` apart: (n,), in float64 by default.

    >>> await asc.fft.fftfreq(4)
    array([ 0.  ,  0.25, -0.5 , -0.25])
    """
    count = _points("fftfreq", n)
    numbers = arange(-(count // 2), (count + 1) // 2, device=device, scheduler=scheduler)
    return _frequencies(ifftshift(numbers), count, d, dtype)


def rfftfreq(n: int, /, *, d: float = 1.0, dtype: Dtype = None, device: object = None, scheduler: Any = None) -> Tensor:
    """The n // 2 + 1 frequencies of `rfft`; arguments are those of `fftfreq`.

    >>> await asc.fft.rfftfreq(4)
    array([0.  , 0.25, 0.5 ])
    """
    count = _points("rfftfreq", n)
    return _frequencies(arange(count // 2 + 1, device=device, scheduler=scheduler), count, d, dtype)


def fftshift(x: Tensor, /, *, axes: Axis = None) -> Tensor:
    """The elements rolled so that frequency zero is in the middle of the axes, by default all.

    >>> await asc.fft.fftshift(asc.arange(4))
    array([2, 3, 0, 1])
    """
    return _shifted("fftshift", x, axes, lambda length: length // 2)


def ifftshift(x: Tensor, /, *, axes: Axis = None) -> Tensor:
    """The inverse of `fftshift`.

    >>> await asc.fft.ifftshift(asc.arange(4))
    array([2, 3, 0, 1])
    """
    return _shifted("ifftshift", x, axes, lambda length: -(length // 2))


def _along(name: str, x: Tensor, n: int | None, axis: int, norm: Norm) -> Tensor:
    _check(name, norm)
    return op(name, x, n=None if n is None else index(n), axis=index(axis), norm=norm)


def _along_several(name: str, x: Tensor, s: _Several, axes: _Several, norm: Norm) -> Tensor:
    _check(name, norm)
    points, several = _axes(s), _axes(axes)
    if points is not None and several is None and not isinstance(points, int):
        several = tuple(range(x.ndim - len(points), x.ndim))
    return op(name, x, s=points, axes=several, norm=norm)


def _check(name: str, norm: object) -> None:
    if norm not in ("backward", "ortho", "forward"):
        raise ValueError(f"{name}: norm must be 'backward', 'ortho' or 'forward', not {norm!r}")


def _opposite(name: str, norm: Norm) -> Norm:
    """The norm of the transform in the other direction."""
    _check(name, norm)
    return "forward" if norm == "backward" else "backward" if norm == "forward" else norm


def _points(name: str, n: int) -> int:
    if index(n) < 1:
        raise ValueError(f"{name}: the number of points must be positive, not {n}")
    return index(n)


def _frequencies(numbers: Tensor, n: int, d: float, dtype: Dtype) -> Tensor:
    return astype(numbers * (1.0 / (n * d)), dtype_of(dtype), copy=False)


def _shifted(name: str, x: Tensor, axes: Axis, shift: Callable[[int], int]) -> Tensor:
    shape = known_shape(x, name)
    found = _axes(axes)
    along = tuple(range(x.ndim)) if found is None else (found,) if isinstance(found, int) else found
    return roll(x, [shift(shape[axis]) for axis in along], axis=along)


__all__ = [
    "fft", "fftfreq", "fftn", "fftshift", "hfft", "ifft", "ifftn", "ifftshift", "ihfft", "irfft", "irfftn", "rfft",
    "rfftfreq", "rfftn",
]  # fmt: skip

name_keywords(globals(), __all__)


_instead.explain_missing(globals(), "asyncsched.fft", {}, listed=True)
