"""What an unfinished task waits for: one thing at least, and mostly a task behind it, of which the same may be asked.

What is asked is what the engine's counts say, and nothing is changed. So it may be asked at any moment, on another
thread, too, while the loop's is blocked.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum, auto
from typing import NamedTuple

from .._core.model import LAUNCHED, PENDING, Account, Task
from .runtime import Runtime


class Wait(Enum):
    """What a task waits for, in the order in which a task travels."""

    INPUT = auto()  # a producer that is pending
    QUEUE = auto()  # the head of its queue
    SLOT = auto()
    BYTES = auto()
    EARMARK = auto()  # a head for which freed bytes are kept
    TURN = auto()  # nothing: it goes at the next turn of the event loop
    STREAM = auto()  # those before it on its stream
    ELSEWHERE = auto()  # a producer on another stream
    BODY = auto()  # its own body, which runs
    LOOP = auto()  # the event loop, which has not learned yet that it ended


class Link(NamedTuple):
    """A task, what it waits for, and the task behind that, if one is."""

    task: Task
    wait: Wait
    behind: Task | None


class Waits:
    """Tells of the tasks of a runtime what they wait for, at one moment."""

    def __init__(self, runtime: Runtime) -> None:
        self._ledger = runtime.ledger
        self._in_flight = sorted(runtime.engine.audit.launched(), key=age)

    def chain(self, task: Task) -> Iterator[Link]:
        """What a task waits for, what the task behind that waits for, and so on."""
        seen = set[Task]()
        todo: Task | None = task
        while todo is not None and todo not in seen:  # what moves meanwhile, under another thread, might make a circle
            seen.add(todo)
            link = Link(todo, *self._step(todo))
            yield link
            todo = link.behind

    def charged_to(self, account: Account) -> list[Task]:
        """The tasks in flight of an account, the oldest first."""
        return [task for task in self._in_flight if task.scope.account is account]

    def _step(self, task: Task) -> tuple[Wait, Task | None]:
        if task.state == LAUNCHED:
            return self._on_its_stream(task)
        if task.state != PENDING:
            return Wait.LOOP, None
        if task.blockers:
            producers = [v.task for v in task.inputs if v.task is not None and v.task.state == PENDING]
            return Wait.INPUT, min(producers, key=age, default=None)
        head = task.scope.queue.peek()
        if head is not task and head is not None:
            return Wait.QUEUE, head
        account = task.scope.account
        if task.lanes and self._ledger.free <= 0:
            return Wait.SLOT, next(iter(self._in_flight), None)
        if not account.fits(task):
            return Wait.BYTES, next(iter(self.charged_to(account)), None)
        if account.earmark is not None and account.earmark is not task and not account.grace:
            return Wait.EARMARK, account.earmark
        return Wait.TURN, None

    def _on_its_stream(self, task: Task) -> tuple[Wait, Task | None]:
        lane = task.lane
        if lane is None or lane.stream.finished.count >= task.number:
            return Wait.LOOP, None
        first = lane.stream.finished.count + 1
        if first < task.number:
            running = next((t for t in self._in_flight if t.lane is lane and t.number == first), None)
            return Wait.STREAM, running
        for value in task.inputs:
            producer = value.task
            if producer is not None and producer.state == LAUNCHED and (other := producer.lane) not in (None, lane):
                assert other is not None
                if other.stream.finished.count < producer.number:
                    return Wait.ELSEWHERE, producer
        return Wait.BODY, None


def age(task: Task) -> int:
    """A key for sorting: the oldest task comes first."""
    return task.seq
