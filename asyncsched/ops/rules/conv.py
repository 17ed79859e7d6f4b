"""Rules of convolution and pooling. All results are C-contiguous; workspace is counted as in `layers`."""

from __future__ import annotations

from math import prod

from ..kernels import by_rows
from ..kernels.blocks import LONG_BLOCK
from ..kernels.windows import SPARE, Pair, Windows, rows_needed, sums_for, tile_size, tiles
from ..meta import meta
from ..op import Inferred, Op, Operand, Options
from .common import Known, as_meta
from .layers import copies, floats, like


def conv2d(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """`conv2d` of x (images, in, height, width), weight (out, in, rows, columns) and perhaps bias (out,)."""
    x, weight, *bias = floats(op, *operands)
    if len(x) != 4 or len(weight) != 4 or x[1] != weight[1]:
        raise ValueError(
            f"conv2d: shapes {x} and {weight} must be (images, channels, height, width) and"
            " (out channels, channels, rows, columns); groups of channels are not supported"
        )
    if bias and bias[0] != weight[:1]:
        raise ValueError(f"conv2d: the bias has shape {bias[0]} and must have {weight[:1]}")
    windows, array = _windows(weight, options), as_meta(operands[0])
    count = _count(op, windows, x)
    elements = _tile_elements(windows, x, weight, count) + weight[0] * (prod(weight[1:]) + 1)
    if by_rows.suits(windows, weight, count[1]):
        elements = max(elements, by_rows.elements(windows, weight, x, count))
    workspace = elements * array.dtype.itemsize
    return Inferred(meta((x[0], weight[0], *count), array.dtype), copies(operands) + workspace)


def conv2d_input_grad(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """The gradient of the images, whose shape is an option; the operands are grad and weight."""
    grad, weight = floats(op, *operands)
    windows, result = _windows(weight, options), meta(options["shape"], as_meta(operands[0]).dtype)
    images, rows = tile_size(weight, grad[0], grad[2:])
    height, line = windows.padded(result.bound)[2:]
    across = line if windows.stride == (1, 1) else grad[3]
    room = result.bound[1] * (height * line + windows.reach[1])
    elements = images * (room + (prod(weight[1:]) + weight[0]) * rows * across)
    if by_rows.suits_input_grad(windows, weight, result.bound):
        elements = max(elements, by_rows.elements_input_grad(windows, weight, grad, result.bound[2:]))
    return Inferred(result, copies(operands) + elements * result.dtype.itemsize + prod(weight))


def conv2d_weight_grad(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """The gradient of the weight, whose shape is an option; the operands are grad and x."""
    grad, x = floats(op, *operands)
    windows, result = _windows(options["shape"], options), meta(options["shape"], as_meta(operands[0]).dtype)
    elements = _tile_elements(windows, x, result.bound, grad[2:])
    sums = sums_for(result.bound, len(tiles(result.bound, x[0], grad[2:])), result.dtype.itemsize)
    elements += (sums + 1) * prod(result.bound)
    return Inferred(result, copies(operands) + elements * result.dtype.itemsize)


def max_pool2d(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """`max_pool2d` of (..., height, width)."""
    shape, array, padding = floats(op, operands[0])[0], as_meta(operands[0]), options["padding"]
    if any(2 * p > k for p, k in zip(padding, options["kernel"], strict=True)):
        raise ValueError(f"max_pool2d: padding {padding} must be at most half of the kernel {options['kernel']}")
    if len(shape) < 2:
        raise ValueError(f"max_pool2d: shape {shape} must be (..., height, width)")
    count = _count(op, Windows(options["kernel"], options["stride"], padding, (1, 1)), shape)
    return Inferred(meta((*shape[:-2], *count), array.dtype), _pool_bytes(operands, padding, 4))


def max_pool2d_backward(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """The gradient of `max_pool2d`; the operands are x, its result and grad."""
    return like(operands[0], _pool_bytes(operands, options["padding"], 6))


def max_pool2d_gather(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """Other images where the largest elements lie; the operands are x, its result and those images."""
    return like(operands[1], _pool_bytes(operands, options["padding"], 6))


def _windows(weight: Known, options: Options) -> Windows:
    return Windows((weight[2], weight[3]), options["stride"], options["padding"], options["dilation"])


def _count(op: Op, windows: Windows, shape: Known) -> Pair:
    if min((*windows.kernel, *windows.stride, *windows.dilation)) < 1 or min(windows.padding) < 0:
        raise ValueError(f"{op.name}: {windows} must be positive, and the padding not negative")
    count = windows.fit(shape)
    if min(count) < 1:
        raise ValueError(f"{op.name}: images of {shape[-2:]} are smaller than the window of {windows}")
    return count


def _tile_elements(windows: Windows, x: Known, weight: Known, count: Known) -> int:
    """The number of elements in what is made for one tile: its lines, the columns or first the padded images, and a
    result or its gradient.
    """
    images, rows = tile_size(weight, x[0], count)
    seen = x[1] * rows_needed(windows, rows)
    padded, lines = seen * (x[3] + 2 * windows.padding[1]), seen * windows.kernel[1] * count[1]
    inputs = prod(weight[1:]) + 1  # of a window, and ones
    columns = inputs * (rows * count[1] + SPARE)
    return images * (lines + max(columns, padded) + weight[0] * rows * count[1])


def _pool_bytes(operands: tuple[Operand, ...], padding: Pair, arrays: int) -> int:
    """Bytes of some arrays of padded images, of as many as are in a block. None of the arrays is larger."""
    array = as_meta(operands[0])
    height, width = array.bound[-2:]
    images = min(prod(array.bound[:-2]), max(1, LONG_BLOCK // max(1, height * width)))
    padded: int = (height + 2 * padding[0]) * (width + 2 * padding[1]) * array.dtype.itemsize
    return copies(operands) + arrays * images * padded
