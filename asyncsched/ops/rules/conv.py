"""Rules of convolution and pooling. All results are C-contiguous; workspace is counted as in `layers`."""

from __future__ import annotations

from math import prod

from ..kernels.conv import Pair, Windows, images_at_once
from ..kernels.layers import BLOCK
from ..meta import meta
from ..row import Inferred, Operand, Options, Row
from .common import Known, as_meta
from .layers import copies, floats, like


def conv2d(row: Row, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """`conv2d` of x (images, in, height, width), weight (out, in, rows, columns) and perhaps bias (out,)."""
    x, weight, *bias = floats(row, *operands)
    if len(x) != 4 or len(weight) != 4 or x[1] != weight[1]:
        raise ValueError(
            f"conv2d: shapes {x} and {weight} must be (images, channels, height, width) and"
            " (out channels, channels, rows, columns); groups of channels are not supported"
        )
    if bias and bias[0] != weight[:1]:
        raise ValueError(f"conv2d: the bias has shape {bias[0]} and must have {weight[:1]}")
    count = _count(row, _windows(weight, options), x)
    result = meta((x[0], weight[0], *count), as_meta(operands[0]).dtype)
    return Inferred(result, _conv_bytes(x, weight, operands, options))


def conv2d_input_grad(row: Row, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """The gradient of the images, whose shape is an option; the operands are grad and weight."""
    _, weight = floats(row, *operands)
    result = meta(options["shape"], as_meta(operands[0]).dtype)
    return Inferred(result, _conv_bytes(options["shape"], weight, operands, options))


def conv2d_weight_grad(row: Row, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """The gradient of the weight, whose shape is an option; the operands are grad and x."""
    _, x = floats(row, *operands)
    result = meta(options["shape"], as_meta(operands[0]).dtype)
    return Inferred(result, _conv_bytes(x, options["shape"], operands, options) + result.nbytes)


def max_pool2d(row: Row, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """`max_pool2d` of (..., height, width)."""
    shape, array, padding = floats(row, operands[0])[0], as_meta(operands[0]), options["padding"]
    if any(2 * p > k for p, k in zip(padding, options["kernel"], strict=True)):
        raise ValueError(f"max_pool2d: padding {padding} must be at most half of the kernel {options['kernel']}")
    if len(shape) < 2:
        raise ValueError(f"max_pool2d: shape {shape} must be (..., height, width)")
    count = _count(row, Windows(options["kernel"], options["stride"], padding, (1, 1)), shape)
    return Inferred(meta((*shape[:-2], *count), array.dtype), _pool_bytes(operands, padding, 4))


def max_pool2d_backward(row: Row, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """The gradient of `max_pool2d`; the operands are x, its result and grad."""
    return like(operands[0], _pool_bytes(operands, options["padding"], 6))


def max_pool2d_gather(row: Row, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """Other images where the largest elements lie; the operands are x, its result and those images."""
    return like(operands[1], _pool_bytes(operands, options["padding"], 6))


def _windows(weight: Known, options: Options) -> Windows:
    return Windows((weight[2], weight[3]), options["stride"], options["padding"], options["dilation"])


def _count(row: Row, windows: Windows, shape: Known) -> Pair:
    if min((*windows.kernel, *windows.stride, *windows.dilation)) < 1 or min(windows.padding) < 0:
        raise ValueError(f"{row.name}: {windows} must be positive, and the padding not negative")
    count = windows.fit(shape)
    if min(count) < 1:
        raise ValueError(f"{row.name}: images of {shape[-2:]} are smaller than the window of {windows}")
    return count


def _conv_bytes(x: Known, weight: Known, operands: tuple[Operand, ...], options: Options) -> int:
    windows = _windows(weight, options)
    count = windows.fit(x)
    images = min(x[0], images_at_once(weight, count))
    padded = prod(n + 2 * p for n, p in zip(x[2:], options["padding"], strict=True)) * x[1]
    if windows.in_runs((images, *x[1:]), count):
        count = (count[0], x[3] + 2 * windows.padding[1])
    columns = x[1] * prod(windows.kernel) * prod(count)
    per_image = columns + 2 * weight[0] * prod(count) + padded + x[1] * windows.reach[1]
    block: int = images * per_image * as_meta(operands[0]).dtype.itemsize
    return copies(operands) + block


def _pool_bytes(operands: tuple[Operand, ...], padding: Pair, arrays: int) -> int:
    """Bytes of some arrays of padded images, of as many as are in a block. None of the arrays is larger."""
    array = as_meta(operands[0])
    height, width = array.bound[-2:]
    images = min(prod(array.bound[:-2]), max(1, BLOCK // max(1, height * width)))
    padded: int = (height + 2 * padding[0]) * (width + 2 * padding[1]) * array.dtype.itemsize
    return copies(operands) + arrays * images * padded
