"""Schedules of one formula, and one after the other."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence

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
