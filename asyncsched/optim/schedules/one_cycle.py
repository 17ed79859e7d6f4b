"""One cycle up and down."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from ..optimizer import Optimizer
from .schedule import Schedule


class OneCycleLR(Schedule):
    """Up from max_lr / div_factor to `max_lr`, and down to less than it began with; momentum goes the other way.

    L. N. Smith and N. Topin, "Super-Convergence" (2018).

    Args:
        optimizer: whose learning rate, and momentum or first beta.
        max_lr: the largest learning rate, or one for each group.
        total_steps: how many there will be; or `epochs` times `steps_per_epoch`.
        pct_start: the share of the steps that goes up.
        anneal_strategy: "cos" or "linear".
        cycle_momentum: whether momentum goes from `max_momentum` to `base_momentum` and back.
        div_factor: what the first learning rate is smaller by.
        final_div_factor: what the last is smaller by than the first.
        three_phase: go down to the first in as many steps as up, and only then to the last.

    Raises:
        ValueError: for what makes no sense, and by `step()` after the last one.
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
        self.total_steps, self.cycle_momentum, self._cosine = total, cycle_momentum, anneal_strategy == "cos"
        up = pct_start * total - 1
        self._ends = [up, 2 * up, total - 1] if three_phase else [up, total - 1]
        self._rates = [1 / div_factor, 1, *[1 / div_factor] * three_phase, 1 / div_factor / final_div_factor]
        self._momenta = [max_momentum, base_momentum, *[max_momentum] * (1 + three_phase)]
        super().__init__(optimizer)
        count = len(optimizer.param_groups)
        self.base_lrs = [float(rate) for rate in (max_lr if isinstance(max_lr, Sequence) else [max_lr] * count)]
        if len(self.base_lrs) != count:
            raise ValueError(f"max_lr has {len(self.base_lrs)} numbers for {count} groups of parameters")
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
        """The rate at this step, between the values at the ends of the phase that it is in."""
        i = min(sum(step > end for end in self._ends), len(self._ends) - 1)
        begin = self._ends[i - 1] if i else 0.0
        share = (step - begin) / ((self._ends[i] - begin) or 1)
        if self._cosine:
            return values[i + 1] + (values[i] - values[i + 1]) / 2 * (math.cos(math.pi * share) + 1)
        return values[i] + (values[i + 1] - values[i]) * share
