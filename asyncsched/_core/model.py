"""The scheduler's data: tasks and the values they make, streams, scopes, and accounts of bytes.

A value knows its bytes, its place in memory and the line that asked for it. A task knows its state, its failure and how
it runs. While a task is unfinished, task and value refer to each other. The stream clears `task.value` when the result
exists, so that a result without handles is freed at once. Whoever next finds the task done clears `value.task`. The
value of a failed task keeps that reference, since the task has the failure.
"""

from __future__ import annotations

from _thread import get_ident
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from gc import is_finalized
from math import inf
from typing import Any, Final, NoReturn, Protocol, Self
from weakref import ref

from .._interrupts import finaliser
from .callsite import CallSite
from .completions import NO_ROOM, Completions, report_again
from .failure import Failure, Unseen
from .free_threading import FREE_THREADED, merge, merged_at_birth
from .ownership import COUNTED, enter, take_out

# States, in the order of a task's life. Plain ints: they are compared several times per task.
PENDING: Final = 0
LAUNCHED: Final = 1  # admitted and put on a stream: one step for every device so far
DONE: Final = 2
FAILED: Final = 3
CANCELLED: Final = 4
STATE_NAMES: Final = ("pending", "launched", "done", "failed", "cancelled")

UNKNOWN_SECONDS: Final = 1e-3  # the estimate for a function, say: long enough to be worth a hop to another stream

# Called with a task at each change of its state (launched, settled, ended), until it returns True.
Waiter = Callable[[Any], bool]


@dataclass(slots=True, init=False, eq=False, repr=False)
class Value:
    """The result of a task, present or still to come. Handles, views and tasks that read it hold it.

    When nobody needs it any more, CPython calls `__del__`, which reports that the bytes are free. Until then its
    `holders` tell whether a task may write over it, see `ownership`. `new_value` makes a value.

    In a dead cycle the collector calls all finalisers, in any order, before it clears any object. So others may still
    read the array or keep it. A pool's buffer counts as escaped then: it is charged until its array dies, and never
    recycled. (A small array has no such buffer. Its bytes are only given back a little early.) CPython marks an object
    as finalised before a collection calls its `__del__`, and after it when the last reference went.
    """

    account: Account
    device: Any
    meta: Any  # shape and dtype of the result, and whether all lengths are `known`; else opaque here
    nbytes: int  # bytes of the buffer that it owns, or will own
    site: CallSite | None  # the line that asked for it; None if it ran at once
    task: Task | None  # its producer, until somebody finds it done; a failed one stays
    array: Any  # the result
    block: Any  # the pool's buffer under it, if any
    base: Lease | None  # of the value whose memory this one is a view of
    charge: int  # bytes to give back when nobody holds this value any more
    escaped: bool  # the array may be held outside: the buffer is never recycled
    seq: int  # the number of its task, if an instrument was attached then
    given: ref[Any]  # the array handed to the user; unset for most values
    # Errors that only the device can detect, see `devices.cuda.deferred_errors`; mostly unset
    deferred_errors: tuple[Any, ...]
    holders: list[Any] | None  # an entry for each holder, see `ownership`; None: they are not counted

    @property
    def failure(self) -> Failure | None:
        """Why the result will never exist: its task failed or was cancelled. Forgets a task that is done."""
        if (task := self.task) is None:
            return None
        if task.state == DONE:
            self.task = None
        return task.failure

    @property
    def settled(self) -> bool:
        """Whether the result or a failure exists."""
        task = self.task
        return task is None or task.state >= DONE or task.failure is not None

    def make_view(self, base: Value) -> None:
        """Make this new value, which nobody holds yet, a view. Its holders count if those of its base do."""
        self.base = Lease(base)
        self.holders = None if base.holders is None else []

    @property
    def owner(self) -> Value:
        """The value that owns the memory: this one, or the one at the end of its chain of views."""
        value = self
        while value.base is not None:
            value = value.base._value
        return value

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a result lives in its scheduler and cannot be pickled or copied: `await` it first")

    @finaliser(report_again)
    def __del__(self) -> None:
        try:
            reclaimed = self.escaped or self.block
        except AttributeError:  # a signal's exception came while the value was being made
            return
        try:
            if reclaimed is not None:
                if is_finalized(self):  # by the collector: see above
                    self.escaped = True
                self.device.memory.reclaim(self)
            if charge := self.charge:
                account, completions = self.account, self.account.completions  # `Completions.dropped`, written out
                if (mine := completions.immediate_thread) and mine == get_ident() and not account.closed:
                    account.used -= charge
                    return
                if not is_finalized(self):
                    self.array = None  # the memory first, then its bytes: another thread may wait for them
                self.charge = 0
                completions.items.append((account, charge, self.seq))
                if completions.wants_bytes and not completions.ending:
                    completions.notify()
        except NO_ROOM as error:
            self.account.completions.fatal = error


@merged_at_birth
def new_value(
    account: Account, device: Any, meta: Any, nbytes: int = 0, site: CallSite | None = None, array: Any = None
) -> Value:
    """Make a value to come, or the value of an existing array. (A class with an `__init__` is slower to call.)"""
    value = Value()
    value.account = account
    value.device = device
    value.meta = meta
    value.nbytes = nbytes
    value.site = site
    value.array = array
    value.charge = 0
    value.task = None
    value.block = None
    value.base = None
    value.escaped = False
    value.seq = -1
    value.holders = None if nbytes < COUNTED else []
    return value


class Lease:
    """Holds a value for somebody outside the engine, until it is dropped. Handles are leases, too.

    A frame that goes on with the value of a handle must keep the lease's `_entry` as long: a finaliser may move the
    handle to another value at any step.
    """

    __slots__ = ("_entry", "_value")

    def __init__(self, value: Value) -> None:
        self._value = value
        self._entry = None if value.holders is None else enter(value.holders)

    if FREE_THREADED:

        def __new__(cls, *args: object, **options: object) -> Self:
            lease = object.__new__(cls)
            merge(lease)
            return lease


class Plan(Protocol):
    """The facts about a task that are known before it runs. Similar tasks share one. Operations use `ops.op.Plan`."""

    name: str  # of the operation, or the function
    estimate: float = UNKNOWN_SECONDS  # that a stream of the host needs for it
    on_card_seconds: float = UNKNOWN_SECONDS  # the same for a stream of a CUDA card
    shares_event: bool = False  # on a card: whether the number of its launches is known, and it has no deferred errors
    quick: bool = False  # it takes less time than a hop to a stream: it may run on the event loop's thread
    seconds: float = 0.0  # how long it would hold that thread, beyond the usual cost of a task
    overwrites: bool = False  # whether its result may be written over a first input of the same form
    alone: float = inf  # seconds on one thread, where these alone say whether other threads share it


@dataclass(eq=False)
class CallPlan(Plan):
    """The plan of a task that is no operation: a function, a copy, a claim of bytes."""

    name: str
    estimate: float = UNKNOWN_SECONDS
    quick: bool = False


@dataclass(slots=True, eq=False, repr=False, weakref_slot=True)
class Task:
    """One unit of work. Its life: pending -> launched -> done | failed | cancelled.

    Python's garbage collector traverses all pending tasks about five times while the backlog grows, with a cache miss
    or two for each object. To keep objects few, a task with one input or one dependent has no container for it.
    """

    scope: Scope
    plan: Plan
    value: Value | None  # its result; cleared by the stream
    call: Any  # what to run: opaque here, as are args, options and context
    reads: Any  # the value it reads, or a tuple of values: see `inputs`; emptied when the task ends
    args: Any  # the arguments, with a reference by place for each input; None if they are the inputs
    options: Any
    lanes: Sequence[Lane]  # the streams it may run on; empty for a claim, which takes no slot either
    cost: int  # bytes of output and workspace, charged at admission; may change: see `Ledger.relieve` and `Move.charge`
    after: Sequence[Task] | None = None  # it begins after the ends of these, too
    # (input's place, value): it writes the value over that input's buffer
    takes: Sequence[tuple[int, Value]] = ()
    context: Any = None
    move: Any = None  # its part in a commit
    # Whether it writes over its first input, so that its output takes no bytes of its own:
    # - None: it does not, or nobody has asked; [None]: it is launched, and whoever pops the item decides;
    # - []: the ledger has decided that it does;
    # - (bytes, number): it did, and these bytes, of the input that the task of this number made, come back at its end.
    in_place: Any = None
    returned: int = 0  # bytes of its cost that were given back while it was launched
    refund: int = 0  # bytes to return when it ends: the part of `cost` that the value did not keep
    seq: int = 0  # its number in the order of submission
    state: int = PENDING
    expedited: bool = False  # queued before the rest of its scope
    blockers: int = 0  # producers that are not launched yet
    passed: int = 0  # times another scope was admitted while this head had no room
    readers: Any = None  # the task that reads what this makes, or a list of them: see `dependents`
    waiters: dict[Waiter, None] | None = None  # in order of arrival
    lane: Lane | None = None  # the stream it was given
    number: int = 0  # among the tasks of that stream, from 1
    due: float = 0.0  # estimated end on its lane: see `Lane.booked_until`
    failure: Failure | None = None
    cancelled: bool = False  # cancelled after launch: it keeps its slot until it physically ends

    def __post_init__(self) -> None:
        self.value.task = self  # type: ignore[union-attr]  # only the stream clears it
        reads = self.reads
        if type(reads) is Value:  # the most frequent case: a loop would take twice as long
            if reads.holders is not None:
                reads.holders.append(None)
        else:
            if FREE_THREADED and reads:
                merge(reads)  # the stream's thread drops it
            for value in reads:
                if value.holders is not None:
                    value.holders.append(None)

    def read(self, values: tuple[Value, ...]) -> None:
        """Read other values instead."""
        for value in values:
            if value.holders is not None:
                value.holders.append(None)
        self.unread()
        self.reads = values

    def unread(self) -> None:
        """Read nothing any more."""
        reads = self.reads
        self.reads = ()  # first: if an interruption comes, a holder too many is left, and never one too few
        if type(reads) is Value:
            if reads.holders is not None:
                take_out(reads.holders)
        else:
            for value in reads:
                if value.holders is not None:
                    take_out(value.holders)

    @property
    def name(self) -> str:
        """The name of the operation or function."""
        return self.plan.name

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The values it reads."""
        reads = self.reads  # read once: the stream's thread clears it
        return (reads,) if type(reads) is Value else reads

    @property
    def dependents(self) -> Sequence[Task]:
        """The tasks that read its result and were submitted while it was unfinished."""
        return () if (found := self.readers) is None else (found,) if type(found) is Task else found

    def add_dependent(self, task: Task) -> None:
        """Make `task` wait for this one, which has not ended. It counts once, however often it reads the result."""
        readers = self.readers
        if readers is None:
            self.readers = task
        elif type(readers) is list:
            if readers[-1] is task:
                return
            readers.append(task)
        elif readers is task:
            return
        else:
            self.readers = [readers, task]
        if self.state == PENDING:
            task.blockers += 1

    def unblock_dependents(self) -> None:
        """Count for its dependents that it is launched: they need not wait here, since streams wait for streams."""
        for dependent in self.dependents:
            dependent.blockers -= 1
            account = dependent.scope.account
            account.changed = True
            if not dependent.blockers and account.limit is not None and account.used + dependent.cost > account.limit:
                account.make_fit(dependent)  # it may turn out to need no bytes

    @property
    def site(self) -> CallSite | None:
        """The line that submitted it, until the stream clears `value`."""
        return None if (value := self.value) is None else value.site  # read once: the stream's thread clears it

    @property
    def settled(self) -> bool:
        """Whether awaiting it has an answer: it ended, or was cancelled while it still runs."""
        return self.state >= DONE or self.cancelled

    def only_follows(self, other: Task) -> bool:
        """Whether it waits only for the end of `other`, however that ends, and reads nothing from it."""
        return self.after is not None and other in self.after

    def let_go(self) -> None:
        """Drop everything that it works on: it has run, or never will. It keeps its part in a commit."""
        self.value = self.args = self.call = self.context = self.options = None
        self.takes = ()
        reads = self.reads
        if type(reads) is Value:  # `unread`, written out: most tasks come here
            self.reads = ()
            if reads.holders is not None:
                take_out(reads.holders)
        elif reads:
            self.unread()

    def __repr__(self) -> str:
        return f"<{self.name} #{self.seq} {STATE_NAMES[self.state]}>"


@dataclass(slots=True, eq=False, repr=False)
class Lane:
    """The scheduler's view of one stream of a device.

    The three times are estimates, see `admission`. `booked_until` and `done_until` count seconds of estimated work;
    `done_at` is a time of the clock.
    """

    device: Any = None
    stream: Any = None
    copies: bool = False  # carries only host-to-device copies
    place: Callable[[Task], Lane] | None = None  # the device's own choice among a task's lanes
    # If quick tasks may run on the event loop's thread instead: what is reported for those.
    loop: Lane | None = None
    hop: float = 0.0  # seconds that an idle or waiting lane needs to begin; 0 if negligible, or there is no other lane
    on_card: bool = False  # whether it is a CUDA card's
    booked_until: float = 0.0  # when everything launched so far ends
    done_until: float = 0.0  # when the last ended task was estimated to end
    done_at: float = 0.0  # when that end was reported, or when the first task after a rest was launched
    load: int = 0  # tasks launched and not ended
    tail: Task | None = None  # the last task launched, while unfinished


@dataclass(slots=True, eq=False, repr=False)
class Account:
    """A limit in bytes and what is charged against it: the scheduler's, or a scope's reserve."""

    limit: int | None
    completions: Completions
    runtime: Any = None  # the runtime that owns it; opaque here
    parent: Account | None = None
    used: int = 0
    pending: int = 0  # tasks waiting to be charged here
    in_flight: int = 0  # tasks charged here and not ended
    earmark: Task | None = None  # the aged head for which freed bytes are kept
    grace: int = 0  # admissions left during which blocked heads and earmarks are ignored: the progress rule
    changed: bool = False  # whether anything changed since a scan found nothing that fits
    claims: int = 0  # pending claims, which need no slot
    least: int = 0  # at most the lowest cost of a pending task that needs a slot
    least_claim: int = 0  # at most the lowest cost of a pending claim
    closed: bool = False  # its bytes are its parent's now
    queue: Any = None  # the queue that one of its tasks joined last
    line: Any = None  # the `Line` of claims that wait to reserve from it, see `runtime.rates`; opaque here
    relieve: Callable[[Task], bool] = lambda task: False  # `Ledger.relieve`

    def has_room(self, task: Task) -> bool:
        """Whether the cost of `task` stays within the limit. A task known to cost nothing always fits."""
        if self.limit is None or self.used + task.cost <= self.limit:
            return True
        # A callable of unknown cost is charged nothing until its result is measured
        return not task.cost and (task.context is None or task.options is not None)

    def make_fit(self, task: Task) -> bool:
        """Whether a pending task has room. If it lacks room, it may turn out to need no bytes: see `Ledger.relieve`."""
        return self.has_room(task) or (self.relieve(task) and self.has_room(task))

    def starved(self, full: bool) -> bool:
        """Whether no pending task can possibly go: each lacks bytes, or a slot if the slots are `full`."""
        if self.limit is None:
            return False
        room = max(0, self.limit - self.used)
        if self.claims and self.least_claim <= room:
            return False
        return full or self.pending == self.claims or self.least > room

    def covers(self, account: Account | None) -> bool:
        """Whether the charges of `account` are within this one."""
        while account is not None and account is not self:
            account = account.parent
        return account is not None

    @property
    def open(self) -> Account:
        """This account, or the nearest ancestor that is not closed."""
        account = self
        while account.closed:
            assert account.parent is not None
            account = account.parent
        return account


@dataclass(slots=True, eq=False, repr=False)
class Scope:
    """A group of tasks that is waited for, reported on and cancelled together.

    It has a queue and an account of its own, or shares those of its parent.
    """

    name: str
    queue: Any  # its `Queue`
    account: Account
    parent: Scope | None = None
    children: dict[Scope, None] = field(default_factory=dict)
    tasks: dict[Task, None] = field(default_factory=dict)  # unfinished
    unseen: Unseen | None = None  # failures of its own tasks; None before the first
    reserve: int = 0
    number: int = 0  # counts granted reserves: the youngest scope has the highest
    growing: dict[Scope, None] | None = None  # if it has grown: the scopes that hold its growths
    grows: bool = False  # it is one of those scopes
    preempted: bool = False  # it was told to give its reserve back
    entered_by: Any = None  # a weak reference to the task that will leave it; opaque here
    entered_earlier: Any = None  # a weak set: the tasks that existed when it was left early or by another; opaque here
    deadline: float = inf  # by time.monotonic: a loop's own clock may stand still during a callback
    # Nothing more will be submitted. It closes when its tasks are finished and its failures reported.
    ended: bool = False
    ended_children: deque[Scope] | None = None  # to be closed once they are over
    closed: bool = False

    @property
    def account_around(self) -> Account | None:
        """The account that its reserve is charged to; None if it has none."""
        return None if not self.reserve or self.account.parent is None else self.account.parent.open

    def over(self) -> bool:
        """Whether it has ended, and neither it nor a child has an unfinished task or an unreported failure."""
        if not self.ended or self.tasks or self.unseen:
            return False
        return all(child.over() for child in list(self.children))

    def tree(self) -> list[Scope]:
        """This scope and all below it."""
        found = [self]
        for scope in found:
            found += scope.children
        return found

    def unfinished(self, before: int | None = None) -> list[Task]:
        """All unfinished tasks here and below; with `before`, only those with lower numbers."""
        found = [task for scope in self.tree() for task in list(scope.tasks)]
        return found if before is None else [task for task in found if task.seq < before]

    def record(self, failure: Failure) -> None:
        """Keep a root cause for a barrier or the scope's end to report, unless someone sees it first."""
        if failure.seen:  # by a dependent on another stream, whose completion came first
            return
        if self.unseen is None:
            self.unseen = Unseen()
        self.unseen.add(failure)

    def has_unseen(self) -> bool:
        """Whether there are failures here or below that nobody has seen."""
        return any(scope.unseen for scope in self.tree())

    def take_failures(self, before: int | None = None) -> tuple[list[Failure], int]:
        """Take the root causes that nobody has seen, here and below, of tasks numbered under `before`.

        Returns them, and how many more were only counted.
        """
        found, lost = ([], 0) if self.unseen is None else self.unseen.take(before)
        for child in list(self.children):
            below, more = child.take_failures(before)
            found += below
            lost += more
        return found, lost
