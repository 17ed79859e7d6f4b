"""The rows of linear algebra and of Fourier transforms."""

from __future__ import annotations

from collections.abc import Iterator

from . import kernels, rules
from .op import Op
from .packed import packed_op


def matrix_ops() -> Iterator[Op]:
    """What has matrices or vectors as operands, but for the products that sum over axes."""
    k, r = kernels.matrices, rules.matrices
    yield Op("cholesky", k.cholesky, r.matrix, doc="The triangular factor of positive definite matrices.")
    yield Op("inv", k.lapack("inv"), r.matrix, doc="The inverse of square matrices.")
    yield Op("det", k.lapack("det"), r.number, doc="The determinant of square matrices.")
    yield Op("eigvalsh", k.lapack("eigvalsh"), r.spectrum, doc="The eigenvalues of symmetric matrices, ascending.")
    yield Op("eigvals", k.eigvals, r.spectrum, doc="The eigenvalues of square matrices, complex.")
    yield Op("svdvals", k.svdvals, r.singular_values, doc="The singular values of matrices, descending.")
    yield Op("matrix_rank", k.matrix_rank, r.rank, doc="How many singular values are not negligible.")
    yield Op("pinv", k.pinv, r.pseudo_inverse, doc="The Moore-Penrose inverse of matrices.")
    yield Op("solve", k.solve, r.solution, doc="The solution of linear equations.")
    yield Op("matrix_power", k.matrix_power, r.power, doc="Square matrices to an integer power.")
    yield Op("matrix_norm", k.matrix_norm, r.matrix_norm, doc="A norm of each matrix.")
    yield Op("vector_norm", k.vector_norm, r.vector_norm, doc="A norm of vectors along the axes.")
    yield Op("trace", k.trace, r.trace, doc="The sum along a diagonal of matrices.")
    yield Op("diagonal", k.diagonal, r.diagonal, view=True, doc="A diagonal of matrices: a view.")
    yield Op("cross", "cross", r.cross, doc="The cross product of vectors of three numbers.")
    yield Op("outer", k.outer, r.outer, out=True, doc="All products of the elements of two vectors.")
    yield packed_op("eigh", k.lapack("eigh"), r.eigh, "Eigenvalues and eigenvectors of symmetric matrices.")
    yield packed_op("eig", k.eig, r.eig, "The same of square matrices, complex.")
    yield packed_op("qr", k.lapack("qr"), r.qr, "An orthonormal times a triangular matrix.")
    yield packed_op("svd", k.lapack("svd"), r.svd, "The singular value decomposition.")
    yield packed_op("slogdet", k.lapack("slogdet"), r.slogdet, "The determinant, as a sign and a logarithm.")


def fourier_ops() -> Iterator[Op]:
    """Transforms, one stream's alone on CUDA: see the kernels."""
    k, r = kernels.fourier, rules.fourier
    for name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft"):
        doc = f"The transform `{name}` along an axis."
        yield Op(name, k.transform(name), r.along_axis, resource="fft", doc=doc)
    for name in ("fftn", "ifftn", "rfftn", "irfftn"):
        doc = f"The transform `{name}` along several axes."
        yield Op(name, k.transform_axes(name), r.along_axes, resource="fft", doc=doc)
    yield Op("fftfreq", k.fftfreq, r.frequencies, doc="The frequencies of a transform.")
    yield Op("rfftfreq", k.rfftfreq, r.frequencies, doc="The frequencies of a transform of real numbers.")
