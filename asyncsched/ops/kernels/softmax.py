"""Softmax and its derivative, in blocks as in `blocks`."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ..declare import Cut, Inferred, Op, Operand, Options, bounded, with_products
from ..rules import alike, block_bytes, copies, like, no_axis
from . import compiled
from .blocks import LEAST_LOG, MOST_LOG, as_rows, directly, exponentials, long_blocks, sums, unbuffered
from .products import vecdot
from .scratch import scratch


def softmax(xp: Any, x: Any, *, log: bool = False, out: Any = None) -> Any:
    """exp(x) over its sum along the last axis, or the logarithm of that."""
    run = compiled.loop("log_softmax" if log else "softmax", xp, x)
    if run is None:
        return softmax_exact(xp, x, log=log, out=out)
    out, result, rows = as_rows(xp, out, x)
    run(rows, result)
    return out


def softmax_exact(xp: Any, x: Any, *, log: bool = False, out: Any = None) -> Any:
    """The same, in NumPy's steps."""
    out, result, rows = as_rows(xp, out, x)
    over = xp is np and np.may_share_memory(out, x)
    with unbuffered(xp, rows.shape[1]):
        for block in long_blocks(xp, *rows.shape):
            if log:
                log_softmax_rows(xp, rows[block], result[block])
            else:
                softmax_rows(xp, rows[block], result[block], over=over)
    return out


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


def softmax_rows(xp: Any, v: Any, out: Any, scale: Any = None, *, over: bool) -> None:
    """The softmax of a block of rows, times a number for each. `over`: `out` may be `v`."""
    if not directly(xp, v):
        _shifted(xp, v, out)
        if scale is not None:
            out *= scale[:, None]
        return
    e, total, far = exponentials(v, scratch(np, 0, v.shape, v.dtype) if over else out)
    rest = None if far is None else _shifted(np, v[far])
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
    """The number subtracted from each row (None for nothing), and the logarithm of the sum of its exponentials then."""
    room = scratch(xp, 0, v.shape, v.dtype)
    if not directly(xp, v):
        return _log_sums_shifted(xp, v, room)
    _, total, far = exponentials(v, room, LEAST_LOG, MOST_LOG)
    logs, peak = np.log(total), None
    if far is not None:
        peak = np.zeros_like(logs)
        peak[far], logs[far] = _log_sums_shifted(np, v[far])
    return peak, logs


def _shifted(xp: Any, v: Any, out: Any = None) -> Any:
    """The softmax of rows as in the textbook: with the largest element subtracted first."""
    y = xp.subtract(v, v.max(axis=1, keepdims=True), out=out)
    xp.exp(y, out=y)
    y /= sums(xp, y)
    return y


def _log_sums_shifted(xp: Any, v: Any, room: Any = None) -> tuple[Any, Any]:
    peak = v.max(axis=1)
    y = xp.subtract(v, peak[:, None], out=room)
    return peak, xp.log(sums(xp, xp.exp(y, out=y))[:, 0])


# -- rules -------------------------------------------------------------------------------------------------------------


def along_rows_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """A result like the first operand, made in blocks of rows."""
    shape = alike(op, operands)
    no_axis(shape, op.name)
    return like(operands[0], copies(operands) + block_bytes(operands[0], shape[-1], 6))


_by_rows = partial(with_products, rule=along_rows_rule, inplace=True, cut=Cut.BY_ROWS)
_DOC = "exp(x) over its sum along the last axis, or the logarithm of it."
OPS = (
    bounded(_by_rows(softmax, doc=_DOC, compiled_as="softmax", launches=7), softmax_exact, 3e-6, 3e-6),
    _by_rows(softmax_backward, doc="The gradient of softmax.", launches=4),
)
