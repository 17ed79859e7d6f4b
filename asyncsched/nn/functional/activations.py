"""Functions of each element, and the softmax along an axis."""

from __future__ import annotations

from typing import Literal

from ..._instead import naming_arguments
from ...tensors.functions import moveaxis
from ...tensors.functions._common import op
from ...tensors.tensor import Tensor
from .common import check_tensors


def relu(x: Tensor) -> Tensor:
    """The larger of each element and 0. The gradient at 0 is 0.

    >>> x = await s.put(np.array([-1.0, 2.0]))
    >>> await nn.relu(x)
    array([0., 2.])
    """
    return op("relu", x)


def gelu(x: Tensor, approximate: Literal["none", "tanh"] = "none") -> Tensor:
    """x Phi(x), with the normal distribution function Phi, or its approximation by tanh.

    Exact to rounding. In float32 on the CPU exact to 1e-6 at |x| < 10, unless it is issued `with asc.exact():`. D.
    Hendrycks and K. Gimpel, "Gaussian Error Linear Units" (2016), has both formulas.

    >>> x = await s.put(np.array([-1.0, 0.0, 1.0]))
    >>> await nn.gelu(x)
    array([-0.15865525,  0.        ,  0.84134475])
    """
    if approximate not in ("none", "tanh"):
        raise ValueError(f"gelu: approximate={approximate!r} must be 'none' or 'tanh'")
    return op("gelu", x, approximate=approximate)


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x)).

    >>> x = await s.put(np.array([0.0, 2.0]))
    >>> await nn.sigmoid(x)
    array([0.5       , 0.88079708])
    """
    return op("sigmoid", x)


def silu(x: Tensor) -> Tensor:
    """x sigmoid(x).

    >>> x = await s.put(np.array([0.0, 2.0]))
    >>> await nn.silu(x)
    array([0.        , 1.76159416])
    """
    return x * sigmoid(x)


def leaky_relu(x: Tensor, negative_slope: float = 0.01) -> Tensor:
    """Each element where it is positive, else `negative_slope` times it. The gradient at 0 is `negative_slope`.

    >>> x = await s.put(np.array([-1.0, 2.0]))
    >>> await nn.leaky_relu(x)
    array([-0.01,  2.  ])
    """
    return op("leaky_relu", x, negative_slope=float(negative_slope))


def softplus(x: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """log(1 + exp(beta x)) / beta, and x itself where beta x is above `threshold`.

    >>> x = await s.put(np.array([0.0, 2.0]))
    >>> await nn.softplus(x)
    array([0.69314718, 2.12692801])
    """
    return op("softplus", x, beta=float(beta), threshold=float(threshold))


@naming_arguments
def softmax(x: Tensor, axis: int = -1) -> Tensor:
    """exp(x) over its sum along an axis, without overflow.

    >>> x = await s.put(np.array([0.0, 0.0]))
    >>> await nn.softmax(x)
    array([0.5, 0.5])
    """
    return _along(x, axis, log=False)


@naming_arguments
def log_softmax(x: Tensor, axis: int = -1) -> Tensor:
    """The logarithm of `softmax`, without overflow or underflow.

    >>> x = await s.put(np.array([0.0, 0.0]))
    >>> await nn.log_softmax(x)
    array([-0.69314718, -0.69314718])
    """
    return _along(x, axis, log=True)


def _along(x: Tensor, axis: int, *, log: bool) -> Tensor:
    check_tensors("log_softmax" if log else "softmax", x)
    if axis in (-1, x.ndim - 1):
        return op("softmax", x, log=log)
    return moveaxis(op("softmax", moveaxis(x, axis, -1), log=log), -1, axis)
