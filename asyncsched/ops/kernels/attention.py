"""Scaled dot-product attention, of one packed operand or of three, in blocks of heads and queries.

The weights of a few heads, or of some queries of one head, are computed, used and dropped. So memory grows with the
length, not with its square, except for a mask, given or causal. The derivative computes the weights anew.

Softmax and its derivative, in blocks as in `blocks`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import accumulate
from math import prod, sqrt
from typing import Any

import numpy as np

from .. import parallel
from ..declare import Cost, Cut, Inferred, Meta, Op, Operand, Options, bounded, meta, with_products
from ..rules import Known, alike, as_meta, block_bytes, copies, floats, like, no_axis
from . import compiled
from .blocks import BLOCK, ORDINARY, ORDINARY_LOG, ROWS, as_rows, blocks, long_blocks, scratch, sums, totals, unbuffered
from .products import vecdot

Index = tuple[Any, ...]  # an index of some heads

# Weights of a head that are computed at a time: they fit a processor's own cache. With fewer queries, products take
# longer.
_SCORES = 1 << 19
_DEVICE_SCORES = 1 << 22
_QUERIES = 128
# The arrays of scores for which a block has room: one of scores, and the rest for queries, keys and values.
_ALIVE = 3
_FEW = 16  # sums that are looked at by Python's numbers
# The least time of a group for another thread, by estimate: shorter ones are mostly the interpreter's work.
_GROUP_SECONDS = 5e-5


def attention(
    xp: Any, packed: Any, mask: Any, *, shapes: Any, causal: bool, scale: float | None = None, exact: bool = False,
    out: Any = None,
) -> Any:  # fmt: skip
    """softmax(q k^T scale + mask) v, with q, k and v one after the other in a flat array; 0 means no mask."""
    q, k, v = _parts(packed, shapes)
    return attention_unpacked(xp, q, k, v, mask, causal=causal, scale=scale, exact=exact, out=out)


def attention_unpacked(
    xp: Any, q: Any, k: Any, v: Any, mask: Any, *, causal: bool, scale: float | None = None, exact: bool = False,
    out: Any = None,
) -> Any:  # fmt: skip
    """The same for three arrays, which need not be copied into one."""
    out = xp.empty((*q.shape[:-1], v.shape[-1]), q.dtype) if out is None else out
    k, v, mask = _attended(xp, k, v, mask)
    q, k, v = _for_products(xp, q), _for_products(xp, k), _for_products(xp, v)
    _attend(xp, q, k, v, mask, causal, _scale(q, scale), exact, out)
    return out


def attention_backward(
    xp: Any, packed: Any, mask: Any, grad: Any, *, shapes: Any, causal: bool, scale: float | None = None,
    out: Any = None,
) -> Any:  # fmt: skip
    """The gradient of the packed operand."""
    q, k, v = _parts(packed, shapes)
    out = xp.empty(packed.shape, packed.dtype) if out is None else out
    _attend_backward(xp, q, k, v, grad, mask, causal, _scale(q, scale), _parts(out, shapes))
    return out


def _parts(packed: Any, shapes: Any) -> list[Any]:
    """Views of the parts of a flat array, in their shapes."""
    ends = list(accumulate(map(prod, shapes)))
    starts = [0, *ends]
    return [packed[a:b].reshape(shape) for a, b, shape in zip(starts, ends, shapes, strict=False)]


def _attended(xp: Any, k: Any, v: Any, mask: Any) -> Any:
    """Keys, values and a mask up to the last key that any query attends to, as with masked sequence lengths. If every
    query attends to all of these there is no mask.

    The other keys have no weight. (On a GPU, the question would wait for the device.)
    """
    if xp is not np or not isinstance(mask, np.ndarray) or mask.dtype != bool or not mask.size:
        return k, v, mask
    if mask.shape[-1:] != k.shape[-2:-1]:
        return k, v, mask
    alone = mask.size == mask.shape[-1]
    seen = mask.reshape(-1) if alone else np.logical_or.reduce(mask, tuple(range(mask.ndim - 1)))
    count = len(seen) - int(seen[::-1].argmax())
    if count < len(seen):
        k, v, mask = k[..., :count, :], v[..., :count, :], mask[..., :count]
    return k, v, 0 if np.count_nonzero(mask) == mask.size else mask


def _for_products(xp: Any, array: Any) -> Any:
    """The array, or a copy if neither its rows nor its columns are contiguous: BLAS takes no such matrices."""
    return array if array.itemsize in array.strides[-2:] else xp.ascontiguousarray(array)


def _scale(q: Any, scale: float | None = None) -> float:
    return 1 / sqrt(q.shape[-1] or 1) if scale is None else scale


def _bias(xp: Any, q: Any, k: Any, mask: Any, causal: bool) -> Any:
    """The array to add to the scores, or None."""
    bias = None
    if hasattr(mask, "dtype"):  # not the number 0
        number = q.dtype.type
        bias = xp.where(mask, number(0), number(-xp.inf)) if mask.dtype == bool else mask.astype(q.dtype, copy=False)
    if causal:
        past = xp.tril(xp.ones((q.shape[-2], k.shape[-2]), bool))
        future = xp.where(past, 0, -xp.inf).astype(q.dtype)
        bias = future if bias is None else bias + future
    return bias


def _by_heads(xp: Any, q: Any, k: Any, bias: Any) -> Any:
    """The bias in the shape of all scores, so that it can be cut by heads."""
    return None if bias is None else xp.broadcast_to(bias, (*q.shape[:-1], k.shape[-2]))


def _attend(xp: Any, q: Any, k: Any, v: Any, mask: Any, causal: bool, scale: float, exact: bool, out: Any) -> None:
    """Write the result of all heads to `out`."""
    bias, count = _bias(xp, q, k, mask, causal), prod(q.shape[:-1]) * k.shape[-2]
    if xp is np and count <= BLOCK and parallel.number(parallel.seconds_of(count, q.itemsize)) < 2:
        _attend_to(xp, q * scale, k, v, bias, exact, out)  # in one step, which is best for one query per head
        return
    bias, steps = _by_heads(xp, q, k, bias), _queries(xp, q.shape[-2], k.shape[-2])

    def of_rows(heads: Index, number: int) -> None:
        rows = steps[number]
        here, keys = (*heads, rows), (*heads, _visible_keys(rows, steps, causal))
        added = None if bias is None else bias[here][..., : k[keys].shape[-2]]
        _attend_to(xp, q[here] * scale, k[keys], v[keys], added, exact, out[here])

    _share(xp, q, k, of_rows, alive=_ALIVE, times=len(steps))


def _attend_to(xp: Any, queries: Any, keys: Any, values: Any, bias: Any, exact: bool, out: Any) -> None:
    """Write the result of some heads to `out`."""
    weights, factor = _weights(xp, queries, keys, bias, exact=exact)
    xp.matmul(weights, values, out=out)
    out *= factor


def _attend_backward(
    xp: Any, q: Any, k: Any, v: Any, grad: Any, mask: Any, causal: bool, scale: float, grads: Any
) -> None:
    """Write the gradients of q, k and v to `grads`."""
    dq, dk, dv = grads
    bias, steps = _by_heads(xp, q, k, _bias(xp, q, k, mask, causal)), _queries(xp, q.shape[-2], k.shape[-2])

    def add(to: Any, first: Any, second: Any) -> None:
        if len(steps) == 1:
            xp.matmul(first, second, out=to)
        else:
            to += xp.matmul(first, second)

    def of_rows(heads: Index, rows: slice) -> None:
        here, there = (*heads, rows), (*heads, _visible_keys(rows, steps, causal))
        scaled, keys = q[here] * scale, k[there]
        added = None if bias is None else bias[here][..., : keys.shape[-2]]
        weights, factor = _weights(xp, scaled, keys, added, exact=True)
        g = grad[here] * factor
        add(dv[there], xp.swapaxes(weights, -1, -2), g)
        scores = xp.matmul(g, xp.swapaxes(v[there], -1, -2), out=scratch(xp, 1, weights.shape, weights.dtype))
        scores -= vecdot(xp, scores, weights)[..., None] * factor
        scores *= weights
        xp.matmul(scores, keys * scale, out=dq[here])
        add(dk[there], xp.swapaxes(scores, -1, -2), scaled)

    def of_heads(heads: Index, _: int) -> None:
        if len(steps) > 1:
            dk[heads] = 0
            dv[heads] = 0
        for rows in steps:
            of_rows(heads, rows)

    _share(xp, q, k, of_heads, alive=2 * _ALIVE)


def _queries(xp: Any, count: int, keys: int) -> list[slice]:
    """Blocks of queries that are processed together: all, unless their weights do not fit a cache."""
    most = max(_QUERIES, (_SCORES if xp is np else _DEVICE_SCORES) // max(1, keys))
    return parallel.ranges(count, -(-count // most), ROWS)


def _visible_keys(rows: slice, steps: list[slice], causal: bool) -> slice:
    """The keys that some queries may attend to."""
    return slice(0, rows.stop) if causal and len(steps) > 1 else slice(None)


def _share(xp: Any, q: Any, k: Any, call: Callable[[Index, int], None], *, alive: int, times: int = 1) -> None:
    """Call a function with each group of heads, `times` times, numbered; perhaps in parts on several threads.

    A group has a block's heads: some along one axis, and all along the axes behind it.
    """
    shape = q.shape[:-2]
    every = prod(shape)
    seconds = parallel.seconds_of(prod(q.shape[:-1]) * k.shape[-2], q.itemsize)
    most = -(-every // max(1, min(every, parallel.number(seconds))))  # heads in a group: as many groups as threads
    steps = blocks(xp, min(every, most), q.shape[-2] * k.shape[-2], alive=alive)
    most = steps[0].stop if steps else 1
    axis, inner = len(shape), 1
    while axis and inner * shape[axis - 1] <= most:
        axis -= 1
        inner *= shape[axis]
    *outer, length = shape[:axis] or (1,)
    step = max(1, most // max(1, inner))
    groups = -(-length // step)
    count = prod(outer) * groups * times if every else 0  # may be large, so no list of it is made
    rest = (slice(None),) * (len(shape) - axis)

    def some(part: slice) -> None:
        for number in range(part.start, part.stop):
            group, time = divmod(number, times)
            place, group = divmod(group, groups)
            index = (*np.unravel_index(place, outer), slice(group * step, (group + 1) * step)) if axis else ()
            call((*index, *rest), time)

    alone = seconds if seconds >= count * _GROUP_SECONDS else 0
    ranges = parallel.ranges(count, parallel.number(alone, parallel.rounds(alone)))
    parallel.run([partial(some, part) for part in ranges])


def _weights(xp: Any, queries: Any, keys: Any, bias: Any, *, exact: bool) -> tuple[Any, Any]:
    """The weights of some heads up to a factor for each query, and that factor, for a smaller array later."""
    shape = (*queries.shape[:-1], keys.shape[-2])
    weights = _scores(xp, queries, keys, bias, scratch(xp, 0, shape, queries.dtype))
    if not weights.size:
        return weights, xp.ones((*shape[:-1], 1), weights.dtype)
    if _directly(xp, weights):
        run = None if exact else compiled.loop("exponentials", xp, weights)
        weights, total, far = _exponentials(weights, weights, run=run)
        if far is None:
            return weights, np.reciprocal(total)[..., None]
        _scores(xp, queries, keys, bias, weights)
    # If everything is masked, all weights are 0: the peak is a number even then, and the sum of other rows is at least
    # 1.
    weights -= xp.maximum(weights.max(axis=-1, keepdims=True), xp.finfo(weights.dtype).min)
    xp.exp(weights, out=weights)
    return weights, 1 / xp.maximum(totals(xp, weights), 1)[..., None]


def _scores(xp: Any, queries: Any, keys: Any, bias: Any, out: Any) -> Any:
    xp.matmul(queries, keys.swapaxes(-1, -2), out=out)
    if bias is not None:
        out += bias
    return out


# -- rules -------------------------------------------------------------------------------------------------------------


def attention_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """Attention of q (..., L, E), k (..., S, E) and v (..., S, Ev), or of one flat operand with them; a mask or 0."""
    given = floats(op, *operands[:-1])
    q, k, v = options.get("shapes", given)
    if min(len(q), len(k), len(v)) < 2 or q[:-2] != k[:-2] or k[:-1] != v[:-1] or q[-1] != k[-1]:
        raise ValueError(f"{op.name}: shapes {q}, {k} and {v} must be (..., L, E), (..., S, E) and (..., S, Ev)")
    workspace = _attention_bytes(op, (*q[:-1], k[-2]), max(q[-1], v[-1]), operands, options)
    return Inferred(meta((*q[:-1], v[-1]), as_meta(operands[0]).dtype), workspace)


def attention_backward_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """The gradient of the packed operand; the operands are that, the mask or 0, and grad."""
    return like(operands[0], attention_rule(op, operands[:2], options).workspace + copies(operands[2:]))


def _attention_bytes(op: Op, scores: Known, width: int, operands: tuple[Operand, ...], options: Options) -> int:
    bias, mask = prod(scores[-2:]) if options["causal"] else 0, operands[-1]
    if isinstance(mask, Meta):
        aligned = zip(reversed(mask.bound), reversed(scores), strict=False)
        if len(mask.bound) > len(scores) or any(length not in (1, whole) for length, whole in aligned):
            raise ValueError(f"{op.name}: the mask has shape {mask.bound}, and must broadcast to {scores}")
        if mask.dtype.kind not in "bf":
            raise TypeError(f"{op.name}: the mask must be boolean (True: attend) or floating-point, not {mask.dtype}")
        bias += prod(mask.bound)
    # As on a card, where there are more.
    length: int = max(rows.stop - rows.start for rows in _queries(None, *scores[-2:]))
    area = length * scores[-1]
    heads = max(1, min(prod(scores[:-2]), BLOCK * 8 // _ALIVE // max(area, 1)))
    scaled = 3 * heads * sum(scores[-2:]) * width * as_meta(operands[0]).dtype.itemsize
    # the bias is made in double precision, for any operands
    return copies(operands) + scaled + 4 * (heads * area + bias) * 8


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
    if not _directly(xp, v):
        _shifted(xp, v, out)
        if scale is not None:
            out *= scale[:, None]
        return
    e, total, far = _exponentials(v, scratch(np, 0, v.shape, v.dtype) if over else out)
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
    if not _directly(xp, v):
        return _log_sums_shifted(xp, v, room)
    _, total, far = _exponentials(v, room, ORDINARY_LOG)
    logs, peak = np.log(total), None
    if far is not None:
        peak = np.zeros_like(logs)
        peak[far], logs[far] = _log_sums_shifted(np, v[far])
    return peak, logs


def _directly(xp: Any, x: Any) -> bool:
    """Whether exponentials are computed directly: not in half precision, nor where reading a sum would wait."""
    return xp is np and x.dtype.itemsize > 2


def _exponentials(
    v: Any, out: Any, ordinary: tuple[float, float] = ORDINARY, run: compiled.Loop | None = None
) -> tuple[Any, Any, Any]:
    """exp(v), the sums along the last axis, and a mask of the rows to compute again; None if there are none. A compiled
    loop may `run` where `out` is `v`.

    The textbook subtracts the largest element of a row first, so that nothing overflows. On the host that takes as long
    as the exponentials do, and it is unnecessary if their sum is an ordinary number. So exponentials are computed
    directly, and rows with any other sum again as in the textbook. An ordinary sum also keeps the precision: elements
    that underflow are below 1e-31 of it.
    """
    least, most = ordinary
    if run is None:
        e = np.exp(v, out=out)
        total = totals(np, e)
    else:
        e, total = out, np.empty(out.shape[:-1], out.dtype)
        run(out.reshape(-1, out.shape[-1]), total.reshape(-1))
    if total.size <= _FEW and all(least <= one <= most for one in total.ravel().tolist()):  # a third of the time
        return e, total, None
    if np.minimum.reduce(total, None) >= least and np.maximum.reduce(total, None) <= most:
        return e, total, None
    return e, total, ~((total >= least) & (total <= most))  # NaN is neither


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


_by_rows = partial(with_products, rule=along_rows_rule, cost=Cost.FUNCTION, inplace=True, cut=Cut.BY_ROWS)
_DOC = "exp(x) over its sum along the last axis, or the logarithm of it."


OPS = (
    bounded(
        with_products(attention, attention_rule, "softmax(q k^T scale + mask) v, of packed q, k and v.", launches=12),
        partial(attention, exact=True), 3e-6, 3e-6,
    ),
    bounded(
        with_products(attention_unpacked, attention_rule, "softmax(q k^T scale + mask) v, of q, k and v."),
        partial(attention_unpacked, exact=True), 3e-6, 3e-6,
    ),
    with_products(attention_backward, attention_backward_rule, "The gradient of attention.", launches=29),
    bounded(_by_rows(softmax, doc=_DOC, compiled_as="softmax", launches=7), softmax_exact, 3e-6, 3e-6),
    _by_rows(softmax_backward, doc="The gradient of softmax.", launches=4),
)  # fmt: skip
