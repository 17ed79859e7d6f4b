"""Rules of layers, activations and random numbers. All results are C-contiguous.

Workspace is counted in blocks (see `kernels.blocks`), and copies of operands that are not C-contiguous are added.
"""

from __future__ import annotations

from math import prod

import numpy as np

from ..kernels.blocks import BLOCK, LONG_BLOCK
from ..meta import Meta, meta
from ..op import Inferred, Op, Operand, Options
from .common import Known, as_meta, lengths, no_axis, same_as


def relu(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """`relu`, in the layout of its operand."""
    alike(op, operands)
    return same_as(operands[0])


def elementwise(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """A result like the first operand, made in blocks of elements; tensors after it are of the same shape."""
    tensors = tuple([operand for operand in operands if isinstance(operand, Meta)])
    alike(op, tensors)
    return like(operands[0], copies(tensors) + block(tensors[0], 1, 8))


def along_rows(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """A result like the first operand, made in blocks of rows."""
    shape = alike(op, operands)
    no_axis(shape, op.name)
    return like(operands[0], copies(operands) + block(operands[0], shape[-1], 6))


def layer_norm(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """`layer_norm` of x, weight and bias."""
    shape, weight = floats(op, *operands)[:2]
    if not weight or shape[len(shape) - len(weight) :] != weight or lengths(operands[2]) != weight:
        text = f"{shape}, the weight {weight}, the bias {lengths(operands[2])}"
        raise ValueError(f"layer_norm: x has shape {text}: weight and bias must have the shape of the last axes of x")
    return like(operands[0], copies(operands) + block(operands[0], prod(weight), 8))


def layer_norm_input_grad(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """The gradient of x; the operands are x, weight and grad."""
    return layer_norm(op, (*operands[:2], operands[1]), options)


def layer_norm_weight_grad(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """The gradient of the weight, whose shape is an option; the operands are x and grad."""
    alike(op, operands)
    result = meta(options["shape"], as_meta(operands[0]).dtype)
    return Inferred(result, copies(operands) + block(operands[0], prod(result.bound), 8) + result.nbytes)


def linear(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """`linear` of x (..., in), weight (out, in) and perhaps bias (out,)."""
    shape, weight, *bias = floats(op, *operands)
    if not shape or len(weight) != 2 or shape[-1] != weight[1]:
        raise ValueError(
            f"linear: x has shape {shape} and the weight {weight}: they must be (..., features) and (out, features)"
        )
    if bias and bias[0] != weight[:1]:
        raise ValueError(f"linear: the bias has shape {bias[0]} and must have {weight[:1]}")
    result = meta((*shape[:-1], weight[0]), as_meta(operands[0]).dtype)
    return Inferred(result, copies(operands), work=prod(result.bound) * weight[1])


def linear_weight_grad(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """The gradient of the weight; the operands are grad (..., out) and x (..., in)."""
    grad, x = floats(op, *operands)
    if not grad or not x or grad[:-1] != x[:-1]:
        raise ValueError(f"{op.name}: the shapes {grad} and {x} must be equal but for the last axis")
    work = prod(as_meta(operands[0]).bound) * x[-1]
    return Inferred(meta((*grad[-1:], *x[-1:]), as_meta(operands[0]).dtype), copies(operands), work=work)


def linear_bias_grad(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """The gradient of the bias, from grad (..., out), whose rows get a one each."""
    (shape,), grad = floats(op, *operands), as_meta(operands[0])
    no_axis(shape, op.name)
    return Inferred(meta(shape[-1:], grad.dtype), copies(operands) + prod(grad.bound[:-1]) * grad.dtype.itemsize)


def dropout(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """`dropout` of x, with a seed."""
    if not 0 <= options["p"] <= 1:
        raise ValueError(f"dropout: p={options['p']} must be a probability, from 0 to 1")
    return elementwise(op, operands, options)


def random(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """Random numbers: drawn in the dtype, or in single precision."""
    dtype = np.dtype(options["dtype"])
    if dtype.kind != "f":
        raise TypeError(f"{op.name}: dtype {dtype} is no floating-point dtype: draw such and use `astype`")
    result = meta(options["shape"], dtype)
    return Inferred(result, result.nbytes * max(4, dtype.itemsize) // dtype.itemsize)


def floats(op: Op, *operands: Operand) -> list[Known]:
    """The shapes of operands that must be of one floating-point dtype."""
    dtypes = {as_meta(operand).dtype for operand in operands}
    if len(dtypes) > 1:
        names = ", ".join(sorted(str(dtype) for dtype in dtypes))
        raise TypeError(f"{op.name}: the operands are of {names}: bring them to one dtype with `astype`")
    if (dtype := dtypes.pop()).kind != "f":
        raise TypeError(f"{op.name}: dtype {dtype} is no floating-point dtype: use `astype`")
    return [lengths(operand) for operand in operands]


def alike(op: Op, operands: tuple[Operand, ...]) -> Known:
    """The one shape of operands of one floating-point dtype."""
    shapes = floats(op, *operands)
    if any(shape != shapes[0] for shape in shapes):
        text = " and ".join(str(shape) for shape in shapes)
        raise ValueError(f"{op.name}: the shapes {text} must be equal; `reshape` or `broadcast_to` makes them so")
    return shapes[0]


def like(operand: Operand, workspace: int) -> Inferred:
    array = as_meta(operand)
    return Inferred(meta(array.shape, array.dtype), workspace)


def copies(operands: tuple[Operand, ...]) -> int:
    """Bytes of C-contiguous copies."""
    return sum(operand.nbytes for operand in operands if isinstance(operand, Meta) and not operand.contiguous)


def block(operand: Operand, width: int, count: int) -> int:
    """Bytes of so many arrays, each one block of rows of an operand; or four long blocks, where they are more."""
    array = as_meta(operand)
    size = prod(array.bound)
    arrays = max(count * min(size, max(BLOCK, width)), 4 * min(size, max(LONG_BLOCK, width)))
    return arrays * array.dtype.itemsize
