"""The counts and charges of a scheduler. They change here, and everybody reads them here.

Exceptions. For speed, `tensors.issue.run_at_once` charges an operation that runs at once as `Ledger.charge_at_once`
does (a test compares the two), and `Value.__del__` and `Completions.dropped` give back bytes by the shortcut (see
`completions`). The stream that ran a task sets what its value keeps of the cost (`Value.charge`, see
`devices.execution`). After an interruption `Endings.abandon_all` clears the counts of scopes.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from .audit import sole_group
from .completions import Completions
from .instrument import Host, Instrument
from .model import CANCELLED, DONE, FAILED, LAUNCHED, PENDING, Account, Scope, Task, Value
from .ownership import POOLED_BYTES, sole, watch


@dataclass(frozen=True)
class Limits:
    """The bounds of one scheduler. None is no bound."""

    max_ops: int | None = None  # the most tasks in flight
    max_bytes: int | None = None  # the most tracked bytes
    max_pending: int | None = None  # the most tasks in the backlog


_OF_SCOPES = {"scope_opened", "scope_left", "scope_closed"}
_NUMBERED = {"op_ran_inline", "bytes_released", "task_submitted"}


class Ledger:
    """The counts and accounts of one scheduler.

    Attributes:
        account: the bytes charged to the scheduler. A scope with a reserve has an account of its own, within it.
        began: when the work began that is not metered yet; None at rest.
        worked: seconds of work before that which are not metered yet.
        abandoned: an interruption left the counts unreliable, so unfinished tasks were abandoned. Nothing is charged
            from then on.
        busy: a change of state is under way. Requests of finalisers are put off meanwhile: see `engine`.
        observer: told of every transition, if there is one.
        op_observer: the same, if operations that run at once are asked for.
        scope_observer: the same, if scopes are asked for.
        numbers: whether operations that run at once get numbers: an instrument may be told them.
        drop_observer: the same, if drops are asked for. Without it they take the shortcut: see `completions`.
    """

    __slots__ = (  # CPython is slower with more than 30 attributes in a `__dict__`
        "_clock", "abandoned", "account", "began", "busy", "claim_bytes", "claims", "completions", "drop_observer",
        "ended", "ended_bytes", "growths", "in_flight", "limits", "numbers", "observer", "op_observer", "peak_bytes",
        "peak_in_flight", "pending", "pending_bytes", "preempted", "ran_at_once", "reserved", "reserves",
        "scope_observer", "sequence", "slots", "unlaunched", "waiting", "worked",
    )  # fmt: skip

    def __init__(self, limits: Limits, completions: Completions, host: Host) -> None:
        self._clock = host.clock
        self.limits: Limits = limits
        self.slots: float = inf if limits.max_ops is None else limits.max_ops
        self.completions: Completions = completions
        self.account: Account = self._account(limits.max_bytes, host)
        self.began: float | None = None
        self.worked: float = 0.0
        self.busy: bool = False
        self.abandoned: bool = False
        self.observer: Instrument | None = None
        self.op_observer: Instrument | None = None
        self.scope_observer: Instrument | None = None
        self.drop_observer: Instrument | None = None
        self.numbers: bool = False
        self.sequence: int = 0  # the number of the next task
        self.ended: dict[int, int] = {DONE: 0, FAILED: 0, CANCELLED: 0}  # tasks with a stream, by how they ended
        self.unlaunched: int = 0  # those of them that never had a slot
        self.ended_bytes: int = 0  # the sum of the costs of the others
        self.ran_at_once: int = 0  # operations that never were tasks; in no other count
        self.growths: int = 0  # growths so far
        self.preempted: int = 0  # scopes told to give back their reserve
        self.peak_in_flight: int = 0
        self.peak_bytes: int = 0
        self.clear()

    def _account(self, limit: int | None, runtime: Any, parent: Account | None = None) -> Account:
        return Account(limit, self.completions, runtime, parent, relieve=self.relieve)

    def clear(self) -> None:
        """Reset the counts: nothing is unfinished."""
        self.pending: int = 0
        self.pending_bytes: int = 0  # the sum of their costs
        self.claims: int = 0  # pending tasks that need no slot
        self.claim_bytes: int = 0  # the sum of their costs
        self.in_flight: int = 0
        self.reserved: int = 0  # in bytes, by open scopes
        self.reserves: int = 0  # granted so far
        self.waiting: dict[Account, None] = {}  # accounts with pending tasks

    def observe(self, observer: Instrument | None, events: Collection[str]) -> None:
        """Tell an observer of tasks, and of the other events that are in `events`."""
        self.observer = observer
        self.op_observer = observer if "op_ran_inline" in events else None
        self.scope_observer = observer if not _OF_SCOPES.isdisjoint(events) else None
        self.drop_observer = observer if "bytes_released" in events else None
        self.numbers = not _NUMBERED.isdisjoint(events)

    def abandon(self) -> None:
        """Reset the counts, and charge nothing from now on. All that is unfinished fails."""
        self.ended[FAILED] = self.submitted - self.ended[DONE] - self.ended[CANCELLED]
        self.clear()
        self.abandoned, self.account.used, self.completions.immediate_thread = True, 0, 0

    def limit_bytes(self, max_bytes: int | None) -> None:
        """Set the limit, which the devices determine. Nothing is charged yet."""
        self.limits = replace(self.limits, max_bytes=max_bytes)
        self.account.limit = max_bytes

    @property
    def idle(self) -> bool:
        """Whether new work that fits may go past all queues: nothing is pending, and a slot is free.

        This is the only such rule. `Engine._join` and `tensors.issue.run_at_once` repeat it.
        """
        return not self.pending and not self.full

    @property
    def full(self) -> bool:
        """Whether no slot is free."""
        return self.in_flight >= self.slots

    @property
    def unfinished(self) -> int:
        """How many tasks are pending or in flight."""
        return self.pending + self.in_flight

    @property
    def submitted(self) -> int:
        """How many tasks with a stream there have been."""
        return sum(self.ended.values()) + self.unfinished - self.claims

    @property
    def ended_tasks(self) -> int:
        """How many tasks with a slot have ended."""
        return sum(self.ended.values()) - self.unlaunched

    # -- the life of a task ---------------------------------------------------------------------------------------

    def join(self, task: Task, passes: bool) -> None:
        """Count a submitted task, and give it its number. If it goes past the queues, it is charged now."""
        task.seq = self.sequence
        self.sequence += 1
        task.scope.tasks[task] = None
        if self.observer is not None:
            assert task.value is not None
            task.value.seq = task.seq
            self.observer.task_submitted(task)
        if passes:
            task.state = LAUNCHED
            self.charge(task)

    def enqueue(self, task: Task) -> None:
        """Count a task that waits in a queue."""
        account, cost = task.scope.account, task.cost
        if not account.pending:
            self.waiting[account] = None
        if not task.lanes:
            account.least_claim = min(account.least_claim, cost) if account.claims else cost
            account.claims += 1
            self.claims += 1
            self.claim_bytes += cost
        elif cost < account.least or account.pending == account.claims:
            account.least = cost
        account.pending += 1
        self.pending += 1
        self.pending_bytes += cost
        if not (account.changed or task.blockers) and account.make_fit(task):
            account.changed = True  # otherwise a scan for fitting tasks would find nothing new

    def dequeue(self, task: Task) -> None:
        """Stop counting a task as pending."""
        account = task.scope.account
        account.pending -= 1
        account.claims -= not task.lanes
        if not account.pending:
            del self.waiting[account]
        if account.earmark is task:
            account.earmark = None
        self.pending -= 1
        self.pending_bytes -= task.cost
        if not task.lanes:
            self.claims -= 1
            self.claim_bytes -= task.cost

    def make_free(self, task: Task) -> None:
        """A pending task will need no bytes."""
        account = task.scope.account
        self.pending_bytes -= task.cost
        task.cost = account.least = account.least_claim = 0
        account.changed = True

    def relieve(self, task: Task) -> bool:
        """Lower the cost of a task that is not charged yet by its output, if it will write over its first input.

        Returns whether it did.
        """
        if task.in_place is not None or not self._writes_over(task):
            return False
        assert task.value is not None
        account, nbytes = task.scope.account, task.value.nbytes
        if task.state == PENDING:
            self.pending_bytes -= nbytes
        task.in_place, task.cost = [], task.cost - nbytes
        account.least = min(account.least, task.cost)
        account.changed = True
        return True

    def _give_back(self, value: Value) -> None:
        """Give back the charge for a value that a launched task makes, if the task will write over its first input.

        Then do the same for that input, and so on: an intermediate result of an expression loses its handle only once
        the task that reads it was submitted.

        The task may have begun meanwhile on its stream, which then decides by itself. Whoever pops the item of
        `Task.in_place` decides.
        """
        while (task := value.task) is not None and task.state == LAUNCHED:
            reads, undecided = task.reads, task.in_place
            if not undecided or type(undecided) is not list or not self._writes_over(task):
                return
            try:
                undecided.pop()
            except IndexError:
                return
            account = task.scope.account.open
            task.returned = value.nbytes
            account.used -= value.nbytes
            account.changed = True
            value = reads if type(reads) is Value else reads[0]

    @staticmethod
    def _writes_over(task: Task) -> bool:
        """Whether a task will certainly write over its first input. Nobody else holds that, which stays so (see
        `ownership`), and it has a buffer of the output's form, charged to the same account."""
        value, reads = task.value, task.reads  # read once: the stream's thread clears them
        if value is None or not reads or not task.plan.overwrites or task.move is not None:
            return False
        old = reads if type(reads) is Value else reads[0]
        if old.meta is not value.meta or value.nbytes < POOLED_BYTES or old.account is not value.account:
            return False
        if task.after is None:
            alone = sole(old, 1 if old is reads else reads.count(old))
        else:  # it begins after the ends of its operands' tasks, too
            others = [producer for read in task.inputs if read is not old and (producer := read.task) is not None]
            alone = sole_group(old, list({task, *task.after, *others}))
        if not alone:
            if task.state == PENDING and old.holders is not None:
                watch(old, task)
            return False
        return bool(old.device.memory.may_recycle(old)) and _in_a_buffer(old)

    def charge(self, task: Task) -> None:
        """Charge an admitted task: its slot and its bytes."""
        account = task.scope.account
        if task.cost >= POOLED_BYTES and task.plan.overwrites:
            if task.after is not None:
                self.relieve(task)
            if task.in_place is None:
                task.in_place = [None]
            reads = task.reads
            for value in (reads,) if type(reads) is Value else reads:
                if value.task is not None:
                    self._give_back(value)
        account.used += task.cost
        if account.grace:
            account.grace -= 1
        if task.lanes:
            if self.began is None:
                self.began = self._clock()
            account.in_flight += 1
            self.in_flight += 1
        if task.move is not None:
            task.move.charge(task)
        if self.in_flight > self.peak_in_flight:  # `note_peak`, written out: each iteration of a window comes here
            self.peak_in_flight = self.in_flight
        if self.account.used > self.peak_bytes:
            self.peak_bytes = self.account.used

    def leave(self, task: Task) -> None:
        """Stop counting a task as unfinished: its state says how it ended.

        If it was launched, its slot is free now, and so are the bytes that its result did not keep.
        """
        scope = task.scope
        if task.lane is not None:
            account, refund = scope.account, task.refund
            account.in_flight -= 1
            if account.closed:
                account = account.open
            if task.in_place is not None and type(task.in_place) is tuple:  # mostly None, which is quicker asked
                self.drop(account, *task.in_place)
            account.used -= refund - task.returned
            account.changed = True
            self.in_flight -= 1
            self.ended_bytes += task.cost
            if not (self.in_flight or self.pending) and self.began is not None:
                self.worked, self.began = self.worked + self._clock() - self.began, None
            if refund < 0:
                self.note_peak(0)
        elif task.lanes:
            self.unlaunched += 1
        del scope.tasks[task]
        if task.lanes:  # a claim is no work
            self.ended[task.state] += 1
        if self.observer is not None:
            self.observer.task_ended(task)

    # -- operations at once, and drops ------------------------------------------------------------------------------

    def charge_at_once(self, value: Value, nbytes: int, workspace: int = 0) -> None:
        """Charge the result of an operation that ran at once. It needed the workspace only for a moment."""
        value.account.used += nbytes
        value.charge = nbytes
        self.ran_at_once += 1
        self.note_peak(self.in_flight + 1, workspace)

    def drop(self, account: Account, nbytes: int, seq: int) -> None:
        """Give back the bytes of a result that nobody holds any more."""
        if self.abandoned:
            return
        if account.closed:
            account = account.open
        account.used -= nbytes
        account.changed = True
        if self.drop_observer is not None:
            self.drop_observer.bytes_released(account, nbytes, seq)

    def note_peak(self, in_flight: int, workspace: int = 0) -> None:
        """Update the peaks of tracked bytes (`workspace` more than are charged now) and of tasks in flight."""
        if self.account.used + workspace > self.peak_bytes:
            self.peak_bytes = self.account.used + workspace
        if in_flight > self.peak_in_flight:
            self.peak_in_flight = in_flight

    # -- reserves -----------------------------------------------------------------------------------------------------

    def reserve(self, scope: Scope, claim: Value) -> None:
        """Turn the bytes of a claim, charged to the scope's account, into the scope's reserve."""
        outer = scope.account
        scope.reserve, claim.charge = claim.charge, 0
        scope.account = self._account(scope.reserve, outer.runtime, outer)
        self.reserved += scope.reserve
        self.reserves += 1
        scope.number = self.reserves

    def grow(self, scope: Scope, claim: Value) -> None:
        """Add the bytes of a claim, charged to the account around the scope, to its reserve."""
        account, more = scope.account, claim.charge
        assert account.limit is not None
        claim.charge = 0
        scope.reserve += more
        account.limit += more
        account.changed = True
        self.reserved += more

    def unreserve(self, scope: Scope) -> None:
        """Close the account of a scope with a reserve: its charges and pending tasks go to its parent."""
        account = scope.account
        assert account.parent is not None
        account.closed = True
        outer = account.parent
        if outer.closed:
            outer = outer.open
        outer.used += account.used - scope.reserve
        outer.in_flight += account.in_flight
        if account.pending:
            outer.least = outer.least_claim = 0  # a lower bound for the costs in both accounts
            outer.pending += account.pending
            outer.claims += account.claims
            del self.waiting[account]
            self.waiting[outer] = None
        account.in_flight = account.pending = account.claims = 0
        account.earmark = None
        outer.changed = True
        self.reserved -= scope.reserve
        scope.reserve = 0
        self.note_peak(0)


def _in_a_buffer(value: Value) -> bool:
    """Whether a value that may be recycled has a buffer of its own, or will have one, made by an operation."""
    if value.array is not None:
        return True
    producer = value.task
    call = None if producer is None or producer.value is not value else producer.call
    return bool(getattr(call, "out", False)) and not getattr(call, "view", True)
