"""The moment at which a scope is given up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from time import monotonic
from typing import Any

from ..errors import DeadlineExceeded, TaskCancelled


class Deadline:
    """Cancels what is in a scope when its time is over, and the task that entered it.

    Like `asyncio.timeout` it counts cancellations, so that one from outside is never taken for its own, and is passed
    on.

    Args:
        what: the scope, for messages.
        seconds: from `start` on.
    """

    def __init__(self, what: str, seconds: float) -> None:
        self.what = what
        self.seconds = seconds
        self.when = inf  # by time.monotonic, once it has started
        self.passed = False
        self._task: asyncio.Task[Any] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._cancelling = 0  # cancellations of the task that are not this one's

    def __str__(self) -> str:
        return f"the deadline of {self.what} ({self.seconds:g} s)"

    def start(self, give_up: Callable[[], None]) -> None:
        """Count from now. `give_up` cancels what is unfinished in the scope."""
        task = self._task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a scope with a deadline is entered in an asyncio task, which the deadline can cancel")
        self._cancelling = task.cancelling()
        self.when = monotonic() + self.seconds
        self._timer = asyncio.get_running_loop().call_later(self.seconds, self._pass, give_up)

    def stop(self) -> None:
        """Nothing is left that it could end."""
        if self._timer is not None:
            self._timer.cancel()

    def end(self, error: BaseException | None) -> None:
        """The scope is left, by `error` or in order.

        Raises:
            DeadlineExceeded: if the deadline has passed, unless something else but its cancellations is the reason.
        """
        self.stop()
        if not self.passed:
            return
        assert self._task is not None
        nobody_else = self._task.uncancel() <= self._cancelling
        if error is None or (nobody_else and _is_cancellation(error)):
            raise DeadlineExceeded(
                f"{self.what} passed its deadline of {self.seconds:g} s, and what was unfinished in it was cancelled:"
                " allow more with `s.scope(deadline=)`, or do less in it"
            ) from error

    def _pass(self, give_up: Callable[[], None]) -> None:
        assert self._task is not None
        self.passed = True
        self._timer = None  # which holds `give_up`, and that the scope, and that this
        give_up()
        self._task.cancel()


def _is_cancellation(error: BaseException) -> bool:
    """Whether an exception tells of cancellations alone, as a group's may whose members awaited what was cancelled."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(_is_cancellation, error.exceptions))
    return isinstance(error, asyncio.CancelledError | TaskCancelled)
