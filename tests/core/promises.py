"""What an engine promises, checked against a model of its history after every step, and at every admission.

The model keeps what the test itself did (see `model`) and works everything else out from that by brute force: which
bytes are charged where, who may be admitted next and how, who must have been told, and who must have woken the loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant

from asyncsched._core import engine as engine_module
from asyncsched._core.admission import GRACE
from asyncsched._core.failure import Failure
from asyncsched._core.instrument import EVENTS, Instrument
from asyncsched._core.model import CANCELLED, DONE, FAILED, LAUNCHED, PENDING, Account, Task
from asyncsched.errors import MemoryDeadlockError
from tests.validate import validate

from .model import Job, Room, head_of, in_order, open_account
from .rig import Rig, execute
from .shares import Shares

QUANTUM = 10  # so small that bytes count in the turns
MOST_INLINE = 5  # so few that a dispatch comes to it


class Promises(RuleBasedStateMachine):
    """The checks. What happens is up to the machine that inherits them."""

    overcharge = 0  # by how much a result may be larger than its task's cost

    @initialize(
        max_ops=st.sampled_from([1, 2, 3, 5, None]),
        max_bytes=st.sampled_from([20, 50, 100, None]),
        max_pending=st.sampled_from([3, 12, None]),
        lanes=st.integers(1, 3),
        observed=st.booleans(),
    )
    def start(
        self, max_ops: int | None, max_bytes: int | None, max_pending: int | None, lanes: int, observed: bool
    ) -> None:
        self.rig = Rig(max_ops=max_ops, max_bytes=max_bytes, max_pending=max_pending, lanes=lanes)
        self.engine = self.rig.engine
        self.ledger = self.engine.ledger
        if observed:  # told of, some things go another way
            self.ledger.observe(Instrument(), EVENTS)
        self.jobs: list[Job] = []
        self.root = Room(self.rig.root, None)
        self.rooms = [self.root]
        self.unposted: dict[Any, deque[Task]] = {lane: deque() for lane in self.rig.lanes}
        self.shares = Shares(QUANTUM)
        self.shares.opened(self.root.share, self.root.share, 1, self.rig.root.queue.tenant)
        self.exact = not self.overcharge  # whether tracked bytes stay within the limit
        self.quiet = True  # nothing happened since the last dispatch
        self.owed = False  # something happened after which a dispatch is due, without a wake-up
        self.thinking = False  # nothing comes in between while the model works something out
        self.given: Task | None = None  # what admission gave last
        self.passing: set[Task] = set()  # what may pass the queues
        self.cancelled_midway: set[Task] = set()  # by finalisers, in the middle of a change
        self.queued: list[Task] = []  # what has joined a queue
        self.here = 0  # quick tasks that ran in this dispatch
        self._wrap()

    def _wrap(self) -> None:
        """Look on at what the engine asks of its parts and of its host."""
        admission, engine, rig = self.engine.admission, self.engine, self.rig
        self._next, self._push, self._dispatch = admission.next, admission.push, engine.dispatch
        self._launch = rig.launch
        admission.next, admission.push = self._checked_next, self._noted_push  # type: ignore[method-assign]
        engine.dispatch = self._counted_dispatch  # type: ignore[method-assign]
        rig.launch, rig.run_inline = self._checked_launch, self._checked_run  # type: ignore[method-assign]
        rig.on_interrupted = self._interrupted  # type: ignore[method-assign]

    @staticmethod
    def _interrupted(error: BaseException) -> None:
        raise AssertionError("an exception left a change in the middle") from error

    # -- what must hold -----------------------------------------------------------------------------------------------

    @invariant()
    def everything(self) -> None:
        if not hasattr(self, "rig"):
            return
        ledger = self.ledger
        validate(self.engine)
        assert not self.engine._postponed
        if ledger.unfinished:
            assert not self.rig.completions.immediate_thread, "else a drop is not seen by the next scan"
        self.shares.wait({job.share[1] for job in self.pending()})
        alive = self.alive()
        for account in self.accounts():
            assert account.used == self.used(account, alive), "bytes are conserved"
            if self.exact and account.limit is not None:
                assert account.used <= account.limit
        assert ledger.reserved == sum(room.core.reserve for room in self.rooms if not room.closed)
        launched = [job for job in self.jobs if job.task.state == LAUNCHED]
        assert ledger.in_flight == len(launched)
        assert ledger.limits.max_ops is None or len(launched) <= ledger.limits.max_ops
        assert sum(lane.load for lane in self.rig.lanes) == len(launched)
        for job in self.jobs:
            assert job.joined, "nothing is lost"
            assert job.starts == (job.granted and job.task.state != PENDING and bool(job.task.lanes))
        for state, count in ledger.ended.items():
            assert count == sum(job.task.state == state for job in self.jobs if job.task.lanes)
        for room in self.rooms:
            assert room.closed == room.core.closed
            if not room.closed:
                assert room.core.account is room.account
                assert not room.core.reserve or room.core.account.limit == room.core.reserve
                assert room.parent is None or room.core in room.parent.core.children
        if self.quiet:
            self.check_told()
            self.check_idle()
        elif not self.owed and not self.rig.completions.awake and not self.running():
            self.check_woken()

    def running(self) -> bool:
        """Whether something will be posted by itself."""
        return any(self.rig.streams.values()) or any(self.unposted.values())

    def pending(self) -> list[Job]:
        return [job for job in self.jobs if job.pending]

    def in_flight(self, account: Account) -> int:
        return sum(job.task.state == LAUNCHED and job.account is account for job in self.jobs)

    def job_of(self, task: Task) -> Job:
        return next(job for job in self.jobs if job.task is task)

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

    def used(self, account: Account, alive: set[Job], *, taken_in: bool = False) -> int:
        """What must be charged: costs in flight, live values, unused claims, open reserves; drops on their way, unless
        they are `taken_in`."""
        total = sum(job.held(alive) for job in self.jobs if open_account(job.account) is account)
        for room in self.rooms:
            if room.core.reserve and not room.closed and room.own_account is not account:
                assert room.parent is not None
                total += room.core.reserve if room.parent.account is account else 0
        drops = [item for item in self.rig.completions.items if type(item) is tuple]
        return total + (0 if taken_in else sum(item[1] for item in drops if open_account(item[0]) is account))

    def check_told(self) -> None:
        """No settlement is lost, and none is told twice."""
        assert not self.engine._endings.notices
        for job in self.jobs:
            for token in job.tokens:
                over = job.task.state >= DONE or (job.task.cancelled and not token.wants_end)
                assert token.calls == over, job
            if job.task.state in (FAILED, CANCELLED):
                assert job.task.failure is not None
                assert job.task.state == (CANCELLED if job.task.failure.cancelled else FAILED)
                assert job.task.cancelled <= job.task.failure.cancelled
                assert job.handle is None or job.handle.failure is not None

    def check_idle(self) -> None:
        """After a dispatch nothing is left that may be admitted, and what is stuck is known."""
        admission, ledger = self.engine.admission, self.ledger
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

    def check_woken(self) -> None:
        """Nothing more happens by itself, and nobody woke the loop: so a dispatch would change nothing for anyone."""
        ended = [self.job_of(item) for item in self.rig.completions.items if type(item) is Task]
        assert all(token.calls for job in ended for token in job.tokens), "somebody waits for what has ended"
        if self.pending():
            assert not ended, "a stream ran dry while tasks wait"
            assert self.eligible(*self.waiting(), taken_in=True) == ([], []), "what came free is enough for one"

    # -- who may be admitted ------------------------------------------------------------------------------------------

    def waiting(self) -> tuple[dict[Account, tuple[int, Task | None]], bool]:
        """The accounts in which tasks wait, with their grace and earmarks, and whether all slots are taken."""
        return {job.account: (job.account.grace, job.account.earmark) for job in self.pending()}, self.ledger.full

    def eligible(
        self, accounts: dict[Account, tuple[int, Task | None]], full: bool, *, taken_in: bool = False
    ) -> tuple[list[Job], list[Job]]:
        """Those that may be admitted in order; and, if there are none, those that progress lets go before others."""
        queues: dict[Any, list[Job]] = {}
        for job in self.pending():
            queues.setdefault(job.queue, []).append(job)
        alive = self.alive()
        used = {account: self.used(account, alive, taken_in=taken_in) for account in accounts}

        def ready(job: Job) -> bool:
            limit = job.account.limit
            fits = not job.cost or limit is None or used[job.account] + job.cost <= limit
            return fits and not job.blocked and not (full and job.task.lanes)

        def barred(job: Job) -> bool:
            grace, earmark = accounts[job.account]
            return earmark is not None and not grace and earmark.scope.queue is not job.queue

        ordered = [job for job in map(head_of, queues.values()) if ready(job) and not barred(job)]
        overtaking = [] if ordered or full else self.overtakers(list(queues.values()), ready, accounts)
        return ordered, overtaking

    def overtakers(
        self, queues: list[list[Job]], ready: Callable[[Job], bool], accounts: dict[Account, tuple[int, Task | None]]
    ) -> list[Job]:
        """Per account in which order may be left, the oldest among the first of each queue that can go."""
        found = []
        for account, (grace, _) in accounts.items():
            if grace or not self.in_flight(account):
                first = [
                    next((j for j in in_order(jobs) if j.account is account and ready(j)), None) for jobs in queues
                ]
                candidates = [job for job in first if job is not None]
                if candidates:
                    found.append(min(candidates, key=lambda job: job.task.seq))
        return found

    def _checked_next(self) -> Task | None:
        """`next`, with the rules of admission checked on its answer."""
        given = self.given
        assert given is None or given.state != PENDING, "what was given is not asked for again"
        accounts, full = self.waiting()
        task = self.given = self._next()
        self.thinking = True
        try:
            ordered, overtaking = self.eligible(accounts, full)
            if task is None:
                assert not ordered
                assert not overtaking
            elif ordered:
                assert task in [job.task for job in ordered]
                able, waiting = {job.share for job in ordered}, {job.share[1] for job in self.pending()}
                self.shares.served(self.job_of(task).share, task.cost, able, waiting)
            else:
                self.shares.overtaken()
                assert task in [job.task for job in overtaking]
                grace = accounts[task.scope.account][0]
                assert task.scope.account.grace == (grace or GRACE + 1)
        finally:
            self.thinking = False
        return task

    def _noted_push(self, task: Task) -> None:
        self.queued.append(task)
        self._push(task)

    # -- where it runs ------------------------------------------------------------------------------------------------

    def may_run_here(self, job: Job) -> bool:
        """Whether a task that was admitted runs on the loop's thread: a quick one, if all that it reads is there."""
        if not job.quick or not self.rig.loop_is_free:
            return False
        there = all(read.array is not None and not read.failed for read in job.inputs)
        return there and all(other.task.state >= DONE for other in job.after)

    def _admitted(self, task: Task) -> Job:
        """A task is to run: it is the one whose turn it is, or finds nobody waiting; and it did not run before."""
        job, ledger = self.job_of(task), self.ledger
        if task is not self.given:
            assert task in self.passing
            assert not self.pending(), "what passes the queues finds nobody there"
        assert task.state == LAUNCHED
        assert not task.cancelled or task in self.cancelled_midway
        assert ledger.limits.max_ops is None or ledger.in_flight <= ledger.limits.max_ops
        assert not self.exact or not job.cost or job.account.limit is None or job.account.used <= job.account.limit
        job.starts += 1
        assert job.starts == 1, "nothing runs twice"
        return job

    def _checked_launch(self, task: Task, waits: object) -> int:
        self.thinking = True
        assert not self.may_run_here(self._admitted(task))
        self.thinking = False
        return self._launch(task, waits)

    def _checked_run(self, task: Task) -> None:
        self.thinking = True
        job = self._admitted(task)
        assert self.may_run_here(job)
        self.here += task is self.given
        self.thinking = False
        self.rig.ran.append(task)
        self.ends(job, None, None)

    def ends(self, job: Job, charge: int | None, error: BaseException | None) -> None:
        """A task runs to its end, on a stream or on the loop's thread."""
        failed = job.task.cancelled or any(read.failed for read in job.inputs)
        made, failed = charge or 0, failed or error is not None
        call: Any = job.task.call
        if charge is None and call is not None:  # it is as it was made; a gate has no body
            made, failed = call.charge, failed or call.error is not None
        if job.batch is not None and job is job.batch.gate:
            job.batch.decide()
        outer, self.thinking = self.thinking, True  # no finaliser comes here: in a body that is for programs to try
        outcome = execute(job.task, charge, None if job.batch is not None else error)
        self.thinking = outer
        job.ran, job.array = True, outcome.array
        if job.batch is not None:
            job.batch.check_moved(job, outcome)
            if outcome.is_view:
                job.base = job.batch.versions[job]
            elif outcome.charge and not job.batch.core.charged:
                self.exact = False  # it takes a buffer over, whose bytes seem free until its end is taken in
        else:
            assert outcome.charge == (0 if failed else made)
            assert (outcome.array is None) == failed
        if outcome.array is not None:
            job.charge = job.nbytes = outcome.charge

    def _counted_dispatch(self) -> None:
        outer, self.here = self.here, 0
        self._dispatch()
        assert self.here <= engine_module._MOST_INLINE, "the loop breathes"
        if self.here == engine_module._MOST_INLINE and not self.ledger.busy:
            assert self.rig.completions.awake, "and goes on afterwards"
        self.here = outer

    # -- the end ------------------------------------------------------------------------------------------------------

    def tell_stuck(self) -> None:
        """The first stuck task is told that it will never get its bytes."""
        task = self.engine.admission.stuck()[0]
        failure = Failure.of(MemoryDeadlockError("no room"), task.name, task.site)
        job = self.job_of(task)
        self.engine.settle(task, failure)
        if job.batch is None:
            assert task.state == FAILED
        else:  # its members will run, and need no room
            assert (task.state, task.cost) == (PENDING, 0)
            job.batch.given_up, job.recorded = True, failure
        if job is job.room.claim:
            job.room.entered = True
        self.dispatch()

    def dispatch(self) -> None:
        raise NotImplementedError

    def leave(self, room: Room) -> None:
        raise NotImplementedError

    def run_some(self, times: int) -> None:
        raise NotImplementedError

    def check_report(self, room: Room, before: int | None) -> None:
        """Every root cause that nobody saw is reported, and reported once."""
        expected = {
            id(failure)
            for job in self.jobs
            if (failure := job.recorded or job.task.failure) is not None and job.room.inside(room)
            if job.recorded or (job.task.state == FAILED and job.task.lanes)
            if failure.root is failure and not job.reported and not failure.seen
        }
        failures, lost = room.core.take_failures(before)
        assert {id(failure) for failure in failures} == expected
        assert len(failures) == len(expected)
        assert lost == 0
        for job in self.jobs:
            if id(job.recorded or job.task.failure) in expected:
                job.reported = True

    def teardown(self) -> None:
        if not hasattr(self, "rig"):
            return
        for job in self.jobs:
            job.handle = None
        for _ in range(10 * len(self.jobs) + 10):
            self.run_some(8)
            self.everything()
            if self.running() or self.rig.completions.items:
                continue
            if self.engine.admission.stuck():
                self.tell_stuck()
            elif not self.ledger.unfinished:
                break
        assert self.ledger.unfinished == 0, "everyone was admitted, or told why not"
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
        self.check_books()

    def check_books(self) -> None:
        """At the end nothing is left."""
        ledger = self.ledger
        account = ledger.account
        assert account.used == ledger.reserved == account.in_flight == account.pending == 0
        assert account.earmark is None
        assert (ledger.in_flight, ledger.pending, ledger.claims, ledger.claim_bytes) == (0, 0, 0, 0)
        assert not ledger.waiting
        assert not any(list(job.queue) for job in self.jobs)
        assert [(lane.load, lane.tail) for lane in self.rig.lanes] == [(0, None)] * len(self.rig.lanes)
        assert account.limit is None or not self.exact or ledger.peak_bytes <= account.limit
