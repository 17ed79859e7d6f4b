"""Linear algebra: `asc.linalg`, with the names of the standard's extension.

All functions work on stacks of matrices: (..., n, m). Integers are computed in float64; half precision raises
TypeError. Shapes are checked at the line that calls (`LinAlgError`, a ValueError, as in NumPy). Errors that depend on
the numbers, such as a singular matrix, raise `LinAlgError` at `await`. Several results come as a named tuple, and
`await` gives the same tuple of arrays.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Literal, NamedTuple

from numpy.linalg import LinAlgError

from ... import _instead
from ..arguments import axes, dtype_or_none, name_keywords
from ..tensor import Tensor
from ._common import Axis, Dtype, Operand, await_all, op, several
from .reductions import matmul, matrix_transpose, tensordot, vecdot


class EigResult(NamedTuple):
    """The result of `eig`."""

    eigenvalues: Tensor
    eigenvectors: Tensor

    def __await__(self) -> Generator[Any, None, Any]:
        return await_all(self)


class EighResult(EigResult):
    """The result of `eigh`."""


class QRResult(NamedTuple):
    """The result of `qr`."""

    Q: Tensor
    R: Tensor

    def __await__(self) -> Generator[Any, None, Any]:
        return await_all(self)


class SlogdetResult(NamedTuple):
    """The result of `slogdet`."""

    sign: Tensor
    logabsdet: Tensor

    def __await__(self) -> Generator[Any, None, Any]:
        return await_all(self)


class SVDResult(NamedTuple):
    """The result of `svd`."""

    U: Tensor
    S: Tensor
    Vh: Tensor

    def __await__(self) -> Generator[Any, None, Any]:
        return await_all(self)


def cholesky(x: Tensor, /, *, upper: bool = False) -> Tensor:
    """The lower factor `L` of positive definite matrices `L L^H`, or the upper one: a tensor of the shape of `x`.

    >>> x = await s.put(np.array([[4.0, 0.0], [0.0, 9.0]]))
    >>> await asc.linalg.cholesky(x)
    array([[2., 0.],
           [0., 3.]])
    """
    return op("cholesky", x, upper=upper)


def cross(x1: Operand, x2: Operand, /, *, axis: int = -1) -> Tensor:
    """The cross product of vectors of three numbers along an axis; the other dimensions broadcast.

    >>> x = await s.put(np.array([1, 0, 0]))
    >>> y = await s.put(np.array([0, 1, 0]))
    >>> await asc.linalg.cross(x, y)
    array([0, 0, 1])
    """
    return op("cross", x1, x2, axis=axis)


def det(x: Tensor, /) -> Tensor:
    """The determinant of square matrices: (..., n, n) gives (...).

    >>> x = await s.put(np.array([[2.0, 0.0], [0.0, 3.0]]))
    >>> await asc.linalg.det(x).item()
    6.0
    """
    return op("det", x)


def diagonal(x: Tensor, /, *, offset: int = 0) -> Tensor:
    """A view of the diagonal of matrices, `offset` above the main one: (..., n, m) gives (..., k).

    >>> x = await s.put(np.array([[2.0, 0.0], [0.0, 3.0]]))
    >>> await asc.linalg.diagonal(x)
    array([2., 3.])
    """
    return op("diagonal", x, offset=offset)


def eig(x: Tensor, /) -> EigResult:
    """Eigenvalues (..., n) and eigenvectors (..., n, n), as columns, of square matrices: complex, in no order.

    >>> x = await s.put(np.array([[2.0, 0.0], [0.0, 3.0]]))
    >>> await asc.linalg.eig(x).eigenvalues
    array([2.+0.j, 3.+0.j])
    """
    return EigResult(*several("eig", x))


def eigh(x: Tensor, /) -> EighResult:
    """Eigenvalues (..., n), ascending, and eigenvectors (..., n, n), as columns, of symmetric (Hermitian) matrices.

    Only the lower triangle is read.

    >>> async def main():
    ...     async with asc.Scheduler("cpu") as s:
    ...         x = await s.put(np.array([[2.0, 0.0], [0.0, 1.0]]))
    ...         values, vectors = asc.linalg.eigh(x)    # one task
    ...         return await values
    >>> asc.run(main)
    array([1., 2.])
    """
    return EighResult(*several("eigh", x))


def eigvals(x: Tensor, /) -> Tensor:
    """The eigenvalues of square matrices, (..., n): complex, in no order.

    >>> x = await s.put(np.array([[2.0, 0.0], [0.0, 3.0]]))
    >>> await asc.linalg.eigvals(x)
    array([2.+0.j, 3.+0.j])
    """
    return op("eigvals", x)


def eigvalsh(x: Tensor, /) -> Tensor:
    """The eigenvalues of symmetric (Hermitian) matrices, (..., n): real and ascending.

    >>> x = await s.put(np.array([[2.0, 0.0], [0.0, 3.0]]))
    >>> await asc.linalg.eigvalsh(x)
    array([2., 3.])
    """
    return op("eigvalsh", x)


def inv(x: Tensor, /) -> Tensor:
    """The inverse of square matrices. A singular one raises LinAlgError at `await`.

    >>> x = await s.put(np.array([[2.0, 0.0], [0.0, 4.0]]))
    >>> await asc.linalg.inv(x)
    array([[0.5 , 0.  ],
           [0.  , 0.25]])
    """
    return op("inv", x)


def matrix_norm(x: Tensor, /, *, keepdims: bool = False, ord: float | Literal["fro", "nuc"] | None = "fro") -> Tensor:
    """A norm of matrices, (...): "fro" (Frobenius), "nuc" (nuclear), 1, -1, 2, -2 or plus or minus infinity.

    >>> x = await s.put(np.array([[3.0, 0.0], [0.0, 4.0]]))
    >>> await asc.linalg.matrix_norm(x).item()
    5.0
    """
    return op("matrix_norm", x, keepdims=keepdims, ord=ord)


def matrix_power(x: Tensor, n: int, /) -> Tensor:
    """The n-th power of square matrices; for a negative `n`, that of their inverses.

    >>> x = await s.put(np.array([[2.0, 0.0], [0.0, 3.0]]))
    >>> await asc.linalg.matrix_power(x, 2)
    array([[4., 0.],
           [0., 9.]])
    """
    return op("matrix_power", x, n=n)


def matrix_rank(x: Tensor, /, *, rtol: float | Tensor | None = None) -> Tensor:
    """How many singular values are above `rtol` times the largest: (...), in int64.

    >>> x = await s.put(np.array([[2.0, 0.0], [0.0, 3.0]]))
    >>> await asc.linalg.matrix_rank(x).item()
    2
    """
    return op("matrix_rank", x) if rtol is None else op("matrix_rank", x, rtol)


def outer(x1: Tensor, x2: Tensor, /) -> Tensor:
    """All products of the elements of two vectors: (n,) and (m,) give (n, m).

    >>> x = await s.put(np.array([1, 2]))
    >>> y = await s.put(np.array([3, 4]))
    >>> await asc.linalg.outer(x, y)
    array([[3, 4],
           [6, 8]])
    """
    return op("outer", x1, x2)


def pinv(x: Tensor, /, *, rtol: float | Tensor | None = None) -> Tensor:
    """The Moore-Penrose inverse, (..., m, n). Singular values below `rtol` times the largest count as 0: by default the
    larger of m and n times the dtype's epsilon. (NumPy's own default, 1e-15, leaves rounding errors of float32.)

    >>> asc.linalg.pinv(asc.ones((3, 2))).shape
    (2, 3)
    """
    return op("pinv", x) if rtol is None else op("pinv", x, rtol)


def qr(x: Tensor, /, *, mode: Literal["reduced", "complete"] = "reduced") -> QRResult:
    """A matrix with orthonormal columns and an upper triangular one, whose product is `x`: (..., n, k) and (..., k, m).

    `k` is the shorter side; with "complete" it is `n`.

    >>> asc.linalg.qr(asc.ones((3, 2))).R.shape
    (2, 2)
    """
    return QRResult(*several("qr", x, mode=mode))


def slogdet(x: Tensor, /) -> SlogdetResult:
    """The sign of the determinant, and the logarithm of its magnitude, (...) each.

    >>> x = await s.put(np.array([[2.0, 0.0], [0.0, 3.0]]))
    >>> await asc.linalg.slogdet(x).sign
    array(1.)
    """
    return SlogdetResult(*several("slogdet", x))


def solve(x1: Tensor, x2: Tensor, /) -> Tensor:
    """The solution of `x1 @ solution = x2`, for vectors (n,) or matrices (..., n, k). Singular: LinAlgError at `await`.

    >>> async def main():
    ...     async with asc.Scheduler("cpu") as s:
    ...         a = await s.put(np.array([[2.0, 0.0], [0.0, 4.0]]))
    ...         b = await s.put(np.array([1.0, 2.0]))
    ...         return await asc.linalg.solve(a, b)
    >>> asc.run(main)
    array([0.5, 0.5])
    """
    return op("solve", x1, x2)


def svd(x: Tensor, /, *, full_matrices: bool = True) -> SVDResult:
    """The singular value decomposition of (..., n, m) into U (..., n, n), S (..., k), descending, and Vh (..., m, m).

    `k` is the shorter side; without `full_matrices` U has k columns, and Vh k rows.

    >>> asc.linalg.svd(asc.ones((3, 2)), full_matrices=False).U.shape
    (3, 2)
    """
    return SVDResult(*several("svd", x, full_matrices=full_matrices))


def svdvals(x: Tensor, /) -> Tensor:
    """The singular values of matrices, descending: (..., n, m) gives (..., k), the shorter side.

    >>> x = await s.put(np.array([[2.0, 0.0], [0.0, 3.0]]))
    >>> await asc.linalg.svdvals(x)
    array([3., 2.])
    """
    return op("svdvals", x)


def trace(x: Tensor, /, *, offset: int = 0, dtype: Dtype = None) -> Tensor:
    """The sum along the diagonal of matrices, `offset` above the main one: (..., n, m) gives (...).

    >>> x = await s.put(np.array([[2.0, 0.0], [0.0, 3.0]]))
    >>> await asc.linalg.trace(x).item()
    5.0
    """
    return op("sum", diagonal(x, offset=offset), axis=-1, dtype=dtype_or_none(dtype), keepdims=False)


def vector_norm(x: Tensor, /, *, axis: Axis = None, keepdims: bool = False, ord: float = 2) -> Tensor:
    """The norm of vectors along one axis, several or all: the root of the sum of squares, or of another `ord`.

    >>> x = await s.put(np.array([3.0, 4.0]))
    >>> await asc.linalg.vector_norm(x).item()
    5.0
    """
    return op("vector_norm", x, axis=axes(axis), keepdims=keepdims, ord=ord)


__all__ = [
    "LinAlgError", "cholesky", "cross", "det", "diagonal", "eig", "eigh", "eigvals", "eigvalsh", "inv", "matmul",
    "matrix_norm", "matrix_power", "matrix_rank", "matrix_transpose", "outer", "pinv", "qr", "slogdet", "solve",
    "svd", "svdvals", "tensordot", "trace", "vecdot", "vector_norm",
]  # fmt: skip

name_keywords(globals(), __all__)


_instead.explain_missing(globals(), "asyncsched.linalg", _instead.LINALG, listed=True)
