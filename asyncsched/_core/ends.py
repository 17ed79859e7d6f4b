"""How tasks end: done, failed or cancelled, each with what depends on it."""

from __future__ import annotations

from collections.abc import Callable

from .commit import Commit, Move
from .failure import Failure
from .instrument import Instrument
from .model import CANCELLED, DONE, FAILED, LAUNCHED, PENDING, Task
from .torn import Torn, whole


class Ends(Torn):
    """The part of the engine that ends tasks. It calls no waiters: it adds to `_news`, and `dispatch` calls theirs."""

    sequence: int
    peak_bytes: int
    observer: Instrument | None
    on_overrun: Callable[[Task], None]
    on_cancel: Callable[[Task], None]
    clock: Callable[[], float]

    def _complete(self, task: Task) -> None:
        """A launched task physically ended; its `refund`, and its `failure` if it has one, are set."""
        if task.state != LAUNCHED:  # given up meanwhile, see `torn`
            return
        lane, account, admission = task.lane, task.scope.account, self.admission
        assert lane is not None
        lane.load -= 1
        lane.ended, lane.since = task.due, self.clock()
        if lane.tail is task:
            lane.tail = None
        account.in_flight -= 1
        if account.closed:
            account = account.open
        account.used -= task.refund
        account.changed = True
        admission.in_flight -= 1
        admission.free += 1
        admission.ended_tasks += 1
        admission.ended_bytes += task.cost
        if task.refund < 0:
            self.note_peak(0)
            if account.limit is not None and account.used > account.limit:
                self.on_overrun(task)
        failure = task.failure
        if failure is None and not task.cancelled:  # as `_end`; the stream has cleared all else
            task.state = DONE
            task.value = task.after = None
            del task.scope.tasks[task]
            self.unfinished -= 1
            self.completed += 1
            if self.observer is not None:
                self.observer.task_ended(task)
            if task.waiters is not None:
                self._news.append(task)
            return
        dependents = task.dependents
        self._end(task, CANCELLED if task.cancelled or (failure is not None and failure.cancelled) else FAILED)
        for dependent in dependents:
            if failure is not None and dependent.state == PENDING:
                self.settle(dependent, failure.passed_to(dependent.name, dependent.site))

    @whole
    def cancel(self, task: Task, failure: Failure) -> bool:
        """Cancel a task in any state, and what depends on it. Returns whether it had not ended yet.

        A launched task is settled for everyone who waits, and keeps its slot and bytes until it physically ends.
        """
        self._link()
        move = task.move  # read once: the stream's thread clears it when the result is there, as it does `value` below
        if move is not None:
            return self._give_up(move.commit)
        if task.state == PENDING:
            self.settle(task, failure)
            return True
        # While it has not ended none of its dependents has, so their `move` is still there.
        below = _below(task)
        if task.settled():
            return False
        # From here to the two marks nothing is called, so no other thread runs (CPython hands over the GIL only in
        # calls and at the ends of loops): a task that has ended is not marked as cancelled.
        if task.value is None:
            return False
        task.failure = failure
        task.cancelled = True
        self._tell_cancelled(task)
        for producer, dependent, move in below:
            above = producer.failure
            if above is None:
                continue
            if move is not None:
                self._give_up(move.commit)
            elif dependent.state == PENDING:
                self.settle(dependent, above.passed_to(dependent.name, dependent.site))
            elif dependent.state == LAUNCHED and dependent.failure is None:
                # Both may have ended since the mark, and it may have its result; but no waiter has been called yet.
                dependent.failure = above.passed_to(dependent.name, dependent.site)
                dependent.cancelled = True
                self._tell_cancelled(dependent)
        return True

    def _link(self) -> None:
        """Note of each task that was made of a bare value for what it waits, which nobody needed to know until now."""
        if self.linked:
            return
        self.linked = True
        known: dict[Task, set[Task]] = {}
        for task in self.admission.tasks():
            for value in task.inputs:
                producer = value.task
                if producer is None or producer.state >= DONE:
                    continue
                if producer not in known:
                    known[producer] = set(producer.dependents)
                if task not in known[producer]:
                    known[producer].add(task)
                    producer.add_dependent(task)

    def _tell_cancelled(self, task: Task) -> None:
        if task.waiters is not None:
            self._news.append(task)
        self.on_cancel(task)

    @whole
    def settle(self, task: Task, failure: Failure) -> bool:
        """End a pending task that will never be launched, and its dependents. Not recursive, since graphs are deep.

        A task of a commit is not ended; the commit is given up instead. Returns whether it could be, or whether any of
        the tasks ended has waiters.
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
            task.state = CANCELLED if failure.cancelled else FAILED
            self.admission.remove(task)
            task.failure = failure
            awaited = awaited or bool(task.waiters)
            dependents = []
            for dependent in task.dependents:
                if dependent.move is None:
                    dependents.append((dependent, failure.passed_to(dependent.name, dependent.site)))
                else:  # it runs all the same, and need not wait for this input any more
                    self._give_up(dependent.move.commit)
                    dependent.blockers -= 1
                    dependent.scope.account.changed = True
            self._end(task, task.state)
            todo += dependents
        return awaited

    def _give_up(self, commit: Commit) -> bool:
        """Decide against a commit. Returns False if the decision for it had been made."""
        if commit.decide(False):
            return False
        gate = commit.gate
        if gate.state == PENDING:  # its members will need no room
            self.admission.pending_bytes -= gate.cost
            gate.cost = 0
            gate.scope.account.changed = True
        return True

    @staticmethod
    def _record(task: Task, failure: Failure) -> None:
        """Have a root cause reported by its scope, unless it is seen before."""
        if failure.root is failure:
            failure.seq = task.seq
            task.scope.record(failure)

    def _end(self, task: Task, state: int) -> None:
        task.state = state
        task.reads = ()
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
            self._record(task, failure)
        else:
            self.cancelled += 1
        task.after = None
        if self.observer is not None:
            self.observer.task_ended(task)
        if task.waiters is not None:
            self._news.append(task)

    @whole
    def failed_inline(self, task: Task, failure: Failure) -> None:
        """A quick task was submitted, failed and ended in one step, while nothing was pending."""
        task.seq = self.sequence
        self.sequence += 1
        self.submitted += 1
        self.unfinished += 1
        self.note_peak(self.admission.in_flight + 1)
        task.scope.tasks[task] = None
        if self.observer is not None:
            self.observer.task_submitted(task)
        task.failure = failure
        self._end(task, CANCELLED if failure.cancelled else FAILED)

    def note_peak(self, in_flight: int, workspace: int = 0) -> None:
        """Keep the highest tracked bytes (`workspace` more than are charged now) and tasks in flight."""
        if self.account.used + workspace > self.peak_bytes:
            self.peak_bytes = self.account.used + workspace
        if in_flight > self.peak_in_flight:
            self.peak_in_flight = in_flight


def _below(task: Task) -> list[tuple[Task, Task, Move | None]]:
    """The dependents of a launched task, each after one of its producers: (producer, dependent, part in a commit).

    It stops at those that are pending, or part of a commit: `settle` and the commit take care of what is below.
    """
    found: list[tuple[Task, Task, Move | None]] = []
    todo, seen = [task], {task}
    while todo:
        producer = todo.pop()
        for dependent in producer.dependents:
            if dependent not in seen:
                seen.add(dependent)
                move = dependent.move
                found.append((producer, dependent, move))
                if move is None and dependent.state == LAUNCHED:
                    todo.append(dependent)
    return found
