"""Windows on images: their positions, and their elements as the columns of a matrix."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np

from .. import parallel
from .blocks import scratch

COLUMNS = 524_288  # elements of the columns, or of the result, per tile: as many as fit a processor's caches
SPARE = 16  # elements between rows of columns: rows a power of two apart would evict each other from the cache
FEW = 128  # windows; a product with fewer takes as long as one with this many
TILES = 8  # the least number in a batch, so that several threads have work
# The same on a CUDA card, where each step is a launch: work on fewer elements takes less time than its launch.
CARD_COLUMNS, CARD_TILES = 1 << 24, 1

Pair = tuple[int, int]


class Windows(NamedTuple):
    """The geometry of windows on images. All fields are pairs, for rows and columns."""

    kernel: Pair
    stride: Pair
    padding: Pair
    dilation: Pair

    @property
    def reach(self) -> Pair:
        """How many rows and columns of a padded image a window spans."""
        rows, columns = [d * (k - 1) + 1 for k, d in zip(self.kernel, self.dilation, strict=True)]
        return rows, columns

    def fit(self, shape: tuple[int, ...]) -> Pair:
        """How many windows fit on an image of (..., height, width): floor((n + 2p - d(k - 1) - 1) / s) + 1."""
        rows, columns = [
            (n + 2 * p - r) // s + 1
            for n, p, r, s in zip(shape[-2:], self.padding, self.reach, self.stride, strict=True)
        ]  # fmt: skip
        return rows, columns

    def checked_fit(self, name: str, shape: tuple[int, ...]) -> Pair:
        """As `fit`, for an operation of this name. Raises ValueError if no window fits."""
        if min((*self.kernel, *self.stride, *self.dilation)) < 1 or min(self.padding) < 0:
            raise ValueError(f"{name}: {self} must be positive, and the padding not negative")
        count = self.fit(shape)
        if min(count) < 1:
            raise ValueError(f"{name}: images of {shape[-2:]} are smaller than the window of {self}")
        return count

    def places(self, rows: slice, across: slice) -> Iterator[tuple[int, int, Any]]:
        """For each position in a window: its row, its column, and its slices of padded images (..., height, width).

        The slices cover the windows of some rows and columns.
        """
        (down, right), (below, beside) = self.dilation, self.stride
        for row in range(self.kernel[0]):
            lines = slice(row * down + rows.start * below, row * down + rows.stop * below, below)
            for column in range(self.kernel[1]):
                first = column * right
                there = slice(first + across.start * beside, first + across.stop * beside, beside)
                yield row, column, (..., lines, there)

    def runs(self, rows: slice, line: int) -> Iterator[tuple[int, int, Any]]:
        """The same for rows of windows that go on over the edge of padded images (..., height * `line`)."""
        for row in range(self.kernel[0]):
            for column in range(self.kernel[1]):
                start = (row * self.dilation[0] + rows.start) * line + column * self.dilation[1]
                yield row, column, (..., slice(start, start + (rows.stop - rows.start) * line))

    def padded(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape (..., height, width) of the padded images."""
        return *shape[:-2], *[n + 2 * p for n, p in zip(shape[-2:], self.padding, strict=True)]

    def inside(self, shape: tuple[int, ...]) -> Any:
        """The slices of padded images that contain the images themselves."""
        return ..., *[slice(p, p + n) for n, p in zip(shape[-2:], self.padding, strict=True)]


class Tile(NamedTuple):
    """Windows that are processed together."""

    images: slice
    rows: slice  # of windows, on each of them
    across: slice  # of windows, in each row


class TileSize(NamedTuple):
    """The lengths of a tile's slices."""

    images: int
    rows: int
    across: int


def tile_size(weight: tuple[int, ...], images: int, count: tuple[int, ...], *, card: bool = False) -> TileSize:
    """How many images one tile has for a weight of this shape, how many rows of windows, and how many in each.

    A row is cut if it has more windows than a tile, as that of a long sequence has; on a card it stays whole.
    It depends only on shapes, since bits depend on it. Tiles are larger on a CUDA `card`.
    """
    most, fewest = (CARD_COLUMNS, CARD_TILES) if card else (COLUMNS, TILES)
    wanted = max(FEW, most // max(1, weight[0], prod(weight[1:])))
    if prod(count) <= wanted:
        least = -(-FEW // max(1, prod(count)))
        by = max(1, min(images, max(least, min(wanted // max(1, prod(count)), -(-images // fewest)))))
        return TileSize(by, *count)
    steps = max(1, wanted // count[1]), count[1] if card else wanted
    return TileSize(1, *[-(-n // -(-n // step)) for n, step in zip(count, steps, strict=True)])


def tiles(weight: tuple[int, ...], images: int, count: tuple[int, ...], *, card: bool = False) -> list[Tile]:
    """All windows, in tiles of about one size."""
    size = tile_size(weight, images, count, card=card)
    every = [even(number, step) for number, step in zip((images, *count), size, strict=True)]
    return list(map(Tile._make, product(*every)))


def columns(windows: Windows, x: Any, rows: slice, across: slice) -> Any:
    """The windows of some rows and columns on all images: (inputs of a window, windows).

    In scratch memory, valid until the next call on this thread.
    """
    seen = _window_view(windows, x, rows, across)
    inputs, number = prod(seen.shape[1:4]), len(x) * prod(seen.shape[4:])
    found = scratch(np, 1, (inputs, number + SPARE), x.dtype)[:, :number]
    found.reshape(*seen.shape[1:4], len(x), *seen.shape[4:])[...] = seen.transpose(1, 2, 3, 0, 4, 5)
    return found


def columns_of_each(windows: Windows, x: Any, rows: slice, across: slice, ones: int) -> Any:
    """The same for each image: (images, inputs of a window, windows), plus `ones` more inputs that are all ones."""
    seen = _window_view(windows, x, rows, across)
    inputs, number = prod(seen.shape[1:4]), prod(seen.shape[4:])
    found = scratch(np, 1, (len(x), inputs + ones, number + SPARE), x.dtype)[..., :number]
    found[:, :inputs].reshape(seen.shape)[...] = seen
    found[:, inputs:] = 1
    return found


def _window_view(windows: Windows, x: Any, rows: slice, across: slice) -> Any:
    """The elements in some windows, as a view: (images, channels, *kernel, rows of windows, windows in a row)."""
    lines = _lines(windows, x, rows, across)
    image, channel, column, row, one = lines.strides
    form = (*lines.shape[:2], *windows.kernel, rows.stop - rows.start, lines.shape[4])
    steps = (windows.dilation[0] * row, column, windows.stride[0] * row, one)
    return strided(lines, form, (image, channel, *steps))


def covered(windows: Windows, rows: int, across: int) -> Pair:
    """How many rows and columns of padded images are under so many rows and columns of windows."""
    down, right = [
        (n - 1) * s + reach for n, s, reach in zip((rows, across), windows.stride, windows.reach, strict=True)
    ]
    return down, right


def _lines(windows: Windows, x: Any, rows: slice, across: slice) -> Any:
    """The elements under some windows, once for each column of a window.

    The shape is (images, channels, columns of a window, rows, across), so that successive rows of windows are
    contiguous.
    """
    seen = seen_by_columns(windows, x, rows, across).transpose(0, 2, 3, 1, 4)
    if windows.padding == (0, 0) and windows.kernel[1] == 1:
        return seen
    found = scratch(np, 0, seen.shape, x.dtype)
    found[...] = seen
    return found


def seen_by_columns(windows: Windows, x: Any, rows: slice, across: slice) -> Any:
    """The elements under each column of some windows, as a view: (images, rows, channels, columns of a window, across).

    It is a view of the images, or of padded images in scratch memory.
    """
    padded = _padded(windows, x, (rows, across))
    image, channel, row, one = padded.strides
    form = (len(padded), padded.shape[2], padded.shape[1], windows.kernel[1], across.stop - across.start)
    steps = (image, row, channel, windows.dilation[1] * one, windows.stride[1] * one)
    return strided(padded, form, steps)


def _padded(windows: Windows, x: Any, tile: tuple[slice, slice]) -> Any:
    """The part of padded images under the windows of some rows and columns."""
    spans = [
        (some.start * stride - pad, (some.stop - 1) * stride + reach - pad)
        for some, stride, pad, reach in zip(tile, windows.stride, windows.padding, windows.reach, strict=True)
    ]
    if windows.padding == (0, 0):
        return x[(..., *[slice(*span) for span in spans])]
    found = scratch(np, 1, (*x.shape[:2], *[last - first for first, last in spans]), x.dtype)
    found[...] = 0
    inside, there = [], []
    for (first, last), length in zip(spans, x.shape[2:], strict=True):
        begin = min(max(first, 0), length)
        end = max(begin, min(last, length))  # empty if all windows lie on the padding
        inside.append(slice(begin - first, end - first))
        there.append(slice(begin, end))
    found[(..., *inside)] = x[(..., *there)]
    return found


def strided(array: Any, form: tuple[int, ...], steps: tuple[int, ...]) -> Any:
    """A view of an array with these bytes between elements.

    NumPy's own function takes seven times as long, and no other thread can run meanwhile.
    """
    if array.flags.c_contiguous:
        return np.ndarray(form, array.dtype, array, 0, steps)
    return np.lib.stride_tricks.as_strided(array, form, steps)


def even(number: int, step: int) -> list[slice]:
    """`number` items in slices of about equal length, at most `step`."""
    return parallel.equal(number, -(-number // max(1, step))) if number else []
