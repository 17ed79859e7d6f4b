"""The functions behind the modules. All issue tasks and return a Tensor at once; operands are of one float dtype.

What may be given by position means what it means in PyTorch; what has another place there is given by keyword.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any, Literal

from ..tensors.functions import concat, permute_dims
from ..tensors.functions._common import lengths, op
from ..tensors.tensor import Tensor

__all__ = ["conv2d", "cross_entropy", "dropout", "embedding", "gelu", "layer_norm", "linear", "log_softmax"]
__all__ += ["max_pool2d", "mse_loss", "relu", "scaled_dot_product_attention", "softmax"]

Reduction = Literal["mean", "sum", "none"]
Size = int | Sequence[int]


def relu(x: Tensor) -> Tensor:
    """The larger of each element and 0. The gradient at 0 is 0."""
    return op("relu", x)


def gelu(x: Tensor, approximate: Literal["none", "tanh"] = "none") -> Tensor:
    """x Phi(x), with the normal distribution function Phi, or its approximation by tanh.

    Exact to rounding; in float32 on the CPU to 1e-6 at |x| < 10, unless it is issued `with asc.exact():`.
    D. Hendrycks and K. Gimpel, "Gaussian Error Linear Units" (2016), has both formulas.
    """
    if approximate not in ("none", "tanh"):
        raise ValueError(f"gelu: approximate={approximate!r} must be 'none' or 'tanh'")
    return op("gelu", x, approximate=approximate)


def softmax(x: Tensor, axis: int = -1) -> Tensor:
    """exp(x) over its sum along an axis, without overflow."""
    return _along(x, axis, log=False)


def log_softmax(x: Tensor, axis: int = -1) -> Tensor:
    """The logarithm of `softmax`, without overflow or underflow."""
    return _along(x, axis, log=True)


def layer_norm(
    x: Tensor, normalized_shape: int | Sequence[int | None], weight: Tensor, bias: Tensor, eps: float = 1e-5
) -> Tensor:  # fmt: skip
    """(x - mean) / sqrt(variance + eps) weight + bias, over the last axes of x.

    Args:
        x: (..., *normalized_shape).
        normalized_shape: of these axes: that of `weight` and `bias`.
        weight, bias: one number each for every place in these axes.
        eps: keeps the quotient finite.

    Raises:
        ValueError, TypeError: for shapes that do not fit.
    """
    if isinstance(normalized_shape, Tensor):
        raise TypeError("layer_norm: normalized_shape is a shape: layer_norm(x, weight.shape, weight, bias)")
    shape = tuple(normalized_shape) if isinstance(normalized_shape, Sequence) else (normalized_shape,)
    if shape != weight.shape:
        raise ValueError(f"layer_norm: the weight has shape {weight.shape}, and normalized_shape is {shape}")
    return op("layer_norm", x, weight, bias, eps=eps)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x weight^T + bias: x is (..., in), the weight (out, in), the bias (out,), the result (..., out)."""
    return op("linear", x, weight) if bias is None else op("linear", x, weight, bias)


def embedding(indices: Tensor, weight: Tensor) -> Tensor:
    """Rows of `weight` (count, width) for integer indices of any shape: (*indices.shape, width).

    Raises:
        IndexError: where awaited, for an index below 0 or too large.
    """
    return op("embedding", weight, indices)


def dropout(x: Tensor, p: float, *, seed: int) -> Tensor:
    """Each element 0 with probability `p`, else divided by 1 - p. The same seed drops the same elements."""
    return op("dropout", x, index(seed), p=p)


def conv2d(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, stride: Size = 1, padding: Size = 0, dilation: Size = 1
) -> Tensor:
    """The convolution (in truth a correlation) of images with a weight.

    Args:
        x: (images, channels, height, width).
        weight: (out channels, channels, rows, columns).
        bias: (out channels,).
        stride, padding, dilation: one number, or one for rows and one for columns. The padding is of zeros.

    Returns:
        (images, out channels, ...) with floor((n + 2 padding - dilation (k - 1) - 1) / stride) + 1 rows and columns.
    """
    operands = (x, weight) if bias is None else (x, weight, bias)
    return op("conv2d", *operands, stride=pair(stride), padding=pair(padding), dilation=pair(dilation))


def max_pool2d(x: Tensor, kernel_size: Size, stride: Size | None = None, padding: Size = 0) -> Tensor:
    """The largest element of each window on (..., height, width); by default the windows do not overlap.

    The gradient goes to the first of equal ones. `padding` adds what is less than any element.
    """
    kernel = pair(kernel_size)
    steps = kernel if stride is None else pair(stride)
    return op("max_pool2d", x, kernel=kernel, stride=steps, padding=pair(padding))


def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, *,
    is_causal: bool = False, scale: float | None = None,
) -> Tensor:  # fmt: skip
    """softmax(query key^T scale + mask) value, in memory that grows with the length and not with its square.

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
    packed = concat([part.reshape(-1) for part in parts])
    shapes = tuple([part.shape for part in parts])
    return op("attention", packed, mask_operand(attn_mask), shapes=shapes, causal=is_causal, scale=scale)


def mse_loss(x: Tensor, target: Tensor, *, reduction: Reduction = "mean") -> Tensor:
    """The squared differences of two tensors of one shape: their mean, their sum, or each."""
    return op("mse_loss", x, target, reduction=reduction)


def cross_entropy(
    logits: Tensor,
    target: Tensor,
    *,
    reduction: Reduction = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Tensor:
    """The negative logarithm of the softmax at the target, without overflow and in one pass.

    Args:
        logits: (rows, classes).
        target: (rows,), class numbers.
        reduction: the mean over the rows that count, the sum, or "none": one number for each row.
        ignore_index: rows with this target do not count.
        label_smoothing: this share of the target's probability is spread over all classes.

    Raises:
        IndexError: where awaited, for a target outside the classes.

    >>> async def main():
    ...     async with asc.Scheduler("cpu") as s:
    ...         logits, labels = await s.put(np.zeros((3, 10))), await s.put(np.array([7, 2, 1]))
    ...         return await asc.nn.cross_entropy(logits, labels).item()
    >>> print(f"{asc.run(main):.4f} is log(10)")
    2.3026 is log(10)
    """
    smoothing = float(label_smoothing)
    options = {"reduction": reduction, "ignore_index": index(ignore_index), "label_smoothing": smoothing}
    return op("cross_entropy", logits, target, **options)


def mask_operand(mask: Tensor | None) -> Any:
    """The mask as an operand: 0 is none."""
    if mask is None:
        return 0
    if isinstance(mask, Tensor) and mask.requires_grad:
        raise ValueError("attn_mask gets no gradient: give `mask.detach()`")
    return mask


def pair(size: Size) -> tuple[int, int]:
    """One number for rows and one for columns."""
    rows, columns = lengths(size) if isinstance(size, Sequence) else lengths(size) * 2
    return rows, columns


def _along(x: Tensor, axis: int, *, log: bool) -> Tensor:
    if axis in (-1, x.ndim - 1):
        return op("softmax", x, log=log)
    if not -x.ndim <= axis < x.ndim:
        raise ValueError(f"softmax: axis {axis} is out of bounds for a tensor with {x.ndim} axes")
    axes = list(range(x.ndim))
    axes[axis], axes[-1] = axes[-1], axes[axis]
    return permute_dims(op("softmax", permute_dims(x, tuple(axes)), log=log), tuple(axes))
