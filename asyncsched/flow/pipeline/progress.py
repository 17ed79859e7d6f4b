"""The epoch of a pipeline that is open, or the next one, and which items count in a state that is saved now.

Theory of operation. A training must lose no item and repeat none. But between the arrival of an item and the step that
uses it a loop may be cancelled: where it waits for a window, for a `put`, for a loss. So there are two rules:

1. *A loop that steps an optimiser.* An item counts when a commit was issued behind it, and that commit moved the
   parameters. Each commit is kept, with the position at which it was issued, until it has decided: a commit that was
   cancelled leaves the position of the one before. A commit that is pending counts: `save` writes what it gives.
2. *Any other loop.* An item counts when it is received, since nothing tells when it was used. Except if the loop was
   cut short with the item in hand: by an exception that leaves the block or is being handled, or by a cancellation.

The end of an epoch, and the beginning of another, count for all items of the epoch behind it.

Gradients are a sign that a step is to come, if there is an optimiser at all: batches of which they are accumulated
count with the step. An optimiser belongs to the loop if the asyncio task that steps it received the last item, or
opened the epoch. If another task steps, items were handed on, and may be in a queue: then the second rule holds.

Alternatives. An item could count when the next one is asked for. Then a loop that saves in its body, behind the step,
would do this step twice. The window could count it. But a loop may have none, and may wait in other places.
"""

from __future__ import annotations

import asyncio
import sys
import weakref
from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import Any

from ..._core.commit import Commit
from .position import Position

Task = asyncio.Task[Any]


class Progress:
    """Where a pipeline is.

    Args:
        epochs: how many are read in one `open()`. While they are open, `position` is where the first of them begins.
        optimizers: those of the scheduler.
    """

    def __init__(self, epochs: int | None, optimizers: Collection[object] = ()) -> None:
        self._epochs = epochs
        self._optimizers = optimizers
        self.position: Position = Position()
        self.open: bool = False
        self.unread: bool = False  # the epoch has begun, was not read to its end, and `load` has not set it back
        self._opener = self._receiver = _Consumer(None)
        self._began = Position()  # where the epoch did
        # Once the consumer has stepped an optimiser: what counts without the last commits, and with each of these.
        self._moved: Position | None = None
        self._commits: deque[tuple[Position, Commit]] = deque()

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from a position that was saved."""
        self.must_rest()
        self.position, self.unread = Position.of(state), False
        self._moved = None
        self._commits.clear()

    def state(self) -> dict[str, Any]:
        """The position to save now."""
        self._settle()
        if self._moved is None:
            return (self.position if self._cut_short(sys.exception()) else self.received()).state()
        return [self._moved, *[one for one, commit in self._commits if commit.decision is not False]][-1].state()

    def received(self) -> Position:
        """A copy of the position, with the item in hand."""
        position = self.position.copy()
        position.put_down()
        return position

    def next(self) -> Position:
        """Where the next epoch begins."""
        if not self.unread:
            return self.position
        epochs = self._epochs or 1
        return Position((self.received().now().epoch // epochs + 1) * epochs)

    def begin(self) -> Position:
        """An epoch is opened. Returns where it begins."""
        self.finish()
        self.open = True
        self._opener = self._receiver = _Consumer(asyncio.current_task())
        self._began = self.position.copy()
        return self.position

    def asked(self) -> None:
        """An item is asked for: the first, or one that is not there yet."""
        task = asyncio.current_task()
        if self._receiver.task() is not task:
            self._receiver = _Consumer(task)
        elif task is not None:
            self._receiver.cancellations = task.cancelling()

    def finish(self) -> None:
        """This epoch is over. The next one is another."""
        self.position, self.unread = self.next(), False
        if self._moved is not None:
            self._settle()
            if self._commits:
                self._commits[-1] = self.position.copy(), self._commits[-1][1]
            else:
                self._moved = self.position.copy()

    def close(self, error: BaseException | None) -> None:
        """The block is left."""
        if not self._cut_short(error):
            self.position = self.received()
        self.position.in_hand, self.open = None, False
        self._opener = self._receiver = _Consumer(None)

    def must_rest(self) -> None:
        if self.open:
            raise RuntimeError("an epoch of this pipeline is open: leave its block first, or make another pipeline")

    def learned(self) -> None:
        """Somebody has issued gradients. Where there is an optimiser, its step will make them count."""
        if self._moved is None and self._optimizers and self._is_here():
            self._moved = self._began

    def stepped(self, commit: Commit) -> None:
        """Somebody's optimiser has issued this commit."""
        if self._is_here():
            self._settle()
            self._moved = self._moved or self._began
            self._commits.append((self.received(), commit))

    def _is_here(self) -> bool:
        return asyncio.current_task() in (self._opener.task(), self._receiver.task())

    def _settle(self) -> None:
        """Take in what commits have decided, in order."""
        while self._commits and self._commits[0][1].decision is not None:
            position, commit = self._commits.popleft()
            if commit.decision:
                self._moved = position

    def _cut_short(self, error: BaseException | None) -> bool:
        """Whether the consumer has an item in hand, and fails with this error, or was cancelled. A generator that is
        closed does not fail: whoever reads it has done `break`."""
        if self.position.in_hand is None:
            return False
        failed = error is not None and not isinstance(error, GeneratorExit)
        return failed or self._opener.was_cancelled() or self._receiver.was_cancelled()


class _Consumer:
    """An asyncio task that takes items. Held weakly, since a task that has ended holds its result."""

    def __init__(self, task: Task | None) -> None:
        self.task: Callable[[], Task | None] = _nobody if task is None else weakref.ref(task)
        self.cancellations: int = 0 if task is None else task.cancelling()  # when it asked for an item

    def was_cancelled(self) -> bool:
        """Whether it was cancelled since then."""
        task = self.task()
        return task is not None and task.cancelling() > self.cancellations


def _nobody() -> None:
    return None
