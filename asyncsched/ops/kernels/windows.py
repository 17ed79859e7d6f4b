"""Windows on images: their positions, and their elements as the columns of a matrix."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any, NamedTuple

import numpy as np

from .. import parallel
from .scratch import scratch

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

    def places(self, rows: slice, across: int) -> Iterator[tuple[int, int, Any]]:
        """For each position in a window: its row, its column, and its slices of padded images (..., height, width).

        The slices cover some rows of windows, each `across` long.
        """
        (down, right), (below, beside) = self.dilation, self.stride
        for row in range(self.kernel[0]):
            lines = slice(row * down + rows.start * below, row * down + rows.stop * below, below)
            for column in range(self.kernel[1]):
                yield row, column, (..., lines, slice(column * right, column * right + across * beside, beside))

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


def tile_size(weight: tuple[int, ...], images: int, count: tuple[int, ...], *, card: bool = False) -> Pair:
    """How many images one tile has for a weight of this shape, and how many rows of windows.

    It depends only on shapes, since bits depend on it. Tiles are larger on a CUDA `card`.
    """
    most, fewest = (CARD_COLUMNS, CARD_TILES) if card else (COLUMNS, TILES)
    wanted = max(FEW, most // max(1, weight[0], prod(weight[1:])))
    if prod(count) <= wanted:
        least = -(-FEW // max(1, prod(count)))
        return max(1, min(images, max(least, min(wanted // max(1, prod(count)), -(-images // fewest))))), count[0]
    return 1, max(1, wanted // max(1, count[1]))


def tiles(weight: tuple[int, ...], images: int, count: tuple[int, ...], *, card: bool = False) -> list[Tile]:
    """All windows, in tiles of about one size."""
    by, rows = tile_size(weight, images, count, card=card)
    return [Tile(some, lines) for some in even(images, by) for lines in even(count[0], rows)]


def columns(windows: Windows, x: Any, rows: slice, across: int) -> Any:
    """Some rows of windows, each `across` long, on all images: (inputs of a window, windows).

    In scratch memory, valid until the next call on this thread.
    """
    seen = _window_view(windows, x, rows, across)
    inputs, number = prod(seen.shape[1:4]), len(x) * prod(seen.shape[4:])
    found = scratch(np, 1, (inputs, number + SPARE), x.dtype)[:, :number]
    found.reshape(*seen.shape[1:4], len(x), *seen.shape[4:])[...] = seen.transpose(1, 2, 3, 0, 4, 5)
    return found


def columns_of_each(windows: Windows, x: Any, rows: slice, across: int, ones: int) -> Any:
    """The same for each image: (images, inputs of a window, windows), plus `ones` more inputs that are all ones."""
    seen = _window_view(windows, x, rows, across)
    inputs, number = prod(seen.shape[1:4]), prod(seen.shape[4:])
    found = scratch(np, 1, (len(x), inputs + ones, number + SPARE), x.dtype)[..., :number]
    found[:, :inputs].reshape(seen.shape)[...] = seen
    found[:, inputs:] = 1
    return found


def _window_view(windows: Windows, x: Any, rows: slice, across: int) -> Any:
    """The elements in some rows of windows, as a view: (images, channels, *kernel, rows of windows, across)."""
    lines = _lines(windows, x, rows, across)
    image, channel, column, row, one = lines.strides
    form = (*lines.shape[:2], *windows.kernel, rows.stop - rows.start, across)
    steps = (windows.dilation[0] * row, column, windows.stride[0] * row, one)
    return strided(lines, form, (image, channel, *steps))


def rows_needed(windows: Windows, rows: int) -> int:
    """How many rows of padded images `rows` rows of windows cover."""
    return (rows - 1) * windows.stride[0] + windows.reach[0]


def _lines(windows: Windows, x: Any, rows: slice, across: int) -> Any:
    """The elements under some rows of windows, once for each column of a window.

    The shape is (images, channels, columns of a window, rows, across), so that successive rows of windows are
    contiguous.
    """
    seen = seen_by_columns(windows, x, rows, across).transpose(0, 2, 3, 1, 4)
    if windows.padding == (0, 0) and windows.kernel[1] == 1:
        return seen
    found = scratch(np, 0, seen.shape, x.dtype)
    found[...] = seen
    return found


def seen_by_columns(windows: Windows, x: Any, rows: slice, across: int) -> Any:
    """The elements under each column of some windows, as a view: (images, rows, channels, columns of a window, across).

    It is a view of the images, or of padded images in scratch memory.
    """
    padded = _padded_rows(windows, x, rows)
    image, channel, row, one = padded.strides
    form = (len(padded), padded.shape[2], padded.shape[1], windows.kernel[1], across)
    steps = (image, row, channel, windows.dilation[1] * one, windows.stride[1] * one)
    return strided(padded, form, steps)


def _padded_rows(windows: Windows, x: Any, rows: slice) -> Any:
    (up, left), (height, width) = windows.padding, x.shape[2:]
    first = rows.start * windows.stride[0] - up
    last = first + rows_needed(windows, rows.stop - rows.start)
    if windows.padding == (0, 0):
        return x[:, :, first:last]
    found = scratch(np, 1, (*x.shape[:2], last - first, width + 2 * left), x.dtype)
    found[...] = 0
    begin = min(max(first, 0), height)
    there = slice(begin, max(begin, min(last, height)))  # empty if all windows lie on the padding
    found[:, :, there.start - first : there.stop - first, left : left + width] = x[:, :, there]
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
