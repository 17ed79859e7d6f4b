"""Functions that make tensors.

All take `device` and `scheduler`, by default the first device of the ambient scheduler. Functions named `..._like` use
the scheduler and device of their argument.
"""

from __future__ import annotations

from operator import index
from typing import Any, Literal

from ...runtime.context import current_scope, find
from ..arguments import dtype_of, dtype_or_none, name_keywords
from ..putting import put_nowait
from ..tensor import Scalar, Tensor
from ._common import Dtype, Operand, ShapeLike, lengths, op
from .dtypes import astype
from .manipulation import broadcast_arrays, reshape


def arange(
    start: float,
    /,
    stop: float | None = None,
    step: float = 1,
    *,
    dtype: Dtype = None,
    device: object = None,
    scheduler: Any = None,
) -> Tensor:
    """Numbers from `start` to before `stop` by `step`; a single argument is `stop`.

    Returns a tensor of one dimension, in int64 if all are integers, else in float64.

    >>> async def main():
    ...     async with asc.Scheduler("cpu") as s:
    ...         return await asc.arange(2, 10, 3)
    >>> asc.run(main)
    array([2, 5, 8])
    """
    first, last = (0, start) if stop is None else (start, stop)
    options = {"start": first, "stop": last, "step": step, "dtype": dtype_or_none(dtype)}
    return op("arange", device=device, scheduler=scheduler, **options)


def asarray(
    obj: Operand, /, *, dtype: Dtype = None, device: object = None, copy: bool | None = None, scheduler: Any = None
) -> Tensor:
    """The tensor itself, or in another dtype; a number as a tensor without dimensions.

    >>> await asc.asarray(3.5, dtype=asc.float32).item()
    3.5

    Raises:
        TypeError: for arrays, lists and the like: `await s.put(a)` makes tensors from them.
        ValueError: if `copy` is False and a copy is needed.
    """
    if isinstance(obj, Tensor):
        wanted = obj.dtype if dtype is None else dtype_of(dtype)
        if copy is False and wanted != obj.dtype:
            raise ValueError(f"asarray: {wanted} of a tensor in {obj.dtype} needs a copy")
        return astype(obj, wanted, copy=bool(copy), device=device)
    if not isinstance(obj, Scalar):
        raise TypeError(f"asarray takes tensors and numbers, not {type(obj).__name__}: use `await s.put(a)`")
    if copy is False:
        raise ValueError("asarray: a tensor made from a number is always a copy")
    return full((), obj, dtype=dtype, device=device, scheduler=scheduler)


def empty(shape: ShapeLike, *, dtype: Dtype = None, device: object = None, scheduler: Any = None) -> Tensor:
    """Zeros: tensors are values, so there is no way to fill an empty one in place.

    >>> asc.empty((2, 3)).shape
    (2, 3)
    """
    return zeros(shape, dtype=dtype, device=device, scheduler=scheduler)


def empty_like(x: Tensor, /, *, dtype: Dtype = None, device: object = None) -> Tensor:
    """Zeros in the shape and layout of `x`, and its dtype unless another is given.

    >>> asc.empty_like(asc.ones((2, 3))).shape
    (2, 3)
    """
    return zeros_like(x, dtype=dtype, device=device)


def eye(
    n_rows: int,
    n_cols: int | None = None,
    /,
    *,
    k: int = 0,
    dtype: Dtype = None,
    device: object = None,
    scheduler: Any = None,
) -> Tensor:
    """Ones on the k-th diagonal, zeros elsewhere: (n_rows, n_cols), in float64 unless another dtype is given.

    >>> await asc.eye(2)
    array([[1., 0.],
           [0., 1.]])
    """
    columns = index(n_rows) if n_cols is None else index(n_cols)
    options = {"n_rows": index(n_rows), "n_cols": columns, "k": index(k), "dtype": dtype_of(dtype)}
    return op("eye", device=device, scheduler=scheduler, **options)


def from_dlpack(x: Any, /, *, device: object = None, copy: bool | None = None, scheduler: Any = None) -> Tensor:
    """A tensor with a copy of another library's array, which is on the host or on one of the scheduler's GPUs.

    Never waits, and so needs room now. The source must not change before the tensor is done. A tensor is returned
    itself, or copied.

    >>> async def main():
    ...     async with asc.Scheduler("cpu"):
    ...         return await asc.from_dlpack(np.arange(3))
    >>> asc.run(main)
    array([0, 1, 2])

    Raises:
        QueueFull: if there is no room; `await s.put(x)` waits for it.
        BufferError: if `copy` is False, for anything but a tensor of the scheduler.
    """
    if isinstance(x, Tensor):
        return asarray(x, device=device, copy=copy)
    if not hasattr(x, "__dlpack__"):
        raise TypeError(
            f"from_dlpack takes arrays that have `__dlpack__`, not {type(x).__name__}: use `await s.put(a)`"
        )
    if copy is False:
        raise BufferError("from_dlpack: a scheduler's tensor is always a copy: leave `copy` out")
    runtime = find(scheduler)
    return put_nowait(runtime, current_scope(runtime), x, device)


def full(
    shape: ShapeLike, fill_value: Operand, *, dtype: Dtype = None, device: object = None, scheduler: Any = None
) -> Tensor:
    """One value throughout, by default in the dtype that NumPy gives it.

    >>> await asc.full(3, 7)
    array([7, 7, 7])
    """
    options = {"shape": lengths(shape), "dtype": dtype_or_none(dtype)}
    return op("full", fill_value, device=device, scheduler=scheduler, **options)


def full_like(x: Tensor, /, fill_value: Operand, *, dtype: Dtype = None, device: object = None) -> Tensor:
    """One value throughout, in the shape and layout of `x`, and by default in its dtype.

    >>> await asc.full_like(asc.ones(3), 7.0)
    array([7., 7., 7.])
    """
    found = op("full_like", x, fill_value, dtype=dtype_or_none(dtype))
    return found if device is None else found.to(device)


def linspace(
    start: Scalar,
    stop: Scalar,
    /,
    num: int,
    *,
    dtype: Dtype = None,
    device: object = None,
    endpoint: bool = True,
    scheduler: Any = None,
) -> Tensor:
    """`num` evenly spaced numbers from `start` to `stop`, or without it: (num,), in float64 or complex128.

    >>> await asc.linspace(0, 1, 5)
    array([0.  , 0.25, 0.5 , 0.75, 1.  ])
    """
    options = {"num": index(num), "dtype": dtype_or_none(dtype), "endpoint": endpoint}
    return op("linspace", start, stop, device=device, scheduler=scheduler, **options)


def meshgrid(*arrays: Tensor, indexing: Literal["xy", "ij"] = "xy") -> tuple[Tensor, ...]:
    """Coordinates of a grid, from those along each axis: read-only views. "xy" exchanges the first two axes.

    >>> await asc.gather(*asc.meshgrid(asc.arange(2), asc.arange(3)))
    [array([[0, 1],
           [0, 1],
           [0, 1]]), array([[0, 0],
           [1, 1],
           [2, 2]])]
    """
    if indexing not in ("xy", "ij"):
        raise ValueError(f"meshgrid: indexing must be 'xy' or 'ij', not {indexing!r}")
    order = list(range(len(arrays)))
    if indexing == "xy":
        order[:2] = order[:2][::-1]
    shapes = [[-1 if axis == own else 1 for axis in range(len(arrays))] for own in order]
    return broadcast_arrays(*[reshape(x, shape) for x, shape in zip(arrays, shapes, strict=True)])


def ones(shape: ShapeLike, *, dtype: Dtype = None, device: object = None, scheduler: Any = None) -> Tensor:
    """Ones, in float64 unless another dtype is given.

    >>> await asc.ones((2, 2))
    array([[1., 1.],
           [1., 1.]])
    """
    return op("ones", shape=lengths(shape), dtype=dtype_of(dtype), device=device, scheduler=scheduler)


def ones_like(x: Tensor, /, *, dtype: Dtype = None, device: object = None) -> Tensor:
    """Ones in the shape and layout of `x`, and its dtype unless another is given.

    >>> await asc.ones_like(asc.arange(3))
    array([1, 1, 1])
    """
    return full_like(x, 1, dtype=dtype, device=device)


def tril(x: Tensor, /, *, k: int = 0) -> Tensor:
    """The lower triangle of the last two dimensions, zeros above the k-th diagonal.

    >>> await asc.tril(asc.ones((3, 3)))
    array([[1., 0., 0.],
           [1., 1., 0.],
           [1., 1., 1.]])
    """
    return op("tril", x, k=k)


def triu(x: Tensor, /, *, k: int = 0) -> Tensor:
    """The upper triangle of the last two dimensions, zeros below the k-th diagonal.

    >>> await asc.triu(asc.ones((3, 3)))
    array([[1., 1., 1.],
           [0., 1., 1.],
           [0., 0., 1.]])
    """
    return op("triu", x, k=k)


def zeros(shape: ShapeLike, *, dtype: Dtype = None, device: object = None, scheduler: Any = None) -> Tensor:
    """Zeros, in float64 unless another dtype is given.

    >>> await asc.zeros(3, dtype=asc.int32)
    array([0, 0, 0], dtype=int32)
    """
    return op("zeros", shape=lengths(shape), dtype=dtype_of(dtype), device=device, scheduler=scheduler)


def zeros_like(x: Tensor, /, *, dtype: Dtype = None, device: object = None) -> Tensor:
    """Zeros in the shape and layout of `x`, and its dtype unless another is given.

    >>> await asc.zeros_like(asc.arange(3))
    array([0, 0, 0])
    """
    return full_like(x, 0, dtype=dtype, device=device)


__all__ = [
    "arange", "asarray", "empty", "empty_like", "eye", "from_dlpack", "full", "full_like", "linspace", "meshgrid",
    "ones", "ones_like", "tril", "triu", "zeros", "zeros_like",
]  # fmt: skip

name_keywords(globals(), __all__)
