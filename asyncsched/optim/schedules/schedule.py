"""What schedules do that go by a formula."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..optimizer import Optimizer


class Schedule:
    """A learning rate by the count of steps. One of them says which, in `rate`.

    Attributes:
        last_epoch: how often it was stepped.
        base_lrs: the learning rate that each group had before its first schedule.
    """

    _kept: tuple[str, ...] = ("last_epoch", "base_lrs")

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer, self.last_epoch = optimizer, 0
        for group in optimizer.param_groups:
            group.initial_lr = group["lr"] if group.initial_lr is None else group.initial_lr
        self.base_lrs: list[float] = [float(group.initial_lr or 0.0) for group in optimizer.param_groups]
        self.set(0)

    def rate(self, base: float, step: int) -> float:
        """The learning rate after so many steps of a group that began with `base`."""
        raise NotImplementedError

    def set(self, step: int) -> None:
        """Set what the formula says for this count of steps."""
        for group, base in zip(self.optimizer.param_groups, self.base_lrs, strict=True):
            group["lr"] = max(self.rate(base, step), 0.0)

    def step(self) -> None:
        """Go one step on."""
        self.last_epoch += 1
        self.set(self.last_epoch)

    def get_last_lr(self) -> list[float]:
        """The learning rates as they are now, one for each group."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` takes: of what JSON can hold."""
        return {name: getattr(self, name) for name in self._kept}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave: the learning rates are set, too.

        Raises:
            ValueError: if it is another schedule's.
        """
        self._load(state_dict)
        self.set(self.last_epoch)

    def _load(self, state: Mapping[str, Any]) -> None:
        if state.keys() != set(self._kept):
            raise ValueError(f"the state has {sorted(state)}, and {type(self).__name__} {sorted(self._kept)}")
        if len(state.get("base_lrs", self.optimizer.param_groups)) != len(self.optimizer.param_groups):
            raise ValueError(f"the state is not of {len(self.optimizer.param_groups)} groups of parameters")
        for name in self._kept:
            setattr(self, name, state[name])
