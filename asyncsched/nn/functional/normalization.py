"""Normalization to mean 0 and variance 1, and its running statistics."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from ..._core.model import Value
from ...autograd import no_grad
from ...autograd.rules.common import narrow, wide
from ...autograd.transaction import transaction
from ...tensors.functions import mean, sqrt, square
from ...tensors.functions._common import known_shape, lengths, op
from ...tensors.handles import runtime_of
from ...tensors.tensor import Tensor
from .common import check_tensors, constant, same_dtype

__all__ = ["batch_norm", "group_norm", "layer_norm", "rms_norm"]


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
    with no_grad(), transaction(runtime, "batch_norm's running statistics", versions=versions):
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
