"""How long an operation takes on one processor, about, and whether it may run on the event loop's thread.

What takes less than the hop to a stream and back need not hop. An operation states the time for one element
(`Op.element_seconds`), as one of `Cost`. Where it states none it hops unless it is tiny.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Any, Final

import numpy as np

from .meta import Meta

# Issuing and finishing a task takes the loop's thread this long anyway (`python -m bench heart`): operations that
# take less are not counted against the budget of a turn.
TASK_SECONDS: Final = 3e-6
# Operations that take longer go to a stream. (A hop there and back takes 25 to 120 us: `python -m bench heart`.)
INLINE_SECONDS: Final = 15e-6
# What is larger is made in a stream's recycled buffer: fresh memory of that size costs more than the hop.
INLINE_BYTES: Final = 72 * 1024
# An operation whose cost is not known runs inline where no array has this many bytes.
SMALL_BYTES: Final = 4096
# A multiplication of a large product in single precision, from above.
MULTIPLICATION_SECONDS: Final = 2e-11

_WITHOUT_BLAS: Final = 100  # times as long: of integers a half to as much, of half precision twice as much

# An element of an operation whose cost is not known, which goes over it several times.
PASSES: Final = 3e-9

_STRIDED: Final = 4  # times as long for operands that do not lie in one piece
_COMPLEX: Final = 20  # times as long as real numbers
_HALF: Final = 30  # times as long as float32: NumPy goes by way of it, one by one


class Cost(float, Enum):
    """Seconds for one element of at most 4 bytes, and so many times as long for 8 bytes.

    Guesses from above: the slowest of several dtypes, measured with NumPy 2.4 on a server's processor (8,192 elements,
    in cache) and rounded up.
    """

    VECTOR = 0.12e-9  # one vector instruction: a sum, a copy, a comparison
    SHORT = 0.25e-9  # some vector instructions, or a reduction by them
    SCALAR = 1e-9  # element by element, or a copy that converts or selects
    FUNCTION = 2e-9  # a polynomial, as an exponential or a logarithm
    LONG_FUNCTION = 8e-9  # a function of libm for each element, or several passes
    MULTIPLICATION = 0.1e-9  # of a product, of small matrices
    SORTING = 40e-9
    # Matrices take their side for each element: the guess is for those small enough to run inline.
    DECOMPOSITION = 100e-9


def has_blas(dtype: np.dtype[Any]) -> bool:
    """Whether products of this dtype are BLAS's."""
    return dtype.char in "fdFD"


def product_seconds(multiplications: int, dtype: np.dtype[Any]) -> float:
    """What a product of large matrices takes on one thread, by estimate."""
    times = dtype.itemsize / 4 * (2 if dtype.kind == "c" else 1) if has_blas(dtype) else _WITHOUT_BLAS
    return MULTIPLICATION_SECONDS * multiplications * times


def inline_seconds(
    element_seconds: float | None, result: Meta, operands: Iterable[Meta], workspace: int, work: int | None
) -> float | None:
    """How much longer than a task's own cost an operation would hold the event loop's thread; None: it must not run
    there. Not asked for a view that owns no memory.

    Args:
        element_seconds: the operation's.
        work: how many elements it goes through, or multiplies; None for the largest array's.
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
    """What an operation takes on one thread of a stream, by estimate."""
    if work is not None and result.dtype.kind in "fc":
        return MULTIPLICATION_SECONDS * work * _width(result)
    each = PASSES if element_seconds is None else element_seconds
    return each * (work or _largest([result, *operands])) * _width(result)


def _largest(metas: Iterable[Meta]) -> int:
    """Elements of the largest."""
    return max([one.nbytes // one.dtype.itemsize for one in metas if one.dtype.itemsize], default=0)


def _width(one: Meta) -> float:
    kind, size = one.dtype.kind, one.dtype.itemsize
    return max(1.0, size / 4) * (_COMPLEX if kind == "c" else _HALF if kind == "f" and size == 2 else 1)
