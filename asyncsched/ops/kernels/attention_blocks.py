"""Attention in blocks of heads and queries.

The weights of a few heads, or of some queries of one, are made, used and dropped, so memory grows with the length, not
with its square, but for a mask or the causal one; the derivative makes them anew. Who says `fused` may have a loop that
numba compiled, for some queries at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from math import prod
from typing import Any, Final

import numpy as np

from .. import parallel
from . import compiled
from .blocks import ROWS, blocks, totals
from .exponentials import KEYS, QUERIES, directly, exponentials
from .matrices import vecdot
from .scratch import scratch

Index = tuple[Any, ...]  # of some heads

# Weights of a head that are made at a time: a processor's own cache has them. Of fewer queries products take longer.
_SCORES: Final = 1 << 19
_DEVICE_SCORES: Final = 1 << 22
_QUERIES: Final = 128
# So many arrays of scores might be in a block: there is one, and in what is left are queries, keys and values.
_ALIVE = 3
# By estimate, one for another thread takes at least this long: of shorter ones most is the interpreter's work.
_GROUP_SECONDS = 5e-5


def _bias(xp: Any, q: Any, k: Any, mask: Any, causal: bool) -> Any:
    """What is added to the scores, in the shape of all of them, or None."""
    shape = (*q.shape[:-1], k.shape[-2])
    bias = None
    if hasattr(mask, "dtype"):  # not the number 0
        bias = xp.where(mask, 0, -xp.inf) if mask.dtype == bool else mask
        bias = bias.astype(q.dtype, copy=False)
    if causal:
        past = xp.tril(xp.ones(shape[-2:], bool))
        future = xp.where(past, 0, -xp.inf).astype(q.dtype)
        bias = future if bias is None else bias + future
    return None if bias is None else xp.broadcast_to(bias, shape)


def attend(xp: Any, q: Any, k: Any, v: Any, mask: Any, causal: bool, scale: float, out: Any, fused: bool) -> None:
    """Write the result of all heads to `out`."""
    run = _loop(xp, q, k, v, mask, out) if fused else None
    bias = _bias(xp, q, k, mask, causal) if run is None else None
    steps = queries(xp, q.shape[-2], k.shape[-2])

    def of_heads(heads: Index, rows: slice, bias: Any) -> None:
        here, keys = (*heads, rows), (*heads, _seen(rows, steps, causal))
        added = None if bias is None else bias[here][..., : k[keys].shape[-2]]
        weights, factor = _weights(xp, q[here] * scale, k[keys], added)
        result = xp.matmul(weights, v[keys], out=out[here])
        result *= factor

    def some(places: Iterator[tuple[Index, int]]) -> None:
        for heads, number in places:
            if run is None:
                of_heads(heads, steps[number], bias)
            elif run(*[_by_heads(one[heads]) for one in (q, k, v)], scale, causal, _by_heads(out[heads])):
                added = _bias(xp, q, k, mask, causal)  # some queries need what the loop has not
                for rows in steps:
                    of_heads(heads, rows, added)

    _share(xp, q, k, some, alive=_ALIVE, times=len(steps) if run is None else 1)


def _loop(xp: Any, q: Any, k: Any, v: Any, mask: Any, out: Any) -> compiled.Loop | None:
    """What is compiled for these, if it takes them and they are enough to fill what it takes at once."""
    if hasattr(mask, "dtype") or q.shape[-2] < QUERIES or k.shape[-2] < KEYS:
        return None
    if any(one.strides[-1] != one.itemsize for one in (q, v)):
        return None
    return compiled.loop("attention", xp, q, k, v, out, anyhow=True)


def _by_heads(array: Any) -> Any:
    return array if array.ndim == 3 else array[None]


def attend_backward(
    xp: Any, q: Any, k: Any, v: Any, grad: Any, mask: Any, causal: bool, scale: float, grads: Any
) -> None:
    """Write the gradients of q, k and v to `grads`."""
    dq, dk, dv = grads
    bias, steps = _bias(xp, q, k, mask, causal), queries(xp, q.shape[-2], k.shape[-2])

    def add(to: Any, first: Any, second: Any) -> None:
        if len(steps) == 1:
            xp.matmul(first, second, out=to)
        else:
            to += xp.matmul(first, second)

    def of_heads(heads: Index, rows: slice) -> None:
        here, there = (*heads, rows), (*heads, _seen(rows, steps, causal))
        scaled, keys = q[here] * scale, k[there]
        weights, factor = _weights(xp, scaled, keys, None if bias is None else bias[here][..., : keys.shape[-2]])
        g = grad[here] * factor
        add(dv[there], xp.swapaxes(weights, -1, -2), g)
        scores = xp.matmul(g, xp.swapaxes(v[there], -1, -2), out=scratch(xp, 1, weights.shape, weights.dtype))
        scores -= vecdot(xp, scores, weights)[..., None] * factor
        scores *= weights
        xp.matmul(scores, keys * scale, out=dq[here])
        add(dk[there], xp.swapaxes(scores, -1, -2), scaled)

    def some(places: Iterator[tuple[Index, int]]) -> None:
        for heads, _ in places:
            if len(steps) > 1:
                dk[heads] = 0
                dv[heads] = 0
            for rows in steps:
                of_heads(heads, rows)

    _share(xp, q, k, some, alive=2 * _ALIVE)


def queries(xp: Any, count: int, keys: int) -> list[slice]:
    """Blocks of as many queries of a head as are done together: all, unless the weights are too many for a cache."""
    most = max(_QUERIES, (_SCORES if xp is np else _DEVICE_SCORES) // max(1, keys))
    return parallel.ranges(count, -(-count // most), ROWS)


def _seen(rows: slice, steps: list[slice], causal: bool) -> slice:
    """The keys that some queries may attend to."""
    return slice(0, rows.stop) if causal and len(steps) > 1 else slice(None)


def _share(
    xp: Any, q: Any, k: Any, some: Callable[[Iterator[tuple[Index, int]]], None], *, alive: int, times: int = 1
) -> None:
    """Call `some` with all groups of heads, each so many times, by number: at once, or in parts on several threads."""
    every = prod(q.shape[:-2])
    seconds = parallel.seconds_of(prod(q.shape[:-1]) * k.shape[-2], q.itemsize)
    most = -(-every // max(1, min(every, parallel.number(seconds))))  # heads in a group: as many groups as threads
    *outer, heads = q.shape[:-2] or (1,)
    steps = blocks(xp, min(heads, most), q.shape[-2] * k.shape[-2], alive=alive)
    step = steps[0].stop if steps else 1
    groups = -(-heads // step)
    count = prod(outer) * groups * times  # which may be many: no list is made of them

    def places(part: slice) -> Iterator[tuple[Index, int]]:
        for number in range(part.start, part.stop):
            group, time = divmod(number, times)
            place, group = divmod(group, groups)
            index = (*np.unravel_index(place, outer), slice(group * step, (group + 1) * step))
            yield index if q.ndim > 2 else (), time

    alone = seconds if seconds >= count * _GROUP_SECONDS else 0
    ranges = parallel.ranges(count, parallel.number(alone, parallel.rounds(alone)))
    parallel.run([partial(some, places(part)) for part in ranges])


def _weights(xp: Any, queries: Any, keys: Any, bias: Any) -> tuple[Any, Any]:
    """The weights of some heads up to a factor for each query, and that: what it is applied to later is smaller."""
    shape = (*queries.shape[:-1], keys.shape[-2])
    weights = _scores(xp, queries, keys, bias, scratch(xp, 0, shape, queries.dtype))
    if not weights.size:
        return weights, xp.ones((*shape[:-1], 1), weights.dtype)
    if directly(xp, weights):
        weights, total, far = exponentials(weights, weights)
        if far is None:
            return weights, np.reciprocal(total, out=total)[..., None]
        _scores(xp, queries, keys, bias, weights)
    # Where all is masked all weights are 0: the peak is a number even there, and the sum of others at least 1.
    weights -= xp.maximum(weights.max(axis=-1, keepdims=True), xp.finfo(weights.dtype).min)
    xp.exp(weights, out=weights)
    return weights, 1 / xp.maximum(totals(xp, weights), 1)[..., None]


def _scores(xp: Any, queries: Any, keys: Any, bias: Any, out: Any) -> Any:
    xp.matmul(queries, xp.swapaxes(keys, -1, -2), out=out)
    if bias is not None:
        out += bias
    return out
