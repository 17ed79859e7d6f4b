"""Rules of random numbers: their shape and dtype are given as options."""

from __future__ import annotations

from math import prod

import numpy as np

from ..meta import Meta, meta
from ..op import Inferred, Op, Operand, Options
from .common import lengths

# Words of 64 bits: the state and the increment of PCG64, 128 bits each, and half a word that is left over.
_WORDS = 6
_STATE = meta((_WORDS,), np.dtype(np.uint64))


def draw(name: str, operands: tuple[Operand, ...], options: Options) -> tuple[list[Meta], int]:
    """The state of the generator after, and what is drawn."""
    return [_STATE, meta(options["shape"], options["dtype"])], _scratch(operands, options)


def draw_seeded(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """What is drawn alone."""
    result = meta(options["shape"], options["dtype"], False)
    return Inferred(result, _scratch(operands, options) + result.nbytes)


def _scratch(operands: tuple[Operand, ...], options: Options) -> int:
    """Bytes of the places that are permuted or chosen, and of numbers in double that are converted."""
    drawn: int = prod(options["shape"])
    if options["method"] in ("permutation", "choice"):
        return 16 * (sum(prod(lengths(operand)) for operand in operands) + 2 * drawn)
    return 0 if options["dtype"].itemsize == 8 else 8 * drawn
