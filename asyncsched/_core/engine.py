"""The scheduler as a plain state machine: tasks, completions and cancellations in; launches and notices out.

It knows no clock, no threads, no arrays and no event loop. Every method runs to its end on one thread. The runtime
gives it callables: `launch` puts a task on its stream, `on_stuck` is told which tasks lack bytes that nothing in flight
will free, `on_overrun` which result was too large, and `wake` (the completions') has `dispatch` called soon, on that
one thread.

`dispatch` is the one place where things move: it takes in what has ended, admits and launches what fits, and tells who
waits. It is called after every submission that might go at once, when the loop was woken, and before anything that
waits. Notices are given only there, never in the middle of a change of state; so whoever is told finds all of it done.
"""

from __future__ import annotations

from _thread import get_ident
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final, NoReturn

from ..errors import QueueFull, TaskTooLarge
from .admission import Admission
from .audit import Audit
from .commit import Commit, Move
from .completions import Completions
from .failure import Failure
from .instrument import Instrument
from .model import (
    CANCELLED,
    DONE,
    FAILED,
    LAUNCHED,
    PENDING,
    Account,
    Lane,
    Queue,
    Scope,
    Task,
    Value,
    Waiter,
    failure_above,
)
from .placement import choose
from .tenants import Tenant

# Rounds of one dispatch while the streams keep up with it, and tasks that run in it: then the event loop gets to
# breathe. The first is a guess. With four times as many tasks each costs 5% less, and others wait 0.5 ms longer.
_MOST_ROUNDS: Final = 4
_MOST_HERE: Final = 64


class Engine(Audit):
    """All state of one scheduler.

    Args:
        max_ops: most tasks in flight; None for no bound.
        max_bytes: most tracked bytes; None for no bound.
        max_pending: most tasks waiting in the backlog; None for no bound.
        completions: the deque in which ends and drops arrive.
        launch: puts a task on the stream of its lane. Returns whether it has run already.
        here: the lane of the event loop's own thread, if a quick task may run there now.
        run: runs a quick task there now, in few steps, to its end. False, and nothing has happened, if it does not.
        on_stuck: told the tasks that lack bytes which nothing in flight will free, and that there are none any more.
        on_cancel: told of each task that is cancelled after its launch.
        on_overrun: told of each task that made more than it was charged, while that is more than the limit allows.
        runtime: whose it is; reachable from every account, and opaque here.
    """

    def __init__(
        self,
        *,
        max_ops: int | None,
        max_bytes: int | None,
        max_pending: int | None,
        completions: Completions,
        launch: Callable[[Task], bool],
        here: Callable[[Task], Lane | None] = lambda task: None,
        run: Callable[[Task], bool] = lambda task: False,
        on_stuck: Callable[[Sequence[Task]], None] = lambda tasks: None,
        on_overrun: Callable[[Task], None] = lambda task: None,
        on_cancel: Callable[[Task], None] = lambda task: None,
        runtime: Any = None,
    ) -> None:
        self.max_pending = max_pending
        self.completions = completions
        self.launch = launch
        self.here = here
        self.run = run
        self.on_stuck = on_stuck
        self.on_overrun = on_overrun
        self.on_cancel = on_cancel
        self.account = Account(max_bytes, completions, runtime)
        self.admission = Admission(max_ops, completions.returning)
        self.root = Scope("root", Queue(Tenant(None, self.admission.ordinary)), self.account)
        self.sequence = 0
        self.unfinished = 0
        self.submitted = self.completed = self.failed = self.cancelled = 0
        self.ran_inline = 0  # what never was a task, and counts among neither
        self.peak_in_flight = self.peak_bytes = 0
        self.reserved = 0
        self.observer: Instrument | None = None  # told of every transition
        self._news: list[Any] = []  # tasks and jobs whose waiters are to be told
        self._stuck = False  # whether `on_stuck` was told of any
        self._running = False  # quick tasks run, one after the other

    # -- submitting ---------------------------------------------------------------------------------------------

    def submit(self, task: Task, *, bounded: bool = True, hold: bool = False) -> None:
        """A task joins the backlog, and whatever can be launched is.

        Args:
            bounded: refuse it when the backlog is full. Those somebody waits for are not.
            hold: launch nothing before the next `dispatch`.

        Raises:
            TaskTooLarge: if it could never run under its limit.
            QueueFull: if the backlog is full.
        """
        completions, admission, account = self.completions, self.admission, task.scope.account
        completions.direct = 0  # a scan for what fits is told of every drop by way of the completions
        if completions.items and not hold:
            self.take()
        at_once = task.quick is None and not hold
        # Its inputs are charged, or will be: where there is room for all that, there is for them.
        if account.limit is not None and account.used + admission.pending_bytes + task.cost > account.limit:
            self.require(task)
            at_once = False
        if bounded and self.max_pending is not None and admission.pending >= self.max_pending:
            self._refuse(task)
        task.seq = self.sequence
        self.sequence += 1
        self.unfinished += 1
        if task.lanes:
            self.submitted += 1
        task.scope.tasks[task] = None
        failed, reads = None, task.reads
        if type(reads) is Value:  # as most: here and below a loop would take twice as long
            if reads.task is not None:
                failed = _follow(task)
        else:
            for value in reads:
                if value.task is not None:
                    failed = _follow(task)
                    break
        if self.observer is not None:
            assert task.value is not None
            task.value.seq = task.seq
            self.observer.task_submitted(task)
        if at_once and failed is None and task.lanes and admission.idle:
            self._admit(task)  # it would be the next one anyway, and need not stand in the queue
            if self._news:
                self.dispatch()
            return
        admission.push(task)
        if failed is not None and task.move is None:
            self.settle(task, failed.passed_to(task.name, task.site))
        completions.wants_slots = True  # the flag first, a look at the deque second: see `completions`
        if not hold and (completions.items or admission.free > 0):
            self.dispatch()

    def _refuse(self, task: Task) -> NoReturn:
        raise QueueFull(
            f"{task.name}: the backlog holds {self.admission.pending:,} tasks (max_pending): "
            "`await s.barrier()` now and then, or bound the run-ahead with `async with s.window(2)`"
        )

    def require(self, task: Task) -> None:
        """Raise TaskTooLarge for a task that could never run under its limit."""
        account, cost = task.scope.account, task.cost
        limit = account.limit
        if limit is None:
            return
        most = cost
        for value in task.inputs:
            most += value.nbytes if value.base is None else value.owner.nbytes
        if most <= limit:
            return
        owners = {v.owner for v in task.inputs}  # but for those held outside, which leave the account its room
        needed = cost + sum(owner.nbytes for owner in owners if account.covers(owner.account))
        if needed > limit:
            raise TaskTooLarge(
                f"{task.name} needs {needed:,} bytes ({cost:,} of its own, {needed - cost:,} of inputs) and the limit"
                f" is {limit:,}: raise max_bytes (or the scope's reserve) to at least {needed:,}, or split the task",
                needed,
                limit,
            )

    # -- moving things along ------------------------------------------------------------------------------------

    def dispatch(self) -> None:
        """Take in what ended, launch what is admitted, tell who waits; again until nothing is left to do."""
        completions, admission, ran = self.completions, self.admission, 0
        if self._running:  # a finaliser in the middle of a quick task: what stands at the head runs already
            completions.notify()
            return
        if not (completions.wants_slots or completions.items or self._news):
            return  # nothing has ended since, and nothing is pending
        for turn in range(_MOST_ROUNDS):
            if completions.items:
                self.take()
            alone = self.observer is None
            while ran < _MOST_HERE and (task := admission.next()) is not None:
                if alone and task.quick is not None:
                    count = self._run_heads(task.scope, _MOST_HERE - ran)
                    ran += count
                    alone = count > 0  # else what stands at the head is no such task: no use to ask for each
                    if task.state != PENDING:
                        continue
                ran += self._start(task)
            news, self._news = self._news, []
            for job in news:
                waiting: list[Waiter] = []
                for waiter in job.waiters or ():
                    if not waiter(job):
                        waiting.append(waiter)
                job.waiters = waiting or None  # at once: a stream's thread looks whether there are any
            # Flags first, a look at the deque second: see `completions`.
            completions.wants_slots = admission.pending > 0
            completions.threshold = admission.in_flight // 2 or 1
            completions.wants_bytes = lacking = (
                admission.lacking() if completions.wants_slots and admission.free > 0 else 0
            )
            if ran >= _MOST_HERE:
                completions.notify()
                return
            arrived = len(completions.items)
            if not arrived or not (lacking or arrived >= completions.threshold):
                break
            if turn == _MOST_ROUNDS - 1:
                completions.notify()
        if lacking or self._stuck:
            stuck = admission.stuck() if lacking and not completions.items else []
            self._stuck = bool(stuck)
            self.on_stuck(stuck)

    def take(self) -> None:
        """Take in every completion and drop that was told."""
        items = self.completions.items
        while items:
            item = items.popleft()
            if type(item) is Task:
                self._complete(item)
            elif type(item) is tuple:
                account, nbytes, seq = item
                if account.closed:
                    account = account.open
                account.used -= nbytes
                account.changed = True
                if self.observer is not None:
                    self.observer.bytes_released(account, nbytes, seq)
            else:  # a job, which is not admitted and not charged: tell who waits for it
                self._news.append(item)

    def _start(self, task: Task) -> bool:
        """Take a task out of its queue, and admit it. Returns whether it has run already."""
        reads, above = task.reads, None
        if type(reads) is not Value:
            above = failure_above(reads)
        elif reads.task is not None:
            above = reads.task.failure
        if above is not None and task.move is None:  # its completion is still on its way
            self.settle(task, above.passed_to(task.name, task.site))
            return False
        task.state = LAUNCHED  # the queue lets go of what is not pending
        self.admission.remove(task)
        return self._admit(task)

    def _admit(self, task: Task) -> bool:
        """Give a task that is in no queue its slot, its bytes and its lane, and launch it. Returns whether it has run
        already."""
        task.state = LAUNCHED
        admission = self.admission
        admission.charge(task)
        if task.move is not None:
            task.move.charge(task)
        if self.account.used > self.peak_bytes or admission.in_flight > self.peak_in_flight:
            self.note_peak(admission.in_flight)
        after = task.after
        if after is not None:
            for dependent in (after,) if type(after) is Task else after:
                dependent.blockers -= 1
                dependent.scope.account.changed = True
        lanes = task.lanes
        if lanes:
            lane = None if task.quick is None else self.here(task)
            if lane is None:
                lane = lanes[0] if len(lanes) == 1 else choose(task)
            task.lane = lane
            lane.load += 1
            lane.tail = task
            if self.observer is not None:
                self.observer.task_launched(task)
            if self.launch(task):
                self._complete(task)
                return True
        else:  # a claim is done when it is admitted: its value is charged the bytes
            assert task.value is not None
            if self.observer is not None:
                self.observer.task_launched(task)
            task.value.charge = task.value.nbytes = task.cost
            self._end(task, DONE)
        if task.waiters is not None:
            self._news.append(task)
        return False

    def _run_heads(self, scope: Scope, most: int) -> int:
        """Run quick tasks at the head of the only queue that waits, each through all its states at once. Returns how
        many there were.

        It is what `admission.next`, `_start` and `_complete` do with such tasks one after the other, with the sums made
        at the end: nothing else moves meanwhile. So drops may go the shorter way, see `completions`. But what a row
        drops may have a finaliser of a user's, who submits or cancels there: for that all is in order around `run`.
        """
        admission, queue, account = self.admission, scope.queue, scope.account
        if queue.expedited or queue.rotating or account.grace or account.earmark is not None:
            return 0
        run, tasks, limit = self.run, queue.tasks, account.limit
        ran = cost = 0
        self._running = True
        try:
            while ran < most and tasks:
                task = tasks[0]
                if task.quick is None or task.blockers or task.state != PENDING or task.scope.account is not account:
                    break
                used = account.used + task.cost
                if (limit is not None and used > limit) or not run(task):
                    break
                if task.state != PENDING:  # cancelled meanwhile, and out of the queue
                    account.used += task.cost - task.refund
                    continue
                tasks.popleft()
                if not ran:
                    self.completions.direct = get_ident()  # what is dropped from now on is free at once
                ran += 1
                cost += task.cost
                task.state = DONE
                account.used += task.cost - task.refund
                if used > self.peak_bytes and account is self.account:
                    self.peak_bytes = used
                after = task.after
                if after is not None:
                    for dependent in (after,) if type(after) is Task else after:
                        dependent.blockers -= 1
                        dependent.scope.account.changed = True
                    task.after = None
                del task.scope.tasks[task]
                if task.waiters is not None:
                    self._news.append(task)
        finally:
            self._running = False
            if ran:
                self.completions.direct = 0
                for waiting in admission.waiting():
                    waiting.changed = True
                self.unfinished -= ran
                self.completed += ran
                admission.ran(queue, account, ran, cost)
                self.note_peak(admission.in_flight + 1)
        return ran

    # -- ends ---------------------------------------------------------------------------------------------------

    def _complete(self, task: Task) -> None:
        """A launched task physically ended; its `refund`, and its `failure` if it has one, are set."""
        lane, account, admission = task.lane, task.scope.account, self.admission
        assert lane is not None
        lane.load -= 1
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
        if failure is None and not task.cancelled:  # as `_end`, of a task whose stream has let go of all else
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

    def cancel(self, task: Task, failure: Failure) -> bool:
        """Cancel a task in any state, and what depends on it. Returns whether it had not ended yet.

        A launched task is settled for everyone who waits, and keeps its slot and bytes until it physically ends.
        """
        move = task.move  # one read: the stream lets go of it when the result is there, as of `value` below
        if move is not None:
            return self._give_up(move.commit)
        if task.state == PENDING:
            self.settle(task, failure)
            return True
        # As long as it has not ended nothing has that reads it, nor let go of its part in a commit.
        below = _below(task)
        if task.settled():
            return False
        # From this look to the two marks nothing is called, so no other thread runs (a thread gives the GIL away in
        # calls and at the ends of loops alone): it has not ended before it is marked, or it is not marked.
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
                # It may have its result by now: both may have ended since the mark. Nobody was told of that yet.
                dependent.failure = above.passed_to(dependent.name, dependent.site)
                dependent.cancelled = True
                self._tell_cancelled(dependent)
        return True

    def _tell_cancelled(self, task: Task) -> None:
        if task.waiters is not None:
            self._news.append(task)
        self.on_cancel(task)

    def settle(self, task: Task, failure: Failure) -> bool:
        """End a pending task that will never be launched, and its dependents. Without recursion: graphs are deep.

        A task of a commit goes on all the same: the commit is given up. Returns whether it was, or whether somebody
        waits for any of them.
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
                else:  # it goes on without, and need not wait for this any more
                    self._give_up(dependent.move.commit)
                    dependent.blockers -= 1
                    dependent.scope.account.changed = True
            self._end(task, task.state)
            todo += dependents
        return awaited

    def _give_up(self, commit: Commit) -> bool:
        """Decide against a commit. Returns whether it came in time."""
        if commit.decide(False):
            return False
        gate = commit.gate
        if gate.state == PENDING:  # then it needs no room either
            self.admission.pending_bytes -= gate.cost
            gate.cost = 0
            gate.scope.account.changed = True
        return True

    @staticmethod
    def _record(task: Task, failure: Failure) -> None:
        """Have a root cause told, unless somebody sees it before."""
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
            tenant: whose work it is; None for its parent's, or one of its own where that has none.
            weight: of the tenant from now on; None to leave it.
            priority: the class; the higher goes first; None for its parent's.
        """
        queue = parent.queue
        if own_queue:
            queue = Queue(self.admission.tenant(queue.tenant, tenant, weight, priority))
        elif parent.ended_children:
            self._sweep(parent.ended_children)
        scope = Scope(name, queue, parent.account, parent)
        parent.children[scope] = None
        if self.observer is not None:
            self.observer.scope_opened(scope)
        return scope

    def end_scope(self, scope: Scope) -> None:
        """Nothing more will be submitted to a scope. Once it is over it closes: when a later one begins in the queue
        of its parent, at the latest with its parent."""
        parent = scope.parent
        assert parent is not None
        scope.ended = True
        if parent.ended_children is None:
            parent.ended_children = deque()
        parent.ended_children.append(scope)
        if self.observer is not None:
            self.observer.scope_left(scope)

    def _sweep(self, ended: deque[Scope]) -> None:
        """Close those that are over. It looks at two for each one that begins: so they do not pile up, and it costs the
        same however many others there are."""
        for _ in range(min(2, len(ended))):
            scope = ended.popleft()
            if scope.closed:
                pass
            elif scope.over():
                self.close_scope(scope)
            else:
                ended.append(scope)

    def grant_reserve(self, scope: Scope, claim: Value) -> None:
        """Make the bytes of a claim, charged to the scope's account, the scope's own. Nobody has used the scope yet."""
        assert not scope.tasks
        assert not scope.children
        scope.reserve, claim.charge = claim.charge, 0
        scope.account = Account(scope.reserve, self.completions, self.account.runtime, scope.account)
        self.reserved += scope.reserve

    def close_scope(self, scope: Scope) -> None:
        """Take a finished scope out of the tree; what it still holds is charged to its parent in the same step."""
        assert not scope.tasks
        parent = scope.parent
        self._close(scope)
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
            self.admission.hand_over(account, outer)
            self.note_peak(0)
        self._hand_over(scope, parent)

    def _close(self, scope: Scope) -> None:
        scope.closed = True
        if self.observer is not None:
            self.observer.scope_closed(scope)

    def _hand_over(self, scope: Scope, parent: Scope) -> None:
        """What is open in a scope that closes goes to its parent; what is over closes, and is reported, with it."""
        todo, moved = list(scope.children), []
        while todo:
            child = todo.pop()
            if child.ended:
                self._close(child)
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


def _below(task: Task) -> list[tuple[Task, Task, Move | None]]:
    """What depends on a launched task, each after one that it reads, with its part in a commit.

    Down to the first that is pending, or part of a commit: what depends on those ends with them, or goes on.
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


def _follow(task: Task) -> Failure | None:
    """Note for what a task waits among its inputs. Returns the failure of one that has failed."""
    failed, reads = None, task.reads
    for value in (reads,) if type(reads) is Value else reads:
        producer = value.task
        if producer is None:
            continue
        if producer.failure is not None:
            failed = producer.failure
        if producer.state >= DONE:
            if producer.failure is None:
                value.task = None
            continue
        if producer.after is None:
            producer.after = task
        elif type(producer.after) is list:
            producer.after.append(task)
        else:
            producer.after = [producer.after, task]
        if producer.state == PENDING:
            task.blockers += 1
    return failed
