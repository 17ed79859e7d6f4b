"""Convolution and its derivatives.

A convolution is one matrix product: of the weight, (out channels, inputs of a window), with the windows laid out as
columns. It is computed tile by tile, so that intermediate arrays stay in the cache: a tile is some rows of windows of
an image, or a part of a long row, or some small images. Tiles are cut only by shape, each thread takes some, and sums
over tiles are added in one order: with one BLAS thread each, any number of threads gives the same bits.

For the gradient of the images, each window's part is added at its position. If windows are side by side, the gradient
gets zeros at the end of each row, so that a whole plane is one contiguous sum: NumPy is slow with short rows.

On a CUDA card tiles are large, and each has three launches in each direction: its windows as columns or back (see
`windows`), the product, and a copy that brings the channels to their place.

Rejected:

- columns written by numba: a whole convolution took 1.5 times as long as with NumPy's strided copy;
- a product for each position in a window on shifted images, without copies: by estimate, adding them up takes longer;
- Winograd's sums down the columns as NumPy operations: a third fewer multiplications, but longer passes;
- with columns, the gradient of the images as a convolution with the flipped weight: 1.2 times as long;
- a product for each row of an image, whose columns are in memory already: 3% quicker, a training step of a small CNN
  5%.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import product
from math import prod
from typing import Any

import numpy as np

from .. import halves, parallel
from ..cost_model import MULTIPLICATION_SECONDS
from ..declare import Inferred, Op, Operand, Options, Shared, meta, with_products
from ..rules import Known, as_meta, copies, floats
from .blocks import scratch
from .windows import FEW, Pair, Tile, Windows, columns, columns_of_each, even, fold, tile_size, tiles, unfold

_SUMS = 8  # in which the gradient of a weight is added up
_SUM_BYTES = 1 << 20  # the most bytes of these sums together, unless two have more


def conv2d(
    xp: Any, x: Any, weight: Any, *bias: Any, stride: Pair, padding: Pair, dilation: Pair, out: Any = None
) -> Any:
    """The sums of products of windows and weight: (images, out channels, rows, columns)."""
    windows = Windows(weight.shape[2:], stride, padding, dilation)
    out = xp.empty((len(x), len(weight), *windows.fit(x.shape)), x.dtype) if out is None else out
    if not x.size or not weight.size:
        out[...] = bias[0][:, None, None] if bias else 0
        return out
    matrix = weight.reshape(len(weight), -1)
    cut, one = tiles(weight.shape, len(out), out.shape[2:], card=xp is not np), _convolve_tile
    if xp is np and _in_place(cut):
        matrix, one = np.concatenate([matrix, *[b[:, None] for b in bias]], 1), _convolve_in_place
    seconds = MULTIPLICATION_SECONDS * out.size * matrix.shape[1]
    parallel.each(cut, seconds, partial(one, xp, windows, x, matrix, bias, out))
    return out


def conv2d_input_grad(
    xp: Any, grad: Any, weight: Any, *, shape: Any, stride: Pair, padding: Pair, dilation: Pair, out: Any = None
) -> Any:
    """The gradient of the images: each window's part, added at its position."""
    windows = Windows(weight.shape[2:], stride, padding, dilation)
    out = xp.empty(shape, grad.dtype) if out is None else out
    if not grad.size or not weight.size:
        out.fill(0)
        return out
    matrix, count = weight.reshape(len(weight), -1).T, grad.shape[2:]
    if xp is not np:
        for some, lines, _ in tiles(weight.shape, len(grad), count, card=True):
            parts = xp.matmul(matrix, _channels_first(xp, grad[some, :, lines], count[1]))
            fold(xp, windows, parts, lines, count[1], out[some])
            del parts
        return out
    by, rows, across = tile_size(weight.shape, len(grad), count)
    runs = stride == (1, 1) and bool(np.isfinite(weight).all())  # zeros are multiplied by weights
    cut = list(product(even(count[0], rows), even(count[1], across)))
    work = partial(_sum_windows, windows, grad, matrix, cut, runs and across == count[1], out)
    parallel.each(even(len(grad), by), MULTIPLICATION_SECONDS * grad.size * len(matrix), work)
    return out


def conv2d_weight_grad(
    xp: Any, grad: Any, x: Any, *, shape: Any, stride: Pair, padding: Pair, dilation: Pair, out: Any = None
) -> Any:
    """The gradient of the weight: products of windows and gradient, summed over windows and images."""
    windows = Windows(shape[2:], stride, padding, dilation)
    out = xp.empty(shape, grad.dtype) if out is None else out
    if not grad.size or not x.size:
        out.fill(0)
        return out
    cut = tiles(shape, len(x), grad.shape[2:], card=xp is not np)
    if xp is not np:
        total = out.reshape(len(out), -1)
        for some, rows, _ in cut:
            gradient = _channels_first(xp, grad[some, :, rows], grad.shape[3])
            seen = unfold(xp, windows, x[some], rows, grad.shape[3]).T
            if (some.start, rows.start) == (0, 0):
                halves.matmul(xp.matmul, gradient, seen, out=total)
            else:
                total += halves.matmul(xp.matmul, gradient, seen)
            del gradient, seen
        return out
    number = _sums_for(shape, len(cut), out.dtype.itemsize)
    sums = np.zeros((number, prod(shape[1:]), len(out)), out.dtype)
    groups = [cut[part] for part in even(len(cut), -(-len(cut) // number))]  # each group is added to its sum in order
    seconds = MULTIPLICATION_SECONDS * grad.size * prod(shape[1:])
    parallel.each(list(zip(groups, sums, strict=False)), seconds, partial(_add_products, windows, grad, x))
    for one in sums[1:]:
        sums[0] += one
    out.reshape(len(out), -1)[...] = sums[0].T
    return out


def _sums_for(weight: tuple[int, ...], number: int, itemsize: int) -> int:
    """In how many sums the gradient of a weight of this shape is added up, for `number` tiles."""
    return max(1, min(_SUMS, number, max(2, _SUM_BYTES // max(1, prod(weight) * itemsize))))


def _in_place(cut: Sequence[Tile]) -> bool:
    """Whether the windows that a tile has of each image are worth a product of their own.

    Such a product writes to the result directly, with the bias as the weight of one more input. Otherwise one product
    is of all images, and its result is moved.
    """
    return bool(cut) and (cut[0].images.stop == 1 or cut[0].rows.stop * cut[0].across.stop >= FEW)


def _convolve_in_place(
    xp: Any, windows: Windows, x: Any, matrix: Any, bias: tuple[Any, ...], out: Any, tile: Tile
) -> None:
    there = out[tile.images, :, tile.rows, tile.across]
    seen = columns_of_each(windows, x[tile.images], tile.rows, tile.across, ones=len(bias))
    np.matmul(matrix, seen, out=there.reshape(*there.shape[:2], -1, copy=False))


def _convolve_tile(xp: Any, windows: Windows, x: Any, matrix: Any, bias: tuple[Any, ...], out: Any, tile: Tile) -> None:
    there, images = out[tile.images, :, tile.rows, tile.across], x[tile.images]
    if xp is np:
        seen = columns(windows, images, tile.rows, tile.across)
    else:
        seen = unfold(xp, windows, images, tile.rows, out.shape[3])
    y = xp.matmul(matrix, seen, out=scratch(xp, 2, (len(matrix), seen.shape[1]), out.dtype))
    y = y.reshape(len(matrix), len(there), *there.shape[2:]).swapaxes(0, 1)
    if bias:
        xp.add(y, bias[0][:, None, None], out=there)
    else:
        there[...] = y


def _add_products(windows: Windows, grad: Any, x: Any, part: tuple[Sequence[Tile], Any]) -> None:
    """Add the gradient of the weight from some tiles to a sum: (inputs of a window, out channels)."""
    cut, total = part
    for tile in cut:
        seen = columns(windows, x[tile.images], tile.rows, tile.across)
        found = scratch(np, 2, total.shape, total.dtype)
        some = grad[tile.images, :, tile.rows, tile.across]
        gradient = _channels_first(np, some, some.shape[3])
        total += np.matmul(seen, gradient.T, out=found)
        del seen, some, gradient, found


def _sum_windows(
    windows: Windows, grad: Any, matrix: Any, cut: Sequence[tuple[slice, slice]], runs: bool, out: Any, images: slice
) -> None:
    """The gradient of some images, from the parts of all windows.

    Args:
        cut: rows and columns of windows that are processed together.
        runs: whether zeros follow each row of windows up to the edge, so that all rows are contiguous.
    """
    grad, out = grad[images], out[images]
    form = windows.padded(out.shape)
    room = scratch(np, 0, (*form[:2], form[2] * form[3] + windows.reach[1]), out.dtype)
    room[...] = 0
    padded = room[..., : form[2] * form[3]].reshape(form)
    for rows, across in cut:
        length = across.stop - across.start
        some = _channels_first(np, grad[:, :, rows, across], form[3] if runs else length)
        parts = np.matmul(matrix, some, out=scratch(np, 1, (len(matrix), some.shape[1]), out.dtype))
        lines = (-1,) if runs else (-1, length)
        parts = parts.reshape(form[1], *windows.kernel, form[0], *lines)
        for row, column, place in windows.runs(rows, form[3]) if runs else windows.places(rows, across):
            there = room[place] if runs else padded[place]
            there += parts[:, row, column].swapaxes(0, 1)
        del some, parts
    out[...] = padded[windows.inside(out.shape)]


def _channels_first(xp: Any, grad: Any, line: int) -> Any:
    """(images, channels, rows, columns) as a matrix (channels, windows), with zeros after each row up to `line`.

    It is a view for a single image without zeros, else in scratch memory. On a CUDA card there are never zeros.
    """
    images, channels, rows, across = grad.shape
    if xp is not np:
        return grad.swapaxes(0, 1).reshape(channels, -1)
    if images == 1 and line == across and grad.strides[3] == grad.itemsize:
        return grad[0].reshape(channels, -1)
    found = scratch(xp, 3, (channels, images, rows, line), grad.dtype)
    found[..., :across] = grad.swapaxes(0, 1)
    found[..., across:] = 0
    return found.reshape(channels, -1)


# -- rules -------------------------------------------------------------------------------------------------------------


def conv2d_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """`conv2d` of x (images, in, height, width), weight (out, in, rows, columns) and perhaps bias (out,)."""
    x, weight, *bias = floats(op, *operands)
    if len(x) != 4 or len(weight) != 4 or x[1] != weight[1]:
        raise ValueError(
            f"conv2d: shapes {x} and {weight} must be (images, channels, height, width) and"
            " (out channels, channels, rows, columns); groups of channels are not supported"
        )
    if bias and bias[0] != weight[:1]:
        raise ValueError(f"conv2d: the bias has shape {bias[0]}, and must have {weight[:1]}")
    windows, array = _windows(weight, options), as_meta(operands[0])
    count = windows.checked_fit(op.name, x)
    copied, card = copies(operands), _card_bytes(weight, x[0], count, array.dtype)
    matrix = weight[0] * (prod(weight[1:]) + 1) * array.dtype.itemsize
    each = windows.tile_elements(x, weight, count) * array.dtype.itemsize
    shared = Shared(each, len(tiles(weight, x[0], count)))
    result = meta((x[0], weight[0], *count), array.dtype)
    return Inferred(result, copies(operands[1:2]) + matrix, on_card=copied + card, shared=shared)


def conv2d_input_grad_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """The gradient of the images, whose shape is an option; the operands are grad and weight."""
    grad, weight = floats(op, *operands)
    windows, result = _windows(weight, options), meta(options["shape"], as_meta(operands[0]).dtype)
    images, rows, across = tile_size(weight, grad[0], grad[2:])
    height, line = windows.padded(result.bound)[2:]
    if windows.stride == (1, 1) and across == grad[3]:
        across = line
    room = result.bound[1] * (height * line + windows.reach[1])
    each = images * (room + (prod(weight[1:]) + weight[0]) * rows * across) * result.dtype.itemsize
    copied, card = copies(operands), _card_bytes(weight, grad[0], grad[2:], result.dtype)
    shared = Shared(each, len(even(grad[0], images)))
    finite = prod(weight)  # bytes of the question which weights are
    return Inferred(result, copies(operands[1:]) + finite, on_card=copied + card, shared=shared)


def conv2d_weight_grad_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """The gradient of the weight, whose shape is an option; the operands are grad and x."""
    grad, x = floats(op, *operands)
    windows, result = _windows(options["shape"], options), meta(options["shape"], as_meta(operands[0]).dtype)
    each = windows.tile_elements(x, result.bound, grad[2:]) * result.dtype.itemsize + result.nbytes
    sums = _sums_for(result.bound, len(tiles(result.bound, x[0], grad[2:])), result.dtype.itemsize)
    copied, card = copies(operands), _card_bytes(result.bound, x[0], grad[2:], result.dtype) + result.nbytes
    return Inferred(result, sums * result.nbytes, on_card=copied + card, shared=Shared(each, sums))


def _windows(weight: Known, options: Options) -> Windows:
    return Windows((weight[2], weight[3]), options["stride"], options["padding"], options["dilation"])


def _card_bytes(weight: Known, images: int, count: Known, dtype: np.dtype[Any]) -> int:
    """Bytes of the intermediate arrays of one tile on a CUDA card: the columns, and a result or its gradient."""
    return (prod(weight[1:]) + weight[0]) * prod(tile_size(weight, images, count, card=True)) * dtype.itemsize


OPS = (
    with_products(conv2d, conv2d_rule, "The convolution of images with a weight.", launches=3),
    with_products(conv2d_input_grad, conv2d_input_grad_rule, "The gradient of the images.", launches=3),
    with_products(conv2d_weight_grad, conv2d_weight_grad_rule, "The gradient of the weight.", launches=3),
)
