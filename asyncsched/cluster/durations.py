"""How long tasks take on their workers, by name: what the next of a name is expected to take."""

from __future__ import annotations

_SECONDS_PER_TASK = 1e-3  # a guess
_LATEST = 0.3  # the part of the last task of a name in what the next is expected to take
_NAMES = 4096


class Durations:
    """How long the tasks of one cluster take."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    def expected(self, name: str) -> float:
        """Seconds that a task of this name takes on its worker."""
        return self._seconds.get(name, _SECONDS_PER_TASK)

    def took(self, name: str, seconds: float) -> None:
        """Note that a task of this name took so long, the way there and back included."""
        if len(self._seconds) >= _NAMES:
            self._seconds.clear()
        self._seconds[name] = seconds * _LATEST + self._seconds.get(name, seconds) * (1 - _LATEST)
