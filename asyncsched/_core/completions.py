"""The one way back to the loop's thread: completions and drops, appended by any thread, drained by the loop."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any


class Completions:
    """A deque with one wake-up per burst.

    Theory of operation: a poster appends first and reads the flags second; the loop's thread sets a flag first and
    drains second. Whichever comes later sees the other, so no wake-up is lost and no lock is needed. `post` may run on
    any thread and in the middle of anything (garbage collection), so it only appends and, at most, schedules a
    callback.
    """

    __slots__ = ("awake", "items", "threshold", "wake", "wants_bytes", "wants_slots")

    def __init__(self, wake: Callable[[], None]) -> None:
        self.items: deque[Any] = deque()
        self.wake = wake
        self.awake = False  # a drain is already on its way
        self.wants_slots = False  # pending tasks wait: wake at `threshold` completions, or when a stream runs dry
        self.threshold = 1
        self.wants_bytes = False  # someone waits for bytes: every drop matters

    def completed(self, task: Any, dry: bool) -> None:
        """Post a finished task, or what else has waiters; `dry` says that its stream has nothing left to run."""
        self.items.append(task)
        if task.waiters or (self.wants_slots and (dry or self.wants_bytes or len(self.items) >= self.threshold)):
            self.notify()

    def dropped(self, account: Any, nbytes: int) -> None:
        """Post bytes that nobody holds any more."""
        self.items.append((account, nbytes))
        if self.wants_bytes:
            self.notify()

    def notify(self) -> None:
        """Have the loop drain soon."""
        if not self.awake:
            self.awake = True
            self.wake()
