"""Windows on images: their positions, and their elements as the columns of a matrix.

On a CUDA card there is one kernel for each way to pass over them, which CuPy compiles at its first run. On the host a
pass over memory is expensive, so windows are processed in tiles that stay in a cache, with many short steps. On a card,
a launch takes as long as passing over some megabytes. So tiles are large (`CARD_COLUMNS`), and each step is one launch.
Each thread makes one element of the result from the elements that it needs. So no two threads write to one place, no
sum depends on their order, no padding is ever stored, and no zero of the padding is multiplied by a weight.

Rejected: CuPy's own functions (padding, strided copies, a sum over the positions of a window), with 4 to 11 launches
for each of these and two to four times the memory; products of a batch of small matrices, one for each image, for which
CuPy first makes three arrays of pointers, by a launch each.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
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

    def covered(self, rows: int, across: int) -> Pair:
        """How many rows and columns of padded images are under so many rows and columns of self."""
        down, right = [(n - 1) * s + reach for n, s, reach in zip((rows, across), self.stride, self.reach, strict=True)]
        return down, right

    def tile_elements(self, x: tuple[int, ...], weight: tuple[int, ...], count: tuple[int, ...]) -> int:
        """The number of elements of the intermediate arrays of one tile.

        They are its lines, then its columns or before them the padded images, and a result or its gradient.
        """
        images, rows, across = tile_size(weight, x[0], count)
        down, right = self.covered(rows, across)
        padded = x[1] * down * right if self.padding != (0, 0) else 0
        lines = x[1] * down * self.kernel[1] * across if padded or self.kernel[1] > 1 else 0
        inputs = prod(weight[1:]) + 1  # of a window, and ones
        columns = inputs * (rows * across + SPARE)
        return images * (lines + max(columns, padded) + weight[0] * rows * across)


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


# -- on a CUDA card ----------------------------------------------------------------------------------------------------

_SHORT = 1 << 31  # elements; with fewer, positions are counted in 32 bits, which a card divides in half the time
# The geometry of windows on images: "rows" of them from the "first" one on, each "across" long; and the kernel, stride,
# padding and dilation, each "down" the rows and "along" a row.
_FORM = (
    "images channels height width rows across first kernel_down kernel_along stride_down stride_along pad_down"
    " pad_along apart_down apart_along"
)
_ARGUMENTS = ", ".join(f"int32 {name}" for name in _FORM.split())

# Kernels by name: their inputs beside the geometry, and the code for an element `y` of the result. `Place` is the type
# of element counts, `Sum` that of sums.
_KERNELS = {
    # The elements in windows, as columns: (channels, positions in a window, images, rows, across).
    "unfold": (
        "raw T x",
        """
        Place at = i;
        const Place q = at % across; at /= across;
        const Place p = first + at % rows; at /= rows;
        const Place image = at % images; at /= images;
        const Place b = at % kernel_along; at /= kernel_along;
        const Place a = at % kernel_down, channel = at / kernel_down;
        const Place h = p * stride_down + a * apart_down - pad_down, w = q * stride_along + b * apart_along - pad_along;
        const bool inside = h >= 0 && h < height && w >= 0 && w < width;
        y = inside ? x[((image * channels + channel) * height + h) * width + w] : T(0);
        """,
    ),
    # The transpose: columns added at their positions; to the present values if there is `more`.
    "fold": (
        "raw T x, int32 more",
        """
        Place at = i;
        const Place w = at % width + pad_along; at /= width;
        const Place h = at % height + pad_down; at /= height;
        const Place channel = at % channels, image = at / channels;
        Sum total = more ? Sum(y) : Sum(0);
        for (Place a = 0; a < kernel_down; ++a) {
            const Place down = h - a * apart_down, p = down / stride_down - first;
            if (down < 0 || down % stride_down || p < 0 || p >= rows) continue;
            for (Place b = 0; b < kernel_along; ++b) {
                const Place along = w - b * apart_along, q = along / stride_along;
                if (along < 0 || along % stride_along || q >= across) continue;
                const Place column = (channel * kernel_down + a) * kernel_along + b;
                total += Sum(x[((column * images + image) * rows + p) * across + q]);
            }
        }
        y = T(total);
        """,
    ),
    # The largest element of each window; NaN if it has one.
    "pool": (
        "raw T x",
        """
        Place at = i;
        const Place q = at % across; at /= across;
        const Place p = at % rows, image = at / rows;
        bool some = false;
        Sum largest = Sum(0);
        for (Place a = 0; a < kernel_down; ++a) {
            const Place h = p * stride_down + a - pad_down;
            if (h < 0 || h >= height) continue;
            for (Place b = 0; b < kernel_along; ++b) {
                const Place w = q * stride_along + b - pad_along;
                if (w < 0 || w >= width) continue;
                const Sum one = Sum(x[(image * height + h) * width + w]);
                if (!some || one > largest || one != one) largest = one;
                some = true;
            }
        }
        y = T(largest);
        """,
    ),
    # The gradient of each window, for the chosen element: the first of the largest, but the last NaN.
    "pool_backward": (
        "raw T x, raw T found, raw T grad",
        """
        Place at = i;
        const Place w = at % width + pad_along; at /= width;
        const Place h = at % height + pad_down, image = at / height;
        const Place least_p = h < kernel_down ? 0 : (h - kernel_down) / stride_down + 1;
        const Place least_q = w < kernel_along ? 0 : (w - kernel_along) / stride_along + 1;
        const Sum own = Sum(x[i]);
        Sum total = Sum(0);
        for (Place p = least_p; p < rows && p * stride_down <= h; ++p) {
            for (Place q = least_q; q < across && q * stride_along <= w; ++q) {
                const Place window = (image * rows + p) * across + q;
                const Sum largest = Sum(found[window]);
                if (own != largest && own == own) continue;
                bool equal = false;
                Place chosen = -1;
                for (Place a = 0; a < kernel_down && !equal; ++a) {
                    const Place v = p * stride_down + a - pad_down;
                    if (v < 0 || v >= height) continue;
                    for (Place b = 0; b < kernel_along && !equal; ++b) {
                        const Place u = q * stride_along + b - pad_along;
                        if (u < 0 || u >= width) continue;
                        const Place place = (image * height + v) * width + u;
                        const Sum one = Sum(x[place]);
                        equal = one == largest;
                        if (equal || one != one) chosen = place;
                    }
                }
                if (chosen == i) total += Sum(grad[window]);
            }
        }
        y = T(total);
        """,
    ),
}


def unfold(xp: Any, windows: Windows, x: Any, rows: slice, across: int) -> Any:
    """Some rows of windows, each `across` long, on all images: (inputs of a window, windows)."""
    count = rows.stop - rows.start
    out = xp.empty((x.shape[1] * windows.kernel[0] * windows.kernel[1], len(x) * count * across), x.dtype)
    _run(xp, "unfold", windows, (x,), out, (*x.shape, count, across, rows.start))
    return out


def fold(xp: Any, windows: Windows, parts: Any, rows: slice, across: int, out: Any) -> None:
    """Add columns at their positions on C-contiguous images `out`; the first columns overwrite `out`."""
    form = (*out.shape, rows.stop - rows.start, across, rows.start)
    _run(xp, "fold", windows, (parts, int(rows.start > 0)), out, form)


def max_pool2d_on_card(xp: Any, windows: Windows, x: Any, out: Any) -> None:
    """The largest element of each window of images (..., height, width), in a C-contiguous array."""
    _run(xp, "pool", windows, (x,), out, (*_planes(x), *out.shape[-2:], 0))


def max_pool2d_backward_on_card(xp: Any, windows: Windows, x: Any, y: Any, grad: Any, out: Any) -> None:
    """The gradient of each window, given to the element that was chosen from it."""
    _run(xp, "pool_backward", windows, (x, y, grad), out, (*_planes(x), *y.shape[-2:], 0))


def _planes(x: Any) -> tuple[int, int, int, int]:
    height, width = x.shape[-2:]
    return x.size // max(1, height * width), 1, height, width


def _run(xp: Any, name: str, windows: Windows, reads: tuple[Any, ...], out: Any, form: tuple[int, ...]) -> None:
    """Launch a kernel that writes to all of a C-contiguous array; no launch for an array without elements.

    `form` has the first numbers of `_FORM`: the shape of the images, and which rows of windows there are.
    """
    if not out.size:
        return
    flat = [xp.ascontiguousarray(a).reshape(-1) if isinstance(a, xp.ndarray) else a for a in reads]
    short = max(out.size, *[a.size for a in flat if isinstance(a, xp.ndarray)]) < _SHORT
    _kernel(xp, name, short, out.dtype == np.float16)(
        *flat, *form, *[n for pair in windows for n in pair], out.reshape(-1)
    )


@lru_cache(maxsize=32)
def _kernel(xp: Any, name: str, short: bool, half: bool) -> Any:
    """One of the kernels, for CuPy. It adds halves up in single precision."""
    reads, lines = _KERNELS[name]
    types = f"typedef {'int' if short else 'long long'} Place; typedef {'float' if half else 'T'} Sum;"
    return xp.ElementwiseKernel(f"{reads}, {_ARGUMENTS}", "T y", types + lines, f"asyncsched_{name}", no_return=True)
