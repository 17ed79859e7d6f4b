"""Stochastic gradient descent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..tensors.functions._common import op
from ..tensors.tensor import Tensor
from .groups import Parameters, Setting, number, truth
from .optimizer import Optimizer
from .states import Settings, State


class SGD(Optimizer):
    """Stochastic gradient descent: p <- p - lr d, where d is the gradient g + weight_decay p.

    With momentum, d is b <- momentum b + (g + weight_decay p), where b begins as the first gradient; with `nesterov`
    it is g + weight_decay p + momentum b.

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

    momentum = Setting(number, "How much of the moving average stays from step to step.")
    weight_decay = Setting(number, "How much of the parameter is added to its gradient.")
    nesterov = Setting(truth, "Whether to look ahead by one step of momentum.")
    _kept = (("momentum",),)

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

    def _moved(
        self, settings: Settings, parameter: Tensor, gradient: Tensor, state: State, counts: dict[object, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        lr, momentum, decay = settings["lr"], settings["momentum"], settings["weight_decay"]
        average = state.get("momentum", 0.0)
        if not momentum:
            if not decay:
                return op("axpby", parameter, gradient, 1.0, -lr), {}
            return op("sgd_step", parameter, 0.0, gradient, lr, 0.0, decay), {}
        if decay:
            average = op("sgd_average", average, gradient, parameter, momentum, decay)
        else:
            average = op("axpby", average, gradient, momentum, 1.0)
        if settings["nesterov"]:
            moved = op("sgd_step", parameter, average, gradient, lr, momentum, decay)
        else:
            moved = op("axpby", parameter, average, 1.0, -lr)
        return moved, {"momentum": average}
