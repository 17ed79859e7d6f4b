"""Convolution with 3 by 3 weights in fewer multiplications, as Winograd has it, where numba compiles the loops around.

Of a tile of 4 by 4 inputs, 2 by 2 results are wanted: 36 products for each pair of channels, and 16 suffice. Inputs and
weights are added up to 16 places each, the places are multiplied, channels summed, and what comes out is added up to
the four results: F(2x2, 3x3) of Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (2015). The sums
over channels are 16 matrix products for all tiles of a block. So are both gradients: that of the images is the
convolution with the weight turned, that of the weight has 3 by 3 results of 2 by 2 gradients, in the same 16 places.

Results are rounded otherwise than those of `conv`, and are as near to the truth. What is not finite, or so large that
sums overflow, comes out as something else here: where a result is not finite, the plain kernel does all again. It does
all where nothing is compiled, too: as operations of NumPy (some twenty passes over blocks, 4.4 ms of a processor where
the products take 2.6) this took longer than the products that it saves.

Blocks are cut by shape alone, and summed in one order, as in `conv`.

Not taken: tiles of 6 by 6 for 4 by 4 results. They save half of the rest, and lose two or three digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any, Final

import numpy as np

from .. import parallel
from ..cost_model import MULTIPLICATION_SECONDS
from . import compiled, conv, few_channels
from .scratch import PLACE_BYTES, scratch
from .windows import LANES, SPARE, Pair, Tile, Windows, even

PLACES: Final = 16  # of a tile
_CHANNELS: Final = 8  # of either side, at least: with fewer, there is little to save
_BLOCK: Final = 38_400  # channels of both sides times tiles at a time, ...
_FEW: Final = 256  # ... and tiles, unless that is too much for scratch memory
_PARTS: Final = 8  # of all tiles, so that there is work for some threads, ...
_LEAST: Final = 128  # ... unless they get fewer tiles than this

_SIDE = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]], np.float32)
_PLACED = np.kron(_SIDE, _SIDE)  # the places of a weight, (places, 9), and for gradients the way back


def conv2d(xp: Any, x: Any, weight: Any, *bias: Any, out: Any = None, **options: Any) -> Any:
    """The products of a window and the weight, summed: (images, out channels, rows, columns)."""
    windows = Windows(weight.shape[2:], **options)
    out = xp.empty((len(x), len(weight), *windows.fit(x.shape)), x.dtype) if out is None else out
    if suits(windows, weight.shape, len(x), out.shape[2:]) and _ready(xp, x, weight, *bias):
        places = np.matmul(_PLACED, weight.reshape(-1, 9).T).reshape(PLACES, *weight.shape[:2])
        if _convolved(x, places, bias[0] if bias else None, windows.padding, out):
            return out
    return conv.conv2d(xp, x, weight, *bias, out=out, **options)


def conv2d_input_grad(xp: Any, grad: Any, weight: Any, *, shape: Any, out: Any = None, **options: Any) -> Any:
    """The gradient of the images."""
    windows = Windows(weight.shape[2:], **options)
    out = xp.empty(shape, grad.dtype) if out is None else out
    if suits_input_grad(windows, weight.shape, len(grad), shape[2:]) and _ready(xp, grad, weight):
        places = np.matmul(_PLACED[:, ::-1], weight.reshape(-1, 9).T).reshape(PLACES, *weight.shape[:2])
        padding = (2 - windows.padding[0], 2 - windows.padding[1])
        if _convolved(grad, places.swapaxes(1, 2), None, padding, out):
            return out
    return conv.conv2d_input_grad(xp, grad, weight, shape=shape, out=out, **options)


def conv2d_weight_grad(xp: Any, grad: Any, x: Any, *, shape: Any, out: Any = None, **options: Any) -> Any:
    """The gradient of the weight."""
    windows = Windows(shape[2:], **options)
    out = xp.empty(shape, grad.dtype) if out is None else out
    if suits_weight_grad(windows, shape, len(x), grad.shape[2:]) and _ready(xp, grad, x):
        np.matmul(_summed(grad, x, windows.padding).reshape(PLACES, -1).T, _PLACED, out=out.reshape(-1, 9))
        if np.isfinite(out).all():
            return out
    return few_channels.conv2d_weight_grad(xp, grad, x, shape=shape, out=out, **options)


def suits(windows: Windows, weight: Sequence[int], images: int, count: Sequence[int]) -> bool:
    """Whether so many images are convolved here, by shape alone; `count` are the rows and columns of results."""
    return (
        windows.kernel == (3, 3)
        and windows.stride == windows.dilation == (1, 1)
        and min(weight[:2]) >= _CHANNELS
        and images * prod(count) >= 2 * _LEAST
    )


def suits_input_grad(windows: Windows, weight: Sequence[int], images: int, count: Sequence[int]) -> bool:
    """The same of their gradient; `count` are their rows and columns."""
    return suits(windows, weight, images, count) and max(windows.padding) <= 2


def suits_weight_grad(windows: Windows, weight: Sequence[int], images: int, count: Sequence[int]) -> bool:
    """The same of the weight's."""
    return suits(windows, weight, images, count) and 4 * PLACES * prod(weight[:2]) <= PLACE_BYTES


def blocks(channels: Sequence[int], images: int, count: Sequence[int]) -> list[Tile]:
    """All tiles of two rows and columns of results, in blocks: some images, and some rows of tiles on each."""
    down, across = -(-count[0] // 2), -(-count[1] // 2)
    most = PLACE_BYTES // (4 * PLACES * max(channels)) - 2 * SPARE
    wanted = min(max(_FEW, _BLOCK // sum(channels)), max(_LEAST, images * down * across // _PARTS), max(LANES, most))
    if down * across > wanted:
        by, rows = 1, max(1, wanted // across)
    else:
        by, rows = wanted // (down * across), down
    return [Tile(some, lines) for some in even(images, by) for lines in even(down, rows)]


def elements(channels: Sequence[int], images: int, count: Sequence[int]) -> int:
    """Of all that is made in between for one block, and of the weight's places."""
    cut, across = blocks(channels, images, count), -(-count[1] // 2)
    rows = max([lines.stop - lines.start for _, lines in cut], default=0)
    tiles = max([one.stop - one.start for one, _ in cut], default=0) * rows * across
    places = PLACES * (sum(channels) * (tiles + SPARE) + 2 * SPARE)
    return places + PLACES * prod(channels) + (2 * rows + 2) * _line(across)


def elements_weight_grad(channels: Sequence[int], images: int, count: Sequence[int]) -> int:
    """The same for the gradient of the weight."""
    number = conv.sums_for((*channels, 4, 4), len(blocks(channels, images, count)), 4)
    return elements(channels, images, count) + (number + 1) * PLACES * prod(channels)


def _ready(xp: Any, *arrays: Any) -> bool:
    return compiled.loop("tiles_in", xp, *arrays) is not None


def _convolved(x: Any, weight: Any, bias: Any, padding: Pair, out: Any) -> bool:
    """Whether all is finite, and so right."""
    bias = np.zeros(out.shape[1], np.float32) if bias is None else bias
    cut, odd = blocks(weight.shape[1:], len(out), out.shape[2:]), list[Tile]()
    work = partial(_convolve, x, weight, bias, padding, out, odd)
    parallel.each(cut, MULTIPLICATION_SECONDS * out.size * weight.shape[2] * 4, work)
    return not odd


def _convolve(x: Any, weight: Any, bias: Any, padding: Pair, out: Any, odd: list[Tile], tile: Tile) -> None:
    """The results of one block; noted as odd if one may not be finite."""
    x, there = x[tile.images], out[tile.images]
    first, rows, across, number, lines = _block(tile, out.shape[3])
    seen, tiles = _places(0, weight.shape[2], number), _places(1, weight.shape[1], number)
    compiled.loop_of("tiles_in")(x, first, rows, across, *padding, lines, seen)
    np.matmul(weight, seen[..., :number], out=tiles[..., :number])
    if compiled.loop_of("tiles_out")(tiles, bias, first, rows, across, lines, there):
        odd.append(tile)


def _summed(grad: Any, x: Any, padding: Pair) -> Any:
    """The products of gradients and inputs, summed over all tiles: (places, out channels, channels)."""
    channels = (grad.shape[1], x.shape[1])
    cut = blocks(channels, len(x), grad.shape[2:])
    number = conv.sums_for((*channels, 4, 4), len(cut), 4)
    sums = np.zeros((number, PLACES, *channels), np.float32)
    conv.share_sums(cut, sums, grad.size * x.shape[1] * 4, partial(_add, grad, x, padding))
    for one in sums[1:]:
        sums[0] += one
    return sums[0]


def _add(grad: Any, x: Any, padding: Pair, part: tuple[Sequence[Tile], Any]) -> None:
    """The products of some blocks, added to a sum."""
    cut, total = part
    product = scratch(np, 3, total.shape, np.float32)
    for tile in cut:
        first, rows, across, number, lines = _block(tile, grad.shape[3])
        seen, given = _places(0, x.shape[1], number), _places(1, grad.shape[1], number)
        compiled.loop_of("tiles_in")(x[tile.images], first, rows, across, *padding, lines, seen)
        compiled.loop_of("tiles_back")(grad[tile.images], first, rows, across, lines[: 2 * rows], given)
        total += np.matmul(given[..., :number], seen[..., :number].swapaxes(1, 2), out=product)


def _block(tile: Tile, width: int) -> tuple[int, int, int, int, Any]:
    """The first row of tiles, how many, how many tiles are in each, how many in all; and room for lines of an image."""
    rows, across = tile.rows.stop - tile.rows.start, -(-width // 2)
    lines = scratch(np, 2, (2 * rows + 2, _line(across)), np.float32)
    return tile.rows.start, rows, across, (tile.images.stop - tile.images.start) * rows * across, lines


def _line(across: int) -> int:
    """Elements of a line that so many tiles lie on, and those that a loop takes with them."""
    return 2 * LANES * -(-across // LANES) + 2


def _places(place: int, channels: int, number: int) -> Any:
    """Room for the places of so many tiles and more, (places, channels, tiles), at odd distances: see `SPARE`."""
    size = channels * (number + SPARE)
    found = scratch(np, place, (PLACES, size + SPARE), np.float32)[:, :size]
    return found.reshape(PLACES, channels, -1)
