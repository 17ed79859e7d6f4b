"""Linear algebra, and products that sum over axes.

NumPy's own functions where there are some; CuPy's names and arguments are fewer.

On CUDA an error of LAPACK's is asked for (`cupyx.errstate`), which waits for the device: CuPy would go on with NaN.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from math import prod
from typing import Any

import numpy as np

from ..declare import Cost, Cut, Kernel, Op, product, with_out, with_products
from ..packed import packed_op
from ..rules import linalg
from ..rules import matrices as rules
from . import releasing_gil


def lapack(name: str) -> Kernel:
    """A function of `linalg` that both have."""

    def kernel(xp: Any, *arrays: Any, **options: Any) -> Any:
        with _strict(xp):
            return getattr(xp.linalg, name)(*arrays, **options)

    return kernel


def cholesky(xp: Any, x: Any, *, upper: bool = False) -> Any:
    """A triangular factor."""
    if xp is np:
        return np.linalg.cholesky(x, upper=upper)
    with _strict(xp):
        lower = xp.linalg.cholesky(x)
    return xp.ascontiguousarray(xp.swapaxes(lower, -1, -2).conj()) if upper else lower


def eigvals(xp: Any, x: Any) -> Any:
    """Eigenvalues: complex, also where NumPy, which looks at them, would give real ones."""
    with _strict(xp):
        return _complex(xp, xp.linalg.eigvals(x))


def eig(xp: Any, x: Any) -> tuple[Any, Any]:
    """Eigenvalues and eigenvectors, complex."""
    with _strict(xp):
        values, vectors = xp.linalg.eig(x)
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
        return np.linalg.pinv(x) if rtol is None else np.linalg.pinv(x, rtol=rtol)
    if not x.size:
        return xp.empty((*x.shape[:-2], x.shape[-1], x.shape[-2]), x.dtype)
    with _strict(xp):
        u, values, vh = xp.linalg.svd(x.conj(), full_matrices=False)
    large = _large(xp, x, values, rtol)
    inverse = xp.where(large, 1 / xp.where(large, values, 1), 0).astype(values.dtype)
    return xp.matmul(xp.swapaxes(vh, -1, -2), inverse[..., None] * xp.swapaxes(u, -1, -2))


def cofactors(xp: Any, x: Any) -> Any:
    """The gradient of the determinant: of singular matrices by their singular values, of which one is left out.

    On a GPU so of all, since the host would wait to hear which are singular.
    """
    if xp is not np:
        return _cofactors_by_values(xp, x)
    n = x.shape[-1]
    matrices = x.reshape(prod(x.shape[:-2]), n, n)
    number = np.linalg.det(matrices)
    found, regular = np.empty(matrices.shape, number.dtype), number != 0
    if regular.any():
        inverse = np.linalg.inv(matrices[regular])
        found[regular] = number[regular][:, None, None] * np.swapaxes(inverse, -1, -2)
    if not regular.all():
        found[~regular] = _cofactors_by_values(np, matrices[~regular])
    return found.reshape(x.shape)


def _cofactors_by_values(xp: Any, x: Any) -> Any:
    with _strict(xp):
        u, values, vh = xp.linalg.svd(x)
        sign = xp.linalg.det(u) * xp.linalg.det(vh)
    others = xp.where(xp.eye(x.shape[-1], dtype=bool), 1, values[..., None, :]).prod(axis=-1)  # for each, of the rest
    return xp.matmul(u.conj() * (sign[..., None] * others)[..., None, :], vh.conj())


def solve(xp: Any, x: Any, right: Any) -> Any:
    """Solutions of linear equations: a right hand side of one dimension is a vector, any other matrices."""
    if xp is np or right.ndim == 1 or x.ndim == right.ndim:
        with _strict(xp):
            return xp.linalg.solve(x, right)
    batch = np.broadcast_shapes(x.shape[:-2], right.shape[:-2])
    with _strict(xp):
        return xp.linalg.solve(
            xp.broadcast_to(x, (*batch, *x.shape[-2:])), xp.broadcast_to(right, (*batch, *right.shape[-2:]))
        )


def svdvals(xp: Any, x: Any) -> Any:
    """Singular values."""
    if xp is np:
        return np.linalg.svdvals(x)
    with _strict(xp):
        return xp.linalg.svd(x, compute_uv=False)


def matrix_power(xp: Any, x: Any, *, n: int) -> Any:
    """A power: the first is a copy."""
    if n == 1:
        return x.copy(order="K")
    with _strict(xp):
        return xp.linalg.matrix_power(x, n)


def matrix_norm(xp: Any, x: Any, *, ord: Any = "fro", keepdims: bool = False) -> Any:
    """A norm of matrices."""
    if xp is np:
        return np.linalg.matrix_norm(x, ord=ord, keepdims=keepdims)
    return xp.linalg.norm(x, ord=ord, axis=(-2, -1), keepdims=keepdims)


def vector_norm(xp: Any, x: Any, *, axis: Any = None, ord: Any = 2, keepdims: bool = False) -> Any:
    """A norm of vectors, along one axis, several, or all."""
    if xp is np:
        return np.linalg.vector_norm(x, axis=axis, ord=ord, keepdims=keepdims)
    axes = tuple(range(x.ndim)) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    axes = tuple([one % x.ndim for one in axes])
    rest = tuple([one for one in range(x.ndim) if one not in axes])
    lines = xp.transpose(x, (*axes, *rest)).reshape((prod([x.shape[one] for one in axes]), *[x.shape[i] for i in rest]))
    found = xp.linalg.norm(lines, ord=ord, axis=0)
    return found.reshape([1 if i in axes else n for i, n in enumerate(x.shape)]) if keepdims else found


def diagonal(xp: Any, x: Any, *, offset: int) -> Any:
    """A diagonal of the last two axes: a view."""
    return xp.diagonal(x, offset, -2, -1)


def trace(xp: Any, x: Any, *, offset: int, dtype: Any = None) -> Any:
    """The sum along a diagonal of the last two axes."""
    return np.linalg.trace(x, offset=offset, dtype=dtype) if xp is np else xp.trace(x, offset, -2, -1, dtype)


def outer(xp: Any, x: Any, y: Any, *, out: Any = None) -> Any:
    """All products of the elements of two vectors."""
    return xp.multiply(x[:, None], y[None, :], out=out)


def vecdot(xp: Any, x: Any, y: Any, *, axis: int = -1, out: Any = None) -> Any:
    """The product of vectors along an axis. CuPy has none of that name, so there it is one of matrices."""
    if xp is np:
        return releasing_gil.vecdot(xp, x, y, axis=axis, out=out)
    x, y = xp.moveaxis(x, axis, -1).conj(), xp.moveaxis(y, axis, -1)
    return xp.matmul(x[..., None, :], y[..., None])[..., 0, 0]


def einsum(xp: Any, *arrays: Any, subscripts: str) -> Any:
    """Products summed over axes. What would be a view of one operand is copied: the result is an array of its own."""
    found = xp.einsum(subscripts, *arrays)
    return found.copy(order="K") if len(arrays) == 1 else found


def _complex(xp: Any, array: Any) -> Any:
    return array.astype(np.result_type(array.dtype, np.complex64), copy=False)


def _large(xp: Any, x: Any, values: Any, rtol: Any) -> Any:
    """Which singular values of matrices are not negligible; there may be a tolerance for each matrix."""
    relative = max(x.shape[-2:]) * xp.finfo(values.dtype).eps if rtol is None else rtol
    relative = relative[..., None] if getattr(relative, "ndim", 0) else relative
    return values > relative * xp.max(values, axis=-1, keepdims=True)


def _strict(xp: Any) -> Any:
    """Where what LAPACK cannot do raises LinAlgError, as it does in NumPy."""
    if xp is np:
        return nullcontext()
    import cupyx

    return cupyx.errstate(linalg="raise")


def _of_matrices(name: str, kernel: str | Kernel, rule: Any, doc: str) -> Op:
    return Op(name, kernel, rule, doc=doc, element_seconds=Cost.DECOMPOSITION)


_several = partial(packed_op, element_seconds=Cost.DECOMPOSITION)
_MATMUL = with_out(
    "matmul", linalg.matmul, "The matrix product.", Cost.MULTIPLICATION, releasing_gil=releasing_gil.matmul
)
OPS = (
    product(_MATMUL, Cut.PRODUCT_NN),
    with_products(vecdot, linalg.vecdot, "The product of vectors along an axis.", Cost.MULTIPLICATION),
    Op(
        "tensordot", "tensordot", linalg.tensordot, doc="The sum of products over several axes.",
        element_seconds=Cost.MULTIPLICATION,
    ),
    Op("dot", "dot", linalg.dot, doc="NumPy's `dot`."),
    Op("einsum", einsum, linalg.einsum, doc="Products summed over the axes that a text names."),
    _of_matrices("cholesky", cholesky, rules.matrix, "The triangular factor of positive definite matrices."),
    _of_matrices("inv", lapack("inv"), rules.matrix, "The inverse of square matrices."),
    _of_matrices("det", lapack("det"), rules.number, "The determinant of square matrices."),
    _of_matrices("cofactors", cofactors, rules.cofactors, "The gradient of the determinant of square matrices."),
    _of_matrices(
        "eigvalsh", lapack("eigvalsh"), partial(rules.spectrum, symmetric=True),
        "The eigenvalues of symmetric matrices, ascending.",
    ),
    _of_matrices("eigvals", eigvals, rules.spectrum, "The eigenvalues of square matrices, complex."),
    _of_matrices("svdvals", svdvals, rules.singular_values, "The singular values of matrices, descending."),
    _of_matrices("matrix_rank", matrix_rank, rules.rank, "How many singular values are not negligible."),
    _of_matrices("pinv", pinv, rules.pseudo_inverse, "The Moore-Penrose inverse of matrices."),
    _of_matrices("solve", solve, rules.solution, "The solution of linear equations."),
    _of_matrices("matrix_power", matrix_power, rules.power, "Square matrices to an integer power."),
    _of_matrices("matrix_norm", matrix_norm, rules.matrix_norm, "A norm of each matrix."),
    Op("vector_norm", vector_norm, rules.vector_norm, doc="A norm of vectors along the axes."),
    Op("trace", trace, rules.trace, doc="The sum along a diagonal of matrices."),
    Op("diagonal", diagonal, rules.diagonal, view=True, doc="A diagonal of matrices: a view."),
    _of_matrices("cross", "cross", rules.cross, "The cross product of vectors of three numbers."),
    with_out(outer, rules.outer, "All products of the elements of two vectors."),
    _several("eigh", lapack("eigh"), rules.eigh, "Eigenvalues and eigenvectors of symmetric matrices."),
    _several("eig", eig, rules.eig, "The same of square matrices, complex."),
    _several("qr", lapack("qr"), rules.qr, "An orthonormal times a triangular matrix."),
    _several("svd", lapack("svd"), rules.svd, "The singular value decomposition."),
    _several("slogdet", lapack("slogdet"), rules.slogdet, "The determinant, as a sign and a logarithm."),
)  # fmt: skip
