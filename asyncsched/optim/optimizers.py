"""The optimisers: stochastic gradient descent, RMSprop, Adam, and Adam with decoupled weight decay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._instead import naming_arguments
from ..tensors.functions._common import op
from ..tensors.tensor import Tensor
from .optimizer import Counts, Moved, Optimizer, Parameters, Setting, Settings, State, betas, number, truth


class SGD(Optimizer):
    """Stochastic gradient descent: p <- p - lr d, where d is the gradient g + weight_decay p.

    With momentum, d is b <- momentum b + (g + weight_decay p), where b begins as the first gradient; with `nesterov` d
    is g + weight_decay p + momentum b.

    Args:
        parameters: tensors with `requires_grad` set, or dicts of them (see `Optimizer.param_groups`).
        lr: the learning rate.
        momentum: how much of b stays from step to step.
        weight_decay: how much of the parameter is added to its gradient.
        nesterov: look ahead by one step of momentum.

    All but the parameters are attributes, too, and may be set at any time: `optimizer.lr = 0.01`.

    Raises:
        ValueError, TypeError: for numbers that are negative, infinite, NaN or none, here and where they are set.

    >>> async def main():
    ...     async with asc.Scheduler("cpu") as s:
    ...         w = await s.put(np.array(4.0))
    ...         w.requires_grad = True
    ...         optimizer = asc.optim.SGD([w], lr=0.25)
    ...         for _ in range(3):
    ...             optimizer.zero_grad()
    ...             (w * w).backward()              # the gradient is 2 w, so a step halves w
    ...             optimizer.step()
    ...         return await w.item()
    >>> asc.run(main)
    0.5
    """

    momentum: Setting[float] = Setting(number, "How much of the moving average stays from step to step.")
    weight_decay: Setting[float] = Setting(number, "How much of the parameter is added to its gradient.")
    nesterov: Setting[bool] = Setting(truth, "Whether to look ahead by one step of momentum.")
    _kept = (("momentum",),)

    @naming_arguments
    def __init__(
        self, parameters: Parameters, lr: float = 1e-3, *, momentum: float = 0.0, weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(parameters, lr=lr, momentum=momentum, weight_decay=weight_decay, nesterov=nesterov)

    @classmethod
    def _checked(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        found = super()._checked(given)
        if found["nesterov"] and not found["momentum"]:
            raise ValueError("nesterov needs momentum: set that above 0, or nesterov to False first")
        return found

    def _moved(self, settings: Settings, parameter: Tensor, gradient: Tensor, state: State, counts: Counts) -> Moved:
        lr, momentum, decay = settings["lr"], settings["momentum"], settings["weight_decay"]
        if decay:
            gradient = op("axpby", parameter, gradient, decay, 1.0)
        if not momentum:
            return op("axpby", parameter, gradient, 1.0, -lr), {}
        average = op("axpby", state.get("momentum", 0.0), gradient, momentum, 1.0)
        change = op("axpby", average, gradient, momentum, 1.0) if settings["nesterov"] else average
        return op("axpby", parameter, change, 1.0, -lr), {"momentum": average}


class RMSprop(Optimizer):
    """RMSprop (Hinton's lecture 6e): each gradient is divided by the root of an average of its squares.

    With the gradient g + weight_decay p in the place of g: v <- alpha v + (1 - alpha) g**2, which begins at zero, and
    d = g / (sqrt(v) + eps); then p <- p - lr d. With momentum b <- momentum b + d takes the place of d.

    Args:
        parameters: tensors with `requires_grad` set, or dicts of them (see `Optimizer.param_groups`).
        lr: the learning rate.
        alpha: how much of the average stays.
        eps: keeps the quotient finite.
        weight_decay: how much of the parameter is added to its gradient.
        momentum: how much of b stays from step to step.

    All but the parameters are attributes, too, and may be set at any time: `optimizer.lr = 0.01`.

    Raises:
        ValueError, TypeError: for numbers that are negative, infinite, NaN or none, here and where they are set.

    >>> async def main():
    ...     async with asc.Scheduler("cpu") as s:
    ...         w = await s.put(np.array(4.0))
    ...         w.requires_grad = True
    ...         optimizer = asc.optim.RMSprop([w], lr=0.1)
    ...         (w * w).backward()
    ...         optimizer.step()
    ...         return await w.item()
    >>> print(f"{asc.run(main):.3f}")               # the average of squares begins with a hundredth
    3.000
    """

    alpha: Setting[float] = Setting(number, "How much of the average of squares stays.")
    eps: Setting[float] = Setting(number, "Keeps the quotient finite.")
    weight_decay: Setting[float] = Setting(number, "How much of the parameter is added to its gradient.")
    momentum: Setting[float] = Setting(number, "How much of the moving average stays from step to step.")
    _kept = (("square",), ("square", "momentum"))

    @naming_arguments
    def __init__(
        self, parameters: Parameters, lr: float = 1e-2, *, alpha: float = 0.99, eps: float = 1e-8,
        weight_decay: float = 0.0, momentum: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(parameters, lr=lr, alpha=alpha, eps=eps, weight_decay=weight_decay, momentum=momentum)

    def _moved(self, settings: Settings, parameter: Tensor, gradient: Tensor, state: State, counts: Counts) -> Moved:
        lr, alpha, momentum, decay = [settings[name] for name in ("lr", "alpha", "momentum", "weight_decay")]
        if decay:
            gradient = op("axpby", parameter, gradient, decay, 1.0)
        kept = {"square": op("axpby_squared", state.get("square", 0.0), gradient, alpha, 1 - alpha)}
        change = op("rms_scaled", gradient, kept["square"], settings["eps"])
        if momentum:
            change = kept["momentum"] = op("axpby", state.get("momentum", 0.0), change, momentum, 1.0)
        return op("axpby", parameter, change, 1.0, -lr), kept


class Adam(Optimizer):
    """Adam (Kingma and Ba, arXiv:1412.6980).

    At step t, from 1, with the gradient g + weight_decay p in the place of g: m <- b1 m + (1 - b1) g and
    v <- b2 v + (1 - b2) g**2, which begin at zero; then p <- p - lr (m / (1 - b1**t)) / (sqrt(v / (1 - b2**t)) + eps).

    Args:
        parameters: tensors with `requires_grad` set, or dicts of them (see `Optimizer.param_groups`).
        lr: the learning rate.
        betas: b1 and b2, both below 1.
        eps: keeps the quotient finite.
        weight_decay: how much of the parameter is added to its gradient.

    All but the parameters are attributes, too, and may be set at any time: `optimizer.lr = 0.01`.

    Raises:
        ValueError, TypeError: for numbers that are negative, infinite, NaN or none, here and where they are set.

    >>> async def main():
    ...     async with asc.Scheduler("cpu"):
    ...         body, head = asc.nn.Linear(2, 2), asc.nn.Linear(2, 1)
    ...         groups = [{"params": body.parameters(), "lr": 1e-4}, {"params": head.parameters()}]
    ...         optimizer = asc.optim.Adam(groups, lr=1e-3)
    ...         optimizer.param_groups[1]["weight_decay"] = 0.1
    ...         print(optimizer, optimizer.param_groups[1])
    >>> asc.run(main)
    Adam(4 parameters, lr=0.0001, 0.001) Group(2 parameters, lr=0.001, betas=(0.9, 0.999), eps=1e-08, weight_decay=0.1)
    """

    betas: Setting[tuple[float, float]] = Setting(
        betas, "How much of the averages of gradients and of their squares stays, each below 1."
    )
    eps: Setting[float] = Setting(number, "Keeps the quotient finite.")
    weight_decay: Setting[float] = Setting(number, "How much of the parameter is added to its gradient.")
    _kept = (("step", "mean", "square"),)
    _decoupled = False  # whether the decay is not part of the gradient

    @naming_arguments
    def __init__(
        self, parameters: Parameters, lr: float = 1e-3, *, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, weight_decay: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(parameters, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)

    def _moved(self, settings: Settings, parameter: Tensor, gradient: Tensor, state: State, counts: Counts) -> Moved:
        (b1, b2), decay, count = settings["betas"], settings["weight_decay"], self._counted(parameter, state, counts)
        if decay and not self._decoupled:
            gradient, decay = op("axpby", parameter, gradient, decay, 1.0), 0.0
        mean = op("axpby", state.get("mean", 0.0), gradient, b1, 1 - b1)
        square = op("axpby_squared", state.get("square", 0.0), gradient, b2, 1 - b2)
        moved = op("adam_step", parameter, mean, square, count, settings["lr"], decay, b1, b2, settings["eps"])
        return moved, {"step": count, "mean": mean, "square": square}


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter, arXiv:1711.05101).

    At step t, from 1: m <- b1 m + (1 - b1) g and v <- b2 v + (1 - b2) g**2, which begin at zero; then
    p <- p - lr weight_decay p - lr (m / (1 - b1**t)) / (sqrt(v / (1 - b2**t)) + eps).

    Args:
        parameters: tensors with `requires_grad` set, or dicts of them (see `Optimizer.param_groups`).
        lr: the learning rate.
        betas: b1 and b2, both below 1.
        eps: keeps the quotient finite.
        weight_decay: how much of the parameter goes at each step, times `lr`.

    All but the parameters are attributes, too, and may be set at any time: `optimizer.lr = 0.01`.

    Raises:
        ValueError, TypeError: for numbers that are negative, infinite, NaN or none, here and where they are set.

    >>> async def main():
    ...     async with asc.Scheduler("cpu") as s:
    ...         w = await s.put(np.array(4.0))
    ...         w.requires_grad = True
    ...         optimizer = asc.optim.AdamW([w], lr=0.1, weight_decay=0.0)
    ...         (w * w).backward()
    ...         optimizer.step()
    ...         return await w.item()
    >>> print(f"{asc.run(main):.3f}")               # the first step is as long as the learning rate
    3.900
    """

    weight_decay: Setting[float] = Setting(number, "How much of the parameter goes at each step, times `lr`.")
    _decoupled = True

    @naming_arguments
    def __init__(
        self, parameters: Parameters, lr: float = 1e-3, *, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, weight_decay: float = 1e-2,
    ) -> None:  # fmt: skip
        super().__init__(parameters, lr, betas=betas, eps=eps, weight_decay=weight_decay)
