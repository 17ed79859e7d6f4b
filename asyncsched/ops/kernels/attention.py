"""Scaled dot-product attention, of packed operands or of three; what they have in common is in `attention_blocks`."""

from __future__ import annotations

from functools import partial
from itertools import accumulate
from math import prod, sqrt
from typing import Any

from ..declare import Kernel, Op, bounded, with_products
from ..rules import attention as rules
from .attention_blocks import attend, attend_backward


def attention(
    xp: Any, packed: Any, mask: Any, *, shapes: Any, causal: bool, scale: float | None = None, out: Any = None,
    fused: bool = False,
) -> Any:  # fmt: skip
    """softmax(q k^T scale + mask) v, with q, k and v one after the other in a flat array; the mask 0 is none."""
    q, k, v = _parts(packed, shapes)
    out = xp.empty((*q.shape[:-1], v.shape[-1]), q.dtype) if out is None else out
    attend(xp, q, k, v, mask, causal, _scale(q, scale), out, fused)
    return out


def attention_unpacked(
    xp: Any, q: Any, k: Any, v: Any, mask: Any, *, causal: bool, scale: float | None = None, out: Any = None,
    fused: bool = False,
) -> Any:  # fmt: skip
    """The same of three arrays: what is not packed need not be copied."""
    out = xp.empty((*q.shape[:-1], v.shape[-1]), q.dtype) if out is None else out
    q, k, v = _for_products(xp, q), _for_products(xp, k), _for_products(xp, v)
    attend(xp, q, k, v, mask, causal, _scale(q, scale), out, fused)
    return out


def attention_backward(
    xp: Any, packed: Any, mask: Any, grad: Any, *, shapes: Any, causal: bool, scale: float | None = None,
    out: Any = None,
) -> Any:  # fmt: skip
    """The gradient of the packed operand."""
    q, k, v = _parts(packed, shapes)
    out = xp.empty(packed.shape, packed.dtype) if out is None else out
    attend_backward(xp, q, k, v, grad, mask, causal, _scale(q, scale), _parts(out, shapes))
    return out


def self_attention(
    xp: Any, packed: Any, mask: Any, *, heads: int, causal: bool, out: Any = None, fused: bool = False
) -> Any:
    """Attention of every head, with queries, keys and values side by side on the last axis; the mask 0 is none."""
    q, k, v = _split(xp, packed, 3, heads)
    out = xp.empty((*packed.shape[:-1], packed.shape[-1] // 3), packed.dtype) if out is None else out
    attend(xp, q, k, v, mask, causal, _scale(q), _split(xp, out, 1, heads)[0], fused)
    return out


def self_attention_backward(
    xp: Any, packed: Any, mask: Any, grad: Any, *, heads: int, causal: bool, out: Any = None
) -> Any:
    """The gradient of the packed operand."""
    q, k, v = _split(xp, packed, 3, heads)
    out = xp.empty(packed.shape, packed.dtype) if out is None else out
    g = _split(xp, grad, 1, heads)[0]
    attend_backward(xp, q, k, v, g, mask, causal, _scale(q), _split(xp, out, 3, heads))
    return out


def _parts(packed: Any, shapes: Any) -> list[Any]:
    """Views of the parts of a flat array, in their shapes."""
    ends = list(accumulate(map(prod, shapes)))
    starts = [0, *ends]
    return [packed[a:b].reshape(shape) for a, b, shape in zip(starts, ends, shapes, strict=False)]


def _split(xp: Any, packed: Any, parts: int, heads: int) -> Any:
    """(..., length, parts * heads * width) as a view (parts, ..., heads, length, width)."""
    *lead, width = packed.shape
    return xp.moveaxis(packed.reshape(*lead, parts, heads, width // (parts * heads)), (-3, -2), (0, -3))


def _for_products(xp: Any, array: Any) -> Any:
    """The array, or a copy where neither its rows nor its columns are in one piece: BLAS takes no such matrices."""
    return array if array.itemsize in array.strides[-2:] else xp.ascontiguousarray(array)


def _scale(q: Any, scale: float | None = None) -> float:
    return 1 / sqrt(q.shape[-1] or 1) if scale is None else scale


def _fused(kernel: Kernel, rule: Any, doc: str) -> Op:
    """With a loop that numba compiled, where there is one for the operands."""
    op = with_products(partial(kernel, fused=True), rule, doc, name=kernel.__name__)
    return bounded(op, kernel, 3e-6, 1e-5)


OPS = (
    _fused(attention, rules.attention, "softmax(q k^T scale + mask) v, of packed q, k and v."),
    _fused(attention_unpacked, rules.attention_unpacked, "The same of q, k and v."),
    with_products(attention_backward, rules.attention_backward, "The gradient of attention."),
    _fused(self_attention, rules.self_attention, "Attention of heads packed side by side."),
    with_products(self_attention_backward, rules.attention_backward, "The gradient of that."),
)
