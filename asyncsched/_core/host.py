"""What an engine asks of whoever runs it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from .model import Lane, Task


class Host(Protocol):
    """The runtime, or whoever stands for it. Who inherits from this need only say how a task is launched.

    Attributes:
        clock: gives seconds, for lanes to which a hop takes long: see `placement`.
    """

    clock: Callable[[], float] = staticmethod(lambda: 0.0)

    def launch(self, task: Task) -> None:
        """Put an admitted task on the stream of its lane."""

    def loop_lane(self, task: Task) -> Lane | None:
        """The lane of the event loop's thread, if a quick task may run there, now; else None."""
        return None

    def run_here(self, task: Task) -> None:
        """Run a quick task on the event loop's thread, to its end."""
        return

    def quietly(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function: quick tasks run inside of it."""
        return function(*args)

    def on_stuck(self, tasks: Sequence[Task]) -> None:
        """These tasks lack bytes that nothing in flight will free; none: that is over. Called after each change."""
        return

    def on_overrun(self, task: Task) -> None:
        """A task made more than it was charged, and more than the limit allows is tracked."""
        return

    def on_cancel(self, task: Task) -> None:
        """A task is cancelled after its launch."""
        return

    def on_interrupted(self, error: BaseException) -> None:
        """An exception left a change of state in the middle: see `engine`. Has everything abandoned."""
        return
