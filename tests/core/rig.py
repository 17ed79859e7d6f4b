"""An engine with streams made of lists: it runs as in a scheduler, one explicit step at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from asyncsched._core.audit import failure_above
from asyncsched._core.completions import Completions
from asyncsched._core.engine import Engine
from asyncsched._core.failure import Failure
from asyncsched._core.instrument import Host
from asyncsched._core.ledger import Limits
from asyncsched._core.model import DONE, CallPlan, Lane, Scope, Task, Value, Waiter, new_value
from asyncsched._core.tenants import Share
from asyncsched.devices import execution
from asyncsched.devices.memory import Memory
from asyncsched.errors import TaskCancelled

_MEMORY = Memory(Completions(lambda: None))
_MEMORY.xp = np


class Made(execution.Body):
    """A body that makes an object, or raises. How many bytes that takes is told before it runs."""

    inplace = False  # asked of a task that is part of a commit

    def __init__(self) -> None:
        self.charge: int | None = None  # None: what it was charged
        self.error: BaseException | None = None

    def run(self, task: Task) -> None:
        if self.error is not None:  # as an operation's, its failure keeps no frames
            execution.fail(task, Failure.of(self.error, task.name, task.site, frames=False))
            return
        assert task.value is not None
        execution.finish(task, task.value, object(), task.cost if self.charge is None else self.charge)


class Rig(Host):
    """What the runtime and a device do around an engine, without a loop, threads or arrays."""

    def __init__(self, *, lanes: int = 1, **limits: Any) -> None:
        self.completions = Completions(lambda: None)
        self.engine = Engine(Limits(**limits), self.completions, self)
        self.ledger, self.root = self.engine.ledger, self.engine.root
        self.loop = Lane(self)  # where quick tasks run
        self.loop_is_free = True  # False: they held it for long enough, and go to streams
        self.ran: list[Task] = []  # the quick ones
        self.lanes = [Lane(stream=self, loop=self.loop) for _ in range(lanes)]
        self.streams: dict[Lane, deque[Task]] = {lane: deque() for lane in self.lanes}
        self.claims: dict[Task, Value] = {}
        self._launched: list[Task] = []

    def launch(self, task: Task, waits: object) -> int:
        assert task.lane is not None
        self.streams[task.lane].append(task)
        self._launched.append(task)
        return 0

    def loop_lane(self, task: Task) -> Lane | None:
        if not self.loop_is_free or failure_above(task.inputs) is not None:
            return None
        there = all(value.array is not None for value in task.inputs)
        return self.loop if there and all(other.state >= DONE for other in task.after or ()) else None

    def run_inline(self, task: Task) -> None:
        self.ran.append(task)
        execute(task)

    def task(
        self,
        *inputs: Value,
        cost: int = 0,
        scope: Scope | None = None,
        name: str = "task",
        expedited: bool = False,
        quick: bool = False,
    ) -> tuple[Task, Value]:
        """A task that is not submitted yet, and its value."""
        scope = scope or self.root
        value = new_value(scope.account, None, None, cost)
        value.holders = []  # counted, small as it is
        task = Task(scope, CallPlan(name, quick=quick), value, Made(), inputs, None, None, self.lanes, cost)
        task.expedited = expedited
        return task, value

    def submit(self, *inputs: Value, bounded: bool = True, hold: bool = True, **options: Any) -> tuple[Task, Value]:
        """A task in the backlog, and its value. By default nothing is admitted before the next `dispatch`."""
        task, value = self.task(*inputs, **options)
        self.engine.submit(task, bounded=bounded, hold=hold)
        return task, value

    def chain(self, length: int) -> tuple[list[Task], Value]:
        """Tasks in the backlog, each of which reads the one before, and the value of the last."""
        task, value = self.submit()
        tasks = [task]
        for _ in range(length - 1):
            task, value = self.submit(value)
            tasks.append(task)
        return tasks, value

    def claim(self, cost: int, scope: Scope | None = None) -> Task:
        """A mere claim of bytes in the backlog. Its value is among `claims`."""
        scope = scope or self.root
        value = new_value(scope.account, None, None, cost)
        task = Task(scope, CallPlan("claim"), value, None, (), None, None, (), cost)
        self.engine.submit(task, bounded=False, hold=True)
        self.claims[task] = value
        return task

    def give_back(self, claim: Task) -> None:
        """Who claimed bytes lets go of them."""
        del self.claims[claim]
        self.drain()

    def scope(
        self, name: str = "scope", parent: Scope | None = None, reserve: int | None = None, **options: Any
    ) -> Scope:
        """A scope with a queue of its own, and a reserve if there is room for it now."""
        own_queue = options.pop("own_queue", True)
        scope = self.engine.scopes.open(name, parent or self.root, Share(**options) if own_queue else None)
        if reserve is not None:
            claim = self.claim(reserve, scope)
            self.dispatch()
            self.engine.grant_reserve(scope, self.claims.pop(claim))
        return scope

    def drain(self) -> None:
        """Take in what has ended."""
        self.engine.drain()

    def dispatch(self) -> list[Task]:
        """Have the engine move everything along, until it asks for no more. Returns what was launched."""
        while True:
            self.completions.awake = False
            self.engine.dispatch()
            assert not self.ledger.busy, "a change never came to its end"
            if not self.completions.items and not self.completions.awake:
                launched, self._launched = self._launched, []
                return launched

    def finish(self, task: Task, *, charge: int | None = None, error: BaseException | None = None) -> None:
        """A launched task runs to its end, wherever it is in its stream, and its completion is posted."""
        assert task.lane is not None
        self.streams[task.lane].remove(task)
        execute(task, charge, error)
        self.post(task, not self.streams[task.lane])

    def post(self, task: Task, dry: bool = True) -> None:
        """Post a completion, as a stream's thread does."""
        if self.completions.completed(task, dry):
            self.completions.notify()

    def fail(self, task: Task, error: BaseException | None = None) -> None:
        """Launch a task, have it fail, and take that in."""
        self.dispatch()
        self.finish(task, error=error or ValueError("no"))
        self.dispatch()

    def fill(self, scope: Scope, count: int, **options: Any) -> None:
        """Tasks in a scope, named after it and numbered."""
        for i in range(count):
            self.submit(scope=scope, name=f"{scope.name}{i}", **options)

    def run(self) -> list[Task]:
        """Finish, in order, whatever is launched and whatever is launched by that. Returns the tasks in that order."""
        done: list[Task] = []
        self.dispatch()
        while any(self.streams.values()):
            for stream in self.streams.values():
                if stream:
                    done.append(stream[0])
                    self.finish(stream[0])
            self.dispatch()
        return done

    def cancel(self, task: Task) -> bool:
        self.drain()
        return self.engine.cancel(task, cancellation(task))


def states(tasks: Iterable[Task]) -> set[int]:
    return {task.state for task in tasks}


def names(tasks: list[Task]) -> list[str]:
    return [task.name for task in tasks]


def answered(into: list[Task]) -> Waiter:
    """Waits until there is an answer, like whoever awaits a task."""

    def waiter(task: Task) -> bool:
        if task.settled:
            into.append(task)
        return task.settled

    return waiter


def ended(into: list[Task]) -> Waiter:
    """Waits for the physical end."""

    def waiter(task: Task) -> bool:
        if task.state >= DONE:
            into.append(task)
        return task.state >= DONE

    return waiter


def cancellation(task: Task) -> Failure:
    return Failure.of(TaskCancelled(f"{task.name} was cancelled by a test"), task.name, task.site)


class Outcome(NamedTuple):
    """What became of a task's value. It does not hold the value."""

    array: Any
    charge: int
    is_view: bool


def execute(task: Task, charge: int | None = None, error: BaseException | None = None) -> Outcome:
    """What a stream does with a task. Afterwards the value has its array or its failure, and the task holds nothing."""
    call = task.call
    if isinstance(call, Made):  # the gate of a commit has no body
        call.charge = call.charge if charge is None else charge
        call.error = error or call.error
        if task.name == "boom" and call.error is None:
            call.error = ValueError("boom")
    execution.run(task, _MEMORY)
    value = task.value
    assert value is not None
    outcome = Outcome(value.array, value.charge, value.base is not None)
    del value
    execution.release(task)
    return outcome
