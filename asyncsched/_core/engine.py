"""The scheduler as a plain state machine. Tasks, completions and cancellations go in; launches and notices come out.

The engine knows no clock, no threads, no arrays and no event loop. Every method runs to its end on one thread. For
everything else the engine asks its `Host`, and the streams of its lanes.

An operation reaches its result in one of four ways:

- at once: it never becomes a task (`tensors.issue`);
- in its turn on the event loop's thread (`_run_inline`);
- on a stream (`_launch`);
- on a remote device, which looks the same from here.

Two kinds of work go past the queues when `Ledger.idle` allows it: operations that run at once, and a task that finds
nothing waiting (`submit`).

`dispatch` moves all other tasks: it takes in completions, admits and launches the tasks that fit, and calls waiters. It
is called after every submission that might go at once, when the loop was woken, and before anything that
waits. Only `dispatch` gives notices, after the tasks have moved; so waiters find all moves done.

The engine has four parts: the `Ledger` has the counts and bytes, `Admission` the queues, `Endings` says how tasks end,
and `Scopes` keeps their tree. A part's method is called only within a method of the engine. So two problems are handled
in one place:

*Finalisers.* The collector may run a user's finaliser between any two steps of a change. That finaliser may submit or
cancel, and would find half of the change done. So `ledger.busy` is set during a change, and requests of finalisers are
put off (`_put_off`) until the change is whole.

*Interruptions.* Python raises a signal's KeyboardInterrupt between any two lines of the main thread. A MemoryError or a
RecursionError may come anywhere, too. If one leaves a change in the middle, the ledger is wrong: a task may be counted
but be in no queue, and its waiters would wait for ever. So each change reports an exception that leaves it to the host,
in an `except` that costs nothing until then. The host abandons everything unfinished, and closes. The mark,
`interrupted`, is set first, by an assignment: at the end of a recursion no function can be entered. Then giving up
fails, too, and the next `dispatch` begins it again.

Alternatives. Keep the ledger right at any line: some thirty places change it, and most change several numbers. Hold
signals back during a change: it takes longer than a tiny operation, and fails when another thread gets the signal. Let
finalisers in, with every change ordered to be right at each step: that was tried, and finalisers broke it again and
again.
"""

from __future__ import annotations

from _thread import get_ident
from collections import deque
from collections.abc import Callable
from functools import wraps
from typing import Any, ClassVar, Final, TypeVar, cast
from weakref import ref

from ..errors import QueueFull, TaskTooLarge
from .admission import Admission, link_dependencies, place
from .audit import failure_above
from .completions import Completions
from .endings import Endings
from .failure import Failure
from .instrument import Host
from .ledger import Ledger, Limits
from .model import DONE, LAUNCHED, PENDING, Lane, Scope, Task, Value
from .tenants import Scopes

F = TypeVar("F", bound=Callable[..., Any])

# The most rounds of one dispatch, as long as completions keep coming in, and the most tasks that run in it on this
# thread. Then the event loop gets a turn. The first is a guess. With four times as many tasks each costs 5% less, and
# others wait 0.5 ms longer.
_MOST_ROUNDS: Final = 4
_MOST_INLINE: Final = 64


def whole(method: F) -> F:
    """Make a method of the engine a whole change: see the head of this file.

    While another change is under way, a call is put off, and returns True.
    """

    @wraps(method)
    def entered(engine: Engine, /, *args: Any) -> Any:  # called without keywords, which would take longer
        ledger = engine.ledger
        if ledger.busy:
            return engine._put_off(method, *args)
        try:
            ledger.busy = True
            result = method(engine, *args)
            while engine._postponed:
                engine._run_put_off()
            ledger.busy = False  # no call comes between the look above and this
        except BaseException as error:
            engine.interrupted, ledger.busy = error, True
            engine._host.on_interrupted(error)
            raise
        return result

    return cast(F, entered)


class Engine:
    """All state of one scheduler.

    Args:
        limits: the bounds.
        completions: the deque in which completions and drops arrive.
        host: is asked and told at events. Reachable from every account, as its `runtime`.

    Attributes:
        interrupted: the exception that left a change in the middle, until everything has been abandoned.
    """

    def __init__(self, limits: Limits, completions: Completions, host: Host) -> None:
        self.completions = completions
        self.ledger: Ledger = Ledger(limits, completions, host)
        self.admission: Admission = Admission(self.ledger, completions.returning)
        self.interrupted: BaseException | None = None
        self._host = host
        self._endings = Endings(self.ledger, self.admission, host)
        self.scopes: Scopes = Scopes(self.ledger, self.close_scope)
        self.root: Scope = self.scopes.root
        self._stuck = False  # whether the host knows of stuck tasks
        # Requests of finalisers in the middle of a change: methods and their arguments.
        self._postponed: deque[tuple[Callable[..., Any], tuple[Any, ...]]] = deque()

    # -- submitting -------------------------------------------------------------------------------------------------

    def submit(self, task: Task, *, bounded: bool = True, hold: bool = False) -> None:
        """Add a task to the backlog, and launch every task that can go.

        Args:
            bounded: refuse the task when the backlog is full. False for a task that somebody waits for.
            hold: launch nothing before the next `dispatch`.

        Raises:
            TaskTooLarge: if it could never run under its limit.
            QueueFull: if the backlog is full.
        """
        ledger, completions = self.ledger, self.completions
        if completions.items and not hold and not ledger.busy:
            self.drain()
        # Whether there is room for it beside everything that is charged or pending. If so, it can run under its limit,
        # since its inputs are among that. (The used bytes are below zero between the drop of a result that was larger
        # than its task's cost and the end of that task.)
        account = task.scope.account
        fits = account.limit is None or 0 <= account.used <= account.limit - ledger.pending_bytes - task.cost
        if not fits:
            self.require(task)
        most = ledger.limits.max_pending
        if bounded and most is not None and ledger.pending >= most:
            task.let_go()
            raise QueueFull(
                f"{task.name}: the backlog holds {ledger.pending:,} tasks (max_pending): `await s.barrier()` now and"
                " then, or bound the loop: `w = s.window(2)` before it, `async with w:` in it"
            )
        if ledger.busy:
            self._put_off(Engine._join_late, task)
            return
        try:
            ledger.busy = True
            self._join(task, fits, hold)
            while self._postponed:
                self._run_put_off()
            ledger.busy = False  # as in `whole`, written out: all tasks come here
        except BaseException as error:
            self.interrupted, ledger.busy = error, True
            self._host.on_interrupted(error)
            raise
        if not hold and (self._endings.notices or (ledger.pending and (completions.items or not ledger.full))):
            self.dispatch()

    def _join(self, task: Task, fits: bool, hold: bool) -> None:
        completions, ledger = self.completions, self.ledger
        # While a scan for fitting tasks may run, every drop must go through `completions`
        completions.immediate_thread = 0
        alone = not task.after and (task.reads.task is None if type(task.reads) is Value else not task.reads)
        failed = None if alone else link_dependencies(task)
        # `Ledger.idle`, written out; and the task itself waits for nothing
        if (
            not ledger.pending
            and ledger.in_flight < ledger.slots
            and fits
            and failed is None
            and not (hold or task.blockers)
        ):
            if task.plan.quick:
                self._run_or_launch(task, False, 1)
            else:
                self._launch(task, False)
            return
        ledger.join(task, False)
        self.admission.push(task)
        if failed is not None and task.move is None:
            self._endings.settle(task, failed.passed_to(task.name, task.site))
        elif task.failure is not None:  # it was to run at once, and failed
            self._endings.settle(task, task.failure)
        completions.wants_slots = True  # the flag first, a look at the deque second: see `completions`

    def _join_late(self, task: Task) -> None:
        """Add a task that was put off. It has been checked; its scope may have closed since."""
        while task.scope.closed and task.scope.parent is not None:
            task.scope = task.scope.parent
        self._join(task, False, True)

    def require(self, task: Task) -> None:
        """Raise TaskTooLarge for a task that could never run under its limit."""
        account, cost = task.scope.account, task.cost
        if task.after is not None and task.value is not None and task.plan.overwrites:
            cost -= task.value.nbytes  # at worst it waits until it can write over its first input
        limit = account.limit
        if limit is None:
            return
        if cost + sum([value.owner.nbytes for value in task.inputs]) <= limit:
            return
        owners = {v.owner for v in task.inputs}  # those charged outside of this account take nothing from it
        needed = cost + sum(owner.nbytes for owner in owners if account.covers(owner.account))
        if needed > limit:
            unknown = any(value.meta is not None and not value.meta.known for value in task.inputs)
            task.let_go()
            raise TaskTooLarge(
                f"{task.name} needs {needed:,} bytes ({cost:,} of its own, {needed - cost:,} of inputs) and the limit"
                f" is {limit:,}: raise max_bytes (or the scope's reserve) to at least {needed:,}, or split the task"
                + (": it may be less once its operands' lengths are known, so `await` them first" if unknown else ""),
                needed,
                limit,
            )

    # -- moving things along ----------------------------------------------------------------------------------------

    def dispatch(self) -> None:
        """Take in completions, launch the tasks that can go, call waiters; repeat until nothing is left to do."""
        completions, ledger = self.completions, self.ledger
        if ledger.busy:  # the change that is under way will look again
            if self.interrupted is None:
                completions.notify()
            else:
                self._host.on_interrupted(self.interrupted)
            return
        if not (completions.wants_slots or completions.items or self._endings.notices or completions.fatal):
            return  # nothing has ended, and nothing is pending
        ran: int | None = 0
        while ran is not None:
            ran = self._move_along(ran)
        if completions.fatal is not None:  # the tasks launched on that stream would never end
            error, completions.fatal = completions.fatal, None
            self.interrupted, ledger.busy = error, True
            self._host.on_interrupted(error)

    @whole
    def _move_along(self, ran: int) -> int | None:
        """Move what can move now, after `ran` tasks ran here.

        Returns how many have run by now, if something was put off and more is to do; else None.
        """
        completions, ledger, lacking = self.completions, self.ledger, False
        for turn in range(_MOST_ROUNDS):
            self._take_in()
            while ledger.pending and ran < _MOST_INLINE and not self._postponed and (task := self.admission.next()):
                ran += self._run_or_launch(task, True, _MOST_INLINE - ran)
            if self._endings.notices:
                self._endings.notify()
            # Flags first, a look at the deque second: see `completions`.
            completions.wants_slots = ledger.pending > 0
            completions.threshold = ledger.in_flight // 2 or 1
            completions.wants_bytes = lacking = completions.wants_slots and not ledger.full
            arrived = len(completions.items)
            if ran >= _MOST_INLINE or (turn == _MOST_ROUNDS - 1 and arrived):
                completions.notify()
                return None
            if self._postponed:
                return ran
            if not arrived or not (lacking or arrived >= completions.threshold):
                break
        if lacking or self._stuck:
            stuck = self.admission.stuck() if lacking and not completions.items else []
            self._stuck = bool(stuck)
            self._host.on_stuck(stuck)
        return None

    def _take_in(self) -> None:
        """Take in every completion and drop in the deque."""
        items, complete = self.completions.items, self._endings.complete
        while items:
            item = items.popleft()
            if type(item) is Task:
                complete(item)
            elif type(item) is tuple:
                account, nbytes, seq = item  # with `*item` the call takes twice as long
                self.ledger.drop(account, nbytes, seq)
            elif type(item) is ref:
                if (waiting := item()) is not None and waiting.state == PENDING:  # its input has a holder less
                    waiting.scope.account.make_fit(waiting)
            else:  # a job, which is neither admitted nor charged
                self._endings.notices.append(item)
        ledger = self.ledger
        if not (ledger.in_flight or ledger.pending or ledger.drop_observer or ledger.abandoned):
            self.completions.immediate_thread = get_ident()

    drain: ClassVar[Callable[[Engine], None]] = whole(_take_in)

    def _run_or_launch(self, task: Task, queued: bool, most: int) -> int:
        """Run the next task here, with others behind it, or launch it on a lane. Returns how many ran here."""
        ran, elsewhere = 0, task
        if task.plan.quick and task.lanes[0].loop is not None:
            lane = self._host.loop_lane(task)
            if lane is not None and not self._host.quiet_in_use():
                ran, elsewhere = self._host.quietly(self._run_inline, task, lane, queued, most)
                queued = True
        if elsewhere is not None:
            self._launch(elsewhere, queued)
        return ran

    def _run_inline(self, task: Task | None, lane: Lane | None, queued: bool, most: int) -> tuple[int, Task | None]:
        """Run the next task on this thread, and the tasks after it while they may run here.

        No scan for a fitting task is under way while a body runs, so drops may take the shortcut: see `completions`.

        Returns how many ran, and the next task if it must go elsewhere.
        """
        ran, completions, observer = 0, self.completions, self.ledger.observer
        try:
            if self.ledger.drop_observer is None:
                completions.immediate_thread = get_ident()
            while task is not None and lane is not None:
                if queued:
                    self._admit(task)
                else:
                    self.ledger.join(task, True)
                task.lane, queued = lane, True
                if observer is not None:
                    observer.task_launched(task)
                lane.device.run_inline(task)
                if task.plan.seconds:
                    self._host.spend(task.plan.seconds)
                self._endings.ended(task)
                ran += 1
                task = self.admission.next() if ran < most and not self._postponed else None
                lane = self._host.loop_lane(task) if task is not None and task.plan.quick else None
        finally:
            if self.ledger.unfinished:
                completions.immediate_thread = 0
        for account in self.ledger.waiting:
            account.changed = True
        return ran, task

    def _launch(self, task: Task, queued: bool) -> None:
        """Put the next task on a lane."""
        if queued:
            above = failure_above(task.reads)
            if above is not None and task.move is None:  # the producer's completion is still on its way
                self._endings.settle(task, above.passed_to(task.name, task.site))
                return
            self._admit(task)
        else:
            self.ledger.join(task, True)
        observer = self.ledger.observer
        if task.lanes:
            points = place(task, self._host.clock)
            if observer is not None:
                observer.task_launched(task)
            lane: Any = task.lane
            task.number = lane.stream.launch(task, points)
        else:  # a claim is done when admitted: its value is charged the bytes
            assert task.value is not None
            if observer is not None:
                observer.task_launched(task)
            task.value.charge = task.value.nbytes = task.cost
            self._endings.end(task, DONE)
        if task.waiters is not None:
            self._endings.notices.append(task)

    def _admit(self, task: Task) -> None:
        """Take a task out of its queue, and give it its slot and its bytes."""
        task.state = LAUNCHED  # the queue only drops tasks that are not pending
        self.admission.remove(task)
        if task.readers is not None:
            task.unblock_dependents()
        self.ledger.charge(task)

    # -- ending -----------------------------------------------------------------------------------------------------

    def cancel(self, task: Task, failure: Failure) -> bool:
        """Cancel a task in any state, and its dependents. Returns whether it had not ended yet."""
        markable = task.move is None or (task.state != PENDING and task.value is None)
        # In the middle of another change the cancellation is put off, and the task may be launched, and end, before it.
        # So the task is marked now. Its waiters are called later.
        if self.ledger.busy and markable and not self._endings.mark_cancelled(task, failure):
            return False
        return self._cancel(task, failure)

    @whole
    def _cancel(self, task: Task, failure: Failure) -> bool:
        return self._endings.cancel(task, failure)

    @whole
    def settle(self, task: Task, failure: Failure) -> bool:
        """End a pending task that will never be launched, and its dependents. See `Endings.settle`."""
        return self._endings.settle(task, failure)

    def abandon(self, failure: Failure) -> None:
        """End everything unfinished with `failure`, after an interruption."""
        self._endings.abandon_all(self.root, failure)
        for method, args in self._postponed:
            if method is Engine._join_late:
                self._endings.abandon(args[0], failure)
        self._postponed.clear()
        self.interrupted, self.ledger.busy = None, False

    def _put_off(self, method: Callable[..., Any], *args: Any) -> Any:
        """Keep a finaliser's request, made in the middle of a change, until that change is whole."""
        self._postponed.append((method, args))
        self.dispatch()  # in the loop's next turn, at the latest, since this change is under way
        return True

    def _run_put_off(self) -> None:
        """Make the first of the changes that were put off, as part of the current change."""
        method, args = self._postponed[0]
        method(self, *args)
        self._postponed.popleft()  # only now: if it is interrupted, it is abandoned with the others

    # -- scopes -----------------------------------------------------------------------------------------------------

    @whole
    def grant_reserve(self, scope: Scope, claim: Value) -> None:
        """Turn the bytes of a claim, charged to the scope's account, into the scope's reserve. The scope must be unused
        and have a queue of its own."""
        assert scope.parent is None or scope.queue is not scope.parent.queue, "the tasks of a queue have one account"
        assert not scope.tasks
        assert not scope.children
        self.ledger.reserve(scope, claim)

    @whole
    def grow_reserve(self, scope: Scope, claim: Value) -> None:
        """Add the bytes of a claim, charged to the account around the scope, to its reserve."""
        self.ledger.grow(scope, claim)

    @whole
    def release_reserves(self) -> None:
        """Take back the reserves of scopes that were left open, as by a KeyboardInterrupt. The scheduler is closing."""
        for scope in [scope for scope in self.root.tree() if scope.reserve]:
            self.ledger.unreserve(scope)

    @whole
    def end_scope(self, scope: Scope) -> None:
        """Mark a scope to which nothing more will be submitted. See `Scopes.end`."""
        self.scopes.end(scope)

    @whole
    def close_scope(self, scope: Scope, error: BaseException | None = None) -> None:
        """Take a finished scope out of the tree, and charge its remaining bytes to its parent in the same step.

        Args:
            error: the exception that left its block, if any.
        """
        if scope.tasks:  # a finaliser's task, put off until now: the scope closes after it
            self.scopes.end(scope)
        else:
            self.scopes.close(scope, error)
