"""Linear maps, convolutions, rows by number, dropout, attention.

Functions of each element, and the softmax along an axis.

The largest or the mean of windows on images.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from operator import index
from typing import Any, Literal

from ..._instead import naming_arguments
from ...autograd.rules.common import narrow, wide
from ...tensors.functions import concat, expand_dims, moveaxis, pad, squeeze, stack
from ...tensors.functions._common import known_shape, op
from ...tensors.tensor import Tensor
from .common import Padding, Size, check_padding, check_tensors, constant, pair, same_dtype, single

__all__ = [
    "adaptive_avg_pool2d", "avg_pool2d", "conv1d", "conv2d", "dropout", "embedding", "gelu", "leaky_relu", "linear",
    "log_softmax", "max_pool2d", "relu", "scaled_dot_product_attention", "sigmoid", "silu", "softmax", "softplus",
]  # fmt: skip


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x weight^T + bias: x is (..., in), the weight (out, in), the bias (out,), the result (..., out).

    >>> x = await s.put(np.array([1.0, 1.0]))
    >>> y = await s.put(np.array([[1.0, 2.0], [3.0, 4.0]]))
    >>> z = await s.put(np.array([10.0, 20.0]))
    >>> await nn.linear(x, y, z)
    array([13., 27.])
    """
    return op("linear", x, weight) if bias is None else op("linear", x, weight, bias)


def embedding(indices: Tensor, weight: Tensor) -> Tensor:
    """Rows of `weight` (count, width) for integer indices of any shape: (*indices.shape, width).

    On CUDA rows of the gradient that belong to one index are added up by atomics, in any order: the last bits of two
    runs may differ.

    >>> x = await s.put(np.array([1, 0]))
    >>> y = await s.put(np.array([[1.0, 2.0], [3.0, 4.0]]))
    >>> await nn.embedding(x, y)
    array([[3., 4.],
           [1., 2.]])

    Raises:
        IndexError: where the result is awaited, for an index below 0 or too large.
    """
    return op("embedding", weight, indices)


@naming_arguments
def dropout(x: Tensor, p: float, *, seed: int) -> Tensor:
    """Set each element to 0 with probability `p`, or divide it by 1 - p. The same seed drops the same elements.

    `nn.Dropout(p)` takes a new seed for each call, and does nothing in `eval()`. A captured step keeps the seed from
    when it was captured.

    >>> nn.dropout(asc.ones(5), 0.5, seed=0).shape
    (5,)
    """
    check_tensors("dropout", x)
    return op("dropout", x, index(seed), p=p)


def conv1d(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, stride: Size = 1, padding: Size | Padding = 0,
    dilation: Size = 1,
) -> Tensor:  # fmt: skip
    """The convolution of sequences with a weight, computed as that of images of one row.

    >>> x = await s.put(np.array([[[1.0, 2.0, 3.0]]]))
    >>> y = await s.put(np.array([[[1.0, 1.0]]]))
    >>> await nn.conv1d(x, y)
    array([[[3., 5.]]])

    Args:
        x: (sequences, channels, length).
        weight: (out channels, channels, kernel length).
        bias: (out channels,).
        stride, padding, dilation: one number. The padding is of zeros; "same" keeps the length, where the stride is 1.
    """
    check_tensors("conv1d", x, weight)
    if x.ndim != 3 or weight.ndim != 3:
        raise ValueError(
            f"conv1d: the shapes {x.shape} and {weight.shape} must be (sequences, channels, length) and"
            " (out channels, channels, kernel length)"
        )
    sizes: Any = padding if isinstance(padding, str) else (0, *single(padding))
    options = {"stride": (1, *single(stride)), "padding": sizes, "dilation": (1, *single(dilation))}
    return squeeze(conv2d(expand_dims(x, axis=2), expand_dims(weight, axis=2), bias, **options), axis=2)


def conv2d(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, stride: Size = 1, padding: Size | Padding = 0,
    dilation: Size = 1,
) -> Tensor:  # fmt: skip
    """The convolution (in truth a correlation) of images with a weight.

    >>> nn.conv2d(asc.ones((1, 3, 8, 8)), asc.ones((4, 3, 3, 3)), padding=1).shape
    (1, 4, 8, 8)

    Args:
        x: (images, channels, height, width).
        weight: (out channels, channels, rows, columns).
        bias: (out channels,).
        stride, padding, dilation: one number, or one for rows and one for columns. The padding is of zeros. "same" is
            as much as keeps the size, where the stride is 1; of an odd number the larger part is behind. "valid" is 0.

    Returns:
        (images, out channels, ...) with floor((n + 2 padding - dilation (k - 1) - 1) / stride) + 1 rows and columns.
    """
    if isinstance(padding, str):
        x, padding = _padded(x, weight, padding, pair(stride), pair(dilation))
    operands = (x, weight) if bias is None else (x, weight, bias)
    return op("conv2d", *operands, stride=pair(stride), padding=pair(padding), dilation=pair(dilation))


def _padded(
    x: Tensor, weight: Tensor, padding: str, stride: tuple[int, int], dilation: tuple[int, int]
) -> tuple[Tensor, tuple[int, int]]:
    """The images, padded on one side more where that must be, and the padding on both sides, by its name."""
    if check_padding(padding) == "valid" or weight.ndim != 4 or x.ndim != 4:
        return x, (0, 0)
    if stride != (1, 1):
        raise ValueError(f"padding='same' is for a stride of 1, not {stride}: give the padding as numbers")
    both = [step * ((length or 1) - 1) for step, length in zip(dilation, weight.shape[2:], strict=True)]
    if any(total % 2 for total in both):
        x = pad(x, ((0, 0), (0, 0), *[(0, total % 2) for total in both]))
    return x, (both[0] // 2, both[1] // 2)


def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, *,
    is_causal: bool = False, scale: float | None = None,
) -> Tensor:  # fmt: skip
    """softmax(query key^T scale + mask) value, in memory that grows with the length and not with its square.

    >>> nn.scaled_dot_product_attention(asc.ones((1, 2, 5, 8)), asc.ones((1, 2, 7, 8)), asc.ones((1, 2, 7, 8))).shape
    (1, 2, 5, 8)

    Args:
        query: (..., L, E).
        key: (..., S, E), with the same axes in front.
        value: (..., S, Ev).
        attn_mask: broadcasts to (..., L, S); boolean, True where to attend, or numbers to add. Gets no gradient. (As
            in PyTorch, a boolean mask of the module MultiheadAttention means the opposite.)
        is_causal: let position i attend to 0 to i only, in addition to the mask.
        scale: by default 1 / sqrt(E).

    Returns:
        (..., L, Ev).
    """
    parts = (query, key, value)
    check_tensors("scaled_dot_product_attention", *parts)
    mask = mask_operand(attn_mask)
    tracked = any(part._node is not None and part._node.leads_back for part in parts)
    if not tracked and query.dtype == key.dtype == value.dtype:
        return op("attention_unpacked", *parts, mask, causal=is_causal, scale=scale)
    packed = concat([part.reshape(-1) for part in parts])
    shapes = tuple([part.shape for part in parts])
    return op("attention", packed, mask, shapes=shapes, causal=is_causal, scale=scale)


def mask_operand(mask: Tensor | None) -> Any:
    """The mask as an operand of the operation: 0 stands for no mask."""
    if mask is None:
        return 0
    if isinstance(mask, Tensor) and mask.requires_grad:
        raise ValueError("attn_mask gets no gradient: give `mask.detach()`")
    return mask


def relu(x: Tensor) -> Tensor:
    """The larger of each element and 0. The gradient at 0 is 0.

    >>> x = await s.put(np.array([-1.0, 2.0]))
    >>> await nn.relu(x)
    array([0., 2.])
    """
    return _each("relu", x)


def gelu(x: Tensor, approximate: Literal["none", "tanh"] = "none") -> Tensor:
    """x Phi(x), with the normal distribution function Phi, or its approximation by tanh.

    Exact to rounding. In float32 on the CPU exact to 1e-6 at |x| < 10, unless it is issued `with asc.exact():`. D.
    Hendrycks and K. Gimpel, "Gaussian Error Linear Units" (2016), has both formulas.

    >>> x = await s.put(np.array([-1.0, 0.0, 1.0]))
    >>> await nn.gelu(x)
    array([-0.15865525,  0.        ,  0.84134475])
    """
    if approximate not in ("none", "tanh"):
        raise ValueError(f"gelu: approximate={approximate!r} must be 'none' or 'tanh'")
    return _each("gelu", x, approximate=approximate)


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x)).

    >>> x = await s.put(np.array([0.0, 2.0]))
    >>> await nn.sigmoid(x)
    array([0.5       , 0.88079708])
    """
    return _each("sigmoid", x)


def silu(x: Tensor) -> Tensor:
    """x sigmoid(x).

    >>> x = await s.put(np.array([0.0, 2.0]))
    >>> await nn.silu(x)
    array([0.        , 1.76159416])
    """
    check_tensors("silu", x)
    y = wide(x)  # since half precision may not hold the gradient's product with x
    return narrow(y * sigmoid(y), x)


def leaky_relu(x: Tensor, negative_slope: float = 0.01) -> Tensor:
    """Each element where it is positive, else `negative_slope` times it. The gradient at 0 is `negative_slope`.

    >>> x = await s.put(np.array([-1.0, 2.0]))
    >>> await nn.leaky_relu(x)
    array([-0.01,  2.  ])
    """
    return _each("leaky_relu", x, negative_slope=float(negative_slope))


def softplus(x: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """log(1 + exp(beta x)) / beta, and x itself where beta x is above `threshold`.

    >>> x = await s.put(np.array([0.0, 2.0]))
    >>> await nn.softplus(x)
    array([0.69314718, 2.12692801])
    """
    return _each("softplus", x, beta=float(beta), threshold=float(threshold))


def _each(name: str, x: Tensor, **options: Any) -> Tensor:
    """An operation on each element of a tensor."""
    check_tensors(name, x)
    return op(name, x, **options)


@naming_arguments
def softmax(x: Tensor, axis: int = -1) -> Tensor:
    """exp(x) over its sum along an axis, without overflow.

    >>> x = await s.put(np.array([0.0, 0.0]))
    >>> await nn.softmax(x)
    array([0.5, 0.5])
    """
    return _along(x, axis, log=False)


@naming_arguments
def log_softmax(x: Tensor, axis: int = -1) -> Tensor:
    """The logarithm of `softmax`, without overflow or underflow.

    >>> x = await s.put(np.array([0.0, 0.0]))
    >>> await nn.log_softmax(x)
    array([-0.69314718, -0.69314718])
    """
    return _along(x, axis, log=True)


def _along(x: Tensor, axis: int, *, log: bool) -> Tensor:
    check_tensors("log_softmax" if log else "softmax", x)
    if axis in (-1, x.ndim - 1):
        return op("softmax", x, log=log)
    return moveaxis(op("softmax", moveaxis(x, axis, -1), log=log), -1, axis)


_FEW = 256  # elements of a window that are summed at once. Larger windows sum up their columns first, for less rounding


def max_pool2d(x: Tensor, kernel_size: Size, stride: Size | None = None, padding: Size = 0) -> Tensor:
    """The largest element of each window on (..., height, width); by default the windows do not overlap.

    The gradient goes to the first of equal elements. `padding` adds values below any element.

    >>> nn.max_pool2d(asc.ones((1, 3, 8, 8)), 2).shape
    (1, 3, 4, 4)
    """
    check_tensors("max_pool2d", x)
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
