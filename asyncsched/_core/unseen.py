"""A scope's unseen failures, which its end or a barrier reports."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from .failure import Failure

KEPT_FAILURES: Final = 100


@dataclass(slots=True, eq=False)
class _Counted:
    """Counts failures without keeping them, until someone sees them."""

    number: int = 0

    def pop(self, failure: Failure, default: None, /) -> None:
        """Count one less: it was seen. Takes the arguments of `dict.pop`, since kept failures are in a dict."""
        self.number -= 1


@dataclass(slots=True, eq=False)
class Unseen:
    """Root causes that nobody has seen: the first `KEPT_FAILURES` are kept, the others are counted."""

    _kept: dict[Failure, None] = field(default_factory=dict)
    _counted: _Counted = field(default_factory=_Counted)

    def __bool__(self) -> bool:
        return bool(self._kept or self._counted.number)

    def add(self, failure: Failure) -> None:
        """Keep a root cause until someone sees it. (Once seen, it would keep the frames of its awaiters alive.)"""
        if len(self._kept) < KEPT_FAILURES:
            self._kept[failure] = None
            failure.keeper = self._kept
        else:
            self._counted.number += 1
            failure.keeper = self._counted

    def take(self, before: int | None) -> tuple[list[Failure], int]:
        """Take the failures of tasks numbered under `before`, in the order of their tasks, and mark them as seen.

        Returns them, and how many others were only counted.
        """
        found = [failure for failure in list(self._kept) if before is None or failure.seq < before]
        found.sort(key=lambda failure: failure.seq)
        for failure in found:
            failure.see()
        counted, self._counted = self._counted, _Counted()
        return found, counted.number
