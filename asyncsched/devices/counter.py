"""A count that threads wait for."""

from __future__ import annotations

import threading


class Counter:
    """A count that threads wait for. Who waits raises a hand, then looks; who counts counts, then looks for hands."""

    def __init__(self) -> None:
        self.count = 0
        self._reached = threading.Condition()
        self._hands = 0

    def step(self) -> None:
        """One more. For one thread."""
        self.count += 1
        if self._hands:
            with self._reached:
                self._reached.notify_all()

    def reach(self, count: int) -> None:
        """Block until the count is at least `count`."""
        if self.count >= count:
            return
        with self._reached:
            self._hands += 1
            while self.count < count:
                self._reached.wait()
            self._hands -= 1
