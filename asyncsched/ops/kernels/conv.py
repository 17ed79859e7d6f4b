"""Kernels of convolution and pooling, and their derivatives.

A convolution is one matrix product: of the weight, (out channels, inputs of a window), with the windows laid out as
columns. Images lie innermost while that is done, so that the runs to copy are long however small an image is. As many
images are taken at a time as have their columns and their results in the cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any, NamedTuple

import numpy as np

from .basic import kept
from .layers import blocks

COLUMNS = 262_144  # elements of the columns, or of the result, made at a time

Pair = tuple[int, int]


class Windows(NamedTuple):
    """How windows lie on images: all of them pairs, of rows and columns."""

    kernel: Pair
    stride: Pair
    padding: Pair
    dilation: Pair

    def fit(self, shape: tuple[int, ...]) -> Pair:
        """How many windows fit on an image of (..., height, width): floor((n + 2p - d(k - 1) - 1) / s) + 1."""
        reach = [d * (k - 1) + 1 for k, d in zip(self.kernel, self.dilation, strict=True)]
        rows, columns = [
            (n + 2 * p - r) // s + 1
            for n, p, r, s in zip(shape[-2:], self.padding, reach, self.stride, strict=True)
        ]  # fmt: skip
        return rows, columns

    def places(self, count: Pair) -> Iterator[tuple[int, int, Any]]:
        """For each place in a window: its row, its column, and where on padded images (height, width, ...) it lies."""
        for row in range(self.kernel[0]):
            for column in range(self.kernel[1]):
                yield row, column, tuple(
                    slice(at * d, at * d + s * n, s)
                    for at, d, s, n in zip((row, column), self.dilation, self.stride, count, strict=True)
                )  # fmt: skip


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
        y = (matrix @ _columns(xp, windows, x[images], count)).reshape(len(weight), *count, -1)
        y = y.transpose(3, 0, 1, 2)
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
        padded = _summed(xp, windows, matrix @ _channels_first(xp, grad[images]), (*shape[1:], len(out[images])), count)
        out[images] = padded[_inside(windows, shape)].transpose(3, 0, 1, 2)
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
        matrix += _channels_first(xp, grad[images]) @ _columns(xp, windows, x[images], count).T
    return out


def max_pool2d(xp: Any, x: Any, *, kernel: Pair, stride: Pair, padding: Pair, out: Any = None) -> Any:
    """The largest element of each window: first of the rows in it, which lie together, then of the columns."""
    rows, columns = Windows(kernel, stride, padding, (1, 1)).fit(x.shape)
    out = xp.empty((*x.shape[:-2], rows, columns), x.dtype) if out is None else out
    for images, result in _planes(xp, x, out):
        padded = _padded(xp, images, padding, -xp.inf)  # less than anything
        lines = _largest(xp, [padded[:, at : at + stride[0] * rows : stride[0]] for at in range(kernel[0])])
        _largest(xp, [lines[..., at : at + stride[1] * columns : stride[1]] for at in range(kernel[1])], result)
    return out


def max_pool2d_backward(
    xp: Any, x: Any, y: Any, grad: Any, *, kernel: Pair, stride: Pair, padding: Pair, out: Any = None
) -> Any:
    """The gradient of each window, given to the element that was chosen from it."""
    windows = Windows(kernel, stride, padding, (1, 1))
    out = xp.empty(x.shape, x.dtype) if out is None else out
    for images, largest, g, result in _planes(xp, x, y, grad, out):
        g = xp.ascontiguousarray(g)
        part, total = xp.empty_like(g), xp.zeros(_padded_plane(images, padding), x.dtype)
        for place, chosen in _choices(xp, windows, images, largest):
            total[place] += kept(xp, g, chosen, out=part)
        result[...] = total[_inside(windows, x.shape)]
    return out


def max_pool2d_gather(
    xp: Any, x: Any, y: Any, other: Any, *, kernel: Pair, stride: Pair, padding: Pair, out: Any = None
) -> Any:
    """What other images have where the elements lie that were chosen: the transpose of `max_pool2d_backward`."""
    windows = Windows(kernel, stride, padding, (1, 1))
    out = xp.empty(y.shape, y.dtype) if out is None else out
    for images, largest, others, result in _planes(xp, x, y, other, out):
        padded = xp.zeros(_padded_plane(images, padding), x.dtype)
        padded[_inside(windows, x.shape)] = others
        result[...] = 0
        for place, chosen in _choices(xp, windows, images, largest):
            result += kept(xp, xp.ascontiguousarray(padded[place]), chosen)
    return out


def _choices(xp: Any, windows: Windows, images: Any, largest: Any) -> Iterator[tuple[Any, Any]]:
    """For each place in a window, where on padded images it lies, and from which windows it was chosen.

    Chosen is the first of the largest elements, but the last NaN, as in PyTorch. Never the padding, which is NaN here:
    so it equals nothing, in a window of -inf either.
    """
    padded = _padded(xp, images, windows.padding, xp.nan)
    places = [(slice(None), *place) for _, _, place in windows.places(largest.shape[1:])]
    done, equal, chosen = [xp.zeros(largest.shape, bool) for _ in range(3)]
    for place in places:
        xp.equal(padded[place], largest, out=equal)
        yield place, xp.greater(equal, done, out=chosen)
        done |= equal
    if xp is np and done.all():  # on a GPU, asking would wait for it
        return
    missing = _padded(xp, xp.isnan(images), windows.padding, False)
    for place in reversed(places):
        yield place, missing[place] > done
        done |= missing[place]


def _planes(xp: Any, *arrays: Any) -> Iterator[list[Any]]:
    """The last two axes of arrays (..., height, width), as many at a time as the first has in a block."""
    planes = [array.reshape(prod(array.shape[:-2]), *array.shape[-2:]) for array in arrays]
    for block in blocks(xp, len(planes[0]), prod(arrays[0].shape[-2:])):
        yield [plane[block] for plane in planes]


def _images(x: Any, weight: tuple[int, ...], count: Pair) -> list[slice]:
    step = images_at_once(weight, count)
    return [slice(start, min(start + step, len(x))) for start in range(0, len(x), step)]


def _columns(xp: Any, windows: Windows, x: Any, count: Pair) -> Any:
    """The windows as a matrix (elements of a window, windows of all images)."""
    images, channels = x.shape[:2]
    image = xp.zeros(_padded_shape(windows, x.shape), x.dtype)
    image[_inside(windows, x.shape)] = x.transpose(1, 2, 3, 0)
    columns = xp.empty((channels, *windows.kernel, *count, images), x.dtype)
    for row, column, place in windows.places(count):
        columns[:, row, column] = image[(slice(None), *place)]
    return columns.reshape(channels * prod(windows.kernel), -1)


def _summed(xp: Any, windows: Windows, columns: Any, shape: tuple[int, ...], count: Pair) -> Any:
    """The transpose of `_columns`: padded images of (channels, height, width, images), of what the windows have."""
    image = xp.zeros(_padded_shape(windows, (shape[3], *shape[:3])), columns.dtype)
    columns = columns.reshape(shape[0], *windows.kernel, *count, -1)
    for row, column, place in windows.places(count):
        image[(slice(None), *place)] += columns[:, row, column]
    return image


def _channels_first(xp: Any, grad: Any) -> Any:
    """(images, channels, rows, columns) as a matrix (channels, windows), images innermost."""
    return xp.ascontiguousarray(grad.transpose(1, 2, 3, 0)).reshape(grad.shape[1], -1)


def _padded_shape(windows: Windows, shape: tuple[int, ...]) -> tuple[int, ...]:
    """(channels, height, width, images) with the padding."""
    images, channels, height, width = shape
    return channels, height + 2 * windows.padding[0], width + 2 * windows.padding[1], images


def _inside(windows: Windows, shape: tuple[int, ...]) -> Any:
    """Where on padded images (..., height, width, ...), with one axis in front, the images themselves are."""
    (up, left), (height, width) = windows.padding, shape[-2:]
    return slice(None), slice(up, up + height), slice(left, left + width)


def _padded(xp: Any, images: Any, padding: Pair, value: Any) -> Any:
    """Images (count, height, width) with a value around them."""
    if padding == (0, 0):
        return images
    return xp.pad(images, ((0, 0), *[(one, one) for one in padding]), constant_values=value)


def _padded_plane(images: Any, padding: Pair) -> tuple[int, ...]:
    """Their shape then."""
    return (len(images), *[n + 2 * p for n, p in zip(images.shape[1:], padding, strict=True)])


def _largest(xp: Any, parts: list[Any], out: Any = None) -> Any:
    first, *rest = parts
    if not rest:
        return first.copy() if out is None else _fill(out, first)
    out = xp.maximum(first, rest.pop(0), out=out)
    for part in rest:
        xp.maximum(out, part, out=out)
    return out


def _fill(out: Any, value: Any) -> Any:
    out[...] = value
    return out
