"""Kernels of convolution and its derivatives.

A convolution is one matrix product: of the weight, (out channels, inputs of a window), with the windows laid out as
columns. Images lie innermost while that is done, so that the runs to copy are long however small an image is. As many
images are taken at a time as have their columns and their results in the cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any, NamedTuple

import numpy as np

COLUMNS = 262_144  # elements of the columns, or of the result, made at a time
_SHORT = 256  # elements of a row of windows; longer runs are copied as fast as any

Pair = tuple[int, int]


class Windows(NamedTuple):
    """How windows lie on images: all of them pairs, of rows and columns."""

    kernel: Pair
    stride: Pair
    padding: Pair
    dilation: Pair

    @property
    def reach(self) -> list[int]:
        """How many rows and columns of a padded image a window spans."""
        return [d * (k - 1) + 1 for k, d in zip(self.kernel, self.dilation, strict=True)]

    def fit(self, shape: tuple[int, ...]) -> Pair:
        """How many windows fit on an image of (..., height, width): floor((n + 2p - d(k - 1) - 1) / s) + 1."""
        rows, columns = [
            (n + 2 * p - r) // s + 1
            for n, p, r, s in zip(shape[-2:], self.padding, self.reach, self.stride, strict=True)
        ]  # fmt: skip
        return rows, columns

    def in_runs(self, shape: tuple[int, ...], count: Pair) -> bool:
        """Whether windows side by side lie so on padded images (images, channels, height, width), edges included.

        And whether it pays to make columns for the edges too: they cost a little of each product, and whole images are
        copied at once, where a row of a few small images is a short run.
        """
        edges = shape[3] + 2 * self.padding[1] - count[1]
        return self.stride == (1, 1) and count[1] * shape[0] < _SHORT and edges * 8 <= count[1]

    def places(self, count: Pair) -> Iterator[tuple[int, int, Any]]:
        """For each place in a window: its row, its column, and where on padded images (height, width, ...) it lies."""
        for row in range(self.kernel[0]):
            for column in range(self.kernel[1]):
                yield row, column, tuple(
                    slice(at * d, at * d + s * n, s)
                    for at, d, s, n in zip((row, column), self.dilation, self.stride, count, strict=True)
                )  # fmt: skip

    def starts(self, line: int, images: int) -> Iterator[tuple[int, int, int]]:
        """For each place in a window: its row, its column, and where it begins on images in lines."""
        for row in range(self.kernel[0]):
            for column in range(self.kernel[1]):
                yield row, column, row * self.dilation[0] * line + column * self.dilation[1] * images


def images_at_once(weight: tuple[int, ...], count: Pair) -> int:
    """How many images are taken together for a weight of this shape."""
    return max(1, COLUMNS // max(1, max(weight[0], prod(weight[1:])) * prod(count)))


def conv2d(
    xp: Any, x: Any, weight: Any, *bias: Any, stride: Pair, padding: Pair, dilation: Pair, out: Any = None
) -> Any:
    """The products of a window and the weight, summed: (images, out channels, rows, columns)."""
    windows = Windows(weight.shape[2:], stride, padding, dilation)
    count = windows.fit(x.shape)
    out = xp.empty((len(x), len(weight), *count), x.dtype) if out is None else out
    matrix = weight.reshape(len(weight), -1)
    for images in _images(x, weight.shape, count):
        columns = _columns_with_edges if windows.in_runs(x[images].shape, count) else _columns
        y = (matrix @ columns(xp, windows, x[images], count)).reshape(len(weight), count[0], -1, len(x[images]))
        y = y[:, :, : count[1]].transpose(3, 0, 1, 2)
        if bias:
            xp.add(y, bias[0][:, None, None], out=out[images])
        else:
            out[images] = y
    return out


def conv2d_input_grad(
    xp: Any, grad: Any, weight: Any, *, shape: Any, stride: Pair, padding: Pair, dilation: Pair, out: Any = None
) -> Any:
    """The gradient of the images: each window's part added where it came from."""
    windows = Windows(weight.shape[2:], stride, padding, dilation)
    count = windows.fit(shape)
    out = xp.empty(shape, grad.dtype) if out is None else out
    matrix = weight.reshape(len(weight), -1).T
    for images in _images(out, weight.shape, count):
        sizes = (len(out[images]), *shape[1:])
        if _takes_edges(xp, windows, sizes, count, weight):
            padded = _summed_with_edges(xp, windows, matrix @ _with_edges(xp, windows, grad[images], sizes), sizes)
        else:
            padded = _summed(xp, windows, matrix @ _channels_first(xp, grad[images]), sizes, count)
        out[images] = padded[inside(windows, shape)].transpose(3, 0, 1, 2)
        del padded
    return out


def conv2d_weight_grad(
    xp: Any, grad: Any, x: Any, *, shape: Any, stride: Pair, padding: Pair, dilation: Pair, out: Any = None
) -> Any:
    """The gradient of the weight: products of the windows and the gradient, summed over windows and images."""
    windows = Windows(shape[2:], stride, padding, dilation)
    count = windows.fit(x.shape)
    out = xp.empty(shape, grad.dtype) if out is None else out
    out[...] = 0
    matrix = out.reshape(shape[0], -1)
    for images in _images(x, shape, count):
        if _takes_edges(xp, windows, x[images].shape, count, x[images]):
            edged = _with_edges(xp, windows, grad[images], x[images].shape)
            matrix += edged @ _columns_with_edges(xp, windows, x[images], count).T
            del edged
        else:
            matrix += _channels_first(xp, grad[images]) @ _columns(xp, windows, x[images], count).T
    return out


def _images(x: Any, weight: tuple[int, ...], count: Pair) -> list[slice]:
    step = images_at_once(weight, count)
    return [slice(start, min(start + step, len(x))) for start in range(0, len(x), step)]


def _columns(xp: Any, windows: Windows, x: Any, count: Pair) -> Any:
    """The windows as a matrix (elements of a window, windows of all images)."""
    images, channels = x.shape[:2]
    image = xp.zeros(_padded_shape(windows, x.shape), x.dtype)
    image[inside(windows, x.shape)] = x.transpose(1, 2, 3, 0)
    columns = xp.empty((channels, *windows.kernel, *count, images), x.dtype)
    for row, column, place in windows.places(count):
        columns[:, row, column] = image[(slice(None), *place)]
    return columns.reshape(channels * prod(windows.kernel), -1)


def _columns_with_edges(xp: Any, windows: Windows, x: Any, count: Pair) -> Any:
    """The same with columns of no meaning after each row of windows, where a window would lie across the edge."""
    room, image, line = _lines(xp, windows, x.shape, x.dtype)
    image[inside(windows, x.shape)] = x.transpose(1, 2, 3, 0)
    columns = xp.empty((x.shape[1], *windows.kernel, count[0] * line), x.dtype)
    for row, column, start in windows.starts(line, len(x)):
        columns[:, row, column] = room[:, start : start + count[0] * line]
    return columns.reshape(x.shape[1] * prod(windows.kernel), -1)


def _summed(xp: Any, windows: Windows, columns: Any, shape: tuple[int, ...], count: Pair) -> Any:
    """The transpose of `_columns`: padded images of (channels, height, width, images), of what the windows have."""
    image = xp.zeros(_padded_shape(windows, shape), columns.dtype)
    columns = columns.reshape(shape[1], *windows.kernel, *count, -1)
    for row, column, place in windows.places(count):
        image[(slice(None), *place)] += columns[:, row, column]
    return image


def _summed_with_edges(xp: Any, windows: Windows, columns: Any, shape: tuple[int, ...]) -> Any:
    """The transpose of `_columns_with_edges`."""
    room, image, line = _lines(xp, windows, shape, columns.dtype)
    columns = columns.reshape(shape[1], *windows.kernel, -1)
    for row, column, start in windows.starts(line, shape[0]):
        room[:, start : start + columns.shape[-1]] += columns[:, row, column]
    return image


def _takes_edges(xp: Any, windows: Windows, shape: tuple[int, ...], count: Pair, times_zero: Any) -> bool:
    """Whether gradients may be zeros at the edges: where that pays, and what they meet there is finite."""
    return xp is np and windows.in_runs(shape, count) and bool(np.isfinite(times_zero).all())


def _with_edges(xp: Any, windows: Windows, grad: Any, shape: tuple[int, ...]) -> Any:
    """As `_channels_first`, with zeros after each row of windows."""
    images, channels, rows, columns = grad.shape
    found = xp.empty((channels, rows, _padded_shape(windows, shape)[2], images), grad.dtype)
    found[:, :, :columns] = grad.transpose(1, 2, 3, 0)
    found[:, :, columns:] = 0
    return found.reshape(channels, -1)


def _lines(xp: Any, windows: Windows, shape: tuple[int, ...], dtype: Any) -> tuple[Any, Any, int]:
    """Zeros for padded images as one line for each channel, with room behind; the images; elements of a row of them."""
    padded = _padded_shape(windows, shape)
    line = padded[2] * shape[0]
    room = xp.zeros((shape[1], padded[1] * line + windows.reach[1] * shape[0]), dtype)
    return room, room[:, : padded[1] * line].reshape(padded), line


def _channels_first(xp: Any, grad: Any) -> Any:
    """(images, channels, rows, columns) as a matrix (channels, windows), images innermost."""
    return xp.ascontiguousarray(grad.transpose(1, 2, 3, 0)).reshape(grad.shape[1], -1)


def _padded_shape(windows: Windows, shape: tuple[int, ...]) -> tuple[int, ...]:
    """(channels, height, width, images) with the padding."""
    images, channels, height, width = shape
    return channels, height + 2 * windows.padding[0], width + 2 * windows.padding[1], images


def inside(windows: Windows, shape: tuple[int, ...]) -> Any:
    """Where on padded images (..., height, width, ...), with one axis in front, the images themselves are."""
    (up, left), (height, width) = windows.padding, shape[-2:]
    return slice(None), slice(up, up + height), slice(left, left + width)
