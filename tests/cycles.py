"""Dead cycles, whose finalisers the collector calls before it clears any of their objects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Cycle:
    """A cycle with something in it, and what its finaliser does with that."""

    def __init__(self, thing: Any, act: Callable[[Any], None]) -> None:
        self.thing, self.act, self.me = thing, act, self

    def __del__(self) -> None:
        self.act(self.thing)
