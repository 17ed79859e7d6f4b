"""The rows of linear algebra and of Fourier transforms."""

from __future__ import annotations

from collections.abc import Iterator

from . import kernels, rules
from .packed import packed_row
from .row import Row


def matrix_rows() -> Iterator[Row]:
    """What has matrices or vectors as operands, but for the products that sum over axes."""
    k, r = kernels.matrices, rules.matrices
    yield Row("cholesky", k.cholesky, r.matrix, doc="The triangular factor of positive definite matrices.")
    yield Row("inv", k.lapack("inv"), r.matrix, doc="The inverse of square matrices.")
    yield Row("det", k.lapack("det"), r.number, doc="The determinant of square matrices.")
    yield Row("eigvalsh", k.lapack("eigvalsh"), r.spectrum, doc="The eigenvalues of symmetric matrices, ascending.")
    yield Row("eigvals", k.eigvals, r.spectrum, doc="The eigenvalues of square matrices, complex.")
    yield Row("svdvals", k.svdvals, r.singular_values, doc="The singular values of matrices, descending.")
    yield Row("matrix_rank", k.matrix_rank, r.rank, doc="How many singular values are not negligible.")
    yield Row("pinv", k.pinv, r.pseudo_inverse, doc="The Moore-Penrose inverse of matrices.")
    yield Row("solve", k.solve, r.solution, doc="The solution of linear equations.")
    yield Row("matrix_power", k.matrix_power, r.power, doc="Square matrices to an integer power.")
    yield Row("matrix_norm", k.matrix_norm, r.matrix_norm, doc="A norm of each matrix.")
    yield Row("vector_norm", k.vector_norm, r.vector_norm, doc="A norm of vectors along the axes.")
    yield Row("trace", k.trace, r.trace, doc="The sum along a diagonal of matrices.")
    yield Row("diagonal", k.diagonal, r.diagonal, view=True, doc="A diagonal of matrices: a view.")
    yield Row("cross", k.lapack("cross"), r.cross, doc="The cross product of vectors of three numbers.")
    yield Row("outer", k.outer, r.outer, out=True, doc="All products of the elements of two vectors.")
    yield packed_row("eigh", k.lapack("eigh"), r.eigh, "Eigenvalues and eigenvectors of symmetric matrices.")
    yield packed_row("eig", k.eig, r.eig, "The same of square matrices, complex.")
    yield packed_row("qr", k.lapack("qr"), r.qr, "An orthonormal times a triangular matrix.")
    yield packed_row("svd", k.lapack("svd"), r.svd, "The singular value decomposition.")
    yield packed_row("slogdet", k.lapack("slogdet"), r.slogdet, "The determinant, as a sign and a logarithm.")


def fourier_rows() -> Iterator[Row]:
    """Transforms, one stream's alone on CUDA: see the kernels."""
    k, r = kernels.fourier, rules.fourier
    for name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft"):
        doc = f"The transform `{name}` along an axis."
        yield Row(name, k.transform(name), r.along_axis, resource="fft", doc=doc)
    for name in ("fftn", "ifftn", "rfftn", "irfftn"):
        doc = f"The transform `{name}` along several axes."
        yield Row(name, k.transform_axes(name), r.along_axes, resource="fft", doc=doc)
    yield Row("fftfreq", k.fftfreq, r.frequencies, doc="The frequencies of a transform.")
    yield Row("rfftfreq", k.rfftfreq, r.frequencies, doc="The frequencies of a transform of real numbers.")
