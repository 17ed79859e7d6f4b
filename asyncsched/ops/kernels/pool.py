"""Pooling and its derivatives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from math import prod
from typing import Any

import numpy as np

from .. import parallel
from ..declare import Inferred, Op, Operand, Options, meta, with_out
from ..rules import as_meta, copies, floats, like
from . import compiled
from .blocks import LONG_BLOCK, long_blocks
from .elementwise import into, kept
from .windows import Pair, Windows, even, max_pool2d_backward_on_card, max_pool2d_on_card

_FEW = 6  # positions in a window; with fewer, the plain kernel is quicker than the loop for any windows


def max_pool2d(xp: Any, x: Any, *, kernel: Pair, stride: Pair, padding: Pair, out: Any = None) -> Any:
    """The largest element of each window: first over the rows in it, which are contiguous, then over the columns."""
    windows = Windows(kernel, stride, padding, (1, 1))
    rows, columns = windows.fit(x.shape)
    out = xp.empty((*x.shape[:-2], rows, columns), x.dtype) if out is None else out
    if xp is not np:
        max_pool2d_on_card(xp, windows, x, out)
        return out

    def some(images: Any, result: Any) -> None:
        padded = _padded(xp, images, padding, -xp.inf)  # less than any element
        lines = _largest(xp, [padded[:, at : at + stride[0] * rows : stride[0]] for at in range(kernel[0])])
        _largest(xp, [lines[..., at : at + stride[1] * columns : stride[1]] for at in range(kernel[1])], result)

    run = compiled.loop("max_pool2d", xp, x) if _by_two(x, kernel, stride, padding) else None
    _by_planes(xp, run or some, x, out)
    return out


def max_pool2d_backward(
    xp: Any, x: Any, y: Any, grad: Any, *, kernel: Pair, stride: Pair, padding: Pair, out: Any = None
) -> Any:
    """The gradient of each window, added to the element that was chosen from it."""
    windows = Windows(kernel, stride, padding, (1, 1))
    out = xp.empty(x.shape, x.dtype) if out is None else out
    if xp is not np:
        max_pool2d_backward_on_card(xp, windows, x, y, grad, out)
        return out
    apart = kernel[0] <= stride[0] and kernel[1] <= stride[1]  # no element is in two windows
    whole = (
        kernel == stride and padding == (0, 0) and x.shape[-2:] == (kernel[0] * y.shape[-2], kernel[1] * y.shape[-1])
    )
    written = prod(kernel) if apart else 0  # the number of positions written first; later ones are added

    def some(images: Any, largest: Any, g: Any, result: Any) -> None:
        g = xp.ascontiguousarray(g)
        part = xp.empty_like(g)
        total = result if padding == (0, 0) else xp.empty(windows.padded(images.shape), x.dtype)
        if not whole:  # otherwise every element is in a window
            total[...] = 0
        for number, (place, chosen) in enumerate(_choices(xp, windows, images, largest)):
            there = total[place]
            if number < written:
                kept(xp, g, chosen, out=there)
            else:
                there += kept(xp, g, chosen, out=part)
        if total is not result:
            result[...] = total[windows.inside(x.shape)]

    by_two = _by_two(x, kernel, stride, padding)
    run = compiled.loop("max_pool2d_backward", xp, x, y, grad) if by_two else None
    if not by_two and prod(kernel) >= _FEW:
        run = compiled.loop("max_pool2d_backward_any", xp, x, y, grad)
        run = run and partial(run, kernel, stride, padding)
    _by_planes(xp, run or some, x, y, grad, out)
    return out


def _by_two(x: Any, kernel: Pair, stride: Pair, padding: Pair) -> bool:
    """Whether windows are two by two, side by side, with no column left over."""
    return kernel == stride == (2, 2) and padding == (0, 0) and x.shape[-1] % 2 == 0


def max_pool2d_gather(
    xp: Any, x: Any, y: Any, other: Any, *, kernel: Pair, stride: Pair, padding: Pair, out: Any = None
) -> Any:
    """The elements of other images at the chosen positions: the transpose of `max_pool2d_backward`."""
    windows = Windows(kernel, stride, padding, (1, 1))
    out = xp.empty(y.shape, y.dtype) if out is None else out

    def some(images: Any, largest: Any, others: Any, result: Any) -> None:
        padded = xp.zeros(windows.padded(images.shape), x.dtype)
        padded[windows.inside(x.shape)] = others
        result[...] = 0
        for place, chosen in _choices(xp, windows, images, largest):
            result += kept(xp, xp.ascontiguousarray(padded[place]), chosen)

    _by_planes(xp, some, x, y, other, out)
    return out


def _choices(xp: Any, windows: Windows, images: Any, largest: Any) -> Iterator[tuple[Any, Any]]:
    """For each position in a window: the slices of padded images there, and the windows that chose it.

    Chosen is the first of the largest elements, but the last NaN, as in PyTorch. The padding is never chosen: it is NaN
    here, so it equals nothing, not even in a window of -inf.
    """
    padded = _padded(xp, images, windows.padding, xp.nan)
    places = [place for _, _, place in windows.places(*[slice(0, n) for n in largest.shape[1:]])]
    done = padded[places[0]] == largest
    yield places[0], done
    equal, chosen = xp.empty_like(done), xp.empty_like(done)
    for place in places[1:]:
        xp.equal(padded[place], largest, out=equal)
        yield place, xp.greater(equal, done, out=chosen)
        done |= equal
    if xp is np and done.all():  # on a GPU, the question would wait for the device
        return
    missing = _padded(xp, xp.isnan(images), windows.padding, False)
    for place in reversed(places):
        yield place, missing[place] > done
        done |= missing[place]


def _by_planes(xp: Any, some: Callable[..., None], *arrays: Any) -> None:
    """Call a function for the last two axes of arrays (..., height, width).

    Each call takes as many planes as one block of the first array has. The calls are shared equally by the threads.
    """
    planes = [array.reshape(prod(array.shape[:-2]), *array.shape[-2:]) for array in arrays]
    count, seconds = len(planes[0]), parallel.seconds_of(arrays[0].size, arrays[0].itemsize)
    threads = max(1, min(count, parallel.number(seconds)))
    rounds = -(-len(long_blocks(xp, count, prod(arrays[0].shape[-2:]))) // threads)

    def work(block: slice) -> None:
        some(*[plane[block] for plane in planes])

    parallel.each(even(count, -(-count // max(1, threads * rounds))), seconds, work)


def _padded(xp: Any, images: Any, padding: Pair, value: Any) -> Any:
    """Images (count, height, width) with a value around them."""
    if padding == (0, 0):
        return images
    return xp.pad(images, ((0, 0), *[(one, one) for one in padding]), constant_values=value)


def _largest(xp: Any, parts: list[Any], out: Any = None) -> Any:
    first, *rest = parts
    if not rest:
        return first.copy() if out is None else into(xp, out, first)
    out = xp.maximum(first, rest.pop(0), out=out)
    for part in rest:
        xp.maximum(out, part, out=out)
    return out


# -- rules -------------------------------------------------------------------------------------------------------------


def max_pool2d_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """`max_pool2d` of (..., height, width)."""
    shape, array, padding = floats(op, operands[0])[0], as_meta(operands[0]), options["padding"]
    if any(2 * p > k for p, k in zip(padding, options["kernel"], strict=True)):
        raise ValueError(f"max_pool2d: padding {padding} must be at most half of the kernel {options['kernel']}")
    if len(shape) < 2:
        raise ValueError(f"max_pool2d: shape {shape} must be (..., height, width)")
    count = Windows(options["kernel"], options["stride"], padding, (1, 1)).checked_fit(op.name, shape)
    result = meta((*shape[:-2], *count), array.dtype)
    return Inferred(result, _pool_bytes(operands, padding, 4), on_card=copies(operands))


def max_pool2d_backward_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """The gradient of `max_pool2d`; the operands are x, its result and grad."""
    found = like(operands[0], _pool_bytes(operands, options["padding"], 6))
    return found._replace(on_card=copies(operands))


def max_pool2d_gather_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """Other images at the positions of the largest elements; the operands are x, its result and those images."""
    return like(operands[1], _pool_bytes(operands, options["padding"], 6))


def _pool_bytes(operands: tuple[Operand, ...], padding: Pair, arrays: int) -> int:
    """Bytes of some arrays of padded images, for as many images as a block has. No array is larger."""
    array = as_meta(operands[0])
    height, width = array.bound[-2:]
    images = min(prod(array.bound[:-2]), max(1, LONG_BLOCK // max(1, height * width)))
    padded: int = (height + 2 * padding[0]) * (width + 2 * padding[1]) * array.dtype.itemsize
    return copies(operands) + arrays * images * padded


OPS = (
    with_out(max_pool2d, max_pool2d_rule, "The largest element of each window.", launches=1),
    with_out(max_pool2d_backward, max_pool2d_backward_rule, "The gradient of max_pool2d.", launches=1),
    with_out(max_pool2d_gather, max_pool2d_gather_rule, "The gradient of max_pool2d_backward."),
)
