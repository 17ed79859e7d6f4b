"""How a program reports its findings."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class NotHere(Exception):
    """A program has nothing to do on this machine. The message says why."""


@dataclass(frozen=True)
class Report:
    """The argument of a program.

    Attributes:
        folder: its own. Facts are written there at once, so they survive a crash.
        quick: whether to use small sizes.
    """

    folder: Path
    quick: bool = False

    def tell(self, name: str, value: Any, unit: str = "") -> None:
        """Keep a fact: a number with its unit, or text. A dict or a list is kept, and not printed."""
        with (self.folder / "facts").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"name": name, "value": value, "unit": unit}, default=str) + "\n")

    def size(self, full: int, quick: int) -> int:
        """A size: one for a full run, one for a quick one."""
        return quick if self.quick else full


Program = Callable[[Report], Awaitable[None] | None]
