"""Layers, losses and their derivatives, in blocks as in `blocks`: `kernel(xp, *arrays, out=None, **options)`."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

import numpy as np

from .. import parallel
from ..declare import Blas, Cost, Cut, Inferred, Op, Operand, Options, bounded, meta, product, with_out, with_products
from ..rules import alike, as_meta, block_bytes, copies, floats, lengths, like
from . import compiled
from .attention import log_softmax_rows, log_sums, softmax_rows
from .blocks import as_matrix, as_rows, long_blocks, scratch, sums, totals, unbuffered
from .checks import require_between
from .elementwise import into, kept
from .products import vecdot
from .reduce import product_over_rows, rows_per_piece, weighted_rows
from .releasing_gil import matmul

_SMALL = 8192  # elements: of fewer most of the time is Python's
_FAR = 64  # the square of the mean over the variance; up to this, the mean is accurate enough


def layer_norm(xp: Any, x: Any, weight: Any, bias: Any, *, eps: float, out: Any = None) -> Any:
    """(x - mean) / sqrt(variance + eps) weight + bias, over as many last axes as the weight has."""
    run = compiled.loop("layer_norm", xp, x, weight, bias)
    if run is None:
        return layer_norm_exact(xp, x, weight, bias, eps=eps, out=out)
    out, result, rows = as_rows(xp, out, x, width=weight.size)
    run(rows, weight.reshape(-1), bias.reshape(-1), eps, result)
    return out


def layer_norm_exact(xp: Any, x: Any, weight: Any, bias: Any, *, eps: float, out: Any = None) -> Any:
    """The same, in NumPy's steps."""
    if out is None and xp is np and x.ndim == 2 and weight.ndim == 1 and x.size <= _SMALL and x.dtype.itemsize > 2:
        y, scale = _centre(np, x, eps, np.empty(x.shape, x.dtype))  # the steps below, for one block
        y *= scale
        y *= weight[None]  # as a row: a single one takes a third of the time
        y += bias[None]
        return y
    out, result, rows = as_rows(xp, out, x, width=weight.size)
    weight, bias = weight.reshape(-1), bias.reshape(-1)
    # With other threads running, fewer calls matter more than the cache. Only half precision needs temporaries.
    alive = 4 if parallel.here.threads > 1 and out.dtype != xp.float16 else 8
    with unbuffered(xp, rows.shape[1]):
        for block in long_blocks(xp, *rows.shape, alive=alive):
            y, scale = _centre(xp, rows[block], eps, _room(xp, result[block]))
            y *= scale
            xp.multiply(y, weight, out=y)
            xp.add(y, bias, out=y)
            if y.dtype != out.dtype:
                result[block] = y
    return out


def layer_norm_input_grad(xp: Any, x: Any, weight: Any, grad: Any, *, eps: float, out: Any = None) -> Any:
    """(g - mean of g - y mean of g y) / sqrt(variance + eps), with g = grad weight and y the standardized x."""
    width = weight.size
    out, result, rows, grads = as_rows(xp, out, x, grad, width=width)
    weight = weight.reshape(-1)
    with unbuffered(xp, width):
        for block in long_blocks(xp, *rows.shape, alive=10):
            room = _room(xp, result[block])
            g = scratch(xp, 1, room.shape, room.dtype)
            xp.multiply(grads[block], weight, out=g, dtype=g.dtype)
            y, scale = _centre(xp, rows[block], eps, room)
            y *= vecdot(xp, g, y)[:, None] * (scale * scale / -width)
            y += g
            y -= sums(xp, g) / width
            y *= scale
            if y.dtype != out.dtype:
                result[block] = y
    return out


def layer_norm_weight_grad(xp: Any, x: Any, grad: Any, *, eps: float, shape: Any, out: Any = None) -> Any:
    """The sum of grad y over the rows, with y the standardized x."""
    out = xp.empty(shape, x.dtype) if out is None else out
    width, total = out.size, xp.zeros(out.size, xp.float64)
    rows, grads = x.reshape(-1, width), grad.reshape(-1, width)
    with unbuffered(xp, width):
        for block in long_blocks(xp, *rows.shape):
            v = rows[block]
            y, scale = _centre(xp, v, eps, scratch(xp, 0, v.shape, xp.float32 if v.dtype == xp.float16 else v.dtype))
            y *= grads[block]
            total += weighted_rows(xp, scale[:, 0], y)
    out[...] = total.reshape(shape)
    return out


def linear(xp: Any, x: Any, weight: Any, *bias: Any, out: Any = None) -> Any:
    """x weight^T + bias."""
    out = xp.empty((*x.shape[:-1], len(weight)), x.dtype) if out is None else out
    rows = as_matrix(out)
    matmul(xp, as_matrix(x), weight.T, out=rows)
    with unbuffered(xp, len(weight)):
        for one in bias:
            rows += one[None]  # as in `layer_norm_exact`
    return out


def linear_weight_grad(xp: Any, grad: Any, x: Any, *, out: Any = None) -> Any:
    """grad^T x, over all rows."""
    grad, x = as_matrix(grad), as_matrix(x)
    if xp is np and grad.dtype == np.float32 and (found := product_over_rows(grad, x)) is not None:
        return into(np, np.empty(found.shape, grad.dtype) if out is None else out, found)
    return matmul(xp, grad.T, x, out=out)


def _centre(xp: Any, rows: Any, eps: float, y: Any) -> Any:
    """Rows of mean 0, written to `y`; also returns for each row the factor that gives it variance 1.

    If a mean is many times the spread, its rounding error is as large as the spread. Then the remaining mean is
    subtracted, too.
    """
    width = rows.shape[1]
    if rows.dtype != y.dtype:
        y[...] = rows
        rows = y
    mean = totals(xp, rows) / width  # in place, the one number of a single row would take twice as long
    xp.subtract(rows, mean[:, None], out=y)
    variance = vecdot(xp, y, y) / width
    far = mean * mean > _FAR * variance
    if xp is not np or np.count_nonzero(far):  # on a GPU, the question would wait for the device
        y -= xp.where(far, totals(xp, y) / width, 0).astype(y.dtype, copy=False)[:, None]
        variance = vecdot(xp, y, y) / width
    return y, xp.reciprocal(xp.sqrt(variance + eps))[:, None]


def _room(xp: Any, block: Any) -> Any:
    """The array for standardized rows: the result itself; for half precision, whose sums overflow, float32."""
    return xp.empty(block.shape, xp.float32) if block.dtype == xp.float16 else block


# -- rules -------------------------------------------------------------------------------------------------------------


def layer_norm_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """`layer_norm` of x, weight and bias."""
    shape, weight = floats(op, *operands)[:2]
    if not weight or shape[len(shape) - len(weight) :] != weight or lengths(operands[2]) != weight:
        text = f"{shape}, the weight {weight}, the bias {lengths(operands[2])}"
        raise ValueError(f"layer_norm: x has shape {text}: weight and bias must have the shape of the last axes of x")
    return like(operands[0], copies(operands) + block_bytes(operands[0], prod(weight), 8))


def layer_norm_input_grad_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """The gradient of x; the operands are x, weight and grad."""
    return layer_norm_rule(op, (*operands[:2], operands[1]), options)


def layer_norm_weight_grad_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """The gradient of the weight, whose shape is an option; the operands are x and grad."""
    alike(op, operands)
    result = meta(options["shape"], as_meta(operands[0]).dtype)
    return Inferred(result, copies(operands) + block_bytes(operands[0], prod(result.bound), 8) + 4 * result.nbytes)


def linear_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """`linear` of x (..., in), weight (out, in) and perhaps bias (out,)."""
    shape, weight, *bias = floats(op, *operands)
    if not shape or len(weight) != 2 or shape[-1] != weight[1]:
        raise ValueError(
            f"linear: x has shape {shape} and the weight {weight}: they must be (..., features) and (out, features)"
        )
    if bias and bias[0] != weight[:1]:
        raise ValueError(f"linear: the bias has shape {bias[0]}, and must have {weight[:1]}")
    result = meta((*shape[:-1], weight[0]), as_meta(operands[0]).dtype)
    return Inferred(result, copies(operands), work=prod(result.bound) * weight[1])


def linear_weight_grad_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """The gradient of the weight; the operands are grad (..., out) and x (..., in)."""
    grad, x = floats(op, *operands)
    if not grad or not x or grad[:-1] != x[:-1]:
        raise ValueError(f"{op.name}: the shapes {grad} and {x} must be equal except for the last axis")
    work, result = prod(as_meta(operands[0]).bound) * x[-1], meta((*grad[-1:], *x[-1:]), as_meta(operands[0]).dtype)
    pieces = prod(grad[:-1]) // rows_per_piece(prod(result.bound))
    return Inferred(result, copies(operands) + pieces * result.nbytes + (2 * result.nbytes if pieces else 0), work=work)


_LAYER_NORM = with_products(
    layer_norm, layer_norm_rule, "The last axes brought to mean 0 and variance 1.", Cost.FUNCTION,
    inplace=True, cut=Cut.BY_WEIGHT_ROWS, compiled_as="layer_norm", launches=20,
)  # fmt: skip


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
    require_between(xp, target, 0, classes, partial(_class_error, classes, ignore_index))
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
    checks=True, blas=Blas.INSIDE, launches=27, element_seconds=Cost.FUNCTION,
)  # fmt: skip
_OF_WEIGHT = "The gradient of the weight."
_TARGETS = "Targets as class numbers; 0 in rows that do not count."


OPS = (
    bounded(_LAYER_NORM, layer_norm_exact, 3e-6, 3e-6),
    with_products(layer_norm_input_grad, layer_norm_input_grad_rule, "The gradient of x.", Cost.FUNCTION, launches=28),
    with_products(layer_norm_weight_grad, layer_norm_weight_grad_rule, _OF_WEIGHT, Cost.FUNCTION, launches=22),
    product(with_out(linear, linear_rule, "x weight^T + bias.", Cost.MULTIPLICATION, launches=2), Cut.PRODUCT_NT),
    product(
        with_out(linear_weight_grad, linear_weight_grad_rule, _OF_WEIGHT, Cost.MULTIPLICATION, launches=1),
        Cut.PRODUCT_TN,
    ),
    bounded(_CROSS_ENTROPY, cross_entropy_exact, 3e-6, 3e-6),
    with_products(
        cross_entropy_backward,
        cross_entropy_backward_rule,
        "The gradient of the loss.",
        Cost.FUNCTION,
        inplace=True,
        checks=True,
        launches=25,
    ),
    Op("class_numbers", class_numbers, class_numbers_rule, checks=True, doc=_TARGETS),
)
