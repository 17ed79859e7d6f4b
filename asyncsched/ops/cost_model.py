"""Estimates: how long an operation takes on one processor, and whether it may run on the event loop's thread.

An operation that takes less than a hop to a stream and back need not hop. An operation states the time for one element
(`Op.element_seconds`), as a member of `Cost`. One that states none hops unless it is tiny.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Any, Final

import numpy as np

from .meta import Meta

# Issuing and finishing a task takes the loop's thread this long anyway (`python -m bench heart`). Shorter operations do
# not count against the budget of a turn.
TASK_SECONDS: Final = 3e-6
# Operations that take longer go to a stream. (A hop there and back takes 25 to 120 us: `python -m bench heart`.)
INLINE_SECONDS: Final = 15e-6
# A larger result is made in a stream's recycled buffer: fresh memory of that size costs more than the hop.
INLINE_BYTES: Final = 72 * 1024
# An operation of unknown cost runs inline if no array has this many bytes.
SMALL_BYTES: Final = 4096
# One multiplication in a large product in single precision; an upper bound.
MULTIPLICATION_SECONDS: Final = 2e-11

_WITHOUT_BLAS: Final = 100  # times as long as BLAS: integers half to once this factor, half precision twice

# One element in an operation of unknown cost, which passes over it several times.
PASSES: Final = 3e-9

_STRIDED: Final = 4  # times as long for operands that are not contiguous
_COMPLEX: Final = 20  # times as long as real numbers
_HALF: Final = 30  # times as long as float32: NumPy converts each element to float32 and back


class Cost(float, Enum):
    """Seconds for one element of at most 4 bytes; 8 bytes take twice as long, and so on.

    Upper estimates: the slowest of several dtypes, measured with NumPy 2.4 on a server's processor (8,192 elements, in
    cache) and rounded up.
    """

    VECTOR = 0.12e-9  # one vector instruction: a sum, a copy, a comparison
    SHORT = 0.25e-9  # several vector instructions, or a reduction by them
    SCALAR = 1e-9  # element by element, or a copy that converts or selects
    FUNCTION = 2e-9  # a polynomial, as for an exponential or a logarithm
    LONG_FUNCTION = 8e-9  # a function of libm for each element, or several passes
    MULTIPLICATION = 0.1e-9  # in a product of small matrices
    SORTING = 40e-9
    # A matrix takes its side's length for each element: the guess is for those small enough to run inline.
    DECOMPOSITION = 100e-9


def has_blas(dtype: np.dtype[Any]) -> bool:
    """Whether BLAS computes products of this dtype."""
    return dtype.char in "fdFD"


def product_seconds(multiplications: int, dtype: np.dtype[Any]) -> float:
    """Estimated seconds for a product of large matrices on one thread."""
    times = dtype.itemsize / 4 * (2 if dtype.kind == "c" else 1) if has_blas(dtype) else _WITHOUT_BLAS
    return MULTIPLICATION_SECONDS * multiplications * times


def inline_seconds(
    element_seconds: float | None, result: Meta, operands: Iterable[Meta], workspace: int, work: int | None
) -> float | None:
    """How much longer than a task's own cost an operation would hold the event loop's thread; None if it must not.

    Not called for a view that owns no memory.

    Args:
        element_seconds: the operation's.
        work: how many elements it passes over, or multiplications it makes; None for those of the largest array.
    """
    metas = [result, *operands]
    if not result.known or max(result.nbytes, workspace) > INLINE_BYTES:
        return None
    if element_seconds is None:
        return 0.0 if max(workspace, *[one.nbytes for one in metas]) < SMALL_BYTES else None
    if work is None:
        work = _largest(metas)
    seconds = element_seconds * work * max(_width(one) for one in metas)
    if not all(one.contiguous for one in metas):
        seconds *= _STRIDED
    return max(0.0, seconds - TASK_SECONDS) if seconds <= INLINE_SECONDS else None


def stream_seconds(element_seconds: float | None, result: Meta, operands: Iterable[Meta], work: int | None) -> float:
    """Estimated seconds for an operation on one thread of a stream."""
    if work is not None and result.dtype.kind in "fc":
        return MULTIPLICATION_SECONDS * work * _width(result)
    each = PASSES if element_seconds is None else element_seconds
    return each * (work or _largest([result, *operands])) * _width(result)


def _largest(metas: Iterable[Meta]) -> int:
    """The number of elements of the largest array."""
    return max([one.nbytes // one.dtype.itemsize for one in metas if one.dtype.itemsize], default=0)


def _width(one: Meta) -> float:
    kind, size = one.dtype.kind, one.dtype.itemsize
    return max(1.0, size / 4) * (_COMPLEX if kind == "c" else _HALF if kind == "f" and size == 2 else 1)
