"""Functions as modules without parameters: functions of each element, the softmax, and losses.

A loss takes predictions x and a target. `reduction` is "mean", "sum" or "none"; weights are buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from inspect import signature
from typing import Literal

from .._instead import naming_arguments
from ..tensors.tensor import Tensor
from . import functional as F
from .functional.common import Reduction
from .module import Module

__all__ = [
    "GELU",
    "BCEWithLogitsLoss",
    "CrossEntropyLoss",
    "HuberLoss",
    "KLDivLoss",
    "L1Loss",
    "LeakyReLU",
    "LogSoftmax",
    "MSELoss",
    "NLLLoss",
    "ReLU",
    "SiLU",
    "Sigmoid",
    "SmoothL1Loss",
    "Softmax",
    "Softplus",
    "Tanh",
]  # fmt: skip


class _Function(Module):
    """A function of one tensor. Its options are attributes, by the same names."""

    _function: Callable[..., Tensor]
    _options: Collection[str]

    def __init_subclass__(cls, function: Callable[..., Tensor] | None = None) -> None:
        if function is not None:
            cls._function = staticmethod(function)
            cls._options = signature(function).parameters.keys() - {"x", "logits", "target"}

    def _of(self, *operands: Tensor) -> Tensor:
        return self._function(*operands, **{name: getattr(self, name) for name in self._options})

    def forward(self, x: Tensor) -> Tensor:
        return self._of(x)


class _Loss(_Function):
    """A function of predictions and a target."""

    def forward(self, x: Tensor, target: Tensor) -> Tensor:  # type: ignore[override]
        return self._of(x, target)


class ReLU(_Function, function=F.relu):
    """The larger of each element and 0.

    >>> x = await s.put(np.array([-1.0, 2.0]))
    >>> await nn.ReLU()(x)
    array([0., 2.])
    """


class GELU(_Function, function=F.gelu):
    """x times the normal distribution function of x, or its approximation by tanh.

    >>> x = await s.put(np.array([0.0, 1.0]))
    >>> await nn.GELU()(x)
    array([0.        , 0.84134475])
    """

    def __init__(self, approximate: Literal["none", "tanh"] = "none") -> None:
        self.approximate = approximate


class Sigmoid(_Function, function=F.sigmoid):
    """1 / (1 + exp(-x)).

    >>> x = await s.put(np.array([0.0, 2.0]))
    >>> await nn.Sigmoid()(x)
    array([0.5       , 0.88079708])
    """


class Tanh(_Function, function=F.tanh):
    """The hyperbolic tangent.

    >>> x = await s.put(np.array([0.0, 2.0]))
    >>> await nn.Tanh()(x)
    array([0.        , 0.96402758])
    """


class SiLU(_Function, function=F.silu):
    """x sigmoid(x).

    >>> x = await s.put(np.array([0.0, 2.0]))
    >>> await nn.SiLU()(x)
    array([0.        , 1.76159416])
    """


class LeakyReLU(_Function, function=F.leaky_relu):
    """Each element where it is positive, else `negative_slope` times it.

    >>> x = await s.put(np.array([-1.0, 2.0]))
    >>> await nn.LeakyReLU(0.1)(x)
    array([-0.1,  2. ])
    """

    def __init__(self, negative_slope: float = 0.01) -> None:
        self.negative_slope = negative_slope


class Softplus(_Function, function=F.softplus):
    """log(1 + exp(beta x)) / beta, and x itself where beta x is above `threshold`.

    >>> x = await s.put(np.array([0.0, 2.0]))
    >>> await nn.Softplus()(x)
    array([0.69314718, 2.12692801])
    """

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        self.beta = beta
        self.threshold = threshold


class Softmax(_Function, function=F.softmax):
    """exp(x) over its sum along an axis.

    >>> x = await s.put(np.array([0.0, 0.0]))
    >>> await nn.Softmax()(x)
    array([0.5, 0.5])
    """

    @naming_arguments
    def __init__(self, axis: int = -1) -> None:
        self.axis = axis


class LogSoftmax(_Function, function=F.log_softmax):
    """The logarithm of the softmax along an axis.

    >>> x = await s.put(np.array([0.0, 0.0]))
    >>> await nn.LogSoftmax()(x)
    array([-0.69314718, -0.69314718])
    """

    @naming_arguments
    def __init__(self, axis: int = -1) -> None:
        self.axis = axis


class MSELoss(_Loss, function=F.mse_loss):
    """The squared differences between x and the target.

    >>> x = await s.put(np.array([1.0, 3.0]))
    >>> y = await s.put(np.array([2.0, 5.0]))
    >>> await nn.MSELoss()(x, y).item()
    2.5
    """

    def __init__(self, *, reduction: Reduction = "mean") -> None:
        self.reduction = reduction


class L1Loss(_Loss, function=F.l1_loss):
    """The absolute differences between x and the target.

    >>> x = await s.put(np.array([1.0, 3.0]))
    >>> y = await s.put(np.array([2.0, 5.0]))
    >>> await nn.L1Loss()(x, y).item()
    1.5
    """

    def __init__(self, *, reduction: Reduction = "mean") -> None:
        self.reduction = reduction


class SmoothL1Loss(_Loss, function=F.smooth_l1_loss):
    """The absolute difference d between x and the target, minus beta / 2; below beta it is d**2 / (2 beta).

    >>> x = await s.put(np.array([1.0, 3.0]))
    >>> y = await s.put(np.array([1.5, 5.0]))
    >>> await nn.SmoothL1Loss()(x, y).item()
    0.8125
    """

    def __init__(self, *, reduction: Reduction = "mean", beta: float = 1.0) -> None:
        self.reduction = reduction
        self.beta = beta


class HuberLoss(_Loss, function=F.huber_loss):
    """Half the squared difference d between x and the target; above delta it is delta (d - delta / 2).

    >>> x = await s.put(np.array([1.0, 3.0]))
    >>> y = await s.put(np.array([1.5, 5.0]))
    >>> await nn.HuberLoss()(x, y).item()
    0.8125
    """

    def __init__(self, *, reduction: Reduction = "mean", delta: float = 1.0) -> None:
        self.reduction = reduction
        self.delta = delta


class BCEWithLogitsLoss(_Loss, function=F.binary_cross_entropy_with_logits):
    """Minus the logarithm of the probability that the sigmoid of x gives to a target from 0 to 1.

    >>> x = await s.put(np.array([0.0, 0.0]))
    >>> y = await s.put(np.array([1.0, 0.0]))
    >>> await nn.BCEWithLogitsLoss()(x, y).item()
    0.6931471805599453
    """

    def __init__(
        self, weight: Tensor | None = None, *, reduction: Reduction = "mean", pos_weight: Tensor | None = None
    ) -> None:
        self.weight = weight
        self.pos_weight = pos_weight
        self.reduction = reduction


class KLDivLoss(_Loss, function=F.kl_div):
    """The distance of a distribution, given by the logarithms of its probabilities, from the target.

    >>> x = await s.put(np.array([[0.5, 0.5]]))
    >>> y = await s.put(np.array([[0.5, 0.5]]))
    >>> await nn.KLDivLoss(reduction="batchmean")(asc.log(x), y).item()
    0.0
    """

    def __init__(self, *, reduction: Reduction | Literal["batchmean"] = "mean", log_target: bool = False) -> None:
        self.reduction = reduction
        self.log_target = log_target


class NLLLoss(_Loss, function=F.nll_loss):
    """Minus the number at the target's class, where x are logarithms of probabilities.

    >>> x = await s.put(np.array([[-0.5, -1.0]]))
    >>> y = await s.put(np.array([1]))
    >>> await nn.NLLLoss()(x, y).item()
    1.0
    """

    def __init__(
        self, weight: Tensor | None = None, *, ignore_index: int = -100, reduction: Reduction = "mean"
    ) -> None:
        self.weight = weight
        self.ignore_index = ignore_index
        self.reduction = reduction


class CrossEntropyLoss(_Loss, function=F.cross_entropy):
    """Minus the logarithm of the softmax of x at the target: class numbers, or probabilities.

    >>> x = await s.put(np.array([[0.0, 0.0]]))
    >>> y = await s.put(np.array([1]))
    >>> await nn.CrossEntropyLoss()(x, y).item()
    0.6931471805599453
    """

    def __init__(
        self, weight: Tensor | None = None, *, ignore_index: int = -100, reduction: Reduction = "mean",
        label_smoothing: float = 0.0,
    ) -> None:  # fmt: skip
        self.weight = weight
        self.ignore_index = ignore_index
        self.reduction = reduction
        self.label_smoothing = label_smoothing
