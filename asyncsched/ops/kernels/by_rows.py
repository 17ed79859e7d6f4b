"""Convolution row by row on the host: what a row of windows sees is a matrix that lies in memory already.

Each row of the padded images is laid out as lines: channel by channel, once for each column of a window, and from where
that column begins. A row of windows sees the lines of as many rows as a window has, which follow each other: as they
are, these are the columns of `conv`, (inputs of a window, windows). So a row of an image is copied as often as a window
has columns, where to make all columns copies it as often as a window has elements, and rows of windows share it.

There is a product for each row. One so small a BLAS may do without packing its operands first (OpenBLAS does where
there are vectors of 512 bits), which it cannot save where few rows of a matrix are used: then it is cut further, and
where that cannot be, or where rows are short, this leaves convolutions to `conv`.

Not so the gradient of images with short rows: several images lie side by side, a product is of one row of all of them,
and its result is moved to where it belongs. That takes half to nine tenths of the time of adding up what each window
has, but as long as columns do for the convolution itself, whose product writes where the result belongs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any, Final

import numpy as np

from .. import parallel
from ..cost_model import MULTIPLICATION_SECONDS
from .scratch import scratch
from .windows import FEW, TILES, Pair, Tile, Windows, even, rows_needed, seen_by_columns, strided

_ACROSS: Final = 32  # windows in a product, at least: those of fewer take longer than copies do
_MOST: Final = 1_000_000  # multiplications of a product that OpenBLAS does without packing
_OUTS: Final = 16  # out channels of a product that is cut, at least
_LINES: Final = 262_144  # elements of the lines made at a time, which stay in the second cache, ...
_BESIDE: Final = 2  # ... times this where images lie side by side, so that few rows are laid out twice


def suits(windows: Windows, weight: Sequence[int], across: int) -> bool:
    """Whether images are convolved here with a weight of this shape, rows of windows being so long."""
    return _together(windows) and not _narrow(across) and _parts(windows, weight, across) is not None


def suits_input_grad(windows: Windows, weight: Sequence[int], shape: Sequence[int]) -> bool:
    """The same of the gradient of images of this shape."""
    if windows.stride != (1, 1) or min(_turned(windows).padding) < 0:
        return False
    turned = (weight[1], weight[0], *weight[2:])
    if _narrow(shape[3]):  # what is copied: results and lines, or columns
        return _together(windows) and weight[1] + _lines(windows, turned, 0) < prod(turned[1:])
    return suits(windows, turned, shape[3])


def convolve(windows: Windows, x: Any, weight: Any, bias: Sequence[Any], out: Any) -> None:
    """The products of a window and the weight, summed; and the bias, as the weight of lines of ones."""
    matrix = np.zeros((len(weight), windows.kernel[0], _lines(windows, weight.shape, len(bias))), weight.dtype)
    inputs = prod(weight.shape[1::2])
    matrix[..., :inputs] = weight.swapaxes(1, 2).reshape(*matrix.shape[:2], inputs)
    for one in bias:
        matrix[:, 0, inputs] = one
    if _narrow(out.shape[3]):
        work = partial(_convolve_beside, windows, x, matrix.reshape(len(matrix), -1), out)
    else:
        cut = _parts(windows, weight.shape, out.shape[3])
        assert cut is not None
        work = partial(_convolve, windows, x, matrix.reshape(cut[1], len(matrix) // cut[1], -1), cut[0], len(bias), out)
    seconds = MULTIPLICATION_SECONDS * out.size * prod(weight.shape[1:])
    parallel.each(tiles(windows, weight.shape, len(out), out.shape[2:]), seconds, work)


def input_grad(windows: Windows, grad: Any, weight: Any, out: Any) -> None:
    """The gradient of the images: the convolution of the gradient with the weight turned, which must be finite."""
    convolve(_turned(windows), grad, weight[..., ::-1, ::-1].swapaxes(0, 1), (), out)


def tiles(windows: Windows, weight: Sequence[int], images: int, count: Sequence[int]) -> list[Tile]:
    """All windows, in tiles whose lines are about as many as are made at a time."""
    by, rows = _tile_size(windows, weight, images, count)
    return [Tile(some, lines) for some in even(images, by) for lines in even(count[0], rows)]


def elements(windows: Windows, weight: Sequence[int], x: Sequence[int], count: Sequence[int]) -> int:
    """Of all that is made in between for one tile."""
    images, rows = _tile_size(windows, weight, x[0], count)
    width = _lines(windows, weight, 1) * count[1] + x[1] * (x[3] + 2 * windows.padding[1])
    found = weight[0] * rows * count[1] if _narrow(count[1]) else 0
    matrix = weight[0] * windows.kernel[0] * _lines(windows, weight, 1)
    return images * (rows_needed(windows, rows) * width + found) + matrix


def elements_input_grad(windows: Windows, weight: Sequence[int], grad: Sequence[int], count: Sequence[int]) -> int:
    """The same for the gradient of the images."""
    return elements(_turned(windows), (weight[1], weight[0], *weight[2:]), grad, count)


def _convolve(windows: Windows, x: Any, matrix: Any, pieces: int, ones: int, out: Any, tile: Tile) -> None:
    """The results of one tile, by a product for each row, for each of so many pieces of that and for each part of the
    out channels: the matrix is (parts, out channels of one, inputs of a window)."""
    there = out[tile.images, :, tile.rows]
    images, _, rows, across = there.shape
    lines = _laid_out(windows, x[tile.images], tile.rows, across, ones)
    image, row, line, one = lines.strides
    piece = across // pieces
    form = (images, rows, pieces, 1, matrix.shape[2], piece)
    seen = strided(np, lines, form, (image, row * windows.stride[0], piece * one, 0, line, one))
    there = there.reshape(images, *matrix.shape[:2], rows, pieces, piece, copy=False)
    np.matmul(matrix, seen, out=there.transpose(0, 3, 4, 1, 2, 5))


def _convolve_beside(windows: Windows, x: Any, matrix: Any, out: Any, tile: Tile) -> None:
    """The same without a bias, with images side by side: the matrix is (out channels, inputs of a window)."""
    there = out[tile.images, :, tile.rows]
    images, outs, rows, across = there.shape
    seen = seen_by_columns(np, windows, x[tile.images], tile.rows, across).transpose(1, 2, 3, 0, 4)
    needed, *inputs = seen.shape[:3]
    lines = scratch(np, 0, (needed, prod(inputs), images * across), x.dtype)
    lines.reshape(seen.shape)[...] = seen
    row, line, one = lines.strides
    form = (rows, matrix.shape[1], images * across)
    found = scratch(np, 2, (rows, outs, images * across), out.dtype)
    np.matmul(matrix, strided(np, lines, form, (row * windows.stride[0], line, one)), out=found)
    there[...] = found.reshape(rows, outs, images, across).transpose(2, 1, 0, 3)


def _laid_out(windows: Windows, x: Any, rows: slice, across: int, ones: int) -> Any:
    """The rows of padded images that some rows of windows see, as lines: (images, rows, lines, across). In scratch
    memory, all of one piece."""
    seen = seen_by_columns(np, windows, x, rows, across)
    images, number, *lines, _ = seen.shape
    found = scratch(np, 0, (images, number, prod(lines) + ones, across), x.dtype)
    found[:, :, : prod(lines)].reshape(seen.shape, copy=False)[...] = seen
    found[:, :, prod(lines) :] = 1
    return found


def _lines(windows: Windows, weight: Sequence[int], ones: int) -> int:
    return weight[1] * windows.kernel[1] + ones


def _parts(windows: Windows, weight: Sequence[int], across: int) -> Pair | None:
    """Into how many equal parts of windows and of out channels the product of a row is cut; None if it cannot be cut
    small enough."""
    inputs = windows.kernel[0] * _lines(windows, weight, 1)
    for pieces in range(1, across // _ACROSS + 1):
        if pieces > 1 and across % (pieces * _ACROSS):
            continue
        for parts in range(1, max(1, weight[0] // _OUTS) + 1):
            if weight[0] % parts == 0 and weight[0] // parts * inputs * (across // pieces) <= _MOST:
                return pieces, parts
    return None


def _tile_size(windows: Windows, weight: Sequence[int], images: int, count: Sequence[int]) -> Pair:
    """How many images are taken at a time, and how many rows of windows."""
    most = -(-images // TILES)
    if _narrow(count[1]):
        by = max(1, min(images, FEW // count[1], max(most, 2 * _ACROSS // count[1])))
        wanted = _BESIDE * _LINES // (_lines(windows, weight, 1) * count[1] * by)
        return by, max(1, min(count[0], (wanted - windows.reach[0]) // windows.stride[0] + 1))
    wanted = _LINES // (_lines(windows, weight, 1) * count[1])  # rows of images
    needed = rows_needed(windows, count[0])
    if needed <= wanted:
        return max(1, min(wanted // needed, most)), count[0]
    return 1, max(1, (wanted - windows.reach[0]) // windows.stride[0] + 1)


def _together(windows: Windows) -> bool:
    """Whether a window sees rows that follow each other."""
    return windows.dilation[0] == 1 or windows.kernel[0] == 1


def _narrow(across: int) -> bool:
    """Whether rows of windows are so short that those of some images lie side by side."""
    return across < _ACROSS


def _turned(windows: Windows) -> Windows:
    rows, columns = [r - 1 - p for r, p in zip(windows.reach, windows.padding, strict=True)]
    return windows._replace(padding=(rows, columns))
