"""An engine with streams made of lists: it runs as in a scheduler, one explicit step at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

from asyncsched._core.completions import Completions
from asyncsched._core.engine import Engine
from asyncsched._core.failure import Failure
from asyncsched._core.model import DONE, LAUNCHED, Bare, Lane, Scope, Task, Value, Waiter, failure_above, new_value
from asyncsched.errors import TaskCancelled


class Rig:
    """What the runtime and a device do around an engine, without a loop, threads or arrays."""

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
            launch=self._launch,
            here=self._here,
            run=lambda task: task.name != "boom" and failure_above(task.inputs) is None and self._run_quick(task),
            run_bare=self._run_bare,
            runtime=self,
        )
        self.root = self.engine.root
        self.loop = Lane()  # where quick tasks run
        self.ran: list[Task] = []  # the quick ones
        self.made: list[Value] = []  # the bare ones
        self.before_bare: Callable[[Value], None] = lambda value: None
        self.after_bare: Callable[[Value], None] = lambda value: None
        self.lanes = [Lane() for _ in range(lanes)]
        self.streams: dict[Lane, deque[Task]] = {lane: deque() for lane in self.lanes}
        self.claims: dict[Task, Value] = {}
        self._launched: list[Task] = []

    def _launch(self, task: Task) -> bool:
        assert task.lane is not None
        if task.lane is self.loop:
            self._run_quick(task)
            return True
        self.streams[task.lane].append(task)
        self._launched.append(task)
        return False

    def _here(self, task: Task) -> Lane | None:
        return (
            None if any(value.task is not None and value.task.state == LAUNCHED for value in task.inputs) else self.loop
        )

    def _run_quick(self, task: Task) -> bool:
        if self._here(task) is None:
            return False
        self.ran.append(task)
        execute(task, task.cost, ValueError("boom") if task.name == "boom" else None)
        return True

    def _run_bare(self, value: Value) -> bool:
        self.before_bare(value)
        reads = value.reads
        if type(value.task) is not Bare or value.plan.op.name == "boom" or any(v.array is None for v in reads):
            return False
        value.task = value.plan = value.reads = value.args = None
        value.array = object()
        value.charge = value.nbytes
        value.seq = -1
        self.made.append(value)
        self.after_bare(value)
        return True

    def bare(self, *inputs: Value, cost: int = 0, name: str = "bare", scope: Scope | None = None) -> Value:
        """A bare value in the backlog, or a quick task in place of one that may not be bare."""
        scope = scope or self.root
        op = SimpleNamespace(name=name)
        plan = SimpleNamespace(op=op, meta=None, nbytes=cost, cost=cost, estimate=0.0)
        value = self.engine.submit_bare(scope, None, plan, inputs, None, self.lanes, None)
        if value is None:
            value = new_value(scope.account, None, None, cost)
            task = Task(scope, name, value, plan.op, inputs, None, None, self.lanes, cost)
            task.quick = plan
            self.engine.submit(task, bounded=False)
        return value

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
        task = Task(scope, name, value, None, inputs, None, None, self.lanes, cost)
        task.expedited, task.quick = expedited, quick or None
        return task, value

    def submit(self, *inputs: Value, bounded: bool = True, **options: Any) -> tuple[Task, Value]:
        """A task in the backlog, and its value. Nothing is admitted before the next `dispatch`."""
        task, value = self.task(*inputs, **options)
        self.engine.submit(task, bounded=bounded, hold=True)
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
        task = Task(scope, "claim", value, None, (), None, None, (), cost)
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
        scope = self.engine.open_scope(name, parent or self.root, **options)
        if reserve is not None:
            claim = self.claim(reserve, scope)
            self.dispatch()
            self.engine.grant_reserve(scope, self.claims.pop(claim))
        return scope

    def drain(self) -> None:
        """Take in what has ended."""
        self.engine.take()

    def dispatch(self) -> list[Task]:
        """Have the engine move everything along. Returns what was launched."""
        while True:
            self.engine.dispatch()
            if not self.completions.items:
                launched, self._launched = self._launched, []
                return launched

    def finish(self, task: Task, *, charge: int | None = None, error: BaseException | None = None) -> None:
        """A launched task runs to its end, wherever it is in its stream, and its completion is posted."""
        assert task.lane is not None
        self.streams[task.lane].remove(task)
        if task.name == "boom" and error is None:
            error = ValueError("boom")
        execute(task, task.cost if charge is None else charge, error)
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
        if task.settled():
            into.append(task)
        return task.settled()

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
    elif not task.cancelled and task.failure is None:
        value.array = object()
        value.charge = charge
        task.refund = task.cost - charge
    if failure is not None and task.failure is None:
        task.failure = failure
    task.value = task.args = task.call = task.context = task.options = None
    task.inputs = ()
