"""Rules of linear algebra: decompositions, inverses, determinants, norms. A stack of matrices is worked off one by one.

LAPACK writes over what it is given, so each matrix is copied; NumPy also copies an operand whole if it has another
dtype. Integers are computed in float64, half precision is refused.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from numpy.linalg import LinAlgError

from ..meta import Meta, meta
from ..op import Inferred, Op, Operand, Options, resolve
from .common import INTP, Known, as_meta, broadcast, cast_bytes, lengths, outer_shape, sample, view_rule
from .reduce import reduced_axes

_DOUBLE = np.dtype(np.float64)


def matrix(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """Square matrices to square matrices: `inv`, which solves for a unit matrix, and `cholesky`."""
    array, dtype = _square(op.name, operands[0])
    return Inferred(meta(array.bound, dtype), 2 * _copied(array, dtype))


def number(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """Square matrices to a number each: `det`."""
    array, dtype = _square(op.name, operands[0])
    return Inferred(meta(array.bound[:-2], dtype), _copied(array, dtype))


def cofactors(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """Square matrices to square matrices. At work are those to be inverted, or their decomposition and its products."""
    array, dtype = _square(op.name, operands[0])
    return Inferred(meta(array.bound, dtype), 8 * prod(array.bound) * dtype.itemsize + 4 * _copied(array, dtype))


def spectrum(op: Op, operands: tuple[Operand, ...], options: Options, *, symmetric: bool = False) -> Inferred:
    """Square matrices to as many numbers: real ones if the matrices are symmetric, else complex ones."""
    array, dtype = _square(op.name, operands[0])
    result = meta(array.bound[:-1], _real(dtype) if symmetric else _complex(dtype))
    return Inferred(result, _copied(array, dtype) + 2 * result.nbytes)


def singular_values(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """Matrices to as many real numbers as the shorter side has."""
    array, dtype = _stacked(op.name, operands[0])
    result = meta((*array.bound[:-2], min(array.bound[-2:])), _real(dtype))
    return Inferred(result, _copied(array, dtype))


def rank(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """Matrices to an integer each, by their singular values. A tolerance may be the second operand."""
    found = singular_values(op, operands[:1], options)
    shape = _with_tolerance(op.name, lengths(operands[0])[:-2], operands[1:])
    return Inferred(meta(shape, INTP), found.workspace + 3 * found.meta.nbytes)


def pseudo_inverse(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """(..., n, m) to (..., m, n): the singular value decomposition, and products of its parts."""
    array = as_meta(operands[0])
    if prod(array.bound) == 0 and len(array.bound) > 1:
        return Inferred(meta((*array.bound[:-2], array.bound[-1], array.bound[-2]), array.dtype))
    array, dtype = _stacked(op.name, operands[0])
    *batch, n, m = array.bound
    if _with_tolerance(op.name, tuple(batch), operands[1:]) != tuple(batch):
        raise ValueError(
            f"{op.name}: a tolerance of shape {lengths(operands[1])} is for more matrices than {tuple(batch)}"
        )
    parts, workspace = svd(op.name, operands[:1], {"full_matrices": False})
    used = sum(part.nbytes for part in parts) + array.nbytes + workspace
    return Inferred(meta((*batch, m, n), dtype, len(batch) == 0 or array.contiguous), 2 * used)


def solution(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """(..., n, n) and (n,) or (..., n, k): as many solutions as right hand sides."""
    array, dtype = _square(op.name, operands[0], operands[1])
    n, right = array.bound[-1], lengths(operands[1])
    if not right or right[-1 if len(right) == 1 else -2] != n:
        raise ValueError(f"solve: shapes {array.bound} and {right} do not match: the second needs {n} rows")
    batch = outer_shape("solve", array.bound[:-2], right[:-2])
    result = meta((*batch, *right[-2:]) if len(right) > 1 else (*batch, n), dtype)
    each = (n * n + prod(result.bound[-2:])) * dtype.itemsize
    return Inferred(result, each + cast_bytes(array, dtype) + cast_bytes(operands[1], dtype))


def power(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """Products of square matrices, or of their inverses if the exponent is negative; a sample tells the dtype."""
    array, n = as_meta(operands[0]), options["n"]
    _check_square(op.name, array.bound)
    dtype = resolve(op, np)(sample(array, (1, 1)), n=min(max(n, -4), 4)).dtype
    result = meta(array.bound, dtype, array.contiguous or len(array.bound) == 2)
    return Inferred(result, 3 * result.nbytes + (0 if n >= 0 else cast_bytes(array, dtype)))


def matrix_norm(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """A real number for each matrix."""
    array = as_meta(operands[0])
    if len(array.bound) < 2:
        raise np.exceptions.AxisError(-2, len(array.bound), "matrix_norm")
    dtype = resolve(op, np)(sample(array, (1, 1)), **options).dtype
    kept = (1, 1) if options.get("keepdims") else ()
    result = meta((*array.bound[:-2], *kept), dtype)
    return Inferred(result, _temporary(array, dtype) + 2 * result.nbytes)


def vector_norm(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """A real number for each line along the axes."""
    array, shape = as_meta(operands[0]), lengths(operands[0])
    axes = reduced_axes(options.get("axis"), len(shape))
    dtype = resolve(op, np)(sample(array, (1,)), **{**options, "axis": None, "keepdims": False}).dtype
    if not prod([shape[axis] for axis in axes]):  # of nothing: NumPy has no smallest element of that, or raises
        resolve(op, np)(sample(array, (0,)), **{**options, "axis": None, "keepdims": False})
    kept = [1 if axis in axes else length for axis, length in enumerate(shape)]
    if not options.get("keepdims"):
        kept = [length for axis, length in enumerate(kept) if axis not in axes]
    return Inferred(meta(tuple(kept), dtype, array.contiguous), _temporary(array, dtype) + array.nbytes)


def trace(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """The sum along a diagonal; a sample tells the dtype."""
    array = as_meta(operands[0])
    diagonal = view_rule_of_diagonal(array, options["offset"])
    dtype = resolve(op, np)(sample(array, (1, 1)), **options).dtype
    return Inferred(meta(diagonal[:-1], dtype, array.contiguous))


def diagonal(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """A view."""
    view_rule_of_diagonal(as_meta(operands[0]), options["offset"])
    return view_rule(op, operands, options)


def view_rule_of_diagonal(array: Meta, offset: int) -> Known:
    """The shape of a diagonal of the last two dimensions."""
    if len(array.bound) < 2:
        raise ValueError(f"a diagonal needs at least two dimensions, not {len(array.bound)}")
    *batch, n, m = array.bound
    return (*batch, max(min(n, m - offset) if offset >= 0 else min(n + offset, m), 0))


def cross(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """Vectors of three numbers along an axis; NumPy moves the result's axis there."""
    shapes, axis = [lengths(operand) for operand in operands], options["axis"]
    if any(not -len(shape) <= axis < len(shape) for shape in shapes):
        raise np.exceptions.AxisError(axis, min(map(len, shapes)))
    if any(shape[axis] != 3 for shape in shapes):
        raise ValueError(f"cross: vectors of three numbers are needed along axis {axis}, not shapes {shapes}")
    dtype = resolve(op, np)(*[sample(operand, (3,)) for operand in operands], axis=-1).dtype
    metas = [as_meta(operand) for operand in operands]
    shape = broadcast(tuple([meta((*s[:axis], *s[axis:][1:], 3), dtype) for s in shapes]))
    at = axis + len(shape) if axis < 0 else axis
    last = at == len(shape) - 1
    result = meta((*shape[:-1][:at], 3, *shape[:-1][at:]), dtype, last)
    return Inferred(result, sum(array.nbytes for array in metas) + result.nbytes)


def outer(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """All products of the elements of two vectors."""
    shapes = [lengths(operand) for operand in operands]
    if any(len(shape) != 1 for shape in shapes):
        raise ValueError(f"outer: two tensors of one dimension are needed, not shapes {shapes}")
    dtype = resolve(op, np)(*[sample(operand, (1,)) for operand in operands]).dtype
    return Inferred(meta((shapes[0][0], shapes[1][0]), dtype))


# -- several results ------------------------------------------------------------------------------------------------


def eigh(name: str, operands: tuple[Operand, ...], options: Options) -> tuple[list[Meta], int]:
    """Eigenvalues and eigenvectors of symmetric matrices."""
    array, dtype = _square(name, operands[0])
    parts = [meta(array.bound[:-1], _real(dtype)), meta(array.bound, dtype)]
    return parts, sum(part.nbytes for part in parts) + 3 * _copied(array, dtype)


def eig(name: str, operands: tuple[Operand, ...], options: Options) -> tuple[list[Meta], int]:
    """Eigenvalues and eigenvectors of any square matrices, which are complex."""
    array, dtype = _square(name, operands[0])
    parts = [meta(array.bound[:-1], _complex(dtype)), meta(array.bound, _complex(dtype))]
    return parts, 2 * sum(part.nbytes for part in parts) + _copied(array, dtype)


def qr(name: str, operands: tuple[Operand, ...], options: Options) -> tuple[list[Meta], int]:
    """An orthonormal matrix and a triangular one."""
    if options["mode"] not in ("reduced", "complete"):
        raise ValueError(f"qr: mode must be 'reduced' or 'complete', not {options['mode']!r}")
    array, dtype = _stacked(name, operands[0])
    *batch, n, m = array.bound
    k = n if options["mode"] == "complete" else min(n, m)
    parts = [meta((*batch, n, k), dtype), meta((*batch, k, m), dtype)]
    whole = prod(array.bound) * dtype.itemsize
    return parts, sum(part.nbytes for part in parts) + 2 * whole + prod(batch) * min(n, m) * dtype.itemsize


def svd(name: str, operands: tuple[Operand, ...], options: Options) -> tuple[list[Meta], int]:
    """Orthonormal matrices on both sides of real, descending numbers."""
    array, dtype = _stacked(name, operands[0])
    *batch, n, m = array.bound
    k, full = min(n, m), options["full_matrices"]
    u, vh = (*batch, n, n if full else k), (*batch, m if full else k, m)
    parts = [meta(u, dtype), meta((*batch, k), _real(dtype)), meta(vh, dtype)]
    return parts, sum(part.nbytes for part in parts) + 4 * _copied(array, dtype)


def slogdet(name: str, operands: tuple[Operand, ...], options: Options) -> tuple[list[Meta], int]:
    """The sign of a determinant, and the logarithm of its magnitude."""
    array, dtype = _square(name, operands[0])
    parts = [meta(array.bound[:-2], dtype), meta(array.bound[:-2], _real(dtype))]
    return parts, sum(part.nbytes for part in parts) + _copied(array, dtype)


# -- shared -----------------------------------------------------------------------------------------------------------


def _stacked(name: str, *operands: Operand) -> tuple[Meta, np.dtype[Any]]:
    """The first operand, a stack of matrices, and the dtype in which NumPy computes."""
    array = as_meta(operands[0])
    if len(array.bound) < 2:
        raise LinAlgError(f"{name}: an array of {len(array.bound)} dimensions was given, and at least two are needed")
    return array, _computed(name, [as_meta(operand).dtype for operand in operands])


def _square(name: str, *operands: Operand) -> tuple[Meta, np.dtype[Any]]:
    _check_square(name, lengths(operands[0]))
    return _stacked(name, *operands)


def _check_square(name: str, shape: Known) -> None:
    if len(shape) < 2 or shape[-1] != shape[-2]:
        raise LinAlgError(f"{name}: the last two dimensions must be square, and the shape is {shape}")


def _computed(name: str, dtypes: list[np.dtype[Any]]) -> np.dtype[Any]:
    for dtype in dtypes:
        if dtype == np.float16 or dtype.kind not in "biufc":
            raise TypeError(f"{name}: {dtype} is unsupported in linear algebra: use `x.astype(asc.float32)`")
    return np.result_type(*[dtype if dtype.kind in "fc" else _DOUBLE for dtype in dtypes])


def _real(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.finfo(dtype).dtype


def _complex(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.result_type(dtype, np.complex64)


def _copied(array: Meta, dtype: np.dtype[Any]) -> int:
    """Bytes of the copy of one matrix that LAPACK writes over, and of a cast of all of them if there is one."""
    n, m = array.bound[-2:]
    return (n * m + 4 * (n + m)) * dtype.itemsize + cast_bytes(array, dtype)


def _temporary(array: Meta, dtype: np.dtype[Any]) -> int:
    """Bytes of the magnitudes of all elements and of their powers, which is more than a decomposition copies."""
    elements = prod(array.bound)
    return 2 * elements * max(dtype.itemsize, array.dtype.itemsize, _DOUBLE.itemsize)


def _with_tolerance(name: str, batch: Known, tolerance: tuple[Operand, ...]) -> Known:
    """What a tolerance for each matrix broadcasts with the stack to."""
    return outer_shape(name, batch, lengths(tolerance[0])) if tolerance else batch
