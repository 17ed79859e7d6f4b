"""Rules of attention. All results are C-contiguous; workspace is counted as in `layers`."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ..kernels.blocks import BLOCK, queries
from ..meta import Meta, meta
from ..op import Inferred, Op, Operand, Options
from .common import Known, as_meta
from .layers import copies, floats, like

_BLOCK = BLOCK * 8 // 3  # elements of a block of scores, see `kernels.attention`


def attention(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """`attention` of a flat operand, that has q (..., L, E), k (..., S, E) and v (..., S, Ev), and a mask or 0."""
    floats(op, operands[0])
    return _attention(op, options["shapes"], operands, options)


def attention_unpacked(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """`attention_unpacked` of q, k and v, and a mask or 0."""
    return _attention(op, floats(op, *operands[:3]), operands, options)


def _attention(op: Op, shapes: Sequence[Known], operands: tuple[Operand, ...], options: Options) -> Inferred:
    q, k, v = shapes
    if min(len(q), len(k), len(v)) < 2 or q[:-2] != k[:-2] or k[:-1] != v[:-1] or q[-1] != k[-1]:
        raise ValueError(f"{op.name}: shapes {q}, {k} and {v} must be (..., L, E), (..., S, E) and (..., S, Ev)")
    workspace = _attention_bytes(op, (*q[:-1], k[-2]), max(q[-1], v[-1]), operands, options)
    return Inferred(meta((*q[:-1], v[-1]), as_meta(operands[0]).dtype), workspace)


def self_attention(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """`self_attention` of (..., L, 3 E), and a mask or 0."""
    shape, heads = floats(op, operands[0])[0], options["heads"]
    if len(shape) < 2 or shape[-1] % (3 * heads):
        raise ValueError(f"{op.name}: shape {shape} must be (..., L, 3 E), with E divisible by the {heads} heads")
    scores, width = (*shape[:-2], heads, shape[-2], shape[-2]), shape[-1] // (3 * heads)
    workspace = _attention_bytes(op, scores, width, operands, options)
    return Inferred(meta((*shape[:-1], shape[-1] // 3), as_meta(operands[0]).dtype), workspace)


def attention_backward(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """The gradient of the packed operand of either; the operands are that, the mask or 0, and grad."""
    forward = self_attention if "heads" in options else attention
    return like(operands[0], forward(op, operands[:2], options).workspace + copies(operands[2:]))


def _attention_bytes(op: Op, scores: Known, width: int, operands: tuple[Operand, ...], options: Options) -> int:
    bias, mask = prod(scores[-2:]) if options["causal"] else 0, operands[-1]
    if isinstance(mask, Meta):
        aligned = zip(reversed(mask.bound), reversed(scores), strict=False)
        if len(mask.bound) > len(scores) or any(length not in (1, whole) for length, whole in aligned):
            raise ValueError(f"{op.name}: the mask has shape {mask.bound} and must broadcast to {scores}")
        if mask.dtype.kind not in "bf":
            raise TypeError(f"{op.name}: the mask must be boolean (True: attend) or floating-point, not {mask.dtype}")
        bias += prod(mask.bound)
    # As on a card, where they are more.
    length: int = max(rows.stop - rows.start for rows in queries(None, *scores[-2:]))
    area = length * scores[-1]
    heads = max(1, min(scores[-3] if len(scores) > 2 else 1, _BLOCK // max(area, 1)))
    scaled = 3 * heads * sum(scores[-2:]) * width * as_meta(operands[0]).dtype.itemsize
    # The bias is made in double precision, whatever the operands are in.
    return copies(operands) + scaled + 4 * (heads * area + bias) * 8
