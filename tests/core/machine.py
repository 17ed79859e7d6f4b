"""What happens to an engine: the rules of its random histories. `promises` has what is checked.

Streams are lists; a task runs, is posted, and is taken in at three different moments, as with real threads.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from asyncsched._core import tenants
from asyncsched._core.model import CANCELLED, DONE, LAUNCHED, PENDING, Account, Lease, Task
from asyncsched.autograd.transaction import commit
from asyncsched.errors import QueueFull, TaskTooLarge
from asyncsched.ops.meta import meta

from .meddler import Meddler
from .model import Batch, Job, Room, Token, upwards
from .promises import Promises
from .rig import cancellation
from .shares import Share

# Costs that just do, or are one more: all the bytes that are neither used nor promised; all that the inputs leave.
REST, MORE, MOST, OVER = -1, -2, -3, -4
MOST_JOBS = 80  # fewer than the failures a scope keeps, and the model is quadratic
PICK = st.integers(0, 10_000)  # an index into a list that only the running test knows; reduced modulo its length
ZEROS = meta((), np.dtype(bool))  # of what has no version before


class EngineMachine(Promises):
    """Estimates are right: no value is charged more than its task's cost."""

    overcharge = 0

    def open_rooms(self) -> list[Room]:
        return [room for room in self.rooms if room.open and room.entered]

    def held(self) -> list[Job]:
        return [job for job in self.jobs if job.handle is not None and job.returned]

    # -- submitting ---------------------------------------------------------------------------------------------------

    @rule(
        room=PICK,
        cost=st.one_of(st.integers(0, 12), st.integers(OVER, 110)),
        inputs=st.lists(PICK, max_size=3),
        kind=st.sampled_from(["plain", "plain", "expedited", "quick", "quick", "quick boom", "view"]),
        bounded=st.booleans(),
        hold=st.booleans(),
        keep=st.sampled_from([True, True, False]),
        after=st.lists(PICK, max_size=2),
    )
    def submit(
        self,
        room: int,
        cost: int,
        inputs: list[int],
        kind: str,
        bounded: bool,
        hold: bool,
        keep: bool,
        after: Sequence[int] = (),
    ) -> None:
        if len(self.jobs) >= MOST_JOBS:
            return
        job = self.job_to_be(room, cost, inputs, kind, keep)
        self.let_wait(job, after)
        task, ledger = job.task, self.ledger
        if bounded or not hold:  # as it does itself: what failed since may have had dependents in the backlog
            self.engine.drain()
            self.owed = True
        needed, limit = self.needed(task.cost, job.inputs, job.account), job.account.limit
        used = self.used(job.account, self.alive())
        fits = limit is None or 0 <= used <= limit - sum(other.cost for other in self.pending()) - task.cost
        too_large = limit is not None and needed > limit and not fits
        failing = any(read.failed for read in job.inputs)
        # What a commit has yet to hand on, since it was given up, takes no room, and is promised none.
        handed_on = any(read.batch is not None and read.task.state < DONE for read in job.inputs)
        assert self.overcharge or failing or handed_on or limit is None or needed <= limit or not fits
        full = bounded and ledger.limits.max_pending is not None and ledger.pending >= ledger.limits.max_pending
        passes = fits and not failing and not hold and not self.pending() and not ledger.full
        self.jobs.append(job)
        self.passing = {task} if passes else set()
        self.queued.clear()
        refusal = self.attempt(task, bounded, hold)
        assert refusal == ((needed, limit) if too_large else "full" if full else None)
        if refusal is not None:
            self.jobs.remove(job)
            assert task.value is None
            return
        assert (task not in self.queued) == passes
        self.quiet = self.quiet and not hold and not self.rig.completions.awake and not self.rig.completions.items
        self.owed = self.owed or hold

    def job_to_be(self, room: int, cost: int, inputs: list[int], kind: str, keep: bool) -> Job:
        """A task that is not submitted yet."""
        rooms, held = self.open_rooms(), self.held()
        where = rooms[room % len(rooms)]
        read = [held[i % len(held)] for i in inputs] if held else []
        cost = self.edge(cost, read, where.account) if cost < 0 else cost
        view = kind == "view" and bool(read)
        handles = [job.handle for job in read]  # a finaliser may drop them at each step from here on
        task, value = self.rig.task(
            *handles,
            cost=0 if view else cost,
            scope=where.core,
            expedited=kind == "expedited",
            quick="quick" in kind,
            name="boom" if "boom" in kind else f"{where.core.name} {kind}",
        )
        if view:
            value.base = Lease(handles[0])
        task.call.charge = self.made(0 if view else cost, room, view)
        task.call.error = ValueError("boom") if "boom" in kind else None
        assert task.scope.account is where.account
        return Job(task, where, value if keep else None, read, read[0] if view else None)

    def let_wait(self, job: Job, picks: Sequence[int]) -> None:
        """Have a task wait for the end of others, as one that writes over what they read."""
        others = [other for other in self.jobs if other.task.state < DONE and other.batch is None and other.returned]
        chosen = dict.fromkeys(others[pick % len(others)] for pick in picks if others)
        job.after = [other for other in chosen if other not in job.inputs]
        if job.after:
            job.task.after = [other.task for other in job.after]

    def edge(self, cost: int, read: list[Job], account: Account) -> int:
        """`REST` and so on, in bytes."""
        if account.limit is None:
            return 0
        if cost in (REST, MORE):
            taken = self.used(account, self.alive()) + sum(job.cost for job in self.pending())
        else:
            taken = self.needed(0, read, account)
        return max(0, account.limit - taken) + (cost in (MORE, OVER))

    def made(self, cost: int, part: int, view: bool) -> int:
        """What a result takes, of what its task was charged."""
        return 0 if view else cost * (part % 101) // 100 + (part % 3) * self.overcharge

    def attempt(self, task: Task, bounded: bool, hold: bool) -> tuple[int, int] | str | None:
        """Not by `pytest.raises`: what it keeps of the exception would hold the inputs, and bytes with them."""
        try:
            self.engine.submit(task, bounded=bounded, hold=hold)
        except TaskTooLarge as error:
            return error.needed, error.limit
        except QueueFull:
            return "full"
        return None

    @rule(seed=st.integers(0, 2**32 - 1), count=st.integers(4, 24))
    def submit_many(self, seed: int, count: int) -> None:
        """A program runs ahead. The order and sizes come from the seed, which is part of the printed history."""
        dice = random.Random(seed)
        rooms = [dice.randrange(10_000) for _ in range(dice.randint(1, 4))]
        holds, moves = dice.choice([0.0, 0.8, 1.0]), dice.choice([0.1, 0.5])
        for _ in range(count):
            self.submit(
                room=dice.choice(rooms),
                cost=dice.choice([0, 1, 3, REST, MORE, MOST, OVER, dice.randint(0, 20), dice.randint(0, 100)]),
                inputs=[dice.randrange(10_000) for _ in range(dice.choice([0, 0, 1, 1, 2, 3]))],
                kind=dice.choice(["plain", "plain", "plain", "expedited", "quick", "quick", "view"]),
                bounded=dice.random() < 0.5,
                hold=dice.random() < holds,
                keep=dice.random() < 0.6,
                after=[dice.randrange(10_000) for _ in range(dice.choice([0, 0, 0, 1, 2]))],
            )
            if dice.random() < moves:
                self.run_some(dice.randint(1, 3))
            if dice.random() < 0.1:
                self.dispatch()
            if dice.random() < 0.1:
                self.drop([dice.randrange(10_000)])

    @rule(room=PICK, count=st.integers(10, 24), cost=st.integers(0, 3), kind=st.sampled_from(["plain", "quick"]))
    def stream_by(self, room: int, count: int, cost: int, kind: str) -> None:
        """Small tasks in one scope, each over soon: what large heads elsewhere have to wait beside."""
        for _ in range(count):
            self.submit(room=room, cost=cost, inputs=[], kind=kind, bounded=False, hold=True, keep=False)
            self.dispatch()
            if any(len(stream) > 1 for stream in self.rig.streams.values()):
                self.run_some(1)

    @rule(room=PICK, count=st.integers(2, 16), cost=st.integers(0, 3), keep=st.booleans())
    def run_of_quick_ones(self, room: int, count: int, cost: int, keep: bool) -> None:
        """Quick tasks, each of which reads the one before: with others they run in one go, or end at a stream."""
        inputs: list[int] = []
        for _ in range(count):
            self.submit(room=room, cost=cost, inputs=inputs, kind="quick", bounded=False, hold=True, keep=True)
            if held := self.held():
                inputs = [self.held().index(held[-1])]
            if not keep and len(held) > 1:
                held[-2].handle = None
                inputs = [len(held) - 2]

    @rule(free=st.booleans())
    def loop_budget(self, free: bool) -> None:
        """Quick tasks have held the loop for long enough, or may again."""
        self.rig.loop_is_free = free

    @rule(
        room=PICK,
        picks=st.lists(PICK, min_size=1, max_size=3),
        gradient=PICK,
        cost=st.integers(0, 12),
        steps=st.sampled_from(["direct", "direct", "by way of another"]),
        first=st.sampled_from([False, False, False, True]),
        hold=st.booleans(),
    )
    def commit(
        self, room: int, picks: list[int], gradient: int, cost: int, steps: str, first: bool, hold: bool
    ) -> None:
        """An optimiser's step: a gate and members, which bring values to their next versions, all of them or none."""
        held = self.held()
        if len(self.jobs) >= MOST_JOBS or not held:
            return
        rooms = self.open_rooms()
        where, read = rooms[room % len(rooms)], held[gradient % len(held)]
        olds: list[Job | None] = list(dict.fromkeys(held[pick % len(held)] for pick in picks))
        if first:
            olds[0] = None
        members: list[Job] = []
        versions: dict[Job, Job | None] = {}
        for old in olds:
            sources = [read] if old is None else [old, read]
            if steps != "direct":
                members.append(self.member(where, sources, cost))
                sources = [*sources[:-1], members[-1]]
            members.append(self.member(where, sources, cost))
            versions[members[-1]] = old
        self.issue_commit(where, members, versions, hold)

    def member(self, where: Room, reads: list[Job], cost: int) -> Job:
        task, value = self.rig.task(
            *[job.handle for job in reads], cost=cost, scope=where.core, name=f"{where.core.name} member"
        )
        value.meta = ZEROS
        task.call.charge = self.made(cost, 100, False)
        return Job(task, where, value, reads)

    def issue_commit(self, where: Room, members: list[Job], versions: dict[Job, Job | None], hold: bool) -> None:
        """As a transaction does."""
        handles = {job.handle: None if old is None else old.handle for job, old in versions.items()}
        task = commit("gate", [job.task for job in members], handles, self.rig.lanes)
        del handles
        made = {id(job.handle): job for job in self.held()}
        outside = [made[id(value)] for value in task.inputs]
        gate = Job(task, where, None, outside)
        limit, needed = where.account.limit, self.needed(task.cost, outside, where.account)
        refused = self.refusal(task)
        assert refused == (limit is not None and needed > limit)
        if refused:
            for job in members:
                job.task.let_go()
            return
        self.quiet, self.owed = False, True
        for job in members:
            job.needs = 0
            job.inputs = [*job.inputs, gate]
        Batch(task.move.commit, gate, members, versions)
        self.jobs += [gate, *members]
        for job in (gate, *members):
            self.engine.submit(job.task, bounded=False, hold=True)
        for job in members:
            if job not in versions:
                job.handle = None
        for old in versions.values():
            if old is not None and not hold:
                old.handle = None

    def refusal(self, task: Task) -> bool:
        try:
            self.engine.require(task)
        except TaskTooLarge:
            return True
        return False

    def needed(self, cost: int, inputs: list[Job], account: Account) -> int:
        """The cost, and the distinct buffers under the inputs that are charged within the account."""
        owners = set()
        for job in inputs:
            while job.base is not None:
                job = job.base
            if any(above is account for above in upwards(job.account)):
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
        self.quiet, self.owed = False, True
        own_queue = own_queue or reserve is not None  # so the tasks of a queue have one account
        outer = rooms[parent % len(rooms)]
        core = self.engine.scopes.open(
            f"scope {len(self.rooms)}",
            outer.core,
            tenants.Share(tenant, weight, priority) if own_queue else None,
        )
        assert (core.queue is outer.core.queue) == (not own_queue)
        for swept in self.rooms:
            if swept.core.closed and not swept.closed:
                assert swept.ended
                assert swept.inside(outer)
                assert not own_queue
                swept.closed = True
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

    @precondition(lambda self: any(room.own_account is not None for room in self.open_rooms()[1:]))
    @rule(pick=PICK, nbytes=st.integers(1, 30), at_once=st.booleans())
    def grow(self, pick: int, nbytes: int, at_once: bool) -> None:
        """Somebody claims more for a reserve."""
        rooms = [room for room in self.open_rooms() if room.parent is not None and room.own_account is not None]
        if not rooms:
            return
        grown = rooms[pick % len(rooms)]
        assert grown.parent is not None
        limit = grown.parent.account.limit
        assert grown.core.account_around is grown.parent.account
        if limit is not None and grown.core.reserve + nbytes > limit:
            return
        self.quiet, self.owed = False, True
        core = self.engine.scopes.open_growth(grown.core, f"growth {len(self.rooms)}")
        room = Room(core, grown.parent, grown.share, entered=False)
        room.grows = grown
        self.rooms.append(room)
        self.give_share(room, grown.share, None, grown.core.queue.tenant.weight, grown.share[1] + 0.5)
        room.claim = Job(self.rig.claim(nbytes, core), room, None, [], None)
        self.jobs.append(room.claim)
        if at_once:
            self.dispatch()
            self.enter(room)

    def give_share(
        self, room: Room, outer: Share, tenant: str | None, weight: float | None, priority: float | None
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
            self.quiet, self.owed = False, True
            if task.state == PENDING:
                assert self.rig.cancel(task)
            elif task.state == DONE:
                claim.spent = True
                self.rig.give_back(task)
            room.claim = None
            room.entered = True
            if room.grows is not None:
                self.leave(room)
        else:
            self.enter(room)

    def enter(self, room: Room) -> None:
        assert room.claim is not None
        task, outer, grown = room.claim.task, room.account, room.grows
        if task.state == DONE and grown is not None:
            self.quiet, self.owed = False, True
            room.claim.spent = True
            if grown.closed:
                self.rig.give_back(task)
            else:
                self.engine.grow_reserve(grown.core, self.rig.claims.pop(task))
        elif task.state == DONE:
            room.claim.spent = True
            self.engine.grant_reserve(room.core, self.rig.claims.pop(task))
            room.own_account = room.core.account
            assert room.own_account.parent is outer
        if task.state != PENDING:
            room.entered = True
            if grown is not None:
                self.leave(room)

    @precondition(lambda self: any(room.open and room is not self.root for room in self.rooms))
    @rule(pick=PICK)
    def end_iteration(self, pick: int) -> None:
        """A window's block is left: the scope stays until its tasks are finished and reported."""
        rooms = [r for r in self.open_rooms() if r is not self.root and r.entered and r.own_account is None]
        if rooms:
            room = rooms[pick % len(rooms)]
            done = not (self.unfinished(room) or room.core.children or room.core.unseen)
            self.engine.end_scope(room.core)
            room.ended, room.closed = True, done  # else a later sweep closes it

    @precondition(lambda self: len(self.open_rooms()) > 1)
    @rule(pick=PICK)
    def close_scope(self, pick: int) -> None:
        rooms = [r for r in self.open_rooms() if r is not self.root and r.entered and not self.unfinished(r)]
        if rooms:
            self.leave(rooms[pick % len(rooms)])

    def leave(self, room: Room) -> None:
        self.quiet, self.owed = False, True
        inside = [r for r in self.rooms if not r.closed and r is not room and r.inside(room)]
        if room.grows is None:
            self.engine.close_scope(room.core)
        else:
            self.engine.scopes.close_growth(room.grows.core, room.core)
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

    # -- running ------------------------------------------------------------------------------------------------------

    @rule()
    def dispatch(self) -> None:
        self.rig.dispatch()
        self.quiet, self.owed = True, False

    @precondition(lambda self: any(self.rig.streams.values()))
    @rule(lane=PICK, outcome=st.sampled_from(["done", "done", "done", "error"]), part=st.integers(0, 100))
    def run_head(self, lane: int, outcome: str, part: int) -> None:
        """The first task of some stream runs to its end. Its completion is not posted yet."""
        self.quiet = False
        streams = list(self.rig.streams.values())
        for stream in streams[lane % len(streams) :] + streams[: lane % len(streams)]:
            before = [*self.job_of(stream[0]).inputs, *self.job_of(stream[0]).after] if stream else []
            if stream and all(job.ran or job.task.state >= DONE for job in before):
                break
        else:
            raise AssertionError("launched in topological order, some stream can always go on")
        job = self.job_of(stream.popleft())
        if job.task.call is not None and job.task.call.error is not None:
            outcome = "error"
        cost = job.nbytes if job.batch is not None else job.cost
        self.ends(job, self.made(cost, part, job.base is not None), ValueError("no") if outcome == "error" else None)
        self.unposted[job.task.lane].append(job.task)

    @precondition(lambda self: any(self.unposted.values()))
    @rule(lane=PICK)
    def post(self, lane: int) -> None:
        """A stream's thread goes on after a task ended: perhaps later than another stream that waited for that task."""
        self.quiet = False
        waiting = [tasks for tasks in self.unposted.values() if tasks]
        tasks = waiting[lane % len(waiting)]
        task = tasks.popleft()
        assert task.lane is not None
        self.rig.post(task, not tasks and not self.rig.streams[task.lane])

    @rule(times=st.integers(1, 8))
    def run_some(self, times: int) -> None:
        """Everything happens promptly for a while."""
        for i in range(times):
            if any(self.rig.streams.values()):
                self.run_head(i, "done", 50)
            while any(self.unposted.values()):
                self.post(i)
            self.dispatch()

    # -- cancelling, waiting, dropping --------------------------------------------------------------------------------

    @precondition(lambda self: self.jobs)
    @rule(pick=PICK, recent=st.booleans())
    def cancel(self, pick: int, recent: bool) -> None:
        jobs = [job for job in self.jobs if job.task.state < DONE] if recent else self.jobs
        if not jobs:
            return
        self.quiet, self.owed = False, True
        job = jobs[pick % len(jobs)]
        task = job.task
        self.rig.drain()
        state, cancelled = task.state, task.cancelled
        below = self.below(job)
        asked = self.engine.cancel(task, cancellation(task))
        if job.batch is not None and state < DONE and not job.ran:
            assert task.state == state, "no task of a commit is cancelled by itself"
            assert not task.cancelled
            assert asked == (not job.batch.go)
            job.batch.given_up = job.batch.given_up or asked
            return
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
            assert all(j.task.settled or j.ran for j in below)
        if task.state == CANCELLED and task is getattr(job.room.claim, "task", None):
            job.room.entered = True

    def below(self, job: Job) -> list[Job]:
        """All that needs what a task makes, but for the tasks of commits, and what those hand on."""
        found = [job]
        for other in self.jobs[self.jobs.index(job) :]:
            if other.batch is None and any(read in found for read in other.inputs):
                found.append(other)
        return found[1:]

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
                job.task.waiters = {}
            job.task.waiters[token] = None
            self.owed = True  # whoever waits takes in first what has ended

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
        notes = [note for note in failure.exception.__notes__ if not note.startswith("cause and cure")]
        assert len(notes) <= 2
        assert failure.root.seen

    @precondition(lambda self: self.quiet and self.engine.admission.stuck())
    @rule()
    def give_up_on_stuck(self) -> None:
        self.tell_stuck()

    # -- in the middle of a change ------------------------------------------------------------------------------------

    @rule(
        seed=st.integers(0, 2**32 - 1),
        gap=st.integers(1, 60),
        change=st.sampled_from(["dispatch", "dispatch", "submit", "cancel", "drain"]),
        where=st.sampled_from(
            ["", "", "launch", "run_inline", "on_cancel", "let_go", "__call__", "ended", "task_ended"]
        ),
    )
    def meddle(self, seed: int, gap: int, change: str, where: str) -> None:
        """A finaliser submits and cancels between two steps of a change."""
        dice = random.Random(seed)
        base = self.changes(dice)[change]
        while any(self.unposted.values()):
            self.post(0)
        with Meddler(self, lambda: self.acts(dice), gap if not where else gap % 4 + 1, where):
            base()
        self.quiet, self.owed = False, True

    def changes(self, dice: random.Random) -> dict[str, Callable[[], object]]:
        return {
            "dispatch": self.rig.dispatch,
            "drain": self.engine.drain,
            "submit": lambda: self.submit_somehow(dice, hold=False),
            "cancel": lambda: self.cancel_somehow(dice),
        }

    def acts(self, dice: random.Random) -> None:
        """What a finaliser does. Where a change is under way, nothing of that happens before it is whole."""
        before = self.counts() if self.ledger.busy else None
        act = dice.choice(["submit", "submit", "cancel", "dispatch", "drain", "drop"])
        if act == "submit":
            self.submit_somehow(dice, hold=dice.random() < 0.3)
        elif act == "cancel":
            self.cancel_somehow(dice)
        elif act == "dispatch":
            self.engine.dispatch()
        elif act == "drop" and (held := self.held()):
            dice.choice(held).handle = None
        else:
            self.engine.drain()
        assert before in (None, self.counts())

    def counts(self) -> tuple[int, ...]:
        """The numbers that every change changes."""
        ledger = self.ledger
        return ledger.sequence, ledger.unfinished, ledger.pending, ledger.in_flight, ledger.ended_tasks

    def submit_somehow(self, dice: random.Random, *, hold: bool) -> None:
        if len(self.jobs) >= MOST_JOBS:
            return
        kind = dice.choice(["plain", "quick", "quick", "quick boom", "expedited", "view"])
        inputs = [dice.randrange(10_000) for _ in range(dice.choice([0, 1, 1, 2]))]
        job = self.job_to_be(dice.randrange(10_000), dice.choice([0, 1, 3, 20]), inputs, kind, dice.random() < 0.6)
        job.returned = False
        self.jobs.append(job)
        self.passing.add(job.task)  # at once, or when the change is whole
        if self.attempt(job.task, False, hold) is not None:
            self.jobs.remove(job)
        job.returned = True

    def cancel_somehow(self, dice: random.Random) -> None:
        jobs = [job for job in self.jobs if job.task.state < DONE and job.task.lanes and job.returned]
        if jobs:
            job = dice.choice(jobs)
            if job.batch is not None:
                job.batch.unsure = True
            if self.ledger.busy:
                self.cancelled_midway.add(job.task)
            self.engine.cancel(job.task, cancellation(job.task))


class CarelessMachine(EngineMachine):
    """Estimates are wrong: the bytes may pass the limit for a while, but every one of them is accounted for."""

    overcharge = 7
