"""An engine with streams made of lists: driven like the asyncio shell drives it, one explicit step at a time."""

from __future__ import annotations

from collections import deque
from typing import Any

from asyncsched._core.completions import Completions
from asyncsched._core.engine import Engine
from asyncsched._core.failure import Failure
from asyncsched._core.model import Lane, Scope, Task, Value
from asyncsched.errors import TaskCancelled


class Rig:
    """What `runtime.py` and `devices/host.py` do around an engine, without a loop, threads or arrays."""

    def __init__(
        self,
        *,
        max_ops: int | None = None,
        max_bytes: int | None = None,
        max_pending: int | None = None,
        lanes: int = 1,
    ) -> None:
        self.completions = Completions(lambda: None)
        self.engine = Engine(
            max_ops=max_ops,
            max_bytes=max_bytes,
            max_pending=max_pending,
            completions=self.completions,
            runtime=self,
            log=[],
        )
        self.root = self.engine.root
        self.lanes = [Lane() for _ in range(lanes)]
        self.streams: dict[Lane, deque[Task]] = {lane: deque() for lane in self.lanes}

    def task(
        self, *inputs: Value, cost: int = 0, scope: Scope | None = None, name: str = "task", expedited: bool = False
    ) -> tuple[Task, Value]:
        """A task that is not submitted yet, and its value."""
        scope = scope or self.root
        task = Task(scope, scope.account, name, None, inputs, None, inputs, self.lanes, cost)
        task.expedited = expedited
        value = task.value = Value(scope.account, None, None, task)
        value.nbytes = cost
        return task, value

    def submit(self, *inputs: Value, bounded: bool = True, **options: Any) -> tuple[Task, Value]:
        """A task in the backlog, and its value. Nothing is admitted before the next `dispatch`."""
        task, value = self.task(*inputs, **options)
        self.engine.require(task.account, task.cost, task.inputs, task.name)
        self.engine.submit(task, bounded=bounded)
        return task, value

    def claim(self, cost: int, scope: Scope | None = None) -> Task:
        """A mere claim of bytes in the backlog."""
        scope = scope or self.root
        task = Task(scope, scope.account, "claim", None, (), None, (), (), cost)
        self.engine.require(task.account, cost, (), task.name)
        self.engine.submit(task, bounded=False)
        return task

    def scope(self, name: str = "scope", parent: Scope | None = None, reserve: int | None = None) -> Scope:
        """A scope with a queue of its own, and a reserve if there is room for it now."""
        scope = self.engine.open_scope(name, parent or self.root)
        if reserve is not None:
            self.claim(reserve, scope)
            self.dispatch()
            self.engine.grant_reserve(scope, reserve)
        return scope

    def drain(self) -> None:
        other = self.engine.take(self.completions.items)
        assert other is None

    def dispatch(self) -> list[Task]:
        """Drain, launch what is admitted, call who waits; until nothing is left to do. Returns what was launched."""
        launched: list[Task] = []
        while True:
            self.drain()
            for task in self.engine.admit():
                assert task.lane is not None
                self.streams[task.lane].append(task)
                launched.append(task)
            settled = self.engine.settled
            while settled:
                task = settled.pop()
                waiters, task.waiters = task.waiters, None
                for waiter in waiters or ():
                    waiter(task)
            if not self.completions.items:
                return launched

    def finish(self, task: Task, *, charge: int | None = None, error: BaseException | None = None) -> None:
        """A launched task runs to its end, wherever it is in its stream, and its completion is posted."""
        assert task.lane is not None
        self.streams[task.lane].remove(task)
        execute(task, task.cost if charge is None else charge, error)
        self.completions.completed(task, not self.streams[task.lane])

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


def cancellation(task: Task) -> Failure:
    return Failure.of(TaskCancelled(f"{task.name} was cancelled by a test"), task.name, task.site)


def execute(task: Task, charge: int, error: BaseException | None = None) -> None:
    """What a stream does with a task. Afterwards the value has its array or its failure, and the task holds nothing."""
    value = task.value
    assert value is not None
    task.refund = task.cost
    upstream = next((v.failure for v in task.inputs if v.failure is not None), None)
    failure = None
    if upstream is not None:
        failure = upstream.passed_to(task.name, task.site)
    elif not task.cancelled and error is not None:
        failure = Failure.of(error, task.name, task.site)
    elif not task.cancelled and value.failure is None:
        value.array = object()
        value.charge = charge
        task.refund = task.cost - charge
    if failure is not None and task.failure is None:
        task.failure = failure
        if value.failure is None:
            value.failure = failure
    task.value = task.args = task.call = task.context = task.options = None
    task.inputs = ()
