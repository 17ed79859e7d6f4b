"""Losses and their derivatives."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

import numpy as np

from ..declare import Blas, Inferred, Op, Operand, Options, bounded, meta, with_products
from ..rules import as_meta, block_bytes, floats, like
from . import compiled
from .attention import log_softmax_rows, log_sums, softmax_rows
from .blocks import long_blocks, scratch, sums, unbuffered
from .checks import require_below
from .elementwise import kept


def cross_entropy(xp: Any, logits: Any, target: Any, *, label_smoothing: float, **options: Any) -> Any:
    """The logarithm of the sum of exponentials, less the logit of the target."""
    run = None if label_smoothing else compiled.loop("cross_entropy", xp, logits)
    return cross_entropy_exact(xp, logits, target, label_smoothing=label_smoothing, run=run, **options)


def cross_entropy_exact(
    xp: Any, logits: Any, target: Any, *, reduction: str, ignore_index: int, label_smoothing: float,
    run: compiled.Loop | None = None,
) -> Any:  # fmt: skip
    """The same in NumPy's steps, unless a loop is given for the loss of each row."""
    valid, target = _targets(xp, target, logits.shape[1], ignore_index)
    losses = xp.empty(len(logits), logits.dtype)
    if run is not None:
        run(logits, target.astype(np.int64, copy=False), losses)
    else:
        for block in long_blocks(xp, *logits.shape):
            losses[block] = _losses(xp, logits[block], target[block], label_smoothing)
    losses = kept(xp, losses, valid, out=losses)
    if reduction == "none":
        return losses
    total = losses.sum(dtype=_wide(losses))
    return (total / valid.sum(dtype=total.dtype) if reduction == "mean" else total).astype(losses.dtype)


def cross_entropy_backward(
    xp: Any, logits: Any, target: Any, grad: Any, *, reduction: str, ignore_index: int, label_smoothing: float,
    out: Any = None,
) -> Any:  # fmt: skip
    """The softmax less the target's distribution, times the gradient of each row's loss."""
    classes = logits.shape[1]
    valid, target = _targets(xp, target, classes, ignore_index)
    scale = valid.astype(_wide(logits)) * grad
    if reduction == "mean":
        scale /= xp.maximum(valid.sum(dtype=scale.dtype), 1)  # if no row counts, all gradients are 0
    scale = scale.astype(logits.dtype, copy=False)
    out = xp.empty(logits.shape, logits.dtype) if out is None else out
    over = xp is np and np.may_share_memory(out, logits)
    with unbuffered(xp, classes):
        for block in long_blocks(xp, *logits.shape):
            d, s = out[block], scale[block]
            softmax_rows(xp, logits[block], d, s, over=over)
            if label_smoothing:
                d -= (s * (label_smoothing / classes))[:, None]
            d, place = _chosen(xp, d, target[block])
            d[place] -= (1 - label_smoothing) * s
    return out


def class_numbers(xp: Any, target: Any, *, classes: int, ignore_index: int) -> Any:
    """Targets as class numbers, with 0 for rows that do not count."""
    found = _targets(xp, target, classes, ignore_index)[1]
    # On a GPU, kernels that read them run before an error is known, and must not read out of bounds.
    return found if xp is np else xp.clip(found, 0, max(classes - 1, 0))


def _wide(x: Any) -> Any:
    """The dtype for counts and sums: half precision ends at 65,504."""
    return np.promote_types(x.dtype, np.float32)


def _losses(xp: Any, v: Any, target: Any, label_smoothing: float) -> Any:
    """The loss of each row of a block."""
    if label_smoothing:
        y = log_softmax_rows(xp, v, scratch(xp, 1, v.shape, v.dtype))
        flat, place = _chosen(xp, y, target)
        return (label_smoothing - 1) * flat[place] - sums(xp, y)[:, 0] * (label_smoothing / v.shape[1])
    peak, logs = log_sums(xp, v)
    flat, place = _chosen(xp, v, target)
    logs -= flat[place] if peak is None else flat[place] - peak
    return logs


def _chosen(xp: Any, rows: Any, target: Any) -> tuple[Any, Any]:
    """An array and a key to it that select, in each row, the element of its target.

    With two index arrays, CuPy would make the flat places itself, by more launches.
    """
    starts = xp.arange(0, rows.size, max(rows.shape[1], 1))
    return rows.reshape(-1), starts + target.astype(xp.intp, copy=False)


def _targets(xp: Any, target: Any, classes: int, ignore_index: int) -> Any:
    """Which rows count, and the targets with 0 for the other rows."""
    valid = target != ignore_index
    target = xp.where(valid, target, 0)
    require_below(xp, target, classes, partial(_class_error, classes, ignore_index))
    return valid, target


def _class_error(classes: int, ignore_index: int, least: int, most: int) -> Exception:
    return IndexError(
        f"the targets range from {least} to {most}, but there are {classes} classes: use 0 to"
        f" {classes - 1}, or ignore_index={ignore_index}"
    )


# -- rules -------------------------------------------------------------------------------------------------------------


def cross_entropy_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """`cross_entropy` of logits (rows, classes) and target (rows,)."""
    (shape,), target = floats(op, operands[0]), as_meta(operands[1])
    if len(shape) != 2 or target.bound != shape[:1]:
        raise ValueError(
            f"cross_entropy: the logits have shape {shape} and the target {target.bound}: they must be (rows, classes)"
            " and (rows,); `logits.reshape((-1, classes))` and `target.reshape((-1,))` give these shapes"
        )
    if target.dtype.kind not in "iu":
        raise TypeError(f"cross_entropy: the target must hold class numbers, of an integer dtype, not {target.dtype}")
    if options["reduction"] not in ("mean", "sum", "none"):
        raise ValueError(f"cross_entropy: reduction={options['reduction']!r} must be 'mean', 'sum' or 'none'")
    result = meta(shape[:1] if options["reduction"] == "none" else (), as_meta(operands[0]).dtype)
    return Inferred(result, block_bytes(operands[0], shape[1], 6) + 40 * shape[0])


def cross_entropy_backward_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """The gradient of `cross_entropy`."""
    return like(operands[0], cross_entropy_rule(op, operands[:2], options).workspace)


def class_numbers_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """Targets like the operand, which must have an integer dtype."""
    target = as_meta(operands[0])
    if target.dtype.kind not in "iu":
        raise TypeError(f"the target must hold class numbers, of an integer dtype, not {target.dtype}")
    mask = prod(target.bound)  # of rows that count
    return Inferred(meta(target.shape, target.dtype, False), mask, on_card=mask + target.nbytes)


_CROSS_ENTROPY = Op(
    "cross_entropy", cross_entropy, cross_entropy_rule, doc="The negative logarithm of the target's softmax.",
    checks=True, blas=Blas.INSIDE, launches=27,
)  # fmt: skip
_TARGETS = "Targets as class numbers; 0 in rows that do not count."
OPS = (
    bounded(_CROSS_ENTROPY, cross_entropy_exact, 3e-6, 3e-6),
    with_products(
        cross_entropy_backward,
        cross_entropy_backward_rule,
        "The gradient of the loss.",
        inplace=True,
        checks=True,
        launches=25,
    ),
    Op("class_numbers", class_numbers, class_numbers_rule, checks=True, doc=_TARGETS),
)
