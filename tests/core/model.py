"""The model of an engine's history: what the test itself did, a `Job` per task, a `Room` per scope, a `Batch` per
commit.

Everything else is worked out from that by brute force, in `promises`.
"""

from __future__ import annotations

from typing import Any

from asyncsched._core.endings import Commit
from asyncsched._core.failure import Failure
from asyncsched._core.model import DONE, LAUNCHED, PENDING, Account, Lease, Scope, Task, Value
from tests.ledger import value_of

from .rig import Outcome
from .shares import Share


class Room:
    """The model of a scope."""

    def __init__(self, core: Scope, parent: Room | None, share: Share | None = None, *, entered: bool = True) -> None:
        self.core = core
        self.share: Share = share or (self, 0)
        self.parent = parent
        self.own_account = core.account if parent is None else None
        self.claim: Job | None = None
        self.grows: Room | None = None  # whose reserve its claim is to be added to
        self.entered = entered  # False while it waits for its reserve
        self.ended = False  # an iteration that is over
        self.closed = False

    @property
    def account(self) -> Account:
        """What a task submitted here is charged to."""
        room: Room | None = self
        while room is not None:
            if room.own_account is not None and not room.closed:
                return room.own_account
            room = room.parent
        raise AssertionError("the root has an account")

    @property
    def open(self) -> bool:
        return not (self.closed or self.ended)

    def inside(self, other: Room) -> bool:
        """Whether this is `other`, or somewhere in it."""
        room: Room | None = self
        while room is not None and room is not other:
            room = room.parent
        return room is other


class Job:
    """The model of a task, and the handle on its value while there is one."""

    @property
    def handle(self) -> Value | None:
        return None if self._lease is None else value_of(self._lease)

    @handle.setter
    def handle(self, dropped: None) -> None:
        self._lease = dropped

    def __init__(self, task: Task, room: Room, value: Value | None, inputs: list[Job], base: Job | None = None) -> None:
        self.task = task
        self.room = room
        self.queue = task.scope.queue
        self.share = room.share
        self.account = task.scope.account
        self.needs = task.cost  # for its admission
        self.quick: bool = getattr(task.plan, "quick", False)
        self._lease = None if value is None else Lease(value)
        self.returned = True  # from `submit`; before that nobody else has the handle
        self.inputs = inputs
        self.after: list[Job] = []  # whose end it waits for, however that is
        self.base = base
        self.nbytes = task.cost  # of its result, as far as is known
        self.charge = 0  # of its result, once that is there
        self.array: Any = None
        self.batch: Batch | None = None
        self.starts = 0  # how often it was launched, or ran on the loop's thread
        self.ran = False
        self.spent = False  # a claim whose bytes became a reserve, or were given back
        self.recorded: Failure | None = None  # that its scope was told, though it will not fail
        self.reported = False
        self.tokens: list[Token] = []

    @property
    def joined(self) -> bool:
        """Whether it was submitted. Asked for in the middle of a change, that is put off."""
        return self.task.state >= DONE or self.task in self.task.scope.tasks

    @property
    def pending(self) -> bool:
        return self.task.state == PENDING and self.joined

    @property
    def blocked(self) -> bool:
        return any(job.task.state == PENDING for job in (*self.inputs, *self.after))

    @property
    def granted(self) -> bool:
        return self.task.lane is not None

    @property
    def cost(self) -> int:
        """What it needs for its admission: nothing once its commit was given up before that."""
        batch = self.batch
        if batch is not None and self is batch.gate and self.task.state == PENDING:
            assert self.task.cost in (0, self.needs)
            return self.task.cost
        return self.needs

    @property
    def failed(self) -> bool:
        """Whether it is known that its result will never be there."""
        return self.task.failure is not None

    def held(self, alive: set[Job]) -> int:
        """The bytes that are charged for it now. (What was dropped, and not taken in yet, comes on top.)"""
        task, batch = self.task, self.batch
        if not task.lanes:
            return self.needs if task.state == DONE and not self.spent else 0
        if batch is not None and task.state < DONE:
            held = batch.grants[self] if batch.core.charged else 0
        elif not self.granted:
            return 0
        else:
            held = self.needs if task.state == LAUNCHED else self.charge
        return held - self.charge if self.ran and self not in alive else held

    def __repr__(self) -> str:
        return repr(self.task)


class Batch:
    """The model of a commit: which versions it is to bring, and whether it will."""

    def __init__(self, core: Commit, gate: Job, members: list[Job], versions: dict[Job, Job | None]) -> None:
        self.core = core
        self.gate = gate
        self.members = members
        self.versions = versions  # and the ones before
        self.grants = {job: job.task.move.grant for job in (gate, *members)}
        self.given_up = False
        self.unsure = False  # cancelled in the middle of something, so before the decision or after it
        self.go: bool | None = None
        for job in (gate, *members):
            job.batch = self

    def decide(self) -> None:
        """Its gate runs, now: for the commit, unless an input failed or it was given up."""
        expected = not self.given_up and not any(job.failed for job in self.gate.inputs)
        self.go = self.core.decide(expected)
        assert self.unsure or self.go == expected

    def check_moved(self, job: Job, outcome: Outcome) -> None:
        """All of the versions are new ones, or none is."""
        if job is self.gate or (self.go and job in self.members):
            assert outcome.array is not None
            assert job not in self.versions or self.versions[job] is None or outcome.array is not self.before(job)
        elif job in self.versions and (old := self.versions[job]) is None:
            assert not outcome.array.any(), "zeros were before"
        elif job in self.versions and old is not None and not old.failed:
            assert outcome.array is old.array is not None
            assert outcome.charge in (0, old.charge), "a view of the version before, or its buffer"
        else:
            assert outcome.array is None

    def before(self, job: Job) -> Any:
        old = self.versions[job]
        return None if old is None else old.array


class Token:
    """One registered waiter."""

    def __init__(self, told: bool) -> None:
        self.calls = 0
        self.wants_end = told  # the cancellation was told already: this waits for the physical end

    def __call__(self, task: Task) -> bool:
        told = task.state >= DONE if self.wants_end else task.settled
        self.calls += told
        return told


def upwards(account: Account | None) -> list[Account]:
    accounts = []
    while account is not None:
        accounts.append(account)
        account = account.parent
    return accounts


def open_account(account: Account) -> Account:
    return next(above for above in upwards(account) if not above.closed)


def in_order(jobs: list[Job]) -> list[Job]:
    return sorted(jobs, key=lambda job: (not job.task.expedited, job.task.seq))


def head_of(jobs: list[Job]) -> Job:
    """The first at the front if its producers are launched, else the first of the rest."""
    jobs = in_order(jobs)
    expedited = [job for job in jobs if job.task.expedited]
    rest = [job for job in jobs if not job.task.expedited]
    if expedited and not (expedited[0].blocked and rest):
        return expedited[0]
    return rest[0]
