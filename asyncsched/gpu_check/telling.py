"""How a program tells what it finds."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class NotHere(Exception):
    """Why a program has nothing to look at on this machine."""


@dataclass(frozen=True)
class Report:
    """What a program is given.

    Attributes:
        folder: its own, where what it tells is kept at once, whatever becomes of it.
        quick: whether sizes are to be small.
    """

    folder: Path
    quick: bool = False

    def tell(self, name: str, value: Any, unit: str = "") -> None:
        """Keep a fact: a number with its unit, or text. A dict or a list is kept, and not printed."""
        with (self.folder / "facts").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"name": name, "value": value, "unit": unit}, default=str) + "\n")

    def size(self, full: int, quick: int) -> int:
        """How large or how many."""
        return quick if self.quick else full


Program = Callable[[Report], Awaitable[None] | None]
