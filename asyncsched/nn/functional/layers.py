"""The functions of layers.

They are linear maps, convolutions, rows by number, dropout and attention; functions of each element, and the softmax
along an axis; the largest or the mean of windows on images; and normalization to mean 0 and variance 1, with its
running statistics. Last come helpers of all functions: sizes, the reduction of a loss, and constants beside an operand.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from operator import index
from typing import Any, Literal

import numpy as np

from ..._core.model import Value
from ..._instead import naming_arguments
from ...autograd import no_grad
from ...autograd.rules.common import narrow, wide
from ...autograd.transaction import transaction
from ...tensors.arguments import kind_of, scalar
from ...tensors.functions import concat, expand_dims, full, mean, moveaxis, pad, sqrt, square, squeeze, stack
from ...tensors.functions._common import known_shape, lengths, op
from ...tensors.handles import runtime_of
from ...tensors.tensor import Tensor

__all__ = [
    "adaptive_avg_pool2d", "avg_pool2d", "batch_norm", "conv1d", "conv2d", "dropout", "embedding", "gelu", "group_norm",
    "layer_norm", "leaky_relu", "linear", "log_softmax", "max_pool2d", "relu", "rms_norm",
    "scaled_dot_product_attention", "sigmoid", "silu", "softmax", "softplus",
]  # fmt: skip

Size = int | Sequence[int]
Padding = Literal["same", "valid"]


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
    if isinstance(attn_mask, Tensor) and attn_mask.requires_grad:
        raise ValueError("attn_mask gets no gradient: give `mask.detach()`")
    parts = (query, key, value)
    check_tensors("scaled_dot_product_attention", *parts)
    mask = 0 if attn_mask is None else attn_mask
    tracked = any(part._node is not None and part._node.leads_back for part in parts)
    if not tracked and query.dtype == key.dtype == value.dtype:
        return op("attention_unpacked", *parts, mask, causal=is_causal, scale=scale)
    packed = concat([part.reshape(-1) for part in parts])
    shapes = tuple([part.shape for part in parts])
    return op("attention", packed, mask, shapes=shapes, causal=is_causal, scale=scale)


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


def layer_norm(
    x: Tensor, normalized_shape: int | Sequence[int | None], weight: Tensor | None = None, bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    """(x - mean) / sqrt(variance + eps) weight + bias, over the last axes of x.

    >>> x = await s.put(np.array([[1.0, 3.0]]))
    >>> await nn.layer_norm(x, 2, eps=0.0)
    array([[-1.,  1.]])

    Args:
        x: (..., *normalized_shape).
        normalized_shape: the shape of these axes, and of `weight` and `bias`.
        weight, bias: one number for every place in these axes; by default 1 and 0.
        eps: keeps the quotient finite.

    Raises:
        ValueError, TypeError: for shapes that do not fit.
    """
    check_tensors("layer_norm", x)
    if isinstance(normalized_shape, Tensor):
        raise TypeError("layer_norm: normalized_shape is a shape: layer_norm(x, weight.shape, weight, bias)")
    # To ask only for an abstract class would take longer than half of the rest.
    shape = tuple(normalized_shape) if isinstance(normalized_shape, (tuple, Sequence)) else (normalized_shape,)
    if weight is not None and shape != weight.shape:
        raise ValueError(f"layer_norm: the weight has shape {weight.shape}, and normalized_shape is {shape}")
    if weight is None or bias is None:
        known = tuple([length for length in shape if length is not None])
        weight = constant(x, known, 1) if weight is None else weight
        bias = constant(x, known, 0) if bias is None else bias
    return op("layer_norm", x, weight, bias, eps=eps)


def rms_norm(
    x: Tensor, normalized_shape: int | Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """x / sqrt(mean of squares + eps) weight, over the last axes of x.

    >>> x = await s.put(np.array([[3.0, 4.0]]))
    >>> await nn.rms_norm(x, 2, eps=0.0)
    array([[0.84852814, 1.13137085]])

    Args:
        x: (..., *normalized_shape).
        normalized_shape: the shape of these axes, and of `weight`.
        weight: one number for every place in these axes.
        eps: keeps the quotient finite; by default the dtype's, and that of float32 for half precision.
    """
    same_dtype("rms_norm", x, weight)
    shape = lengths(normalized_shape)
    if not shape or x.shape[-len(shape) :] != shape or (weight is not None and weight.shape != shape):
        text = "" if weight is None else f" and the weight {weight.shape}"
        raise ValueError(f"rms_norm: x has shape {x.shape}{text}: they must end in normalized_shape={shape}")
    y, axes = wide(x), tuple(range(-len(shape), 0))
    eps = float(np.finfo(y.dtype).eps) if eps is None else eps
    y = narrow(y / sqrt(mean(square(y), axis=axes, keepdims=True) + eps), x)
    return y if weight is None else y * weight


def group_norm(
    x: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """Each group of channels of each example brought to mean 0 and variance 1, times `weight` plus `bias`.

    >>> nn.group_norm(asc.ones((2, 4, 3)), 2).shape
    (2, 4, 3)

    Args:
        x: (examples, channels, ...).
        num_groups: how many groups of neighbouring channels, all of one size.
        weight, bias: (channels,).
        eps: keeps the quotient finite.
    """
    shape = _examples("group_norm", x, weight, bias)
    if num_groups < 1 or shape[1] % num_groups:
        raise ValueError(f"group_norm: {shape[1]} channels do not make {num_groups} equal groups")
    grouped = wide(x).reshape(shape[0], num_groups, prod(shape[1:]) // num_groups)
    _, centred, variance = _centred(grouped, (2,))
    y = narrow(centred / sqrt(variance + eps), x).reshape(shape)
    y = y if weight is None else y * _by_channel(weight, x)
    return y if bias is None else y + _by_channel(bias, x)


def batch_norm(
    x: Tensor, running_mean: Tensor | None, running_var: Tensor | None, weight: Tensor | None = None,
    bias: Tensor | None = None, training: bool = False, momentum: float = 0.1, eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    """Each channel brought to mean 0 and variance 1 over all examples, times `weight` plus `bias`.

    >>> x = await s.put(np.array([[1.0], [3.0]]))
    >>> await nn.batch_norm(x, None, None, training=True)
    array([[-0.999995],
           [ 0.999995]])

    Args:
        x: (examples, channels, ...).
        running_mean, running_var: (channels,), used outside of training. In training these handles move to new
            versions: both, or none if the batch failed or was cancelled.
        weight, bias: (channels,).
        training: use mean and variance of this batch.
        momentum: how much of this batch goes into the running statistics.
        eps: keeps the quotient finite.

    Raises:
        ValueError, TypeError: for arguments that do not fit, and in training for channels of a single element.
        QueueFull, TaskTooLarge: if there is no room for the running statistics. Then they have not moved.
        CaptureError: in training with running statistics, while a step is captured.
    """
    running = None if running_mean is None or running_var is None else (running_mean, running_var)
    return counted_batch_norm(x, running, weight, bias, training, momentum, eps, None)


def counted_batch_norm(
    x: Tensor, running: Sequence[Tensor] | None, weight: Tensor | None, bias: Tensor | None, training: bool,
    momentum: float | None, eps: float, count: Tensor | None,
) -> Tensor:  # fmt: skip
    """The same, with the count of batches, which moves too. A momentum of None gives the mean over all batches."""
    if training:
        y, found = _normalized_by_batch(x, weight, bias, eps)
        if running is not None:
            _move_statistics(running, found, momentum, count)
        return y
    if running is None:
        raise ValueError("batch_norm: outside of training it needs running_mean and running_var")
    _examples("batch_norm", x, weight, bias, *running)
    scale = 1 / sqrt(wide(running[1]) + eps)
    centred = wide(x) - _by_channel(wide(running[0]), x)
    return _scaled(x, centred, _by_channel(scale, x), weight, bias)


def _normalized_by_batch(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Each channel brought to mean 0 and variance 1; and its mean and sample variance."""
    shape = _examples("batch_norm", x, weight, bias)
    count = prod(shape) // max(shape[1], 1)
    if count < 2:
        raise ValueError(
            f"batch_norm: in training a channel needs more than one element, and the shape is {shape}: use a larger"
            " batch, or `model.eval()`"
        )
    middle, centred, variance = _centred(wide(x), (0, *range(2, len(shape))))
    y = _scaled(x, centred, 1 / sqrt(variance + eps), weight, bias)
    spread = variance.detach() * (count / (count - 1))
    return y, (middle.detach().reshape(shape[1]), spread.reshape(shape[1]))


def _move_statistics(
    running: Sequence[Tensor], found: Sequence[Tensor], momentum: float | None, count: Tensor | None
) -> None:
    """Update running statistics by those of a batch: all of them, or none if the batch's failed or were cancelled.

    It is a commit, as an optimiser's step is: so one bad batch is left out, and later ones go on from there.

    Args:
        running: handles, which move to new versions.
        found: the statistics of the batch, in the same shapes.
        momentum: how much of the batch goes in; None for the mean over all batches.
        count: the count of batches, which moves too.
    """
    handles = [*running] if count is None else [*running, count]
    runtime = runtime_of(handles[0]._value)
    versions: dict[Value, Value | None] = {}
    what, cure = "batch_norm's running statistics", "call `module.eval()` first, or leave it out of the step"
    with no_grad(), transaction(runtime, what, cure=cure, versions=versions):
        batches = None if count is None else count.detach() + 1
        moved = [_mixed(old.detach(), new, momentum, batches) for old, new in zip(running, found, strict=True)]
        moved += [] if batches is None else [batches]
        versions |= {new._value: old._value for old, new in zip(handles, moved, strict=True)}
    for handle in handles:
        handle._move(moved.pop(0))
    del versions, batches
    runtime.dispatch()


def _mixed(old: Tensor, new: Tensor, momentum: float | None, batches: Tensor | None) -> Tensor:
    new = new if new.dtype == old.dtype else new.astype(old.dtype)
    if momentum is not None or batches is None:
        share = 0.0 if momentum is None else momentum
        return op("axpby", old, new, 1 - share, share)
    return old + (new - old) / batches.astype(old.dtype)


def _scaled(x: Tensor, centred: Tensor, scale: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    scale = scale if weight is None else scale * _by_channel(wide(weight), x)
    y = centred * scale
    return narrow(y if bias is None else y + _by_channel(wide(bias), x), x)


def _centred(x: Tensor, axes: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """The mean, the deviations from it, and the mean of their squares."""
    middle = mean(x, axis=axes, keepdims=True)
    centred = x - middle
    return middle, centred, mean(square(centred), axis=axes, keepdims=True)


def _examples(name: str, x: Tensor, *by_channel: Tensor | None) -> tuple[int, ...]:
    """Check the shape (examples, channels, ...) against the operands that have a number for each channel."""
    same_dtype(name, x, *by_channel)
    shape = known_shape(x, name)
    if len(shape) < 2:
        raise ValueError(f"{name}: shape {shape} must be (examples, channels, ...)")
    for one in by_channel:
        if one is not None and one.shape != shape[1:2]:
            raise ValueError(f"{name}: x has shape {shape}, and an operand of its channels has shape {one.shape}")
    return shape


def _by_channel(numbers: Tensor, x: Tensor) -> Tensor:
    return numbers.reshape(1, -1, *[1] * (x.ndim - 2))


# -- helpers of all functions ------------------------------------------------------------------------------------------


def pair(size: Size) -> tuple[int, int]:
    """One number for rows and one for columns."""
    sizes = _sizes(size)
    rows, columns = sizes if isinstance(size, Sequence) else sizes * 2
    return rows, columns


def single(size: Size) -> tuple[int]:
    """One number, also if given as a sequence of one."""
    (length,) = _sizes(size)
    return (length,)


def _sizes(size: Size) -> tuple[int, ...]:
    if isinstance(size, str):  # PyTorch's padding="same" and "valid", where there is none of it
        raise TypeError(f"{size!r} is no size: give numbers; `padding=kernel_size // 2` keeps the size at stride 1")
    return lengths(size)


def check_padding(padding: str) -> str:
    """A padding that is given by name. Raises ValueError for another name."""
    if padding not in ("same", "valid"):
        raise ValueError(f"padding={padding!r} must be a size, 'same' or 'valid'")
    return padding


def constant(x: Tensor, shape: tuple[int, ...], value: float) -> Tensor:
    """A constant tensor, with the dtype and the device of `x`."""
    return full(shape, value, dtype=x.dtype, device=x.device, scheduler=runtime_of(x._value))


def check_tensors(name: str, *operands: object) -> None:
    """Refuse lists, arrays, numbers and None, with the cure."""
    for operand in operands:
        if not isinstance(operand, Tensor):
            scalar(operand)  # raises for all but numbers
            raise TypeError(f"{name} takes tensors, not {kind_of(operand)}: `x = await s.put(a)` makes one")


def same_dtype(name: str, x: Tensor, *others: Tensor | None) -> None:
    """Refuse operands that NumPy would promote: parameters and data are of one floating-point dtype."""
    tensors = [tensor for tensor in (x, *others) if tensor is not None]
    check_tensors(name, *tensors)
    dtypes = {tensor.dtype for tensor in tensors}
    if len(dtypes) > 1 or x.dtype.kind != "f":
        names = ", ".join(sorted(map(str, dtypes)))
        raise TypeError(f"{name}: the operands are of {names}: bring them to one floating-point dtype with `astype`")
