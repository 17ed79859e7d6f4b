"""The scheduler as a plain state machine: events in, launches and settled tasks out.

It knows no clock, no threads, no arrays and no event loop. Every method runs to its end on one thread, changes state,
and leaves what is to be done in `admit()`'s result (tasks to launch, in order) and in `settled` (tasks whose waiters
to call).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from typing import Any

from ..errors import QueueFull, TaskTooLarge
from .admission import Admission
from .audit import Audit
from .completions import Completions
from .failure import Failure
from .fair_queue import Tenant
from .model import CANCELLED, DONE, FAILED, LAUNCHED, PENDING, Account, Queue, Scope, Task
from .placement import choose


class Engine(Audit):
    """All state of one scheduler.

    Args:
        max_ops: most tasks in flight; None for no bound.
        max_bytes: most tracked bytes; None for no bound.
        max_pending: most tasks waiting in the backlog; None for no bound.
        completions: the deque in which completions and drops arrive.
        runtime: whoever drives the engine; reachable from every account.
        log: a list that receives every stimulus, for tests.
    """

    def __init__(
        self,
        *,
        max_ops: int | None,
        max_bytes: int | None,
        max_pending: int | None,
        completions: Completions,
        runtime: Any = None,
        log: list[tuple[Any, ...]] | None = None,
    ) -> None:
        self.max_pending = max_pending
        self.completions = completions
        self.account = Account(max_bytes, completions, runtime)
        self.admission = Admission(max_ops)
        self.root = Scope("root", Queue(Tenant(None, self.admission.ordinary)), self.account)
        self.settled: list[Task] = []
        self.log = log
        self.sequence = 0
        self.unfinished = 0
        self.submitted = self.completed = self.failed = self.cancelled = 0
        self.peak_in_flight = self.peak_bytes = 0
        self.reserved = 0

    # -- events -------------------------------------------------------------------------------------------------

    def require(self, account: Account, cost: int, inputs: Any, name: str) -> None:
        """Raise TaskTooLarge for a task that could never run under the account's limit."""
        limit = account.limit
        if limit is None or (not inputs and cost <= limit):
            return
        owners = {v.owner for v in inputs}  # but for those held outside, which leave the account its room
        needed = cost + sum(owner.nbytes for owner in owners if account.covers(owner.account))
        if needed > limit:
            raise TaskTooLarge(
                f"{name} needs {needed:,} bytes ({cost:,} of its own, {needed - cost:,} of inputs) and the limit is"
                f" {limit:,}: raise max_bytes (or the scope's reserve) to at least {needed:,}, or split the task",
                needed,
                limit,
            )

    def submit(self, task: Task, *, bounded: bool = True) -> None:
        """A task joins the backlog. `bounded` tasks are refused when it is full; those somebody waits for are not."""
        if bounded and self.max_pending is not None and self.admission.pending >= self.max_pending:
            raise QueueFull(
                f"{task.name}: the backlog holds {self.admission.pending:,} tasks (max_pending): "
                "`await s.barrier()` now and then, or bound the run-ahead with `async with s.window(2)`"
            )
        task.seq = self.sequence
        self.sequence += 1
        self.unfinished += 1
        if task.lanes:
            self.submitted += 1
        task.scope.tasks[task] = None
        failed = None
        for value in task.inputs:
            producer = value.task
            if producer is not None:
                if producer.state >= DONE:
                    value.task = None
                else:
                    if producer.dependents is None:
                        producer.dependents = [task]
                    else:
                        producer.dependents.append(task)
                    if producer.state == PENDING:
                        task.blockers += 1
            if value.failure is not None:
                failed = value.failure
        self.admission.push(task)
        if self.log is not None:
            self.log.append(("submit", task.seq, task.name, task.cost))
        if failed is not None:
            self.settle(task, failed.passed_to(task.name, task.site))

    def admit(self) -> list[Task]:
        """Grant whatever can be granted. Returns the tasks to launch, in order, each with its lane."""
        launches: list[Task] = []
        admission = self.admission
        while (task := admission.next()) is not None:
            upstream = _failure_above(task)
            if upstream is not None:
                self.settle(task, upstream.passed_to(task.name, task.site))
                continue
            self._launch(task)
            if task.lanes:
                launches.append(task)
            else:
                self._end(task, DONE)  # a mere claim of bytes is done when granted, and keeps them
        return launches

    def complete(self, task: Task) -> None:
        """A launched task physically ended; its `refund`, and its `failure` if it has one, are set."""
        lane = task.lane
        assert lane is not None
        lane.load -= 1
        if lane.tail is task:
            lane.tail = None
        self.admission.ended(task)
        if task.refund < 0:
            self.note_peak(0)
        failure, dependents = task.failure, task.dependents
        if self.log is not None:
            self.log.append(("complete", task.seq, failure is None))
        if task.cancelled or (failure is not None and failure.cancelled):
            self._end(task, CANCELLED)
        else:
            self._end(task, DONE if failure is None else FAILED)
        if failure is not None:
            self._settle_all(dependents, failure)

    def take(self, items: deque[Any]) -> Any:
        """Take in completions and drops. Returns the first item that is neither, or None at the end."""
        while items:
            item = items.popleft()
            if type(item) is tuple:
                account, nbytes = item
                if account.closed:
                    account = account.open
                account.used -= nbytes
                account.changed = True
                if self.log is not None:
                    self.log.append(("release", nbytes))
            elif type(item) is Task:
                self.complete(item)
            else:
                return item
        return None

    def release(self, account: Account, nbytes: int) -> None:
        """Bytes that nobody holds any more."""
        self.take(deque([(account, nbytes)]))

    def cancel(self, task: Task, failure: Failure) -> bool:
        """Cancel a task in any state, and what depends on it. Returns whether it had not ended yet.

        A launched task is settled for everyone who waits, and keeps its slot and bytes until it physically ends.
        """
        found = self._cancel(task, failure)
        todo = [(task, failure)] if found else []
        while todo:
            task, failure = todo.pop()
            for dependent in task.dependents or ():
                passed = failure.passed_to(dependent.name, dependent.site)
                if self._cancel(dependent, passed):
                    todo.append((dependent, passed))
        return found

    def _cancel(self, task: Task, failure: Failure) -> bool:
        if task.state == PENDING:
            self.settle(task, failure)
            return True
        value = task.value  # one read: the stream lets go of it when the result is there
        if task.settled() or value is None:
            return False
        value.failure = task.failure = failure
        task.cancelled = True
        if self.log is not None:
            self.log.append(("cancel", task.seq))
        if task.waiters is not None:
            self.settled.append(task)
        return True

    def settle(self, task: Task, failure: Failure) -> None:
        """End a pending task that will never be launched, and its dependents. Without recursion: graphs are deep."""
        todo = [(task, failure)]
        while todo:
            task, failure = todo.pop()
            if task.state != PENDING:
                continue
            task.state = CANCELLED if failure.cancelled else FAILED
            self.admission.remove(task)
            task.failure = failure
            if task.value is not None:
                task.value.failure = failure
            if self.log is not None:
                self.log.append(("settle", task.seq, failure.cancelled))
            dependents = task.dependents or ()
            self._end(task, task.state)
            todo += [(d, failure.passed_to(d.name, d.site)) for d in dependents]

    def inline_failed(self, scope: Scope, failure: Failure) -> None:
        """A tiny task was submitted, failed and ended in one step, while nothing else was unfinished."""
        self.submitted += 1
        self.note_peak(1)
        if failure.cancelled:
            self.cancelled += 1
            return
        self.failed += 1
        if failure.root is failure:
            failure.seq = self.sequence
            self.sequence += 1
            scope.record(failure)

    def note_peak(self, in_flight: int, workspace: int = 0) -> None:
        """Keep the highest tracked bytes (`workspace` more than are charged now) and tasks in flight."""
        if self.account.used + workspace > self.peak_bytes:
            self.peak_bytes = self.account.used + workspace
        if in_flight > self.peak_in_flight:
            self.peak_in_flight = in_flight

    # -- scopes -------------------------------------------------------------------------------------------------

    def open_scope(
        self,
        name: str,
        parent: Scope,
        *,
        own_queue: bool = True,
        tenant: Hashable | None = None,
        weight: float | None = None,
        priority: int | None = None,
    ) -> Scope:
        """A child scope, with a queue of its own or in its parent's. Sweeps out siblings that are over.

        Args:
            tenant: who takes the turns of its queue; None for its parent's, or itself where that has none.
            weight: of the tenant from now on; None to leave it.
            priority: the class; the higher goes first; None for its parent's.
        """
        for sibling in list(parent.children) if not own_queue else ():
            if sibling.ended and not (sibling.tasks or sibling.children or sibling.failures):
                self.close_scope(sibling)
        queue = parent.queue
        if own_queue:
            queue = Queue(self.admission.tenant(queue.tenant, tenant, weight, priority))
        scope = Scope(name, queue, parent.account, parent)
        parent.children[scope] = None
        return scope

    def grant_reserve(self, scope: Scope, nbytes: int) -> None:
        """Make `nbytes`, already charged to the scope's account, the scope's own account."""
        scope.account = Account(nbytes, self.completions, self.account.runtime, scope.account)
        scope.reserve = nbytes
        self.reserved += nbytes

    def close_scope(self, scope: Scope) -> None:
        """Take a finished scope out of the tree; what it still holds is charged to its parent in the same step."""
        assert not scope.tasks
        scope.closed = True
        parent = scope.parent
        if parent is None:
            return
        parent.children.pop(scope, None)
        if scope.reserve:
            account = scope.account
            self.reserved -= scope.reserve
            assert account.parent is not None
            account.closed = True
            outer = account.parent.open
            outer.used += account.used - scope.reserve
            outer.changed = True
            self.note_peak(0)
        self._hand_over(scope, parent)

    def _hand_over(self, scope: Scope, parent: Scope) -> None:
        """What is open in a scope that closes goes to its parent; what is over closes, and is reported, with it."""
        todo, moved = list(scope.children), []
        while todo:
            child = todo.pop()
            if child.ended:
                child.closed = True
                todo += child.children
            else:
                assert child.parent is not None
                del child.parent.children[child]
                child.parent = parent
                parent.children[child] = None
                moved.append(child)
        while moved:
            child = moved.pop()
            child.account = child.account.open
            moved += child.children

    # -- steps --------------------------------------------------------------------------------------------------

    def _launch(self, task: Task) -> None:
        task.state = LAUNCHED
        admission = self.admission
        admission.remove(task)
        admission.charge(task)
        self.note_peak(admission.in_flight)
        if task.lanes:
            lane = task.lane = choose(task)
            lane.load += 1
            lane.tail = task
        if task.dependents is not None:
            for dependent in task.dependents:
                dependent.blockers -= 1
                dependent.account.changed = True
        if self.log is not None:
            self.log.append(("launch", task.seq))

    def _end(self, task: Task, state: int) -> None:
        task.state = state
        task.inputs = ()
        task.args = task.value = task.call = task.context = task.options = None
        del task.scope.tasks[task]
        self.unfinished -= 1
        if not task.lanes:
            pass
        elif state == DONE:
            self.completed += 1
        elif state == FAILED:
            self.failed += 1
            failure = task.failure
            assert failure is not None
            if failure.root is failure:
                failure.seq = task.seq
                task.scope.record(failure)
        else:
            self.cancelled += 1
        if task.waiters is not None:
            self.settled.append(task)
        task.dependents = None

    def _settle_all(self, dependents: Iterable[Task] | None, failure: Failure) -> None:
        for dependent in dependents or ():
            if dependent.state == PENDING:
                self.settle(dependent, failure.passed_to(dependent.name, dependent.site))


def _failure_above(task: Task) -> Failure | None:
    for value in task.inputs:
        if value.failure is not None:
            return value.failure
    return None
