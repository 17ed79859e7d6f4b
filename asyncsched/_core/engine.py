"""The scheduler as a plain state machine: tasks, completions and cancellations in; launches and notices out.

It knows no clock, no threads, no arrays and no event loop. Every method runs to its end on one thread. The runtime
gives it callables: `launch` puts a task on its stream, `on_stuck` is told which tasks lack bytes that nothing in flight
will free, `on_overrun` which result was too large, and `wake` (the completions') has `dispatch` called soon, on that
one thread.

`dispatch` is the one place where things move: it takes in what has ended, admits and launches what fits, and tells who
waits. It is called after every submission that might go at once, when the loop was woken, and before anything that
waits. Notices are given only there, never in the middle of a change of state; so whoever is told finds all of it done.

What follows from an end stands in `ends`, the tree of scopes in `scopes`, and what is only asked in `audit`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn

from ..errors import QueueFull, TaskTooLarge
from .admission import Admission
from .backlog import Queue
from .callsite import CallSite
from .completions import Completions
from .failure import Failure
from .instrument import Instrument
from .model import DONE, LAUNCHED, PENDING, Account, Bare, Lane, Scope, Task, Value, Waiter, failure_above, task_of
from .placement import choose, soonest
from .quick import Quick, unblock
from .tenants import Tenant

# Rounds of one dispatch while the streams keep up with it, and tasks that run in it: then the event loop gets to
# breathe. The first is a guess. With four times as many tasks each costs 5% less, and others wait 0.5 ms longer.
_MOST_ROUNDS: Final = 4
_MOST_HERE: Final = 64


class Engine(Quick):
    """All state of one scheduler.

    Args:
        max_ops: most tasks in flight; None for no bound.
        max_bytes: most tracked bytes; None for no bound.
        max_pending: most tasks waiting in the backlog; None for no bound.
        completions: the deque in which ends and drops arrive.
        launch: puts a task on the stream of its lane. Returns whether it has run already.
        here: the lane of the event loop's own thread, if a quick task may run there now.
        run: runs a quick task there now, in few steps, to its end. False, and nothing has happened, if it does not.
        run_bare: the same for a bare value, which has its array and no task then.
        quietly: calls a function with arguments; all quick tasks run inside of it.
        on_cancel: told of each task that is cancelled after its launch.
        on_overrun: told of each task that made more than it was charged, while that is more than the limit allows.
        on_torn: told of an exception that left a change of state in the middle: see `torn`.
        clock: gives seconds, for lanes to which a hop takes long: see `placement`.
        runtime: whose it is; reachable from every account, and opaque here.

    Attributes:
        on_stuck: told the tasks that lack bytes which nothing in flight will free, and that there are none any more.
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
        run_bare: Callable[[Value], bool] = lambda value: False,
        quietly: Callable[..., int] = lambda function, *args: function(*args),
        on_overrun: Callable[[Task], None] = lambda task: None,
        on_cancel: Callable[[Task], None] = lambda task: None,
        on_torn: Callable[[BaseException], None] = lambda error: None,
        clock: Callable[[], float] = lambda: 0.0,
        runtime: Any = None,
    ) -> None:
        self.max_pending = max_pending
        self.completions = completions
        self.launch = launch
        self.here = here
        self.run = run
        self.run_bare = run_bare
        self.quietly = quietly
        self.on_stuck: Callable[[Sequence[Task]], None] = lambda tasks: None
        self.on_overrun = on_overrun
        self.on_cancel = on_cancel
        self.on_torn = on_torn
        self.clock = clock
        self.account = Account(max_bytes, completions, runtime)
        self.admission = Admission(max_ops, completions.returning)
        self.root = Scope("root", Queue(Tenant(None, self.admission.tenants.ordinary)), self.account)
        self.sequence = 0
        self.unfinished = 0
        self.submitted = self.completed = self.failed = self.cancelled = 0
        self.ran_inline = 0  # what never was a task, and counts among neither
        self.peak_in_flight = self.peak_bytes = 0
        self.reserved = 0
        self.observer: Instrument | None = None  # told of every transition
        self._news: list[Any] = []  # tasks and jobs whose waiters are to be told
        self._stuck = False  # whether `on_stuck` was told of any
        self._running = False  # quick tasks run, one after the other; or what was torn is not given up yet
        self.torn = None
        self.linked = True

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
        # Its inputs are charged, or will be: where there is room for all that, there is for them. (Below zero bytes are
        # used between the drop of a result that was larger than its task's cost and the end of that task.)
        if account.limit is not None and not 0 <= account.used <= account.limit - admission.pending_bytes - task.cost:
            self.require(task)
            at_once = False
        if bounded and self.max_pending is not None and admission.pending >= self.max_pending:
            self._refuse(task)
        try:
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
            if at_once and failed is None and task.lanes and not admission.pending and admission.free > 0:
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
        except BaseException as error:
            self.torn, self._running = error, True
            self.on_torn(error)
            raise

    def submit_bare(
        self,
        scope: Scope,
        device: Any,
        plan: Any,
        reads: Any,
        args: Any,
        lanes: Sequence[Lane],
        site: CallSite | None,
    ) -> Value | None:
        """A value joins the backlog without a task, to be made when its turn comes. None, and nothing has happened, if
        that may not take long, something speaks against it, or it reads what is not bare and not there."""
        value = Value()  # first: a finaliser that runs now may submit and cancel
        completions, admission, account, queue = self.completions, self.admission, scope.account, scope.queue
        if self.observer is not None or queue.rotating or not (admission.pending or admission.free <= 0):
            return None
        cost = plan.cost
        if account.limit is not None and not 0 <= account.used <= account.limit - admission.pending_bytes - cost:
            return None
        if self.max_pending is not None and admission.pending >= self.max_pending:
            return None
        if type(reads) is Value:  # as in `submit`
            if reads.task is not None and not _comes(reads, queue):
                return None
        else:
            for read in reads:
                if read.task is not None and not _comes(read, queue):
                    return None
        completions.direct = 0
        if completions.items:
            self.take()
        try:
            stand = scope.stand
            if stand is None or stand.lanes is not lanes:
                stand = scope.stand = Bare(scope, lanes)
            value.account, value.device, value.meta = account, device, plan.meta  # as `new_value`
            value.nbytes, value.site, value.charge = plan.nbytes, site, 0
            value.array = value.block = value.base = None
            value.escaped = False
            value.plan, value.reads, value.args, value.task = plan, reads, args, stand
            value.seq = self.sequence
            self.sequence += 1
            self.unfinished += 1
            self.submitted += 1
            scope.bare += 1
            self.linked = False
            queue.undressed = True
            queue.live += 1  # as `Admission.push`
            queue.tasks.append(value)
            if queue.live == 1 or not account.pending:
                admission.begin(queue, account)
            account.pending += 1
            account.changed = True
            admission.pending += 1
            admission.pending_bytes += cost
            completions.wants_slots = True  # see `submit`
            if completions.items or admission.free > 0:
                self.dispatch()
        except BaseException as error:
            self.torn, self._running = error, True
            self.on_torn(error)
            raise
        return value

    def _refuse(self, task: Task) -> NoReturn:
        task.refused()
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
            task.refused()
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
            if self.torn is None:
                completions.notify()
            else:
                self.on_torn(self.torn)
            return
        if not (completions.wants_slots or completions.items or self._news):
            return  # nothing has ended since, and nothing is pending
        try:
            for turn in range(_MOST_ROUNDS):
                if completions.items:
                    self.take()
                alone = self.observer is None
                while admission.pending and ran < _MOST_HERE and (task := admission.next()) is not None:
                    if alone and task.quick is not None:
                        count = self.quietly(self.run_heads, task.scope, _MOST_HERE - ran)
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
        except BaseException as error:
            self.torn, self._running = error, True
            self.on_torn(error)
            raise

    def take(self) -> None:
        """Take in every completion and drop that was told."""
        items = self.completions.items
        try:
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
        except BaseException as error:
            self.torn, self._running = error, True
            self.on_torn(error)
            raise

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
        if task.after is not None:
            unblock(task)
        lanes = task.lanes
        if lanes:
            lane = None if task.quick is None else self.here(task)
            if lane is None:
                lane = soonest(task, self.clock()) if task.lanes[0].hop else choose(task)
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


def _comes(value: Value, queue: Queue) -> bool:
    """Whether a value that had a task is there, or will be by the turn of what joins this queue now: it is bare."""
    producer = value.task
    if type(producer) is Bare and producer.scope.queue is queue:
        return True
    if producer is not None and producer.state != DONE:
        return False
    value.task = None
    return True


def _follow(task: Task) -> Failure | None:
    """Note for what a task waits among its inputs. Returns the failure of one that has failed."""
    failed, reads = None, task.reads
    for value in (reads,) if type(reads) is Value else reads:
        producer = task_of(value)
        if producer is None:
            continue
        if producer.failure is not None:
            failed = producer.failure
        if producer.state >= DONE:
            if producer.failure is None:
                value.task = None
            continue
        producer.add_dependent(task)
    return failed
