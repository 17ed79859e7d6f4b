"""Schedules of one formula, and one after the other."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence

from ..optimizer import Optimizer
from .schedule import Schedule


class StepLR(Schedule):
    """The base times `gamma` for each `step_size` steps.

    >>> async def main():
    ...     async with asc.Scheduler("cpu"):
    ...         optimizer = asc.optim.SGD(asc.nn.Linear(2, 2).parameters(), lr=0.8)
    ...         schedule = asc.optim.schedules.StepLR(optimizer, 2, gamma=0.5)
    ...         rates = []
    ...         for _ in range(5):
    ...             rates.append(optimizer.lr)
    ...             schedule.step()
    ...         return rates
    >>> asc.run(main)
    [0.8, 0.8, 0.4, 0.4, 0.2]
    """

    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1) -> None:
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer)

    def rate(self, base: float, step: int) -> float:
        return base * self.gamma ** (step // self.step_size)


class MultiStepLR(Schedule):
    """The base times `gamma` for each of the `milestones` that is reached."""

    def __init__(self, optimizer: Optimizer, milestones: Sequence[int], gamma: float = 0.1) -> None:
        self.milestones, self.gamma = sorted(milestones), gamma
        super().__init__(optimizer)

    def rate(self, base: float, step: int) -> float:
        return base * self.gamma ** bisect_right(self.milestones, step)


class ExponentialLR(Schedule):
    """The base times `gamma` for each step."""

    def __init__(self, optimizer: Optimizer, gamma: float) -> None:
        self.gamma = gamma
        super().__init__(optimizer)

    def rate(self, base: float, step: int) -> float:
        return base * self.gamma**step


class LambdaLR(Schedule):
    """The base times what a function says of the count of steps. It is no part of the state."""

    def __init__(self, optimizer: Optimizer, lr_lambda: Callable[[int], float]) -> None:
        if not callable(lr_lambda):
            raise TypeError("lr_lambda is one function, for all groups: their base rates are what differs")
        self.lr_lambda = lr_lambda
        super().__init__(optimizer)

    def rate(self, base: float, step: int) -> float:
        return base * self.lr_lambda(step)


class CosineAnnealingLR(Schedule):
    """From the base to `eta_min` in `T_max` steps, along half of a cosine; then back, and so on."""

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0) -> None:
        self.T_max, self.eta_min = T_max, eta_min
        super().__init__(optimizer)

    def rate(self, base: float, step: int) -> float:
        return self.eta_min + (base - self.eta_min) * (1 + math.cos(math.pi * step / self.T_max)) / 2


class LinearLR(Schedule):
    """A warm-up: the base times a factor that goes from `start_factor` to `end_factor` in `total_iters` steps."""

    def __init__(
        self, optimizer: Optimizer, start_factor: float = 1 / 3, end_factor: float = 1.0, total_iters: int = 5
    ) -> None:
        if not 0 < start_factor <= 1 or not 0 <= end_factor <= 1:
            text = f"start_factor={start_factor} and end_factor={end_factor}"
            raise ValueError(f"{text} must be from 0 to 1, the first above 0")
        self.start_factor, self.end_factor, self.total_iters = start_factor, end_factor, total_iters
        super().__init__(optimizer)

    def rate(self, base: float, step: int) -> float:
        done = min(step / self.total_iters, 1.0) if self.total_iters else 1.0
        return base * (self.start_factor + (self.end_factor - self.start_factor) * done)


class SequentialLR(Schedule):
    """One schedule after the other, each from its own beginning: the next at each of the `milestones`."""

    def __init__(self, optimizer: Optimizer, schedulers: Sequence[Schedule], milestones: Sequence[int]) -> None:
        if len(milestones) != len(schedulers) - 1:
            raise ValueError(f"{len(schedulers)} schedulers need one milestone less, not {len(milestones)}")
        if any(one.optimizer is not optimizer for one in schedulers):
            raise ValueError("all schedulers must be of this optimizer")
        self.schedulers, self.milestones = list(schedulers), list(milestones)
        super().__init__(optimizer)

    def set(self, step: int) -> None:
        i = bisect_right(self.milestones, step)
        self.schedulers[i].set(step - self.milestones[i - 1] if i else step)
