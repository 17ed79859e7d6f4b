"""How long a row takes on one processor, about, and what of it may run on the event loop's thread.

What takes less than the hop to a stream and back need not hop. The guesses are from above: the slowest of several
dtypes, measured with NumPy 2.4 on a server's processor (8,192 elements, in cache) and rounded up. How long rows take
that are not listed is not known: they hop unless they are tiny.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np

from .meta import Meta

# Issuing and finishing a task takes the loop's thread this long anyway (`python -m bench.overhead`): rows that take
# less are not counted against the budget of a turn.
TASK_SECONDS: Final = 3e-6
# Rows that take longer go to a stream. (A hop to a stream and back takes 25 to 120 us: `python -m bench.overhead`.)
INLINE_SECONDS: Final = 15e-6
# What is larger is made in a stream's recycled buffer: fresh memory of that size costs more than the hop.
INLINE_BYTES: Final = 72 * 1024
# A row that is not listed runs inline where no array has this many bytes.
SMALL_BYTES: Final = 4096
# A multiplication of a large product in single precision, from above.
MULTIPLICATION_SECONDS: Final = 2e-11

_WITHOUT_BLAS: Final = 100  # times as long: of integers a half to as much, of half precision twice as much

# An element of a row that is not listed, which goes over it several times.
PASSES: Final = 3e-9

_STRIDED: Final = 4  # times as long for operands that do not lie in one piece
_COMPLEX: Final = 20  # times as long as real numbers
_HALF: Final = 30  # times as long as float32: NumPy goes by way of it, one by one

# Nanoseconds for one element of at most 4 bytes, and so many times as long for 8 bytes.
_PACES: Final = {
    0.12: (
        "abs add bitwise_and bitwise_invert bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor ceil conj"
        " copy equal floor greater greater_equal isfinite isinf isnan less less_equal maximum minimum multiply negative"
        " not_equal positive square subtract trunc"
    ),
    0.25: "all any argmax argmin divide full full_like max min ones sign signbit sum zeros",
    1.0: (
        "astype clip concat copysign count_nonzero cumulative_sum logical_and logical_not logical_or logical_xor mean"
        " reciprocal relu round sqrt stack take where"
    ),
    2.0: "asinh atan cosh exp expm1 log log10 log1p log2 pow prod sinh tan tanh",
    8.0: "acos acosh asin atan2 atanh cos cumulative_prod floor_divide hypot nextafter remainder sin std var",
    0.1: "matmul tensordot vecdot",  # for one multiplication
    40.0: "argsort sort",
    # Matrices, which cost their side for each element: the guess is of those that are small enough to come in question.
    100.0: (
        "cholesky cross det eig eigh eigvals eigvalsh inv matrix_norm matrix_power matrix_rank pinv qr slogdet solve"
        " svd svdvals"
    ),
}
PACE: Final = {name: pace * 1e-9 for pace, names in _PACES.items() for name in names.split()}


def has_blas(dtype: np.dtype[Any]) -> bool:
    """Whether products of this dtype are BLAS's."""
    return dtype.char in "fdFD"


def product_seconds(multiplications: int, dtype: np.dtype[Any]) -> float:
    """What a product of large matrices takes on one thread, by estimate."""
    times = dtype.itemsize / 4 * (2 if dtype.kind == "c" else 1) if has_blas(dtype) else _WITHOUT_BLAS
    return MULTIPLICATION_SECONDS * multiplications * times


def inline_seconds(name: str, result: Meta, operands: Iterable[Meta], workspace: int, work: int | None) -> float | None:
    """How much longer than a task's own cost a row would hold the event loop's thread; None if it must not run there.

    Args:
        name: of the row; a view that owns no memory is not asked for.
        work: how many elements it goes through, or multiplies; None for the largest array's.
    """
    metas = [result, *operands]
    pace = PACE.get(name)
    if not result.known or max(result.nbytes, workspace) > INLINE_BYTES:
        return None
    if pace is None:
        return 0.0 if max(workspace, *[one.nbytes for one in metas]) < SMALL_BYTES else None
    if work is None:
        work = _largest(metas)
    seconds = pace * work * max(_width(one) for one in metas)
    if not all(one.contiguous for one in metas):
        seconds *= _STRIDED
    return max(0.0, seconds - TASK_SECONDS) if seconds <= INLINE_SECONDS else None


def stream_seconds(name: str, result: Meta, operands: Iterable[Meta], work: int | None) -> float:
    """What a row takes on one thread of a stream, by estimate."""
    if work is not None and result.dtype.kind in "fc":
        return MULTIPLICATION_SECONDS * work * _width(result)
    return PACE.get(name, PASSES) * (work or _largest([result, *operands])) * _width(result)


def _largest(metas: Iterable[Meta]) -> int:
    """Elements of the largest."""
    return max([one.nbytes // one.dtype.itemsize for one in metas if one.dtype.itemsize], default=0)


def _width(one: Meta) -> float:
    kind, size = one.dtype.kind, one.dtype.itemsize
    return max(1.0, size / 4) * (_COMPLEX if kind == "c" else _HALF if kind == "f" and size == 2 else 1)
