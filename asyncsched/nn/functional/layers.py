"""Linear maps, convolutions, rows by number, dropout, attention."""

from __future__ import annotations

from operator import index
from typing import Any

from ..._instead import naming_arguments
from ...tensors.functions import concat, expand_dims, pad, squeeze
from ...tensors.functions._common import op
from ...tensors.tensor import Tensor
from .common import Padding, Size, check_padding, pair, single


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
