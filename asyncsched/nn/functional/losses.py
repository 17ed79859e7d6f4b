"""Losses. `reduction` is "mean", "sum" or "none": one number for each element, or for each row of classes."""

from __future__ import annotations

from math import inf, prod
from operator import index
from typing import Literal

from ...autograd.rules.common import narrow, wide
from ...tensors.functions import abs as magnitude
from ...tensors.functions import exp, expand_dims, log, minimum, moveaxis, square, take, take_along_axis, where
from ...tensors.functions._common import known_shape, op
from ...tensors.tensor import Tensor
from .layers import check_tensors, log_softmax, same_dtype, softplus

__all__ = [
    "binary_cross_entropy_with_logits", "cross_entropy", "huber_loss", "kl_div", "l1_loss", "mse_loss", "nll_loss",
    "smooth_l1_loss",
]  # fmt: skip

Reduction = Literal["mean", "sum", "none"]


def mse_loss(x: Tensor, target: Tensor, *, reduction: Reduction = "mean") -> Tensor:
    """The squared differences of two tensors of one shape: their mean, their sum, or each.

    >>> x = await s.put(np.array([1.0, 3.0]))
    >>> y = await s.put(np.array([2.0, 5.0]))
    >>> await nn.mse_loss(x, y).item()
    2.5
    """
    _alike("mse_loss", x, target)
    return _reduced("mse_loss", square(x - target), reduction)


def l1_loss(x: Tensor, target: Tensor, *, reduction: Reduction = "mean") -> Tensor:
    """The absolute differences of two tensors of one shape: their mean, their sum, or each. At 0 the gradient is 0.

    >>> x = await s.put(np.array([1.0, 3.0]))
    >>> y = await s.put(np.array([2.0, 5.0]))
    >>> await nn.l1_loss(x, y).item()
    1.5
    """
    _alike("l1_loss", x, target)
    return _reduced("l1_loss", magnitude(x - target), reduction)


def smooth_l1_loss(x: Tensor, target: Tensor, *, reduction: Reduction = "mean", beta: float = 1.0) -> Tensor:
    """The absolute difference d of two tensors of one shape, minus beta / 2; below beta it is d**2 / (2 beta).

    >>> x = await s.put(np.array([1.0, 3.0]))
    >>> y = await s.put(np.array([1.5, 5.0]))
    >>> await nn.smooth_l1_loss(x, y).item()
    0.8125
    """
    _alike("smooth_l1_loss", x, target)
    if beta < 0:
        raise ValueError(f"smooth_l1_loss: beta={beta} must not be negative")
    return _reduced("smooth_l1_loss", narrow(_bent(x, target, beta), x), reduction)


def huber_loss(x: Tensor, target: Tensor, *, reduction: Reduction = "mean", delta: float = 1.0) -> Tensor:
    """Half the squared difference d of two tensors of one shape; above delta it is delta (d - delta / 2).

    >>> x = await s.put(np.array([1.0, 3.0]))
    >>> y = await s.put(np.array([1.5, 5.0]))
    >>> await nn.huber_loss(x, y).item()
    0.8125
    """
    _alike("huber_loss", x, target)
    if not delta > 0:
        raise ValueError(f"huber_loss: delta={delta} must be above 0")
    return _reduced("huber_loss", narrow(_bent(x, target, delta) * delta, x), reduction)


def _bent(x: Tensor, target: Tensor, bend: float) -> Tensor:
    """The absolute difference less bend / 2, a parabola below bend. In single precision at least, for the square."""
    distance = wide(magnitude(x - target))
    if not bend:
        return distance
    near = minimum(distance, bend)  # so that the other branch has a gradient of 0 also at infinity
    return where(distance < bend, near * near * (0.5 / bend), distance - 0.5 * bend)


def binary_cross_entropy_with_logits(
    x: Tensor, target: Tensor, weight: Tensor | None = None, *, reduction: Reduction = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Minus the logarithm of the probability that the sigmoid of x gives to a target from 0 to 1, without overflow.

    >>> x = await s.put(np.array([0.0, 0.0]))
    >>> y = await s.put(np.array([1.0, 0.0]))
    >>> await nn.binary_cross_entropy_with_logits(x, y).item()
    0.6931471805599453

    Args:
        x, target: of one shape.
        weight: of the elements; it broadcasts to that shape.
        reduction: the mean, the sum, or "none": one number for each element.
        pos_weight: of positive targets; it broadcasts to that shape.
    """
    _alike("binary_cross_entropy_with_logits", x, target, weight, pos_weight)
    tail = softplus(-x, threshold=inf)  # log(1 + exp(-x))
    tail = tail if pos_weight is None else tail * ((pos_weight - 1) * target + 1)
    losses = (1 - target) * x + tail
    return _reduced("binary_cross_entropy_with_logits", losses if weight is None else losses * weight, reduction)


def kl_div(
    x: Tensor, target: Tensor, *, reduction: Reduction | Literal["batchmean"] = "mean", log_target: bool = False
) -> Tensor:
    """target (log(target) - x), where x are logarithms of probabilities: the distance of that distribution from the
    target.

    >>> x = await s.put(np.array([[0.5, 0.5]]))
    >>> y = await s.put(np.array([[0.5, 0.5]]))
    >>> await nn.kl_div(asc.log(x), y, reduction="batchmean").item()
    0.0

    Args:
        x, target: of one shape.
        reduction: the mean, the sum, "none", or "batchmean": the sum over the length of the first axis, which is the
            divergence in the sense of mathematics.
        log_target: the target is given by its logarithms, too.
    """
    _alike("kl_div", x, target)
    chances, logs = (exp(target), target) if log_target else (target, log(where(target == 0, 1, target)))
    losses = chances * logs - chances * x
    if reduction == "batchmean":
        return narrow(wide(losses).sum() / max(prod(known_shape(x, "kl_div")[:1]), 1), x)
    return _reduced("kl_div", losses, reduction)


def nll_loss(
    x: Tensor, target: Tensor, weight: Tensor | None = None, *, ignore_index: int = -100,
    reduction: Reduction = "mean",
) -> Tensor:  # fmt: skip
    """Minus the number at the target's class, where x are logarithms of probabilities.

    >>> x = await s.put(np.array([[-0.5, -1.0]]))
    >>> y = await s.put(np.array([1]))
    >>> await nn.nll_loss(x, y).item()
    1.0

    Args:
        x, target, weight, ignore_index, reduction: as for `cross_entropy`, but the target has class numbers.

    Raises:
        IndexError: where the loss is awaited, for a target outside the classes."""
    check_tensors("nll_loss", x, target)
    rows, numbers = _rows("nll_loss", x, target)
    each, counts = _picked("nll_loss", rows, numbers, weight, index(ignore_index), 0.0)
    return _weighted("nll_loss", each, counts, reduction, target)


def cross_entropy(
    logits: Tensor, target: Tensor, weight: Tensor | None = None, *, reduction: Reduction = "mean",
    ignore_index: int = -100, label_smoothing: float = 0.0,
) -> Tensor:  # fmt: skip
    """The negative logarithm of the softmax at the target, without overflow. For class numbers it takes one pass.

    Args:
        logits: (rows, classes), (rows, classes, d1, ...) or (classes,).
        target: class numbers in the same shape without the classes; or probabilities in the same shape.
        weight: of each class, (classes,).
        reduction: "mean", over the targets that count, by weight; "sum"; or "none": one number for each target.
        ignore_index: class numbers that do not count.
        label_smoothing: this share of the target's probability is spread over all classes.

    Raises:
        IndexError: where awaited, for a target outside the classes.
        ValueError, TypeError: for shapes and dtypes that do not fit.

    >>> async def main():
    ...     async with asc.Scheduler("cpu") as s:
    ...         logits, labels = await s.put(np.zeros((3, 10))), await s.put(np.array([7, 2, 1]))
    ...         return await asc.nn.cross_entropy(logits, labels).item()
    >>> print(f"{asc.run(main):.4f} is log(10)")
    2.3026 is log(10)
    """
    name, smoothing = "cross_entropy", float(label_smoothing)
    if not 0 <= smoothing <= 1:
        raise ValueError(f"{name}: label_smoothing={label_smoothing} must be from 0 to 1")
    check_tensors(name, logits, target)
    if target.dtype.kind == "f" and target.shape == logits.shape:
        return _of_probabilities(logits, target, weight, reduction, smoothing)
    rows, numbers = _rows(name, logits, target)
    if weight is not None:
        logs = op("softmax", rows, log=True)
        return _weighted(name, *_picked(name, logs, numbers, weight, index(ignore_index), smoothing), reduction, target)
    options = {"reduction": reduction, "ignore_index": index(ignore_index), "label_smoothing": smoothing}
    found = op(name, rows, numbers, **options)
    return found if reduction != "none" or found.shape == target.shape else found.reshape(target.shape)


def _of_probabilities(
    logits: Tensor, target: Tensor, weight: Tensor | None, reduction: Reduction, smoothing: float
) -> Tensor:
    same_dtype("cross_entropy", logits, target, weight)
    if not logits.ndim:
        raise ValueError(
            "cross_entropy: logits of shape () have no classes: they must be (rows, classes, ...) or (classes,)"
        )
    axis = min(1, logits.ndim - 1)
    classes = known_shape(logits, "cross_entropy")[axis]
    losses = -(log_softmax(logits, axis) * (target * (1 - smoothing) + smoothing / classes if smoothing else target))
    if weight is not None:
        losses = losses * _weights("cross_entropy", weight, classes).reshape(-1, *[1] * (logits.ndim - axis - 1))
    return _reduced("cross_entropy", losses.sum(axis=axis), reduction)


def _picked(
    name: str, rows: Tensor, target: Tensor, weight: Tensor | None, ignored: int, smoothing: float
) -> tuple[Tensor, Tensor]:
    """The loss of each row of logarithms, and how much it counts: both are 0 if the target is ignored."""
    same_dtype(name, rows, weight)
    classes = rows.shape[1] or 0
    valid = target != ignored
    safe = op("class_numbers", target, classes=classes, ignore_index=ignored)
    counts = valid.astype(rows.dtype)
    losses = -take_along_axis(rows, expand_dims(safe, axis=1), axis=1).reshape(*target.shape)
    if weight is not None:
        counts = where(valid, take(_weights(name, weight, classes), safe, axis=0), 0)
        losses = losses * counts
    if smoothing:
        spread = -(rows if weight is None else rows * weight).sum(axis=1)
        losses = losses * (1 - smoothing) + spread * (smoothing / classes)
    return where(valid, losses, 0), counts


def _weighted(name: str, losses: Tensor, counts: Tensor, reduction: Reduction, target: Tensor) -> Tensor:
    if reduction == "mean":
        return narrow(wide(losses).sum() / wide(counts).sum(), losses)
    found = _reduced(name, losses, reduction)
    return found if reduction == "sum" or found.shape == target.shape else found.reshape(target.shape)


def _weights(name: str, weight: Tensor, classes: int) -> Tensor:
    if weight.shape != (classes,):
        raise ValueError(f"{name}: the weight has shape {weight.shape}, and there are {classes} classes")
    return weight


def _rows(name: str, x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """The input with classes on the last axis, a row for each target."""
    if x.ndim == 2 and target.ndim == 1:
        return x, target
    shape = known_shape(x, name)
    if not shape or target.shape != (*shape[:1], *shape[2:])[len(shape) == 1 :]:
        raise ValueError(
            f"{name}: the shapes {shape} and {target.shape} must be (rows, classes, ...) and (rows, ...), or (classes,)"
            " and ()"
        )
    if len(shape) == 1:
        return x.reshape(1, *shape), target.reshape(1)
    count = prod((shape[0], *shape[2:]))
    return moveaxis(x, 1, -1).reshape(count, shape[1]), target.reshape(count)


def _alike(name: str, x: Tensor, target: Tensor, *more: Tensor | None) -> None:
    check_tensors(name, x, target)
    same_dtype(name, x, target, *more)
    if x.shape != target.shape:
        raise ValueError(f"{name}: the shapes {x.shape} and {target.shape} must be equal; `reshape` makes them so")


def _reduced(name: str, losses: Tensor, reduction: Reduction) -> Tensor:
    """Each loss, or their sum or mean, as `reduction` says."""
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"{name}: reduction={reduction!r} must be 'mean', 'sum' or 'none'")
    return losses if reduction == "none" else losses.sum() if reduction == "sum" else losses.mean()
