"""The engine against a model of it, in random histories: every promise is checked after every step.

The model keeps what the test itself did (a `Job` per task, a `Room` per scope) and works everything else out from that
by brute force: which bytes are charged where, who may be admitted next, who must have been told. Streams are lists; a
task runs, is posted, and is taken in at three different moments, as with real threads.
"""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from asyncsched._core import tenants
from asyncsched._core.admission import GRACE
from asyncsched._core.failure import Failure
from asyncsched._core.model import CANCELLED, DONE, FAILED, LAUNCHED, PENDING, Account, Scope, Task, Value
from asyncsched.errors import MemoryDeadlockError, QueueFull, TaskTooLarge

from .rig import Rig, cancellation, execute
from .shares import Share, Shares

MOST_JOBS = 80  # fewer than the failures a scope keeps, and the model is quadratic
QUANTUM = 10  # so small that bytes count in the turns
PICK = st.integers(0, 10_000)  # an index into a list that only the running test knows; reduced modulo its length


class Room:
    """The model of a scope."""

    def __init__(self, core: Scope, parent: Room | None, share: Share | None = None, *, entered: bool = True) -> None:
        self.core = core
        self.share: Share = share or (self, 0)
        self.parent = parent
        self.own_account = core.account if parent is None else None
        self.claim: Job | None = None
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

    def __init__(self, task: Task, room: Room, value: Value | None, inputs: list[Job], base: Job | None) -> None:
        self.task = task
        self.room = room
        self.queue = task.scope.queue
        self.share = room.share
        self.account = task.scope.account
        self.cost = task.cost
        self.handle = value
        self.inputs = inputs
        self.base = base
        self.charge = 0
        self.nbytes = task.cost  # of its result, as far as is known
        self.ran = False
        self.spent = False  # a claim whose bytes became a reserve, or were given back
        self.reported = False
        self.tokens: list[Token] = []

    @property
    def blocked(self) -> bool:
        return any(job.task.state == PENDING for job in self.inputs)

    @property
    def granted(self) -> bool:
        return self.task.lane is not None

    def __repr__(self) -> str:
        return repr(self.task)


class Token:
    """One registered waiter."""

    def __init__(self, told: bool) -> None:
        self.calls = 0
        self.wants_end = told  # the cancellation was told already: this waits for the physical end

    def __call__(self, task: Task) -> bool:
        told = task.state >= DONE if self.wants_end else task.settled
        self.calls += told
        return told


class EngineMachine(RuleBasedStateMachine):
    """Estimates are right: no value is charged more than its task's cost."""

    overcharge = 0

    # -- setting up ---------------------------------------------------------------------------------------------------

    @initialize(
        max_ops=st.sampled_from([1, 2, 3, 5, None]),
        max_bytes=st.sampled_from([20, 50, 100, None]),
        max_pending=st.sampled_from([3, 12, None]),
        lanes=st.integers(1, 3),
    )
    def start(self, max_ops: int | None, max_bytes: int | None, max_pending: int | None, lanes: int) -> None:
        self.rig = Rig(max_ops=max_ops, max_bytes=max_bytes, max_pending=max_pending, lanes=lanes)
        self.engine = self.rig.engine
        self.jobs: list[Job] = []
        self.root = Room(self.rig.root, None)
        self.rooms = [self.root]
        self.unposted: dict[Any, deque[Task]] = {lane: deque() for lane in self.rig.lanes}
        self.shares = Shares(QUANTUM)
        self.shares.opened(self.root.share, self.root.share, 1, self.rig.root.queue.tenant)
        self.quiet = True  # nothing happened since the last dispatch
        admission = self.engine.admission
        self._next = admission.next
        admission.next = self._checked_next  # type: ignore[method-assign]

    def open_rooms(self) -> list[Room]:
        return [room for room in self.rooms if room.open and room.entered]

    # -- submitting ---------------------------------------------------------------------------------------------------

    @rule(
        room=PICK,
        cost=st.one_of(st.integers(0, 12), st.integers(0, 110)),
        inputs=st.lists(PICK, max_size=3),
        expedited=st.sampled_from([False, False, False, True]),
        bounded=st.booleans(),
        view=st.sampled_from([False, False, False, True]),
        keep=st.sampled_from([True, True, False]),
    )
    def submit(
        self, room: int, cost: int, inputs: list[int], expedited: bool, bounded: bool, view: bool, keep: bool
    ) -> None:
        if len(self.jobs) >= MOST_JOBS:
            return
        self.quiet = False
        rooms, held = self.open_rooms(), self.held()
        where = rooms[room % len(rooms)]
        read = [held[i % len(held)] for i in inputs] if held else []
        view = view and bool(read)
        task, value = self.rig.task(
            *[job.handle for job in read],
            cost=0 if view else cost,
            scope=where.core,
            expedited=expedited,
            name=f"{where.core.name} {expedited=}",
        )
        if view:
            value.base = read[0].handle
        assert task.scope.account is where.account
        needed, limit = self.needed(task.cost, read, task.scope.account), task.scope.account.limit
        too_large = limit is not None and needed > limit
        assert self.refusal(task) == ((needed, limit) if too_large else None)
        if too_large:
            task.value = None
            return
        most = self.engine.ledger.limits.max_pending
        if bounded:  # as it does itself, before it looks for room: what failed since may have had dependents there
            self.engine.drain()
        if bounded and most is not None and self.engine.ledger.pending >= most:
            with pytest.raises(QueueFull):
                self.engine.submit(task, hold=True)
            task.value = None
            return
        self.engine.submit(task, bounded=bounded, hold=True)
        self.jobs.append(Job(task, where, value if keep else None, read, read[0] if view else None))

    def refusal(self, task: Task) -> tuple[int, int] | None:
        """Not by `pytest.raises`: what it keeps of the exception would hold the inputs, and bytes with them."""
        try:
            self.engine.require(task)
        except TaskTooLarge as error:
            return error.needed, error.limit
        return None

    @rule(seed=st.integers(0, 2**32 - 1), count=st.integers(4, 24))
    def submit_many(self, seed: int, count: int) -> None:
        """A program runs ahead. The order and sizes come from the seed, which is part of the printed history."""
        dice = random.Random(seed)
        rooms = [dice.randrange(10_000) for _ in range(dice.randint(1, 4))]
        for _ in range(count):
            self.submit(
                room=dice.choice(rooms),
                cost=dice.choice([0, 1, 3, dice.randint(0, 20), dice.randint(0, 100)]),
                inputs=[dice.randrange(10_000) for _ in range(dice.choice([0, 0, 1, 1, 2, 3]))],
                expedited=dice.random() < 0.15,
                bounded=dice.random() < 0.5,
                view=dice.random() < 0.1,
                keep=dice.random() < 0.6,
            )
            if dice.random() < 0.1:
                self.dispatch()
            if dice.random() < 0.1:
                self.drop([dice.randrange(10_000)])

    @rule(room=PICK, count=st.integers(10, 24), cost=st.integers(0, 3))
    def stream_by(self, room: int, count: int, cost: int) -> None:
        """Small tasks in one scope, each over soon: what large heads elsewhere have to wait beside."""
        for _ in range(count):
            self.submit(room=room, cost=cost, inputs=[], expedited=False, bounded=False, view=False, keep=False)
            self.dispatch()
            if any(len(stream) > 1 for stream in self.rig.streams.values()):
                self.run_some(1)

    def needed(self, cost: int, inputs: list[Job], account: Account) -> int:
        """The cost, and the distinct buffers under the inputs that are charged within the account."""
        owners = set()
        for job in inputs:
            while job.base is not None:
                job = job.base
            if any(above is account for above in _upwards(job.account)):
                owners.add(job)
        total = cost + sum(job.nbytes for job in owners)
        return total if inputs else cost

    # -- scopes -------------------------------------------------------------------------------------------------------

    @rule(
        parent=PICK,
        own_queue=st.booleans(),
        reserve=st.one_of(st.none(), st.integers(1, 60)),
        at_once=st.booleans(),
        tenant=st.sampled_from([None, None, "a", "b", "c"]),
        weight=st.sampled_from([None, None, 0.5, 3]),
        priority=st.sampled_from([None, None, -1, 0, 1]),
    )
    def open_scope(
        self,
        parent: int,
        own_queue: bool,
        reserve: int | None,
        at_once: bool,
        tenant: str | None,
        weight: float | None,
        priority: int | None,
    ) -> None:
        rooms = [room for room in self.open_rooms() if room.entered]
        if len(rooms) > 6:
            return
        self.quiet = False
        outer = rooms[parent % len(rooms)]
        core = self.engine.scopes.open(
            f"scope {len(self.rooms)}",
            outer.core,
            own_queue=own_queue,
            tenant=tenant,
            weight=weight,
            priority=priority,
        )
        assert (core.queue is outer.core.queue) == (not own_queue)
        for room in self.rooms:  # what was swept
            if room.core.closed and not room.closed:
                assert room.ended
                assert room.inside(outer)
                assert not own_queue
                room.closed = True
        room = Room(core, outer, outer.share, entered=reserve is None)
        self.rooms.append(room)
        if own_queue:
            self.give_share(room, outer.share, tenant, weight, priority)
        if reserve is None:
            return
        limit = core.account.limit
        if limit is not None and reserve > limit:
            with pytest.raises(TaskTooLarge):
                self.rig.claim(reserve, core)
            self.leave(room)
            return
        room.claim = Job(self.rig.claim(reserve, core), room, None, [], None)
        self.jobs.append(room.claim)
        if at_once:
            self.dispatch()
            self.enter(room)

    def give_share(
        self, room: Room, outer: Share, tenant: str | None, weight: float | None, priority: int | None
    ) -> None:
        name = outer[0] if tenant is None else tenant
        room.share = (name if isinstance(name, str) else room, outer[1] if priority is None else priority)
        self.shares.opened(room.share, outer, weight, room.core.queue.tenant)
        for other in self.rooms:
            if not other.closed:
                assert (other.core.queue.tenant is room.core.queue.tenant) == (other.share == room.share)

    @precondition(lambda self: any(room.open and not room.entered for room in self.rooms))
    @rule(pick=PICK, give_up=st.booleans())
    def enter_reserve(self, pick: int, give_up: bool) -> None:
        """The coroutine that waited for its reserve goes on; or was cancelled, before or after it was granted."""
        rooms = [room for room in self.rooms if room.open and not room.entered]
        room = rooms[pick % len(rooms)]
        claim = room.claim
        assert claim is not None
        task = claim.task
        if give_up:
            self.quiet = False
            if task.state == PENDING:
                assert self.rig.cancel(task)
            elif task.state == DONE:
                claim.spent = True
                self.rig.give_back(task)
            room.claim = None
            room.entered = True
        else:
            self.enter(room)

    def enter(self, room: Room) -> None:
        assert room.claim is not None
        task, outer = room.claim.task, room.account
        if task.state == DONE:
            room.claim.spent = True
            self.engine.grant_reserve(room.core, self.rig.claims.pop(task))
            room.own_account = room.core.account
            assert room.own_account.parent is outer
        if task.state != PENDING:
            room.entered = True

    @precondition(lambda self: any(room.open and room is not self.root for room in self.rooms))
    @rule(pick=PICK)
    def end_iteration(self, pick: int) -> None:
        """A window's block is left: the scope stays until its tasks are finished and reported."""
        rooms = [r for r in self.open_rooms() if r is not self.root and r.entered and r.own_account is None]
        if rooms:
            room = rooms[pick % len(rooms)]
            room.ended = True
            self.engine.scopes.end(room.core)

    @precondition(lambda self: len(self.open_rooms()) > 1)
    @rule(pick=PICK)
    def close_scope(self, pick: int) -> None:
        rooms = [r for r in self.open_rooms() if r is not self.root and r.entered and not self.unfinished(r)]
        if rooms:
            self.leave(rooms[pick % len(rooms)])

    def leave(self, room: Room) -> None:
        self.quiet = False
        inside = [r for r in self.rooms if not r.closed and r is not room and r.inside(room)]
        self.engine.close_scope(room.core)
        room.closed = True
        for inner in inside:  # the outer ones first: what is over closes, unless something open lies between
            assert inner.parent is not None
            inner.closed = inner.ended and inner.parent.closed
        for inner in inside:
            if inner.open and inner.parent is not None and inner.parent.closed:
                inner.parent = room.parent  # which reports its failures, too
        self.check_report(room, None)

    def unfinished(self, room: Room) -> list[Job]:
        return [job for job in self.jobs if job.task.state < DONE and job.room.inside(room)]

    @rule(pick=PICK)
    def report(self, pick: int) -> None:
        """A barrier."""
        rooms = self.open_rooms()
        self.check_report(rooms[pick % len(rooms)], self.engine.ledger.sequence)

    def check_report(self, room: Room, before: int | None) -> None:
        """Every root cause that nobody saw is reported, and reported once."""
        expected = {
            id(job.task.failure)
            for job in self.jobs
            if job.task.state == FAILED and job.task.lanes and job.room.inside(room)
            if job.task.failure is not None and job.task.failure.root is job.task.failure
            if not job.reported and not job.task.failure.seen
        }
        failures, lost = room.core.take_failures(before)
        assert {id(failure) for failure in failures} == expected
        assert len(failures) == len(expected)
        assert lost == 0
        for job in self.jobs:
            if id(job.task.failure) in expected:
                job.reported = True

    # -- running ------------------------------------------------------------------------------------------------------

    @rule()
    def dispatch(self) -> None:
        launched = self.rig.dispatch()
        self.quiet = True
        for task in launched:
            assert task.state == LAUNCHED
            assert not task.cancelled

    @precondition(lambda self: any(self.rig.streams.values()))
    @rule(lane=PICK, outcome=st.sampled_from(["done", "done", "done", "error"]), part=st.integers(0, 100))
    def run_head(self, lane: int, outcome: str, part: int) -> None:
        """The first task of some stream runs to its end. Its completion is not posted yet."""
        self.quiet = False
        streams = list(self.rig.streams.values())
        for stream in streams[lane % len(streams) :] + streams[: lane % len(streams)]:
            if stream and all(job.ran or job.task.state >= DONE for job in self.job_of(stream[0]).inputs):
                break
        else:
            raise AssertionError("launched in topological order, some stream can always go on")
        job = self.job_of(stream.popleft())
        failed = job.task.cancelled or any(value.failure is not None for value in job.task.inputs)
        charge = 0 if job.base is not None else job.cost * part // 100 + (part % 3) * self.overcharge
        execute(job.task, charge, ValueError("no") if outcome == "error" else None)
        job.ran = True
        if not failed and outcome == "done":
            job.charge = job.nbytes = charge
        self.unposted[job.task.lane].append(job.task)

    @precondition(lambda self: any(self.unposted.values()))
    @rule(lane=PICK)
    def post(self, lane: int) -> None:
        """A stream's thread goes on after a task ended: perhaps later than another stream that waited for that task."""
        self.quiet = False
        waiting = [tasks for tasks in self.unposted.values() if tasks]
        self.rig.post(waiting[lane % len(waiting)].popleft(), False)

    @rule(times=st.integers(1, 8))
    def run_some(self, times: int) -> None:
        """Everything happens promptly for a while."""
        for i in range(times):
            if any(self.rig.streams.values()):
                self.run_head(i, "done", 50)
            while any(self.unposted.values()):
                self.post(i)
            self.dispatch()

    def job_of(self, task: Task) -> Job:
        return next(job for job in self.jobs if job.task is task)

    # -- cancelling, waiting, dropping --------------------------------------------------------------------------------

    @precondition(lambda self: self.jobs)
    @rule(pick=PICK, recent=st.booleans())
    def cancel(self, pick: int, recent: bool) -> None:
        jobs = [job for job in self.jobs if job.task.state < DONE] if recent else self.jobs
        if not jobs:
            return
        self.quiet = False
        job = jobs[pick % len(jobs)]
        task = job.task
        self.rig.drain()
        state, cancelled = task.state, task.cancelled
        dependents = [j for j in self.jobs if job in j.inputs]
        asked = self.engine.cancel(task, cancellation(task))
        if state == PENDING:
            assert asked
            assert task.state == CANCELLED
        elif state == LAUNCHED:
            assert asked == (not job.ran and not cancelled)
            assert task.state == LAUNCHED
            assert task.settled or job.ran
        else:
            assert not asked
            assert task.state == state
        if asked:
            assert all(j.task.state != PENDING for j in dependents)
        if task.state == CANCELLED and task is getattr(job.room.claim, "task", None):
            job.room.entered = True

    @precondition(lambda self: self.jobs)
    @rule(pick=PICK)
    def wait(self, pick: int) -> None:
        """Someone registers to be told."""
        jobs = [job for job in self.jobs if job.task.state < DONE]
        if jobs:
            job = jobs[pick % len(jobs)]
            token = Token(job.task.cancelled and job.task not in self.engine._endings.notices)
            job.tokens.append(token)
            if job.task.waiters is None:
                job.task.waiters = []
            job.task.waiters.append(token)

    def held(self) -> list[Job]:
        return [job for job in self.jobs if job.handle is not None]

    @precondition(lambda self: self.held())
    @rule(picks=st.lists(PICK, min_size=1, max_size=4))
    def drop(self, picks: list[int]) -> None:
        self.quiet = False
        for pick in picks:
            if held := self.held():
                held[pick % len(held)].handle = None

    @precondition(lambda self: any(job.handle is not None and job.handle.failure is not None for job in self.jobs))
    @rule(pick=PICK)
    def see(self, pick: int) -> None:
        """An awaiter gets the exception."""
        jobs = [job for job in self.held() if job.handle is not None and job.handle.failure is not None]
        failure = jobs[pick % len(jobs)].handle.failure  # type: ignore[union-attr]
        assert failure is not None
        assert len(failure.exception.__notes__) <= 2
        assert failure.root.seen

    @precondition(lambda self: self.quiet and self.engine.admission.stuck())
    @rule()
    def give_up_on_stuck(self) -> None:
        self.tell_stuck()

    def tell_stuck(self) -> None:
        task = self.engine.admission.stuck()[0]
        self.engine.settle(task, Failure.of(MemoryDeadlockError("no room"), task.name, task.site))
        assert task.state == FAILED
        job = self.job_of(task)
        if job is job.room.claim:
            job.room.entered = True
        self.dispatch()

    # -- what must hold -----------------------------------------------------------------------------------------------

    @invariant()
    def everything(self) -> None:
        if not hasattr(self, "rig"):
            return
        engine, ledger = self.engine, self.engine.ledger
        engine.audit.validate()
        self.shares.wait({job.share[1] for job in self.pending()})
        alive = self.alive()
        for account in self.accounts():
            assert account.used == self.used(account, alive), "bytes are conserved"
            if not self.overcharge and account.limit is not None:
                assert account.used <= account.limit
        assert engine.ledger.reserved == sum(room.core.reserve for room in self.rooms if not room.closed)
        launched = [job for job in self.jobs if job.task.state == LAUNCHED]
        assert ledger.in_flight == len(launched)
        assert ledger.limits.max_ops is None or len(launched) <= ledger.limits.max_ops
        assert sum(lane.load for lane in self.rig.lanes) == len(launched)
        for room in self.rooms:
            assert room.closed == room.core.closed
            if not room.closed:
                assert room.core.account is room.account
                assert room.parent is None or room.core in room.parent.core.children
        if self.quiet:
            self.check_told()
            self.check_idle()

    def accounts(self) -> list[Account]:
        return [room.own_account for room in self.rooms if room.own_account is not None and not room.closed]

    def alive(self) -> set[Job]:
        """Whose value somebody holds."""
        held = {job for job in self.jobs if job.handle is not None or job.task.value is not None}
        for job in self.jobs:
            if job.task.inputs:
                held.update(job.inputs)
        for job in reversed(self.jobs):  # a view is younger than its base
            if job in held and job.base is not None:
                held.add(job.base)
        return held

    def used(self, account: Account, alive: set[Job]) -> int:
        """What must be charged: costs in flight, live values, unused claims, open reserves; drops on their way."""
        total = 0
        for job in self.jobs:
            if _open(job.account) is not account:
                continue
            if not job.task.lanes:
                total += job.cost if job.task.state == DONE and not job.spent else 0
            elif job.granted:
                total += job.cost if job.task.state == LAUNCHED else job.charge
                if job.ran and job not in alive:
                    total -= job.charge
        for room in self.rooms:
            if room.core.reserve and not room.closed and room.own_account is not account:
                assert room.parent is not None
                total += room.core.reserve if room.parent.account is account else 0
        total += sum(
            item[1] for item in self.rig.completions.items if type(item) is tuple and _open(item[0]) is account
        )
        return total

    def check_told(self) -> None:
        """No settlement is lost, and none is told twice."""
        assert not self.engine._endings.notices
        for job in self.jobs:
            for token in job.tokens:
                over = job.task.state >= DONE or (job.task.cancelled and not token.wants_end)
                assert token.calls == over, job
            if job.task.state in (FAILED, CANCELLED):
                assert job.task.failure is not None
                assert job.handle is None or job.handle.failure is not None

    def check_idle(self) -> None:
        """After a dispatch nothing is left that may be admitted, and what is stuck is known."""
        admission, ledger = self.engine.admission, self.engine.ledger
        assert admission.next() is None
        stuck = admission.stuck()
        expected = set()
        if not ledger.full:
            for job in self.pending():
                if not job.blocked and not self.in_flight(job.account):
                    expected.add(job.account)
        assert {task.scope.account for task in stuck} == expected
        assert len(stuck) == len(expected)
        if self.pending() and not ledger.in_flight:
            assert stuck, "the oldest pending task has launched producers"

    # -- who may be admitted ------------------------------------------------------------------------------------------

    def pending(self) -> list[Job]:
        return [job for job in self.jobs if job.task.state == PENDING]

    def in_flight(self, account: Account) -> int:
        return sum(job.task.state == LAUNCHED and job.account is account for job in self.jobs)

    def _checked_next(self) -> Task | None:
        """`next`, with the rules of admission checked on its answer."""
        accounts = {job.account for job in self.pending()}
        before = {account: (account.grace, account.earmark) for account in accounts}
        full = self.engine.ledger.full
        task = self._next()
        queues: dict[Any, list[Job]] = {}
        for job in self.pending():
            queues.setdefault(job.queue, []).append(job)
        alive = self.alive()
        used = {account: self.used(account, alive) for account in accounts}

        def fits(job: Job) -> bool:
            limit = job.account.limit
            return not job.cost or limit is None or used[job.account] + job.cost <= limit

        def ready(job: Job) -> bool:
            return not job.blocked and not (full and job.task.lanes) and fits(job)

        def barred(job: Job) -> bool:
            grace, earmark = before[job.account]
            return earmark is not None and not grace and earmark.scope.queue is not job.queue

        heads = [_head(jobs) for jobs in queues.values()]
        in_order = [job for job in heads if ready(job) and not barred(job)]
        overtaking = [] if in_order or full else self.overtakers(queues, ready, before)
        if task is None:
            assert not in_order
            assert not overtaking
        elif in_order:
            assert task in [job.task for job in in_order]
            able, waiting = {job.share for job in in_order}, {job.share[1] for job in self.pending()}
            self.shares.served(self.job_of(task).share, task.cost, able, waiting)
        else:
            self.shares.overtaken()
            assert task in [job.task for job in overtaking]
            grace = before[task.scope.account][0]
            assert task.scope.account.grace == (grace or GRACE + 1)
        return task

    def overtakers(self, queues: dict[Any, list[Job]], ready: Any, before: dict[Account, Any]) -> list[Job]:
        """Per account in which order may be left, the oldest among the first of each queue that can go."""
        found = []
        for account, (grace, _) in before.items():
            if grace or not self.in_flight(account):
                first = [
                    next((j for j in _in_order(jobs) if j.account is account and ready(j)), None)
                    for jobs in queues.values()
                ]
                candidates = [job for job in first if job is not None]
                if candidates:
                    found.append(min(candidates, key=lambda job: job.task.seq))
        return found

    # -- the end ------------------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        if not hasattr(self, "rig"):
            return
        for job in self.jobs:
            job.handle = None
        for _ in range(10 * len(self.jobs) + 10):
            self.run_some(8)
            self.everything()
            if any(self.rig.streams.values()) or self.rig.completions.items:
                continue
            if self.engine.admission.stuck():
                self.tell_stuck()
            elif not self.engine.ledger.unfinished:
                break
        assert self.engine.ledger.unfinished == 0, "everyone was admitted, or told why not"
        for room in self.rooms:
            if room.claim is not None and not room.entered and not room.claim.spent and room.claim.task.state == DONE:
                room.claim.spent = True
                self.rig.give_back(room.claim.task)
            room.entered = True
        for room in reversed(self.rooms[1:]):
            if room.open:
                self.leave(room)
        self.check_report(self.root, None)
        self.dispatch()
        self.everything()
        ledger = self.engine.ledger
        account = ledger.account
        assert account.used == ledger.reserved == account.in_flight == account.pending == 0
        assert account.earmark is None
        assert (ledger.in_flight, ledger.pending, ledger.claims) == (0, 0, 0)
        assert not ledger.waiting
        assert not any(list(job.queue) for job in self.jobs)
        assert [(lane.load, lane.tail) for lane in self.rig.lanes] == [(0, None)] * len(self.rig.lanes)
        assert account.limit is None or self.overcharge or ledger.peak_bytes <= account.limit


class CarelessMachine(EngineMachine):
    """Estimates are wrong: the bytes may pass the limit for a while, but every one of them is accounted for."""

    overcharge = 7


def _upwards(account: Account | None) -> list[Account]:
    accounts = []
    while account is not None:
        accounts.append(account)
        account = account.parent
    return accounts


def _open(account: Account) -> Account:
    return next(above for above in _upwards(account) if not above.closed)


def _in_order(jobs: list[Job]) -> list[Job]:
    return sorted(jobs, key=lambda job: (not job.task.expedited, job.task.seq))


def _head(jobs: list[Job]) -> Job:
    """The first at the front if its producers are launched, else the first of the rest."""
    expedited = [job for job in jobs if job.task.expedited]
    rest = [job for job in jobs if not job.task.expedited]
    if expedited and not (expedited[0].blocked and rest):
        return expedited[0]
    return rest[0]


@pytest.mark.timeout(400)  # for a failure to be shrunk: otherwise it takes seconds
@pytest.mark.parametrize(
    ("machine", "examples", "steps"), [(EngineMachine, 400, 50), (CarelessMachine, 100, 50)], ids=["exact", "careless"]
)
def test_random_histories(
    monkeypatch: pytest.MonkeyPatch, machine: type[EngineMachine], examples: int, steps: int
) -> None:
    monkeypatch.setattr(tenants, "QUANTUM", QUANTUM)
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
        ),
    )
