"""RMSprop."""

from __future__ import annotations

from ..tensors.functions._common import op
from ..tensors.tensor import Tensor
from .groups import Parameters, Setting, number
from .optimizer import Optimizer
from .states import Settings, State


class RMSprop(Optimizer):
    """RMSprop (Hinton's lecture 6e): each gradient over the root of an average of its squares.

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

    alpha = Setting(number, "How much of the average of squares stays.")
    eps = Setting(number, "Keeps the quotient finite.")
    weight_decay = Setting(number, "How much of the parameter is added to its gradient.")
    momentum = Setting(number, "How much of the moving average stays from step to step.")
    _kept = (("square",), ("square", "momentum"))

    def __init__(
        self, parameters: Parameters, lr: float = 1e-2, *, alpha: float = 0.99, eps: float = 1e-8,
        weight_decay: float = 0.0, momentum: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(parameters, lr=lr, alpha=alpha, eps=eps, weight_decay=weight_decay, momentum=momentum)

    def _moved(
        self, settings: Settings, parameter: Tensor, gradient: Tensor, state: State, counts: dict[object, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        lr, alpha, momentum, decay = [settings[name] for name in ("lr", "alpha", "momentum", "weight_decay")]
        if decay:
            gradient = op("axpby", parameter, gradient, decay, 1.0)
        kept = {"square": op("axpby_squared", state.get("square", 0.0), gradient, alpha, 1 - alpha)}
        change = op("rms_scaled", gradient, kept["square"], settings["eps"])
        if momentum:
            change = kept["momentum"] = op("axpby", state.get("momentum", 0.0), change, momentum, 1.0)
        return op("axpby", parameter, change, 1.0, -lr), kept
