"""What the scheduler keeps track of: tasks and the values they make, streams, scopes, and accounts of bytes.

Each thing is kept once. A value knows its bytes, its place in memory and the line that asked for it; a task knows its
state and its failure, and everything about running it. While a task is unfinished each refers to the other. The stream
clears `task.value` when the result is there, so that a result without handles is freed at once; `value.task` is cleared
by whoever next finds the task done. The value of a failed task keeps its reference, since the task has the failure.

Bare values. Most of what waits in a long backlog are quick rows that will run on the loop's thread, in their turn, and
of which nobody asks anything before that. Such a value is *bare*: it stands in the queue itself, knows what it will be
made of, and has no task; `Bare` stands for that. Whoever needs its task (to wait for it, to cancel it, to put it on a
stream, or to submit a task that reads it) has it made, by `task_of`. A bare value reads only what is there, and other
bare values of its queue, which are made before it: so it needs no note of what it waits for. The engine makes these
notes for all of a queue when one is cancelled, since what depends on that is to be cancelled with it.
"""

from __future__ import annotations

from _thread import get_ident
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn
from weakref import ref

from .callsite import CallSite
from .completions import Completions
from .failure import Failure
from .unseen import Unseen

# States, in the order of a task's life. Plain ints: they are compared several times per task.
PENDING: Final = 0
LAUNCHED: Final = 1  # admitted and put on a stream: one step for every device so far
DONE: Final = 2
FAILED: Final = 3
CANCELLED: Final = 4
STATE_NAMES: Final = ("pending", "launched", "done", "failed", "cancelled")

UNKNOWN_SECONDS: Final = 1e-3  # of a function, say: worth a hop to another stream

# Called with a task at each change of its state (launched, settled, ended), until it returns True.
Waiter = Callable[[Any], bool]


class Value:
    """What a task makes, or will make. Handles, views and tasks that read it hold it.

    CPython's reference count says when nobody needs it any more, so nothing here counts holders: at zero, `__del__`
    tells the completions that the bytes are free. `new_value` makes one.
    """

    __slots__ = (
        "account",
        "args",
        "array",
        "base",
        "block",
        "charge",
        "deferred_errors",
        "device",
        "escaped",
        "given",
        "meta",
        "nbytes",
        "plan",
        "reads",
        "seq",
        "site",
        "task",
    )
    account: Account
    device: Any
    meta: Any  # shape, dtype and cost of the result; opaque here
    nbytes: int  # bytes of the buffer it owns, or will
    site: CallSite | None  # the line that asked for it, if it was not run inline
    task: Task | None  # its producer, until somebody finds it done; one that failed stays
    array: Any  # the result
    block: Any  # the pool's buffer under it, if any
    base: Value | None  # the value whose memory this one is a view of
    charge: int  # bytes to give back when nobody holds this any more
    escaped: bool  # the array may be held outside: the buffer is never recycled
    seq: int  # the number of the task that made it, if an instrument was there to see that
    given: ref[Any]  # the array handed to the user; unset until then, as it stays for most values
    deferred_errors: tuple[Any, ...]  # that only the device can rule out, see the file of this name; mostly unset
    plan: Any  # how it will be made, with its `row` and `cost`; this and the next two are set while it is bare
    reads: Any  # as a task's
    args: Any  # as a task's

    @property
    def failure(self) -> Failure | None:
        """Why it will never be there: its task failed, or was cancelled."""
        task = self.task
        return None if task is None else task.failure

    @property
    def done(self) -> bool:
        """Whether the result or a failure is here."""
        task = self.task
        return task is None or task.state >= DONE or task.failure is not None

    @property
    def owner(self) -> Value:
        """The value that owns the memory: itself, or at the end of a chain of views."""
        value = self
        while value.base is not None:
            value = value.base
        return value

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a result lives in its scheduler and cannot be pickled or copied: `await` it first")

    def __del__(self) -> None:
        try:
            reclaimed = self.escaped or self.block
        except AttributeError:  # a signal's exception came as it was to be made
            return
        if reclaimed is not None:
            self.device.memory.reclaim(self)
        elif charge := self.charge:
            account = self.account
            completions = account.completions  # `Completions.dropped`, inlined: every tiny result comes here
            if completions.direct == get_ident() and not account.closed:
                account.used -= charge
                return
            self.array = None  # the memory first, its bytes second: others may be waiting for them on another thread
            completions.items.append((account, charge, self.seq))
            if completions.wants_bytes:
                completions.freed(charge)


def new_value(
    account: Account,
    device: Any,
    meta: Any,
    nbytes: int = 0,
    site: CallSite | None = None,
    array: Any = None,
) -> Value:
    """A value to come, or of an array that is there. (A class with an `__init__` takes longer to call.)"""
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
    return value


class Task:
    """One unit of work. It goes once through pending -> launched -> done | failed | cancelled.

    Python's garbage collector traverses all pending tasks some five times while the backlog grows, with a cache miss or
    two for each object. To keep objects few, a task with one input or one dependent has no container for it.
    """

    __slots__ = (
        "after",
        "args",
        "blockers",
        "call",
        "cancelled",
        "context",
        "cost",
        "due",
        "expedited",
        "failure",
        "lane",
        "lanes",
        "move",
        "name",
        "number",
        "options",
        "passed",
        "quick",
        "reads",
        "refund",
        "scope",
        "seconds",
        "seq",
        "state",
        "value",
        "waiters",
    )

    def __init__(
        self,
        scope: Scope,
        name: str,
        value: Value,
        call: Any,
        reads: Value | tuple[Value, ...],
        args: Any,
        options: Any,
        lanes: Sequence[Lane],
        cost: int,
    ) -> None:
        self.scope = scope
        self.name = name
        self.value: Value | None = value  # what it makes; cleared by the stream
        value.task = self
        self.call = call  # what to run: opaque here, as are args, options and context
        self.reads: Any = reads  # the value it reads, or a tuple of them: see `inputs`; emptied when it ends
        self.args = args  # the arguments, with a reference by place for each input; None if they are the inputs
        self.options = options
        self.context: Any = None
        self.move: Any = None  # its part in a commit
        self.quick: Any = None  # its plan, if it may run on the loop's thread: how to, and for how long; opaque here
        self.lanes = lanes  # the streams it may run on; none for a claim of bytes, which takes no slot either
        self.cost = cost  # bytes of output and workspace, charged at admission
        self.refund = 0  # bytes to return at completion: what of `cost` the value did not take over
        self.seq = 0
        self.state = PENDING
        self.expedited = False  # queued before the rest of its scope
        self.blockers = 0  # producers that are not launched yet
        self.passed = 0  # times another scope was admitted while this head had no room
        self.after: Any = None  # the task that reads what this makes, or a list of them: see `dependents`
        self.waiters: list[Waiter] | None = None
        self.lane: Lane | None = None  # the stream it was given
        self.number = 0  # among the tasks of that stream, from 1
        self.seconds = UNKNOWN_SECONDS  # that it takes, by estimate
        self.due = 0.0  # when its lane will have ended it, in that lane's time
        self.failure: Failure | None = None
        self.cancelled = False  # cancelled after launch: it keeps its slot until it physically ends

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The values it reads."""
        reads = self.reads  # read once: the stream's thread clears it
        return (reads,) if type(reads) is Value else reads

    @inputs.setter
    def inputs(self, inputs: tuple[Value, ...]) -> None:
        self.reads = inputs

    @property
    def dependents(self) -> Sequence[Task]:
        """The tasks that read what it makes, and were submitted while it was unfinished."""
        after = self.after
        return () if after is None else (after,) if type(after) is Task else after

    def add_dependent(self, task: Task) -> None:
        """Another task waits for this one, which has not ended."""
        if self.after is None:
            self.after = task
        elif type(self.after) is list:
            self.after.append(task)
        else:
            self.after = [self.after, task]
        if self.state == PENDING:
            task.blockers += 1

    @property
    def site(self) -> CallSite | None:
        """The line that submitted it, until the stream clears `value`."""
        value = self.value  # read once: the stream's thread clears it
        return None if value is None else value.site

    @property
    def unestimated(self) -> bool:
        """Whether it is a callable of unknown cost, which is charged nothing until its result is measured."""
        return not self.cost and self.context is not None and self.options is None

    def refused(self) -> None:
        """The task will never run. Its value, which refers to it, must not keep its arguments alive."""
        self.value = self.args = self.call = self.context = None
        self.reads = ()

    def settled(self) -> bool:
        """Whether awaiting it has an answer: it ended, or was cancelled while it still runs."""
        return self.state >= DONE or self.cancelled

    def __repr__(self) -> str:
        return f"<{self.name} #{self.seq} {STATE_NAMES[self.state]}>"


class Bare(Task):
    """Stands for the tasks of a scope's bare values on one device. They are pending; it has nothing else to tell."""

    __slots__ = ()

    def __init__(self, scope: Scope, lanes: Sequence[Lane]) -> None:
        self.scope = scope
        self.lanes = lanes
        self.state = PENDING
        self.failure = None


def task_of(value: Value) -> Task | None:
    """The task that makes a value, as `value.task`; if it is bare, it is given its task first."""
    bare = value.task
    if type(bare) is not Bare:
        return bare
    plan, reads, scope = value.plan, value.reads, bare.scope
    op = plan.op
    task = Task(scope, op.name, value, op, reads, value.args, None, bare.lanes, plan.cost)
    task.quick = plan
    task.seconds = plan.estimate
    task.seq, value.seq = value.seq, -1
    value.plan = value.reads = value.args = None
    scope.tasks[task] = None
    scope.bare -= 1
    return task


def failure_of(value: Value) -> Failure | None:
    """Why it will never be there. If its producer is found done, it is forgotten, so that nobody asks again."""
    task = value.task
    if task is not None and task.state == DONE:
        value.task = None
        return None
    return None if task is None else task.failure


def failure_above(inputs: Sequence[Value]) -> Failure | None:
    """The failure of the first of these values that has one."""
    for value in inputs:
        producer = value.task
        if producer is not None and producer.failure is not None:
            return producer.failure
    return None


@dataclass(slots=True, eq=False, repr=False)
class Lane:
    """The scheduler's view of one stream of a device."""

    device: Any = None
    stream: Any = None
    copies: bool = False  # carries host-to-device copies alone
    place: Callable[[Task], Lane] | None = None  # the device's own choice among the lanes of a task
    hop: float = 0.0  # seconds until a task begins that is not next to others here, if that matters: see `placement`
    given: float = 0.0  # when what was launched will have ended, in its own time, of seconds by estimate
    ended: float = 0.0  # when the last task that told of its end was to have ended
    since: float = 0.0  # by the clock, when that was, or when what came after a rest was launched
    load: int = 0  # tasks launched and not ended
    tail: Task | None = None  # the last one launched, while it is unfinished


@dataclass(slots=True, eq=False, repr=False)
class Account:
    """A limit in bytes and what is charged against it: the scheduler's, or a scope's reserve."""

    limit: int | None
    completions: Completions
    runtime: Any = None  # whose it is; opaque here
    parent: Account | None = None
    used: int = 0
    pending: int = 0  # tasks waiting to be charged here
    in_flight: int = 0  # tasks charged here and not ended
    earmark: Task | None = None  # the aged head for which freed bytes are kept
    grace: int = 0  # admissions left during which blocked heads and earmarks are ignored: the progress rule
    changed: bool = False  # whether anything changed since a scan found nothing that fits
    closed: bool = False  # its bytes are its parent's now

    def fits(self, task: Task) -> bool:
        """Whether the cost of `task` stays within the limit. A task that costs nothing fits even above the limit."""
        if self.limit is None or self.used + task.cost <= self.limit:
            return True
        return not task.cost and not task.unestimated

    def covers(self, account: Account | None) -> bool:
        """Whether what is charged to `account` is held within this one."""
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
    bare: int = 0  # bare values, whose tasks are not among these
    stand: Bare | None = None  # what stands for the tasks of the last of them
    unseen: Unseen | None = None  # failures of its own tasks; None before the first
    reserve: int = 0
    # Nothing more will be submitted: closed when its tasks are finished and its failures reported.
    ended: bool = False
    ended_children: deque[Scope] | None = None  # to be closed once they are over
    closed: bool = False

    @property
    def size(self) -> int:
        """How many of its own tasks are unfinished."""
        return len(self.tasks) + self.bare

    def over(self) -> bool:
        """Whether it has ended, and nothing here or below is unfinished or unreported."""
        if not self.ended or self.tasks or self.bare or self.unseen:
            return False
        for child in self.children:  # noqa: SIM110  # a generator for `all` takes longer than the rest of this
            if not child.over():
                return False
        return True

    def tree(self) -> list[Scope]:
        """This scope and all below."""
        found = [self]
        for scope in found:
            found += scope.children
        return found

    def with_tasks(self) -> list[Task]:
        """Every unfinished task here and below, but for those of bare values."""
        return [task for scope in self.tree() for task in scope.tasks]

    def unfinished(self, before: int | None = None) -> list[Task]:
        """Every unfinished task here and below, of those numbered under `before`."""
        for scope in self.tree():
            if scope.bare:
                scope.queue.dress()
        found = self.with_tasks()
        return found if before is None else [task for task in found if task.seq < before]

    def one_unfinished(self, before: int | None = None) -> Task | None:
        """One of them, late among them; None if there is none."""
        for scope in reversed(self.tree()):
            if scope.bare and (value := scope.queue.last_bare(scope, before)) is not None:
                return task_of(value)
            for task in reversed(scope.tasks):
                if before is None or task.seq < before:
                    return task
        return None

    def record(self, failure: Failure) -> None:
        """Report a root cause where the scope ends, or at a barrier, unless someone sees it first."""
        if failure.seen:  # by a dependent on another stream, whose completion came first
            return
        if self.unseen is None:
            self.unseen = Unseen()
        self.unseen.add(failure)

    def take_failures(self, before: int | None = None) -> tuple[list[Failure], int]:
        """Root causes nobody has seen, here and below, of tasks numbered under `before`.

        And how many more were not kept.
        """
        found, lost = ([], 0) if self.unseen is None else self.unseen.take(before)
        for child in list(self.children):
            below, more = child.take_failures(before)
            found += below
            lost += more
        return found, lost
