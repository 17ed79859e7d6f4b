"""The largest or the mean of windows on images."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ...tensors.functions import stack
from ...tensors.functions._common import known_shape, op
from ...tensors.tensor import Tensor
from .common import Size, constant, pair, same_dtype
from .layers import conv2d

_FEW = 256  # elements of a window that are summed at once. Larger windows sum up their columns first, for less rounding


def max_pool2d(x: Tensor, kernel_size: Size, stride: Size | None = None, padding: Size = 0) -> Tensor:
    """The largest element of each window on (..., height, width); by default the windows do not overlap.

    The gradient goes to the first of equal elements. `padding` adds values below any element.

    >>> nn.max_pool2d(asc.ones((1, 3, 8, 8)), 2).shape
    (1, 3, 4, 4)
    """
    kernel = pair(kernel_size)
    steps = kernel if stride is None else pair(stride)
    return op("max_pool2d", x, kernel=kernel, stride=steps, padding=pair(padding))


def avg_pool2d(
    x: Tensor, kernel_size: Size, stride: Size | None = None, padding: Size = 0, *,
    count_include_pad: bool = True, divisor_override: int | None = None,
) -> Tensor:  # fmt: skip
    """The mean of each window on (..., height, width): a convolution with equal weights.

    >>> nn.avg_pool2d(asc.ones((1, 3, 8, 8)), 2).shape
    (1, 3, 4, 4)

    Args:
        x: images.
        kernel_size, stride, padding: one number, or one for rows and one for columns; by default the windows do not
            overlap. The padding is of zeros.
        count_include_pad: whether the padding counts.
        divisor_override: divide by this number instead of the number of elements.
    """
    same_dtype("avg_pool2d", x)
    kernel, (*lead, height, width) = pair(kernel_size), _images("avg_pool2d", x)
    steps, around = kernel if stride is None else pair(stride), pair(padding)
    if any(2 * p > k for p, k in zip(around, kernel, strict=True)):
        raise ValueError(f"avg_pool2d: padding {around} must be at most half of the kernel {kernel}")

    def sums(images: Tensor, weight: float) -> Tensor:
        if prod(kernel) <= _FEW:
            return conv2d(images, constant(x, (1, 1, *kernel), weight), stride=steps, padding=around)
        rows, columns = kernel  # means first, since half precision may not hold the sums
        down, across = constant(x, (1, 1, rows, 1), 1 / rows), constant(x, (1, 1, 1, columns), weight * rows)
        images = conv2d(images, down, stride=(steps[0], 1), padding=(around[0], 0))
        return conv2d(images, across, stride=(1, steps[1]), padding=(0, around[1]))

    images = x.reshape(prod(lead), 1, height, width)
    if count_include_pad or divisor_override is not None:
        means = sums(images, 1 / (prod(kernel) if divisor_override is None else divisor_override))
    else:
        means = sums(images, 1) / sums(constant(x, (1, 1, height, width), 1), 1)
    return means.reshape(*lead, *means.shape[-2:])


def adaptive_avg_pool2d(x: Tensor, output_size: int | Sequence[int | None] | None) -> Tensor:
    """The means of windows that are laid so that (..., height, width) gives `output_size` rows and columns.

    Window i of n on a length m reaches from floor(i m / n) to ceil((i + 1) m / n).

    >>> nn.adaptive_avg_pool2d(asc.ones((1, 3, 8, 8)), 2).shape
    (1, 3, 2, 2)

    Args:
        x: images.
        output_size: one number, or one for rows and one for columns; None for as many as there are.
    """
    same_dtype("adaptive_avg_pool2d", x)
    _images("adaptive_avg_pool2d", x)
    rows, columns = output_size if isinstance(output_size, Sequence) else (output_size, output_size)
    return _averaged(_averaged(x, x.ndim - 1, columns), x.ndim - 2, rows)


def _images(name: str, x: Tensor) -> tuple[int, ...]:
    if x.ndim < 2:
        raise ValueError(f"{name}: shape {x.shape} must be (..., height, width)")
    return known_shape(x, name)


def _averaged(x: Tensor, axis: int, count: int | None) -> Tensor:
    """The means of `count` parts of an axis."""
    shape = known_shape(x, "adaptive_avg_pool2d")
    length = shape[axis]
    if count is None or count == length:
        return x
    if count < 1:
        raise ValueError(f"adaptive_avg_pool2d: output_size={count} must be at least 1 in each direction, or None")
    if length % count == 0:
        return x.reshape(*shape[:axis], count, length // count, *shape[axis + 1 :]).mean(axis=axis + 1)
    ends = [(i * length // count, -(-(i + 1) * length // count)) for i in range(count)]
    before = (slice(None),) * axis
    return stack([x[(*before, slice(start, end))].mean(axis=axis) for start, end in ends], axis=axis)
