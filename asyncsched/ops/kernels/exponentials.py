"""Exponentials over their sum, as softmax, losses and attention take them.

The textbook subtracts the largest element of a row first, so that nothing overflows. On the host that takes as long as
the exponentials do, and is not needed while their sum is an ordinary number: so they are taken as they are, and the
rows whose sum says otherwise once more as in the textbook. Such a sum is also what keeps the precision: elements that
underflow are below 1e-31 of it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .blocks import totals

LEAST, MOST = 1e-6, 1e30  # sums of exponentials that are ordinary numbers
LEAST_LOG, MOST_LOG = 1e-3, 1e6  # those whose logarithm is small, so that little is rounded off it
QUERIES, KEYS = 6, 64  # of attention, that a compiled loop takes at once


def directly(xp: Any, x: Any) -> bool:
    """Whether exponentials are taken as they are: not of half precision, nor where asking for a sum would wait."""
    return xp is np and x.dtype.itemsize > 2


def exponentials(v: Any, out: Any, least: float = LEAST, most: float = MOST) -> tuple[Any, Any, Any]:
    """exp(v), the sums along the last axis, and a mask of those that are to be taken anew; None for no such."""
    e = np.exp(v, out=out)
    total = totals(np, e)
    if np.minimum.reduce(total, None) >= least and np.maximum.reduce(total, None) <= most:
        return e, total, None
    return e, total, ~((total >= least) & (total <= most))  # NaN is neither
