"""What graphs of tasks are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Node:
    """One task, or a result that is there.

    Attributes:
        name: the operation's, or the function's.
        shape, dtype: of the result, if it is an array.
        state: "pending", "launched", "done", "failed" or "cancelled".
        device: where it runs, or is.
        inputs: the places, in the same sequence, of what it reads.
        line: the one that submitted it.
    """

    name: str
    shape: tuple[int | None, ...] | None = None
    dtype: str = ""
    state: str = "pending"
    device: str = ""
    inputs: tuple[int, ...] = ()
    line: str = ""

    @property
    def kind(self) -> tuple[Any, ...]:
        """What it has in common with others that are drawn as one."""
        return self.name, self.shape, self.dtype, self.state, self.device
