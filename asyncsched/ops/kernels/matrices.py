"""Linear algebra.

The kernels are NumPy's own functions if it has some; CuPy has fewer names and arguments.

On CUDA, LAPACK's errors are requested (`cupyx.errstate`), which waits for the device: otherwise CuPy would go on with
NaN.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import numpy as np
from numpy.linalg import LinAlgError

from ..declare import Blas, Cost, Inferred, Kernel, Meta, Op, Operand, Options, meta, operation, packed_op, resolve
from ..halves import in_single
from ..rules import INTP, Known, as_meta, broadcast, broadcast_shapes, cast_bytes, lengths, sample, view_rule
from .reduce import reduced, reduced_axes


def lapack(name: str) -> Kernel:
    """A function of `linalg` that both namespaces have. LAPACK's failures raise LinAlgError, as in NumPy."""

    def kernel(xp: Any, *arrays: Any, **options: Any) -> Any:
        function = getattr(xp.linalg, name)
        if xp is np:
            return function(*arrays, **options)
        import cupyx

        with cupyx.errstate(linalg="raise"):
            return function(*arrays, **options)

    kernel.__name__ = name
    return kernel


def cholesky(xp: Any, x: Any, *, upper: bool = False) -> Any:
    """A triangular factor."""
    if xp is np:
        return np.linalg.cholesky(x, upper=upper)
    lower = lapack("cholesky")(xp, x)
    return xp.ascontiguousarray(xp.swapaxes(lower, -1, -2).conj()) if upper else lower


def eigvals(xp: Any, x: Any) -> Any:
    """Eigenvalues, always complex. (NumPy returns real ones if all happen to be real.)"""
    return _complex(xp, lapack("eigvals")(xp, x))


def eig(xp: Any, x: Any) -> tuple[Any, Any]:
    """Eigenvalues and eigenvectors, complex."""
    values, vectors = lapack("eig")(xp, x)
    return _complex(xp, values), _complex(xp, vectors)


def matrix_rank(xp: Any, x: Any, rtol: Any = None) -> Any:
    """How many singular values are not negligible."""
    if xp is np:
        return np.linalg.matrix_rank(x, rtol=rtol)
    values = svdvals(xp, x)
    if not values.shape[-1]:
        return xp.zeros(values.shape[:-1], xp.intp)
    return xp.sum(_large(xp, x, values, rtol), axis=-1, dtype=xp.intp)


def pinv(xp: Any, x: Any, rtol: Any = None) -> Any:
    """The pseudo-inverse."""
    if xp is np:
        # NumPy's default is 1e-15 for every dtype; with None it is the standard's, but not for integers.
        return np.linalg.pinv(x) if rtol is None and x.dtype.kind not in "fc" else np.linalg.pinv(x, rtol=rtol)
    if not x.size:
        return xp.empty((*x.shape[:-2], x.shape[-1], x.shape[-2]), x.dtype)
    u, values, vh = lapack("svd")(xp, x.conj(), full_matrices=False)
    large = _large(xp, x, values, rtol)
    inverse = xp.where(large, 1 / xp.where(large, values, 1), 0).astype(values.dtype)
    return xp.matmul(xp.swapaxes(vh, -1, -2), inverse[..., None] * xp.swapaxes(u, -1, -2))


def cofactors(xp: Any, x: Any) -> Any:
    """The gradient of the determinant, also for singular matrices: by the singular values without one at a time."""
    u, values, vh = lapack("svd")(xp, x)
    sign = lapack("det")(xp, u) * lapack("det")(xp, vh)
    # For each singular value, the product of the others
    others = xp.where(xp.eye(x.shape[-1], dtype=bool), 1, values[..., None, :]).prod(axis=-1)
    return xp.matmul(u.conj() * (sign[..., None] * others)[..., None, :], vh.conj())


def solve(xp: Any, x: Any, right: Any) -> Any:
    """Solutions of linear equations. A right-hand side of one dimension is a vector; any other is a stack of
    matrices."""
    if xp is not np and right.ndim > 1 and x.ndim != right.ndim:
        batch = np.broadcast_shapes(x.shape[:-2], right.shape[:-2])
        x, right = [xp.broadcast_to(array, (*batch, *array.shape[-2:])) for array in (x, right)]
    return lapack("solve")(xp, x, right)


def svdvals(xp: Any, x: Any) -> Any:
    """Singular values."""
    return lapack("svd")(xp, x, compute_uv=False)


def matrix_power(xp: Any, x: Any, *, n: int) -> Any:
    """A power; the first power is a copy."""
    return x.copy(order="K") if n == 1 else lapack("matrix_power")(xp, x, n)


def matrix_norm(xp: Any, x: Any, *, ord: Any = "fro", keepdims: bool = False) -> Any:
    """A norm of matrices."""
    function = partial(xp.linalg.norm, ord=ord, axis=(-2, -1), keepdims=keepdims)
    return function(x) if xp is np else in_single(function, x)


def vector_norm(xp: Any, x: Any, *, axis: Any = None, ord: Any = 2, keepdims: bool = False) -> Any:
    """A norm of vectors, along one axis, several, or all."""
    if xp is np:
        return np.linalg.vector_norm(x, axis=axis, ord=ord, keepdims=keepdims)
    axes = reduced_axes(axis, x.ndim)
    rest = tuple([one for one in range(x.ndim) if one not in axes])
    lines = xp.transpose(x, (*axes, *rest)).reshape((prod([x.shape[one] for one in axes]), *[x.shape[i] for i in rest]))
    found = in_single(partial(xp.linalg.norm, ord=ord, axis=0), lines)
    return found.reshape(reduced(x.shape, axes, {"keepdims": keepdims}))


def diagonal(xp: Any, x: Any, *, offset: int) -> Any:
    """A diagonal of the last two axes: a view."""
    return xp.diagonal(x, offset, -2, -1)


def _complex(xp: Any, array: Any) -> Any:
    return array.astype(np.result_type(array.dtype, np.complex64), copy=False)


def _large(xp: Any, x: Any, values: Any, rtol: Any) -> Any:
    """Which singular values of matrices are not negligible. There may be a tolerance for each matrix."""
    relative = max(x.shape[-2:]) * xp.finfo(values.dtype).eps if rtol is None else rtol
    relative = relative[..., None] if getattr(relative, "ndim", 0) else relative
    return values > relative * xp.max(values, axis=-1, keepdims=True)


# -- rules -------------------------------------------------------------------------------------------------------------


_DOUBLE = np.dtype(np.float64)
_SVD = 6  # matrices: a copy, both factors, and as much to work in


def matrix_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """From square matrices to square matrices: `inv`, which solves for a unit matrix, and `cholesky`."""
    array, dtype = _square(op.name, operands[0])
    result = meta(array.bound, dtype)
    return Inferred(result, _decomposed([result], array, dtype, 2) - result.nbytes)


def number_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """From square matrices to a number each: `det`."""
    array, dtype = _square(op.name, operands[0])
    return Inferred(meta(array.bound[:-2], dtype), _copied(array, dtype))


def cofactors_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """From square matrices to square matrices. Workspace: the decomposition, or its factors and their conjugates."""
    array, dtype = _square(op.name, operands[0])
    result, parts = meta(array.bound, dtype), _svd_parts(array, dtype, full=True)
    used = _bytes(parts) + (3 if dtype.kind == "c" else 2) * result.nbytes
    return Inferred(result, max(used, _decomposed(parts, array, dtype, _SVD)) - result.nbytes)


def spectrum_rule(op: Op, operands: tuple[Operand, ...], options: Options, *, symmetric: bool = False) -> Inferred:
    """From square matrices to n numbers each: real ones if the matrices are symmetric, else complex ones."""
    array, dtype = _square(op.name, operands[0])
    result = meta(array.bound[:-1], _real_dtype(dtype) if symmetric else _complex_dtype(dtype))
    return Inferred(result, _copied(array, dtype) + 2 * result.nbytes)


def singular_values_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """From matrices to real numbers, as many as the shorter side has."""
    array, dtype = _stacked(op.name, operands[0])
    result = meta((*array.bound[:-2], min(array.bound[-2:])), _real_dtype(dtype))
    return Inferred(result, _copied(array, dtype))


def rank_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """From matrices to an integer each, by their singular values. A tolerance may be the second operand."""
    found = singular_values_rule(op, operands[:1], options)
    shape = _with_tolerance(op.name, lengths(operands[0])[:-2], operands[1:])
    return Inferred(meta(shape, INTP), found.workspace + 3 * found.meta.nbytes)


def pseudo_inverse_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """(..., n, m) to (..., m, n), by the singular value decomposition and products of its parts."""
    array = as_meta(operands[0])
    if prod(array.bound) == 0 and len(array.bound) > 1:
        return Inferred(meta((*array.bound[:-2], array.bound[-1], array.bound[-2]), array.dtype))
    array, dtype = _stacked(op.name, operands[0])
    *batch, n, m = array.bound
    if _with_tolerance(op.name, tuple(batch), operands[1:]) != tuple(batch):
        raise ValueError(f"{op.name}: the tolerance has shape {lengths(operands[1])}, but the matrices {tuple(batch)}")
    result = meta((*batch, m, n), dtype, len(batch) == 0 or array.contiguous)
    parts = _svd_parts(array, dtype, full=False)
    conjugate = array.nbytes if dtype.kind == "c" else 0
    scaled = parts[0].nbytes + result.nbytes  # one factor, over the singular values; and the product
    most = conjugate + max(_bytes(parts) + scaled, _decomposed(parts, array, dtype, _SVD))
    return Inferred(result, most - result.nbytes)


def solution_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """(..., n, n) with (n,) or (..., n, k): as many solutions as right-hand sides."""
    array, dtype = _square(op.name, operands[0], operands[1])
    n, right = array.bound[-1], lengths(operands[1])
    if not right or right[-1 if len(right) == 1 else -2] != n:
        raise ValueError(f"solve: shapes {array.bound} and {right} do not match: the second needs {n} rows")
    batch = broadcast_shapes("solve: outer dimensions", array.bound[:-2], right[:-2])
    result = meta((*batch, *right[-2:]) if len(right) > 1 else (*batch, n), dtype)
    inside = _inside(dtype)
    each = (n * n + prod(result.bound[-2:])) * inside.itemsize + _wide(result.nbytes, dtype) - result.nbytes
    return Inferred(result, each + cast_bytes(array, inside) + cast_bytes(operands[1], inside))


def power_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """Products of square matrices, or of their inverses for a negative exponent. A sample gives the dtype."""
    array, n = as_meta(operands[0]), options["n"]
    _check_square(op.name, array.bound)
    dtype = resolve(op, np)(sample(array, (1, 1)), n=min(max(n, -4), 4)).dtype
    result = meta(array.bound, dtype, array.contiguous or len(array.bound) == 2)
    products = 1 if abs(n) < 3 else 2 if abs(n) == 3 else 3  # alive at once: a square, and the result before and after
    if n >= 0:
        return Inferred(result, (products - 1) * result.nbytes)
    inverted = _decomposed([result], array, dtype, 2)
    return Inferred(result, max(inverted, (products + (n < -1)) * result.nbytes) - result.nbytes)


def matrix_norm_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """A real number for each matrix."""
    array = as_meta(operands[0])
    if len(array.bound) < 2:
        raise np.exceptions.AxisError(-2, len(array.bound), "matrix_norm")
    dtype = resolve(op, np)(sample(array, (1, 1)), **options).dtype
    kept = (1, 1) if options.get("keepdims") else ()
    result = meta((*array.bound[:-2], *kept), dtype)
    if (order := options.get("ord", "fro")) in (2, -2, "nuc"):
        used = _copied(array, array.dtype if array.dtype.kind in "fc" else _DOUBLE)
    else:
        used = _magnitudes(array, order in (None, "fro", "f"))
    return Inferred(result, used + 2 * result.nbytes, on_card=_norm_on_card(array))


def vector_norm_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """A real number for each line along the axes."""
    array, shape = as_meta(operands[0]), lengths(operands[0])
    axes = reduced_axes(options.get("axis"), len(shape))
    dtype = resolve(op, np)(sample(array, (1,)), **{**options, "axis": None, "keepdims": False}).dtype
    if not prod([shape[axis] for axis in axes]):  # without elements NumPy has no smallest one, or raises
        resolve(op, np)(sample(array, (0,)), **{**options, "axis": None, "keepdims": False})
    result = meta(reduced(shape, axes, options), dtype, array.contiguous)
    # NumPy brings several axes to the front, as one.
    stays = isinstance(options.get("axis"), int) or (array.contiguous and axes == tuple(range(len(axes))))
    moved, order = 0 if stays else array.nbytes, options.get("ord", 2)
    mask = prod(shape) if order == 0 else 0
    return Inferred(result, moved + mask + _magnitudes(array, order == 2), on_card=_norm_on_card(array))


def cross_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """Vectors of three numbers along an axis; NumPy moves the result's axis there."""
    shapes, axis = [lengths(operand) for operand in operands], options["axis"]
    if any(not -len(shape) <= axis < len(shape) for shape in shapes):
        raise np.exceptions.AxisError(axis, min(map(len, shapes)))
    if any(shape[axis] != 3 for shape in shapes):
        raise ValueError(f"cross: give vectors of three numbers along axis {axis}, not shapes {shapes}")
    dtype = resolve(op, np)(*[sample(operand, (3,)) for operand in operands], axis=-1).dtype
    metas = [as_meta(operand) for operand in operands]
    shape = broadcast(tuple([meta((*s[:axis], *s[axis:][1:], 3), dtype) for s in shapes]))
    at = axis + len(shape) if axis < 0 else axis
    last = at == len(shape) - 1
    result = meta((*shape[:-1][:at], 3, *shape[:-1][at:]), dtype, last)
    return Inferred(result, sum(array.nbytes for array in metas) + result.nbytes)


# -- several results ------------------------------------------------------------------------------------------------


def eigen_parts(
    name: str, operands: tuple[Operand, ...], options: Options, *, symmetric: bool = False
) -> tuple[list[Meta], int]:
    """Eigenvalues and eigenvectors. For symmetric matrices the values are real, otherwise everything is complex."""
    array, dtype = _square(name, operands[0])
    values, vectors = (_real_dtype(dtype), dtype) if symmetric else (_complex_dtype(dtype),) * 2
    parts = [meta(array.bound[:-1], values), meta(array.bound, vectors)]
    # A copy, and twice as much to work in; of real numbers with complex vectors, these once real and once complex.
    count = 3 if symmetric else 2 if dtype.kind == "c" else 4
    return parts, _beside(parts, _decomposed(parts, array, dtype, count))


def qr_parts(name: str, operands: tuple[Operand, ...], options: Options) -> tuple[list[Meta], int]:
    """A matrix with orthonormal columns, and a triangular one."""
    if options["mode"] not in ("reduced", "complete"):
        raise ValueError(f"qr: mode must be 'reduced' or 'complete', not {options['mode']!r}")
    array, dtype = _stacked(name, operands[0])
    *batch, n, m = array.bound
    k = n if options["mode"] == "complete" else min(n, m)
    parts = [meta((*batch, n, k), dtype), meta((*batch, k, m), dtype)]
    copied = meta(array.bound, _inside(dtype))  # to write over, also where it is no cast
    return parts, _beside(parts, copied.nbytes + _decomposed(parts, copied, dtype, 2))


def svd_parts(name: str, operands: tuple[Operand, ...], options: Options) -> tuple[list[Meta], int]:
    """Orthonormal matrices on both sides of real, descending numbers."""
    array, dtype = _stacked(name, operands[0])
    parts = _svd_parts(array, dtype, full=options["full_matrices"])
    return parts, _beside(parts, _decomposed(parts, array, dtype, _SVD))


def _svd_parts(array: Meta, dtype: np.dtype[Any], *, full: bool) -> list[Meta]:
    *batch, n, m = array.bound
    k = min(n, m)
    u, vh = (*batch, n, n if full else k), (*batch, m if full else k, m)
    return [meta(u, dtype), meta((*batch, k), _real_dtype(dtype)), meta(vh, dtype)]


def slogdet_parts(name: str, operands: tuple[Operand, ...], options: Options) -> tuple[list[Meta], int]:
    """The sign of a determinant, and the logarithm of its magnitude."""
    array, dtype = _square(name, operands[0])
    parts = [meta(array.bound[:-2], dtype), meta(array.bound[:-2], _real_dtype(dtype))]
    return parts, _copied(array, dtype)


# -- shared -----------------------------------------------------------------------------------------------------------


def _stacked(name: str, *operands: Operand) -> tuple[Meta, np.dtype[Any]]:
    """The first operand, a stack of matrices, and the dtype in which NumPy computes."""
    array = as_meta(operands[0])
    if len(array.bound) < 2:
        raise LinAlgError(f"{name}: give an array of at least two dimensions, not of {len(array.bound)}")
    return array, _computed(name, [as_meta(operand).dtype for operand in operands])


def _square(name: str, *operands: Operand) -> tuple[Meta, np.dtype[Any]]:
    _check_square(name, lengths(operands[0]))
    return _stacked(name, *operands)


def _check_square(name: str, shape: Known) -> None:
    if len(shape) < 2 or shape[-1] != shape[-2]:
        raise LinAlgError(f"{name}: the last two dimensions must be square, not of shape {shape}")


def _computed(name: str, dtypes: list[np.dtype[Any]]) -> np.dtype[Any]:
    for dtype in dtypes:
        if dtype == np.float16 or dtype.kind not in "biufc":
            raise TypeError(f"{name}: {dtype} is unsupported in linear algebra: use `x.astype(asc.float32)`")
    return np.result_type(*[dtype if dtype.kind in "fc" else _DOUBLE for dtype in dtypes])


def _real_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.finfo(dtype).dtype


def _complex_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.result_type(dtype, np.complex64)


def _inside(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype in which NumPy calls LAPACK: single precision, too, is cast to double, and the results back."""
    return np.result_type(dtype, _DOUBLE)


def _wide(nbytes: int, dtype: np.dtype[Any]) -> int:
    """The bytes that results of a dtype take before they are cast back."""
    return nbytes * _inside(dtype).itemsize // dtype.itemsize


def _copied(array: Meta, dtype: np.dtype[Any], count: int = 1) -> int:
    """Bytes of `count` copies of one matrix, for LAPACK to write over, and of a cast of all if there is one."""
    (n, m), inside = array.bound[-2:], _inside(dtype)
    return count * (n * m + 4 * (n + m)) * inside.itemsize + cast_bytes(array, inside)


def _bytes(parts: list[Meta]) -> int:
    return sum(part.nbytes for part in parts)


def _decomposed(parts: list[Meta], array: Meta, dtype: np.dtype[Any], count: int) -> int:
    """The most bytes of a decomposition of all matrices, its results included.

    They are a cast of the matrices, `count` copies of one and the results; then these, and one of them cast back. The
    largest factor of a matrix, which LAPACK writes beside a copy, may be far larger than the matrix.
    """
    largest = max([part.nbytes for part in parts])
    back = largest if dtype != _inside(dtype) else 0
    factor = _wide(largest, dtype) // (prod(array.bound[:-2]) or 1)
    return _wide(_bytes(parts), dtype) + max(_copied(array, dtype, count), _copied(array, dtype) + factor, back)


def _beside(parts: list[Meta], used: int) -> int:
    """Bytes used by a decomposition that are more than its results and the buffer that these are copied to."""
    return max(0, used - 2 * _bytes(parts))


def _magnitudes(array: Meta, squared: bool) -> int:
    """Bytes of the magnitudes of all elements, or of their squares in the array's own dtype; and of integers cast."""
    cast = cast_bytes(array, _DOUBLE) if array.dtype.kind not in "fc" else 0
    own = max(array.dtype.itemsize, _DOUBLE.itemsize) if cast else array.dtype.itemsize
    return cast + prod(array.bound) * (own if squared or array.dtype.kind != "c" else own // 2)


def _norm_on_card(array: Meta) -> int:
    """Bytes of a copy, of the magnitudes of all elements and of their powers: the most on a CUDA card."""
    return array.nbytes + 2 * prod(array.bound) * max(array.dtype.itemsize, _DOUBLE.itemsize)


def _with_tolerance(name: str, batch: Known, tolerance: tuple[Operand, ...]) -> Known:
    """The shape that a tolerance for each matrix and the stack broadcast to."""
    return broadcast_shapes(f"{name}: outer dimensions", batch, lengths(tolerance[0])) if tolerance else batch


# -- declarations ------------------------------------------------------------------------------------------------------


def _decomposes(op: Op) -> Op:
    """A decomposition. Alone it runs on all of LAPACK's threads, which affects its bits; in `exact()` on a stream's."""
    op = replace(op, element_seconds=Cost.DECOMPOSITION)
    return replace(op, exact=replace(op, blas=Blas.INSIDE))


def _of_matrices(kernel: str | Kernel, rule: Any, doc: str) -> Op:
    return _decomposes(operation(kernel, rule, doc))


OPS = (
    _of_matrices(cholesky, matrix_rule, "The triangular factor of positive definite matrices."),
    _of_matrices(lapack("inv"), matrix_rule, "The inverse of square matrices."),
    _of_matrices(lapack("det"), number_rule, "The determinant of square matrices."),
    _of_matrices(cofactors, cofactors_rule, "The gradient of the determinant of square matrices."),
    _of_matrices(eigvals, spectrum_rule, "The eigenvalues of square matrices, complex."),
    _of_matrices(lapack("eigvalsh"), partial(spectrum_rule, symmetric=True), "Of symmetric matrices."),
    _of_matrices(svdvals, singular_values_rule, "The singular values of matrices, descending."),
    _of_matrices(matrix_rank, rank_rule, "How many singular values are not negligible."),
    _of_matrices(pinv, pseudo_inverse_rule, "The Moore-Penrose inverse of matrices."),
    _of_matrices(solve, solution_rule, "The solution of linear equations."),
    _of_matrices(matrix_power, power_rule, "Square matrices to an integer power."),
    _of_matrices(matrix_norm, matrix_norm_rule, "A norm of each matrix."),
    operation(vector_norm, vector_norm_rule, "A norm of vectors along the axes.", Cost.SCALAR, launches=2),
    operation(diagonal, view_rule, "A diagonal of matrices: a view.", view=True),
    _of_matrices("cross", cross_rule, "The cross product of vectors of three numbers."),
    _decomposes(packed_op(eig, eigen_parts, "Eigenvalues and eigenvectors of square matrices, complex.")),
    _decomposes(packed_op(lapack("eigh"), partial(eigen_parts, symmetric=True), "The same for symmetric matrices.")),
    _decomposes(packed_op(lapack("qr"), qr_parts, "An orthonormal times a triangular matrix.")),
    _decomposes(packed_op(lapack("svd"), svd_parts, "The singular value decomposition.")),
    _decomposes(packed_op(lapack("slogdet"), slogdet_parts, "The determinant, as a sign and a logarithm.")),
)  # fmt: skip
