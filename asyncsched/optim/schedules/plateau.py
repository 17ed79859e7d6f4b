"""A learning rate that falls when nothing improves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from ...tensors.tensor import Tensor
from ..optimizer import Optimizer
from .schedule import Schedule


class ReduceLROnPlateau(Schedule):
    """Times `factor` when a number has not improved for more than `patience` steps. It does so at `step(metrics)`.

    Args:
        optimizer: whose learning rates.
        mode: whether "min" or "max" is better.
        factor: what they become smaller by, below 1.
        patience: for so many steps without improvement nothing happens.
        threshold, threshold_mode: what counts as better: by this share of the best ("rel"), or by this much ("abs").
        cooldown: for so many steps after that, none counts as bad.
        min_lr: below which none gets; or one for each group.
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
        self.mode, self.factor, self.patience, self.cooldown, self.eps = mode, factor, patience, cooldown, eps
        self.threshold, self.threshold_mode = threshold, threshold_mode
        count = len(optimizer.param_groups)
        self.min_lrs = list(min_lr) if isinstance(min_lr, Sequence) else [min_lr] * count
        if len(self.min_lrs) != count:
            raise ValueError(f"min_lr has {len(self.min_lrs)} numbers for {count} groups of parameters")
        self.best = math.inf if mode == "min" else -math.inf
        self.cooldown_counter = self.num_bad_epochs = 0
        super().__init__(optimizer)

    def set(self, step: int) -> None:
        """Nothing: there is no formula."""

    def step(self, metrics: float) -> None:  # type: ignore[override]
        """Go one step on, with a number such as `await loss.item()`.

        Raises:
            TypeError: for a tensor, which would have to be waited for.
        """
        if isinstance(metrics, Tensor):
            raise TypeError("ReduceLROnPlateau goes by a number that is there: `schedule.step(await loss.item())`")
        self.last_epoch += 1
        better = self._is_better(float(metrics))
        self.best = float(metrics) if better else self.best
        self.num_bad_epochs = 0 if better or self.cooldown_counter else self.num_bad_epochs + 1
        self.cooldown_counter = max(self.cooldown_counter - 1, 0)
        if self.num_bad_epochs > self.patience:
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0
            for group, least in zip(self.optimizer.param_groups, self.min_lrs, strict=True):
                lr = max(group["lr"] * self.factor, least)
                group["lr"] = lr if group["lr"] - lr > self.eps else group["lr"]

    def _is_better(self, number: float) -> bool:
        margin = self.threshold if self.mode == "max" else -self.threshold
        bound = self.best * (1 + margin) if self.threshold_mode == "rel" else self.best + margin
        return number > bound if self.mode == "max" else number < bound
