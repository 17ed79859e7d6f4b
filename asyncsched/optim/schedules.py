"""Learning rates that change from step to step, with the names and formulas of `torch.optim.lr_scheduler`.

    optimizer = SGD(model.parameters(), lr=0.1)
    schedule = SequentialLR(optimizer, [LinearLR(optimizer, total_iters=100), CosineAnnealingLR(optimizer, 900)], [100])
    for images, labels in batches:
        ...
        optimizer.step()
        schedule.step()                 # sets `group["lr"]`, a Python float, of each group; waits for nothing

A schedule counts its steps, also those for skipped steps of the optimiser, and sets the learning rate of its formula
for that count. If your program has set the learning rate meanwhile, that is written over. Only `ReduceLROnPlateau` has
no formula: it goes by a number that you have awaited.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from .._arguments import check_int, check_number, check_plain, check_state
from ..tensors.tensor import Tensor
from .optimizer import Optimizer

__all__ = [
    "CosineAnnealingLR", "CosineAnnealingWarmRestarts", "ExponentialLR", "LambdaLR", "LinearLR", "MultiStepLR",
    "OneCycleLR", "ReduceLROnPlateau", "Schedule", "SequentialLR", "StepLR",
]  # fmt: skip


class Schedule:
    """A learning rate by the count of steps. Each schedule defines it in `rate`.

    Attributes:
        last_epoch: how often it was stepped.
        base_lrs: the learning rate that each group had before its first schedule.
    """

    _kept: tuple[str, ...] = ("last_epoch", "base_lrs")

    def __init__(self, optimizer: Optimizer) -> None:
        if not isinstance(optimizer, Optimizer):
            told = "a schedule takes an optimizer, as `optim.SGD(model.parameters())` makes one"
            raise TypeError(f"{told}, not {type(optimizer).__name__}")
        self.optimizer = optimizer
        self.last_epoch: int = 0
        for group in optimizer.param_groups:
            group.initial_lr = group["lr"] if group.initial_lr is None else group.initial_lr
        self.base_lrs: list[float] = [float(group.initial_lr or 0.0) for group in optimizer.param_groups]
        self.set(0)

    def rate(self, base: float, step: int) -> float:
        """The learning rate after so many steps of a group that began with `base`."""
        raise NotImplementedError

    def set(self, step: int) -> None:
        """Set the learning rates of the formula for this count of steps."""
        for group, base in zip(self.optimizer.param_groups, self.base_lrs, strict=True):
            group["lr"] = max(self.rate(base, step), 0.0)

    def step(self) -> None:
        """Go one step on."""
        self.last_epoch += 1
        self.set(self.last_epoch)

    def get_last_lr(self) -> list[float]:
        """The present learning rates, one for each group."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """The state, for `load_state_dict`, of values that JSON can hold."""
        return {name: getattr(self, name) for name in self._kept}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Set the state that `state_dict` gave, and the learning rates.

        Raises:
            TypeError, ValueError: if it is no state, or has other values than this schedule keeps, or of other groups.
        """
        check_state(state_dict)
        self._restore(state_dict)
        self.set(self.last_epoch)

    def _restore(self, state_dict: Mapping[str, Any]) -> None:
        """Set the state without the learning rates."""
        if state_dict.keys() != set(self._kept):
            raise ValueError(f"the state has {sorted(state_dict)}, and {type(self).__name__} {sorted(self._kept)}")
        if len(state_dict.get("base_lrs", self.optimizer.param_groups)) != len(self.optimizer.param_groups):
            raise ValueError(f"the state is not of {len(self.optimizer.param_groups)} groups of parameters")
        for name in self._kept:
            setattr(self, name, state_dict[name])


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
        check_int("step_size", step_size)
        self.step_size = step_size
        self.gamma = gamma
        super().__init__(optimizer)

    def rate(self, base: float, step: int) -> float:
        return base * self.gamma ** (step // self.step_size)


class MultiStepLR(Schedule):
    """The base times `gamma` for each of the `milestones` that is reached.

    >>> optimizer = optim.SGD([nn.Linear(3, 2).weight], lr=1.0)
    >>> schedule = optim.schedules.MultiStepLR(optimizer, milestones=[1])
    >>> schedule.step()
    >>> round(optimizer.lr, 4)
    0.1
    """

    def __init__(self, optimizer: Optimizer, milestones: Sequence[int], gamma: float = 0.1) -> None:
        self.milestones: list[int] = sorted(milestones)
        self.gamma = gamma
        super().__init__(optimizer)

    def rate(self, base: float, step: int) -> float:
        return base * self.gamma ** bisect_right(self.milestones, step)


class ExponentialLR(Schedule):
    """The base times `gamma` for each step.

    >>> optimizer = optim.SGD([nn.Linear(3, 2).weight], lr=1.0)
    >>> schedule = optim.schedules.ExponentialLR(optimizer, gamma=0.5)
    >>> schedule.step()
    >>> round(optimizer.lr, 4)
    0.5
    """

    def __init__(self, optimizer: Optimizer, gamma: float) -> None:
        self.gamma = gamma
        super().__init__(optimizer)

    def rate(self, base: float, step: int) -> float:
        return base * self.gamma**step


class LambdaLR(Schedule):
    """The base times a function of the count of steps. The function is not part of the state.

    >>> optimizer = optim.SGD([nn.Linear(3, 2).weight], lr=1.0)
    >>> schedule = optim.schedules.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    >>> schedule.step()
    >>> round(optimizer.lr, 4)
    0.5
    """

    def __init__(self, optimizer: Optimizer, lr_lambda: Callable[[int], float]) -> None:
        if not callable(lr_lambda):
            raise TypeError("lr_lambda is one function for all groups, which may differ in their base rates")
        check_plain("lr_lambda", lr_lambda)
        self.lr_lambda = lr_lambda
        super().__init__(optimizer)

    def rate(self, base: float, step: int) -> float:
        return base * self.lr_lambda(step)


class CosineAnnealingLR(Schedule):
    """From the base to `eta_min` in `T_max` steps, along half of a cosine; then back, and so on.

    >>> optimizer = optim.SGD([nn.Linear(3, 2).weight], lr=1.0)
    >>> schedule = optim.schedules.CosineAnnealingLR(optimizer, T_max=4)
    >>> schedule.step()
    >>> round(optimizer.lr, 4)
    0.8536
    """

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0) -> None:
        check_number("T_max", T_max, "steps")
        self.T_max = T_max
        self.eta_min = eta_min
        super().__init__(optimizer)

    def rate(self, base: float, step: int) -> float:
        return self.eta_min + (base - self.eta_min) * (1 + math.cos(math.pi * step / self.T_max)) / 2


class CosineAnnealingWarmRestarts(Schedule):
    """From the base to `eta_min` along half of a cosine, in `T_0` steps; then from the base again, in `T_mult` times as
    many steps, and so on.

    I. Loshchilov and F. Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts" (2017).

    >>> optimizer = optim.SGD([nn.Linear(3, 2).weight], lr=1.0)
    >>> schedule = optim.schedules.CosineAnnealingWarmRestarts(optimizer, T_0=2)
    >>> schedule.step()
    >>> round(optimizer.lr, 4)
    0.5
    >>> schedule.step()
    >>> optimizer.lr
    1.0
    """

    def __init__(self, optimizer: Optimizer, T_0: int, T_mult: int = 1, eta_min: float = 0.0) -> None:
        check_int("T_0", T_0)
        check_int("T_mult", T_mult)
        self.T_0 = T_0
        self.T_mult = T_mult
        self.eta_min = eta_min
        super().__init__(optimizer)

    def rate(self, base: float, step: int) -> float:
        length = self.T_0
        if self.T_mult == 1:
            step %= length
        while step >= length:
            step, length = step - length, length * self.T_mult
        return self.eta_min + (base - self.eta_min) * (1 + math.cos(math.pi * step / length)) / 2


class LinearLR(Schedule):
    """A warm-up: the base times a factor that goes from `start_factor` to `end_factor` in `total_iters` steps.

    >>> optimizer = optim.SGD([nn.Linear(3, 2).weight], lr=1.0)
    >>> schedule = optim.schedules.LinearLR(optimizer, total_iters=2)
    >>> schedule.step()
    >>> round(optimizer.lr, 4)
    0.6667
    """

    def __init__(
        self, optimizer: Optimizer, start_factor: float = 1 / 3, end_factor: float = 1.0, total_iters: int = 5
    ) -> None:
        if not 0 < start_factor <= 1 or not 0 <= end_factor <= 1:
            text = f"start_factor={start_factor} and end_factor={end_factor}"
            raise ValueError(f"{text} must be from 0 to 1, the first above 0")
        self.start_factor = start_factor
        self.end_factor = end_factor
        self.total_iters = total_iters
        super().__init__(optimizer)

    def rate(self, base: float, step: int) -> float:
        done = min(step / self.total_iters, 1.0) if self.total_iters else 1.0
        return base * (self.start_factor + (self.end_factor - self.start_factor) * done)


class SequentialLR(Schedule):
    """One schedule after the other, each from its own beginning: the next at each of the `milestones`.

    >>> optimizer = optim.SGD([nn.Linear(3, 2).weight], lr=1.0)
    >>> first = optim.schedules.LinearLR(optimizer, start_factor=0.5, total_iters=1)
    >>> then = optim.schedules.ExponentialLR(optimizer, gamma=0.1)
    >>> schedule = optim.schedules.SequentialLR(optimizer, [first, then], milestones=[2])
    >>> schedule.step()
    >>> optimizer.lr
    1.0
    """

    def __init__(self, optimizer: Optimizer, schedulers: Sequence[Schedule], milestones: Sequence[int]) -> None:
        if len(milestones) != len(schedulers) - 1:
            raise ValueError(f"{len(schedulers)} schedulers need one milestone less, not {len(milestones)}")
        if any(one.optimizer is not optimizer for one in schedulers):
            raise ValueError("all schedulers must be of this optimizer")
        self.schedulers: list[Schedule] = list(schedulers)
        self.milestones: list[int] = list(milestones)
        super().__init__(optimizer)

    def set(self, step: int) -> None:
        i = bisect_right(self.milestones, step)
        self.schedulers[i].set(step - self.milestones[i - 1] if i else step)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "schedulers": [one.state_dict() for one in self.schedulers]}

    def _restore(self, state_dict: Mapping[str, Any]) -> None:
        own = dict(state_dict)
        states = own.pop("schedulers", ())
        if len(states) != len(self.schedulers):
            raise ValueError(f"the state is of {len(states)} schedulers in sequence, not of {len(self.schedulers)}")
        super()._restore(own)
        for one, state in zip(self.schedulers, states, strict=True):
            one._restore(state)


class OneCycleLR(Schedule):
    """Up from max_lr / div_factor to `max_lr`, and down to less than it began with; momentum goes the other way.

    L. N. Smith and N. Topin, "Super-Convergence" (2018).

    >>> optimizer = optim.SGD([nn.Linear(3, 2).weight], lr=1.0)
    >>> schedule = optim.schedules.OneCycleLR(optimizer, max_lr=1.0, total_steps=10)
    >>> schedule.step()
    >>> round(optimizer.lr, 4)
    0.52

    Args:
        optimizer: whose learning rate and whose momentum or first beta it sets.
        max_lr: the largest learning rate, or one for each group.
        total_steps: how many steps there will be; or `epochs` times `steps_per_epoch`.
        pct_start: the share of the steps in which the rate rises.
        anneal_strategy: "cos" or "linear".
        cycle_momentum: whether momentum goes from `max_momentum` to `base_momentum` and back.
        div_factor: `max_lr` over the first learning rate.
        final_div_factor: the first learning rate over the last.
        three_phase: fall to the first rate in as many steps as it rose, and only then to the last.

    Raises:
        ValueError: for arguments that make no sense, and by `step()` after the last step.
    """

    def __init__(
        self, optimizer: Optimizer, max_lr: float | Sequence[float], total_steps: int | None = None,
        epochs: int | None = None, steps_per_epoch: int | None = None, pct_start: float = 0.3,
        anneal_strategy: Literal["cos", "linear"] = "cos", cycle_momentum: bool = True, base_momentum: float = 0.85,
        max_momentum: float = 0.95, div_factor: float = 25.0, final_div_factor: float = 1e4, three_phase: bool = False,
    ) -> None:  # fmt: skip
        total = (epochs or 0) * (steps_per_epoch or 0) if total_steps is None else total_steps
        if total <= 0:
            raise ValueError("OneCycleLR needs total_steps, or epochs and steps_per_epoch, above 0")
        if not 0 <= pct_start <= 1 or anneal_strategy not in ("cos", "linear"):
            text = f"pct_start={pct_start} must be from 0 to 1, and anneal_strategy={anneal_strategy!r}"
            raise ValueError(f"{text} 'cos' or 'linear'")
        self._momentum = "momentum" if "momentum" in optimizer.param_groups[0] else "betas"
        if cycle_momentum and self._momentum not in optimizer.param_groups[0]:
            raise ValueError("this optimizer has neither momentum nor betas: use cycle_momentum=False")
        self.total_steps: int = total
        self.cycle_momentum = cycle_momentum
        self._cosine = anneal_strategy == "cos"
        up = pct_start * total - 1
        self._ends = [up, 2 * up, total - 1] if three_phase else [up, total - 1]
        self._rates = [1 / div_factor, 1, *[1 / div_factor] * three_phase, 1 / div_factor / final_div_factor]
        self._momenta = [max_momentum, base_momentum, *[max_momentum] * (1 + three_phase)]
        super().__init__(optimizer)
        self.base_lrs: list[float] = _of_each_group(optimizer, "max_lr", max_lr)
        self.set(0)

    def rate(self, base: float, step: int) -> float:
        return base * self._between(self._rates, step)

    def set(self, step: int) -> None:
        if step > self.total_steps:
            raise ValueError(f"this schedule is of {self.total_steps} steps, and was stepped more often")
        super().set(step)
        momentum = self._between(self._momenta, step)
        for group in self.optimizer.param_groups if self.cycle_momentum else ():
            group[self._momentum] = momentum if self._momentum == "momentum" else (momentum, group["betas"][1])

    def _between(self, values: Sequence[float], step: int) -> float:
        """The rate at this step, between the values at the ends of its phase."""
        i = min(sum(step > end for end in self._ends), len(self._ends) - 1)
        begin = self._ends[i - 1] if i else 0.0
        share = (step - begin) / ((self._ends[i] - begin) or 1)
        if self._cosine:
            return values[i + 1] + (values[i] - values[i + 1]) / 2 * (math.cos(math.pi * share) + 1)
        return values[i] + (values[i + 1] - values[i]) * share


class ReduceLROnPlateau(Schedule):
    """Multiply the rates by `factor` when a number has not improved for more than `patience` steps, at `step(metrics)`.

    Args:
        optimizer: whose learning rates it sets.
        mode: whether "min" or "max" is better.
        factor: below 1.
        patience: after so many steps without improvement nothing happens yet.
        threshold, threshold_mode: a number is better if it improves by this share of the best ("rel"), or by this much
            ("abs").
        cooldown: for so many steps after a change, no step counts as bad.
        min_lr: the least learning rate, or one for each group.
        eps: smaller changes are not made.

    Raises:
        ValueError: for what makes no sense.

    >>> async def main():
    ...     async with asc.Scheduler("cpu"):
    ...         optimizer = asc.optim.SGD(asc.nn.Linear(2, 2).parameters(), lr=0.5)
    ...         schedule = asc.optim.schedules.ReduceLROnPlateau(optimizer, patience=1)
    ...         for loss in (3.0, 2.0, 2.5, 2.1):           # as from `await loss.item()`
    ...             schedule.step(loss)
    ...         return optimizer.lr
    >>> asc.run(main)
    0.05
    """

    _kept = ("last_epoch", "best", "cooldown_counter", "num_bad_epochs")

    def __init__(
        self, optimizer: Optimizer, mode: Literal["min", "max"] = "min", factor: float = 0.1, patience: int = 10,
        threshold: float = 1e-4, threshold_mode: Literal["rel", "abs"] = "rel", cooldown: int = 0,
        min_lr: float | Sequence[float] = 0, eps: float = 1e-8,
    ) -> None:  # fmt: skip
        if not 0 < factor < 1 or mode not in ("min", "max") or threshold_mode not in ("rel", "abs"):
            raise ValueError(
                f"factor={factor} must be between 0 and 1, mode={mode!r} 'min' or 'max', and"
                f" threshold_mode={threshold_mode!r} 'rel' or 'abs'"
            )
        self.mode = mode
        self.factor = factor
        self.patience = patience
        self.cooldown = cooldown
        self.eps = eps
        self.threshold = threshold
        self.threshold_mode = threshold_mode
        self.min_lrs: list[float] = _of_each_group(optimizer, "min_lr", min_lr)
        self.best: float = math.inf if mode == "min" else -math.inf
        self.cooldown_counter: int = 0
        self.num_bad_epochs: int = 0
        super().__init__(optimizer)

    def set(self, step: int) -> None:
        """Does nothing: there is no formula."""

    def step(self, metrics: float) -> None:  # type: ignore[override]
        """Go on by one step, with a number such as `await loss.item()`.

        Raises:
            TypeError: for a tensor, since `step` would have to wait for it.
        """
        if isinstance(metrics, Tensor):
            raise TypeError("ReduceLROnPlateau goes by a number that is there: `schedule.step(await loss.item())`")
        metrics = float(metrics)
        super().step()
        margin = self.threshold if self.mode == "max" else -self.threshold
        bound = self.best * (1 + margin) if self.threshold_mode == "rel" else self.best + margin
        better = metrics > bound if self.mode == "max" else metrics < bound
        self.best = metrics if better else self.best
        self.num_bad_epochs = 0 if better or self.cooldown_counter else self.num_bad_epochs + 1
        self.cooldown_counter = max(self.cooldown_counter - 1, 0)
        if self.num_bad_epochs > self.patience:
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0
            for group, least in zip(self.optimizer.param_groups, self.min_lrs, strict=True):
                lr = max(group["lr"] * self.factor, least)
                group["lr"] = lr if group["lr"] - lr > self.eps else group["lr"]


def _of_each_group(optimizer: Optimizer, name: str, given: float | Sequence[float]) -> list[float]:
    """A number for each group of parameters. `given` is one for all, or one for each."""
    count = len(optimizer.param_groups)
    numbers = [float(number) for number in given] if isinstance(given, Sequence) else [float(given)] * count
    if len(numbers) != count:
        raise ValueError(f"{name} has {len(numbers)} numbers for {count} groups of parameters")
    return numbers
