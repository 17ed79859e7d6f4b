"""Rules of losses; workspace is counted as in `layers`."""

from __future__ import annotations

from math import prod

from ..meta import Shape, meta
from ..op import Inferred, Op, Operand, Options
from .common import Known, as_meta
from .layers import alike, block, floats, like


def loss(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """`mse_loss` of x and target: all differences are kept for a moment."""
    shape, array = alike(op, operands), as_meta(operands[0])
    return Inferred(meta(_reduced(op, shape, options), array.dtype), array.nbytes)


def loss_backward(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """The gradient of `mse_loss`."""
    alike(op, operands[:2])
    return like(operands[0], as_meta(operands[2]).nbytes)


def cross_entropy(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """`cross_entropy` of logits (rows, classes) and target (rows,)."""
    (shape,), target = floats(op, operands[0]), as_meta(operands[1])
    if len(shape) != 2 or target.bound != shape[:1]:
        raise ValueError(
            f"cross_entropy: the logits have shape {shape} and the target {target.bound}: they must be (rows, classes)"
            " and (rows,); `logits.reshape((-1, classes))` and `target.reshape((-1,))` bring them there"
        )
    if target.dtype.kind not in "iu":
        raise TypeError(f"cross_entropy: the target must hold class numbers, of an integer dtype, not {target.dtype}")
    if not 0 <= options["label_smoothing"] <= 1:
        raise ValueError(f"cross_entropy: label_smoothing={options['label_smoothing']} must be from 0 to 1")
    dtype = as_meta(operands[0]).dtype
    return Inferred(meta(_reduced(op, shape[:1], options), dtype), block(operands[0], shape[1], 6) + 40 * shape[0])


def cross_entropy_backward(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """The gradient of `cross_entropy`."""
    return like(operands[0], cross_entropy(op, operands[:2], options).workspace)


def class_numbers(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """Targets like the operand, of an integer dtype."""
    target = as_meta(operands[0])
    if target.dtype.kind not in "iu":
        raise TypeError(f"the target must hold class numbers, of an integer dtype, not {target.dtype}")
    return Inferred(
        meta(target.shape, target.dtype, False), prod(target.bound) + target.nbytes
    )  # which count, and a copy


def _reduced(op: Op, shape: Known, options: Options) -> Shape:
    if options["reduction"] not in ("mean", "sum", "none"):
        raise ValueError(f"{op.name}: reduction={options['reduction']!r} must be 'mean', 'sum' or 'none'")
    return shape if options["reduction"] == "none" else ()
