"""How tasks end: done, failed or cancelled, each with its dependents.

No waiter is called while tasks end. `notices` collects the tasks, and `notify` calls their waiters afterwards.

Commits: tasks that bring a group of values to their next versions, all of them or none.

Theory of operation. An optimiser's step moves many parameters, each by tasks of its own, and any gradient may fail. No
parameter may fail with it, and either all parameters move or none. So the tasks of a step are *members* of a commit.
One more task, the *gate*, goes before them and reads all their inputs from outside:

1. The gate is admitted when there are bytes for the whole commit: it is charged for all members, and they are charged
   nothing. So once it is admitted, no member can be short of bytes.
2. The gate *decides* when it runs, after all its inputs have ended: for the commit, unless an input failed. Before
   that, cancelling any task of the commit decides against it; afterwards cancelling has no effect. The first decision
   counts, on whichever thread it is made.
3. If the decision was for the commit, each member computes its value. If not, it takes over the previous version, in
   the same buffer. Either way it has a value, and tasks that read it go on.

So these tasks differ from others in two ways: a failed input does not settle them, and they are not cancelled one by
one.

Alternatives: one task for everything would use one stream. Without a gate each member would have to read all inputs:
the number of edges grows with the square of the number of parameters.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .admission import Admission
from .failure import Failure
from .instrument import Host
from .ledger import Ledger
from .model import CANCELLED, DONE, FAILED, LAUNCHED, PENDING, Scope, Task, Waiter


@dataclass(slots=True, eq=False)
class Commit:
    """The state that the tasks of one commit share."""

    gate: Task
    charged: bool = False  # whether the gate was admitted with the bytes for all members
    _decision: dict[str, bool] = field(default_factory=dict)

    def decide(self, go: bool) -> bool:
        """Decide, unless that was done before. Returns the decision. On any thread: `dict.setdefault` is one step."""
        return self._decision.setdefault("go", go)

    @property
    def decision(self) -> bool | None:
        """Whether the values moved to their next versions; None if that is not decided."""
        return self._decision.get("go")


@dataclass(slots=True, eq=False)
class Move:
    """A task's part in a commit."""

    commit: Commit
    grant: int  # bytes it takes over from the gate's charge; for the gate, what it keeps for members' workspace
    place: int | None = None  # of the previous version among its inputs; None if that was zeros
    hands_on: bool = False  # whether its value is a version of one of the group; only members read its other values

    def charge(self, task: Task) -> None:
        """Set the cost of an admitted task to its part of the commit's charge."""
        commit = self.commit
        if task is commit.gate:
            commit.charged = task.cost > 0  # zero if the commit was given up before
        task.cost = self.grant if commit.charged else 0


class Endings:
    """Ends tasks. Call it only within a change of the engine."""

    def __init__(self, ledger: Ledger, admission: Admission, host: Host) -> None:
        self._ledger = ledger
        self._admission = admission
        self._host = host
        self.notices: list[Any] = []  # tasks and jobs whose waiters must be called

    def notify(self) -> None:
        """Call the waiters of every task and job with a notice."""
        notices, self.notices = self.notices, []
        for job in notices:
            waiting: dict[Waiter, None] = {}
            for waiter in (*(job.waiters or ()),):  # a copy: the collector may close a waiting coroutine meanwhile
                if not waiter(job):
                    waiting[waiter] = None
            job.waiters = waiting or None  # at once: a stream's thread reads it

    def complete(self, task: Task) -> None:
        """Take in a task that physically ended on its stream. Its `refund` and `failure` are set."""
        if task.state != LAUNCHED:  # it was abandoned before
            return
        lane: Any = task.lane
        lane.load -= 1
        if lane.hop:
            lane.done_until, lane.done_at = task.due, self._host.clock()
        if lane.tail is task:
            lane.tail = None
        self.ended(task)

    def ended(self, task: Task) -> None:
        """Take in a launched task that physically ended, on its stream or on the event loop's thread."""
        failure, site = task.failure, None if task.refund >= 0 else task.site
        if failure is None and not task.cancelled:
            self.end(task, DONE)
        else:
            dependents = task.dependents
            self.end(task, CANCELLED if task.cancelled or (failure is not None and failure.cancelled) else FAILED)
            for dependent in dependents:
                if failure is not None and dependent.state == PENDING and not dependent.only_follows(task):
                    self.settle(dependent, failure.passed_to(dependent.name, dependent.site))
        if site is not None:  # it made more than it was charged, and a line of the user's submitted it
            account = task.scope.account.open
            if account.limit is not None and account.used > account.limit:
                self._host.on_overrun(task, site)

    def end(self, task: Task, state: int) -> None:
        """Put a task into its final state. Every task that ends comes here."""
        task.state = state
        if task.value is not None:  # otherwise the stream has emptied it
            task.let_go()
        task.readers = task.move = task.after = None
        if state == FAILED and task.lanes:
            assert task.failure is not None
            self._record(task, task.failure)
        self._ledger.leave(task)
        if task.waiters is not None:
            self.notices.append(task)

    def cancel(self, task: Task, failure: Failure) -> bool:
        """Cancel a task in any state, and its dependents. Returns whether it had not ended yet.

        A launched task is settled for all its waiters, and keeps its slot and bytes until it physically ends.
        """
        if task.move is not None and task.value is not None:
            return self._give_up(task.move.commit)
        if task.state == PENDING:
            self.settle(task, failure)
            return True
        if task.failure is not failure and not self.mark_cancelled(task, failure):
            return False
        if task.lane is None:  # it was settled since the mark, with its dependents, and never launched
            return True
        cancelled = [task]
        for producer in cancelled:
            if producer.waiters is not None:
                self.notices.append(producer)
            self._host.on_cancel(producer)
            above = producer.failure
            assert above is not None
            for dependent in producer.dependents:
                if dependent.only_follows(producer):
                    continue
                if dependent.move is not None:
                    self._give_up(dependent.move.commit)
                elif dependent.state == PENDING:
                    self.settle(dependent, above.passed_to(dependent.name, dependent.site))
                elif dependent.state == LAUNCHED and dependent.failure is None:
                    # Both may have ended since the mark, and this one may have its result; but no waiter was called
                    # yet.
                    dependent.failure = above.passed_to(dependent.name, dependent.site)
                    dependent.cancelled = True
                    cancelled.append(dependent)
        return True

    @staticmethod
    def mark_cancelled(task: Task, failure: Failure) -> bool:
        """Mark a task, so that its body is skipped. Returns False if it has ended or was cancelled before."""
        # Without the GIL the task may end, or its body may raise, right after the look at `value`. Then it is cancelled
        # all the same, and has one of the two failures. Nobody but its dependents can have seen its result yet, since
        # this thread has not taken its end in.
        if task.settled or task.value is None or task.failure is not None:  # its body has raised: that counts
            return False
        task.failure = failure
        task.cancelled = True
        return True

    def settle(self, task: Task, failure: Failure) -> bool:
        """End a pending task that will never be launched, and its dependents. Not recursive, since graphs are deep.

        For a task of a commit, the commit is given up instead.

        Returns:
            Whether the commit could be given up, or whether any task that ended has waiters.
        """
        if task.move is not None:
            given_up = self._give_up(task.move.commit)
            if given_up:
                self._record(task, failure)
            return given_up
        todo, awaited = [(task, failure)], False
        while todo:
            task, failure = todo.pop()
            if task.state != PENDING:
                continue
            failure = task.failure or failure  # it may be marked as cancelled already: see `Engine.cancel`
            task.state = CANCELLED if failure.cancelled else FAILED
            self._admission.remove(task)
            task.failure = failure
            awaited = awaited or bool(task.waiters)
            dependents = []
            for dependent in task.dependents:
                if dependent.move is None and not dependent.only_follows(task):
                    dependents.append((dependent, failure.passed_to(dependent.name, dependent.site)))
                else:  # it still runs, and no longer waits for this task
                    if dependent.move is not None:
                        self._give_up(dependent.move.commit)
                    dependent.blockers -= 1
                    dependent.scope.account.changed = True
            self.end(task, task.state)
            todo += dependents
        return awaited

    def _give_up(self, commit: Commit) -> bool:
        """Decide against a commit. Returns False if it was already decided for."""
        if commit.decide(False):
            return False
        if commit.gate.state == PENDING:  # its members will need no bytes
            self._ledger.make_free(commit.gate)
        return True

    @staticmethod
    def _record(task: Task, failure: Failure) -> None:
        """Let the scope report a root cause, unless someone sees it first."""
        if failure.root is failure:
            failure.seq = task.seq
            task.scope.record(failure)

    def abandon_all(self, root: Scope, failure: Failure) -> None:
        """End all unfinished tasks with `failure`, except those with a result. Does not wait for running bodies.

        It reads no count, since any may be wrong.
        """
        self._ledger.abandon()
        for scope in root.tree():
            for task in list(scope.tasks):
                self.abandon(task, failure)
            scope.tasks.clear()  # last: a RecursionError may make the caller begin again
            scope.reserve = scope.account.pending = scope.account.in_flight = 0

    def abandon(self, task: Task, failure: Failure) -> None:
        """End one task with `failure`, unless it has its result."""
        value = task.value  # read once: the stream's thread clears it when the result is there
        if task.state == LAUNCHED and value is None and task.failure is None:
            task.state = DONE
        elif task.state != DONE:
            if task.failure is None:
                task.failure = failure.passed_to(task.name, task.site)
            if task.state == PENDING:
                task.let_go()
            task.state, task.cancelled = FAILED, True  # so a stream that has not begun it skips it
        if task.waiters is not None:
            self.notices.append(task)
