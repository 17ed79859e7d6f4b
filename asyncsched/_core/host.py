"""The interface that an engine needs of the runtime that runs it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from .callsite import CallSite
from .model import Lane, Task


class Host(Protocol):
    """The runtime, or a stand-in for it, for which the methods here are enough.

    Attributes:
        clock: returns seconds.
    """

    clock: Callable[[], float] = staticmethod(lambda: 0.0)

    def loop_lane(self, task: Task) -> Lane | None:
        """The lane of the event loop's thread, if a quick task may run there now; else None."""
        return None

    def quiet_in_use(self) -> bool:
        """Whether a quick task runs on the event loop's thread now."""
        return False

    def spend(self, seconds: float) -> None:
        """Take note that a quick task held the event loop's thread for so long, beyond the usual cost of a task."""
        return

    def quietly(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function that runs quick tasks."""
        return function(*args)

    def on_stuck(self, tasks: Sequence[Task]) -> None:
        """Take note of the stuck tasks; () if there are none. Called after each change."""
        return

    def on_overrun(self, task: Task, site: CallSite) -> None:
        """Take note that a task, of this line, made more than it was charged, and tracked bytes are above the limit."""
        return

    def on_cancel(self, task: Task) -> None:
        """Take note that a task is cancelled after its launch."""
        return

    def on_interrupted(self, error: BaseException) -> None:
        """Abandon everything: an exception left a change of state in the middle. See `engine`."""
        return
