"""Kernels of softmax, and the exponentials that losses and attention take from here, in blocks as in `layers`.

The textbook subtracts the largest element of a row first, so that nothing overflows. On the host that takes as long as
the exponentials do, and is not needed while their sum is an ordinary number: so they are taken as they are, and the
rows whose sum says otherwise once more as in the textbook. Such a sum is also what keeps the precision: elements that
underflow are below 1e-31 of it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .basic import vecdot
from .layers import as_rows, long_blocks, sums, totals, unbuffered
from .scratch import scratch

LEAST, MOST = 1e-6, 1e30  # sums of exponentials that are ordinary numbers
LEAST_LOG, MOST_LOG = 1e-3, 1e6  # those whose logarithm is small, so that little is rounded off it
QUERIES, KEYS = 6, 64  # of attention, that a compiled loop takes at once


def softmax(xp: Any, x: Any, *, log: bool = False, out: Any = None) -> Any:
    """exp(x) over its sum along the last axis, or the logarithm of that."""
    out, result, rows = as_rows(xp, out, x)
    over = xp is np and np.may_share_memory(out, x)
    with unbuffered(xp, rows.shape[1]):
        for block in long_blocks(xp, *rows.shape):
            if log:
                log_softmax_rows(xp, rows[block], result[block])
            else:
                softmax_rows(xp, rows[block], result[block], over=over)
    return out


def softmax_rows(xp: Any, v: Any, out: Any, scale: Any = None, *, over: bool) -> None:
    """The softmax of a block of rows, times a number for each; `over` says that `out` may be `v`."""
    if not directly(xp, v):
        shifted(xp, v, out)
        if scale is not None:
            out *= scale[:, None]
        return
    e, total, far = exponentials(v, scratch(np, 0, v.shape, v.dtype) if over else out)
    rest = None if far is None else shifted(np, v[far])
    factor = np.reciprocal(total) if scale is None else scale / total
    np.multiply(e, factor[:, None], out=out)
    if rest is not None:
        out[far] = rest if scale is None else rest * scale[far, None]


def log_softmax_rows(xp: Any, v: Any, out: Any) -> Any:
    """The logarithm of the softmax of a block of rows; `out` may be `v`."""
    peak, logs = log_sums(xp, v)
    if peak is not None:
        v = xp.subtract(v, peak[:, None], out=out)
    return xp.subtract(v, logs[:, None], out=out)


def log_sums(xp: Any, v: Any) -> tuple[Any, Any]:
    """What was subtracted from rows, None for nothing, and the logarithms of the sums of their exponentials then."""
    room = scratch(xp, 0, v.shape, v.dtype)
    if not directly(xp, v):
        return _log_sums_shifted(xp, v, room)
    _, total, far = exponentials(v, room, LEAST_LOG, MOST_LOG)
    logs, peak = np.log(total), None
    if far is not None:
        peak = np.zeros_like(logs)
        peak[far], logs[far] = _log_sums_shifted(np, v[far])
    return peak, logs


def softmax_backward(xp: Any, grad: Any, y: Any, *, log: bool = False, out: Any = None) -> Any:
    """y (grad - sum of grad y), or for the logarithm grad - exp(y) sum of grad."""
    out, result, grads, rows = as_rows(xp, out, grad, y)
    with unbuffered(xp, rows.shape[1]):
        for block in long_blocks(xp, *rows.shape):
            g, v = grads[block], rows[block]
            if log:
                e = xp.exp(v, out=scratch(xp, 0, v.shape, v.dtype))
                e *= sums(xp, g)
                xp.subtract(g, e, out=result[block])
            else:
                dots = vecdot(xp, g, v)[:, None]
                xp.subtract(g, dots, out=result[block])
                result[block] *= v
    return out


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


def shifted(xp: Any, v: Any, out: Any = None) -> Any:
    """The softmax of rows as in the textbook."""
    y = xp.subtract(v, v.max(axis=1, keepdims=True), out=out)
    xp.exp(y, out=y)
    y /= sums(xp, y)
    return y


def _log_sums_shifted(xp: Any, v: Any, room: Any = None) -> tuple[Any, Any]:
    peak = v.max(axis=1)
    y = xp.subtract(v, peak[:, None], out=room)
    return peak, xp.log(sums(xp, xp.exp(y, out=y))[:, 0])
