"""The watch over stuck tasks: it fails tasks to end a deadlock, and tells of stalls that last.

Theory of operation. The engine says which tasks are stuck: they lack only bytes, and nothing in flight will free any.
Either somebody outside will drop bytes, or nobody ever will. There are three grades of knowing:

1. *Certain*, told at once: pending tasks alone hold all the bytes; or the event loop has nothing left to do, also after
   the holders were searched for (see `loop_work`), so no coroutine can go on, whoever holds what. MemoryDeadlockError.
2. *Probable*, told after `PROBABLE` seconds without progress in an account: something may still happen in the loop, but
   a search finds that everybody who holds the bytes waits here, and no timer or thread leads to one of them (see
   `deadlock`). So there are two independent signs, and time for whatever was overlooked. MemoryDeadlockError.
3. *Neither*: after `FIRST_LOG` seconds one line in the log, and then at most one every `NEXT_LOG` for an account, from
   what the ledger knows. It fails only after the user's `stall_timeout`, if that is set: SchedulerStalled.

Each account has its own clock (`_Stall`), which runs while the account is stuck. It begins anew when another task is
the first, or when fewer bytes are held than ever in this stall: bytes that come back and are taken again are no
progress. When a task fails, its bytes may let some others go on, until these are stuck again behind a task that waited
all the time. That is the same deadlock, so it is told after `AGAIN` seconds. Otherwise a program with several such
rounds would stand still for `PROBABLE` seconds in each.

The engine calls `update` after each dispatch while tasks are stuck. So `update` must be cheap: it compares. Everything
else is done in looks, one in the loop's next iteration, and then one after each pause. A look first tries what may free
bytes. It collects garbage, since a dead cycle may hold them (a stored exception with its frames): young garbage at
once, and all of it after a while. It asks those with bytes to spare (`reclaimers`: a pipeline's read-ahead).
Collections of young garbage that free nothing get a twentieth of the loop's time; those of all garbage, and searches, a
hundredth, unless the last one freed bytes, or told a deadlock.

Another thread searches, so that the loop goes on. Its findings count if the account is still as it was, and if no timer
leads by now to one of those who wait. If the loop has nothing left to do, that thread first collects all garbage, since
nobody needs the loop meanwhile. In that case it does not judge who waits. If something may happen in the loop again
when the search is over, the deadlock is not certain, and the next look begins anew.

*Scopes that grow* (`Scope.grow`) often wait for each other, and expect Preempted. No search is needed, since the ledger
knows what they hold: see `to_preempt`.

*Which task fails.* One failure may free the bytes that all others wait for: its awaiter unwinds, and drops what it
held. So the oldest stuck task fails, and further ones only as long as no waiter was woken and no bytes came free: of
eighty tasks issued ahead, all fail up to the one that is awaited. They fail for one cause, which is reported once in
each scope. If nobody awaits a task that fails, its bytes may let the program go on to the next such stall, and so on to
its end, without a word. So that is logged, at most every `NEXT_LOG` seconds. The awaiter may go on without releasing
anything (it gathers exceptions, or tries the next task). Then it is the same stall: it is looked at soon, its clock
goes on, and each look fails twice as many of the tasks that waited then. So n of them fail in log n looks. If callers
of a batcher keep reserves, the last of them gets the error instead, and the batch goes on.

Alternatives. A walk of the heap that convicts by itself was tried for long, and was wrong in both directions: any
callback may end a coroutine or empty a queue. A timeout alone cannot tell a deadlock from a slow consumer; it exists,
off by default. Claims made in advance prevent deadlocks, and are offered: `s.scope(reserve=...)`.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from threading import get_ident
from time import perf_counter, sleep, thread_time

from .._core.audit import growths, held_by_pending, sufficient_limit, to_preempt
from .._core.failure import Failure
from .._core.model import PENDING, Account, Scope, Task
from .._system import log, start_thread
from ..errors import AsyncSchedError, MemoryDeadlockError, Preempted, SchedulerStalled
from .deadlock import BUDGET, Finding, investigate, line_told, text_told
from .loop_work import LOOKING, bound, may_happen
from .runtime import Runtime

FIRST_LOOK = 0.05  # seconds until the first look at the loop
NEXT_LOOK = 0.025  # seconds until the next look, if tasks failed or bytes were reclaimed, and tasks are stuck again
LONGEST = 1.0  # the longest pause between two looks
OVERDUE = 0.25  # seconds after which a scope that waits to grow may preempt another, though one goes on
WHOLE = 0.25  # seconds of a stall before all garbage is collected though the loop has other work
PROBABLE = 10.0  # seconds of a stall after which a search may tell a deadlock
AGAIN = 0.5  # as `PROBABLE`, if the first task waited already when the last deadlock was told
FIRST_LOG = 5.0  # seconds of a stall until it is logged
NEXT_LOG = 30.0  # seconds until an account's stalls may be logged again
LONGEST_SEARCH = 2.0  # seconds of another thread
IN_VAIN = 0.05  # the largest share of time for `_little` while it frees nothing
RARE = 0.01  # as `IN_VAIN`, for collections of all garbage, and for searches while the loop has other work
_NOBODY = "nobody awaits the tasks that fail: a window in the loop that makes them raises it"
_BLOCK = 300e-9  # seconds of a whole collection for each block of memory. A guess

_State = tuple[int, int, int]  # of a stuck account: the number of its first task, bytes held, and growths so far


@dataclass(slots=True)
class _Stall:
    """A time without progress in an account.

    Attributes:
        number: that of its first stuck task.
        least: the least bytes held so far.
        since: when it last got stuck; None while it is not.
        before: seconds that it was stuck before that.
        under: the number of the next task when a probable deadlock was told here: lower ones waited then.
        failed: if tasks were failed and nothing has come free since: the bytes held, the number under which tasks
            belong to this stall, and how many with waiters to fail next.
    """

    number: int
    least: int
    since: float | None = None
    before: float = 0.0
    under: int = 0
    failed: tuple[int, int, int] | None = None

    def seconds(self, now: float) -> float:
        return self.before + (0.0 if self.since is None else now - self.since)

    def is_probable(self, seconds: float) -> bool:
        """Whether so many seconds without progress are enough for a search to tell a deadlock."""
        return seconds >= PROBABLE or (seconds >= AGAIN and self.number < self.under)


class StallWatch:
    """Watches one scheduler's stuck tasks. All its work happens in callbacks of the loop."""

    def __init__(self, runtime: Runtime, timeout: float | None) -> None:
        self._runtime = runtime
        self._timeout = inf if timeout is None else timeout
        self._stuck: dict[Account, _State] = {}
        self._stalls: dict[Account, _Stall] = {}
        self._pause = FIRST_LOOK
        self._due = 0.0  # when the next look is due
        self._searched = dict[Account, _State]()  # what was stuck when the search began that goes on
        self._may_log: dict[Account, float] = {}  # when a stall may be logged again
        self._may_try = dict[float, float]()  # when what has this share of time may be tried again
        self._paid = 0.0  # seconds of the last collection of all garbage, if it freed bytes
        self._may_search = 0.0
        self._unseen = 0.0  # when a failure that nobody awaits may be logged again
        self._later: asyncio.TimerHandle | None = None

    @property
    def _loop(self) -> asyncio.AbstractEventLoop:
        assert self._runtime.loop is not None
        return self._runtime.loop

    def update(self, stuck: Sequence[Task]) -> None:
        """Take in which tasks are stuck now. Cheap, since it is called after each dispatch."""
        growths = self._runtime.ledger.growths  # with one more, perhaps all wait to grow
        states = {task.scope.account: (task.seq, task.scope.account.used, growths) for task in stuck}
        if states == self._stuck:
            return
        now, again = perf_counter(), False
        for account in self._stuck.keys() - states.keys():  # its clock goes on if it is the same stall again
            left = self._stalls[account]
            left.before, left.since, left.failed = left.seconds(now), None, None
        self._stalls = {account: stall for account, stall in self._stalls.items() if account.pending}
        for account, (number, used, _) in states.items():
            stall = self._stalls.get(account)
            if stall and stall.failed and used == stall.failed[0] and number < stall.failed[1]:
                stall.number, again = number, True  # tasks failed, and nothing came free
            elif stall is None or stall.number != number or used < stall.least:
                stall = self._stalls[account] = _Stall(number, used, under=0 if stall is None else stall.under)
            stall.since = now if stall.since is None else stall.since
        self._stuck = states
        if states:
            self._plan(NEXT_LOOK if again else 0.0)
        elif self._later is not None:
            self._later.cancel()
            self._later = None

    def _plan(self, pause: float) -> None:
        """Plan the next look, unless an earlier one is planned: changes elsewhere do not put it off."""
        due = perf_counter() + pause
        if self._later is None or due < self._due:
            if self._later is not None:
                self._later.cancel()
            self._pause, self._due, self._later = pause, due, self._loop.call_later(pause, self._look)

    def _known(self) -> list[Task]:
        """The stuck tasks, of accounts that `update` knows of. (There may be others: `statistics()`, say, takes in ends
        without a dispatch.)"""
        return [task for task in self._runtime.engine.admission.stuck() if task.scope.account in self._stuck]

    def _waited(self) -> float:
        """Seconds of the longest stall."""
        return max([self._stalls[account].seconds(perf_counter()) for account in self._stuck])

    def _look(self) -> None:
        """Free what can be freed. If nothing can, find out whether this is a deadlock, or has lasted too long."""
        self._later = None
        if not self._helps() and not self._searched:
            self._judge(self._known(), may_happen(self._loop))
        if self._stuck and self._later is None:
            self._plan(max(FIRST_LOOK, min(2 * self._pause, LONGEST, self._timeout - self._waited())))

    def _helps(self) -> bool:
        """Try what needs no search. Returns whether that changed who is stuck."""
        runtime, waited = self._runtime, self._waited()
        if self._tries(self._little, IN_VAIN):
            return True
        if waited >= (self._paid or max(WHOLE, sys.getallocatedblocks() * _BLOCK / RARE)):
            self._paid = self._tries(gc.collect, RARE)
            if self._paid:
                return True
        if any(reclaim() for reclaim in runtime.reclaimers):
            runtime.dispatch()
            if self._stuck:  # perhaps others took as many bytes: then this is the same stall
                self._plan(NEXT_LOOK)
            return True
        return bool(runtime.ledger.growths) and self._preempts()

    def _tries(self, attempt: Callable[[], object], share: float) -> float:
        """Try something, unless vain attempts have used up this share of time. Returns the seconds that it took, if it
        changed who is stuck; else 0."""
        if perf_counter() < self._may_try.get(share, 0.0):
            return 0.0
        before, began = self._stuck, thread_time()  # not the clock, which counts other threads
        self._runtime.completions.wants_bytes = False  # freed bytes are taken in at once, without a wake-up
        attempt()
        spent = thread_time() - began
        self._runtime.dispatch()
        helped = self._stuck is not before
        self._may_try[share] = 0.0 if helped else perf_counter() + spent / share
        return helped * spent

    def _little(self) -> None:
        """Collect young garbage, and fail a task if pending tasks alone hold all bytes."""
        engine, root = self._runtime.engine, self._runtime.ledger.account
        for generation in (0, 1):  # what outlives a collection is older afterwards, and may be garbage soon
            gc.collect(generation)
            if self._runtime.completions.items:
                return
        for task in self._known():
            if task.scope.account is root and 0 < root.used == held_by_pending(engine.admission.tasks()):
                held = Finding(lines=["pending tasks hold all of it as their inputs"])
                self._fail_stuck(task, self._deadlock(task, held))

    def _judge(self, stuck: Sequence[Task], why: str | None) -> None:
        """Search for the holders if it is time. Log what is known."""
        now, due = perf_counter(), False
        for task in stuck:
            account = task.scope.account
            stall, seconds = self._stalls[account], self._stalls[account].seconds(now)
            late = seconds >= self._timeout
            due = due or why is None or late or (stall.is_probable(seconds) and now >= self._may_search)
            if why is not None and seconds >= FIRST_LOG and now >= self._may_log.get(account, 0.0):
                self._log(account, line_told(self._runtime, task, seconds, why))
        if due:
            self._search(why is None)

    def _search(self, certain: bool) -> None:
        """Search for holders on a thread of its own. If nobody can go on, all garbage is collected before, there."""
        runtime, loop, loops, stuck = self._runtime, self._loop, get_ident(), self._stuck

        def search() -> None:
            findings: dict[Account, Finding] = {}
            if certain:
                sleep(1e-3)  # until the loop sleeps, since a collection stops all threads
                gc.collect()
            with suppress(Exception):  # an object changed its size during the search, or a class of the user's raised
                budget = BUDGET if certain else LONGEST_SEARCH
                findings = investigate(runtime, stuck, budget, certain=certain, thread=loops)
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._found, findings, certain, thread_time())

        self._searched = stuck
        try:
            start_thread(search, "looks for a deadlock")
        except RuntimeError:  # no thread is left: the loop waits for the search
            search()

    def _found(self, findings: dict[Account, Finding], certain: bool, seconds: float) -> None:
        """Take in what another thread found in so many seconds. Tell it, if the account is as it was."""
        states, self._searched = self._searched, {}
        self._may_search = perf_counter() + (0.0 if certain else seconds / RARE)  # a loop that sleeps loses no time
        self._runtime.dispatch()  # takes in objects that only the search held
        certain = certain and may_happen(self._loop) is None
        # The search may have missed a timer: that of a task which ran just then. Here none runs.
        may_end = bound(self._loop, get_ident()) if any(one.deadlock for one in findings.values()) else set()
        for task in self._known():
            account = task.scope.account
            stall, finding = self._stalls[account], findings.get(account, Finding())
            lasted = stall.seconds(perf_counter())
            probable = finding.deadlock and stall.is_probable(lasted) and may_end.isdisjoint(finding.waiting)
            if (certain or probable) and self._stuck.get(account) == states.get(account):
                # The next search may come at once; after a caller got the error, it leaves first
                self._may_search = 0.0 if finding.caller is None else perf_counter() + FIRST_LOOK
                if not certain and task.seq >= stall.under:
                    stall.under = self._runtime.engine.ledger.sequence
                if finding.caller is None:
                    self._fail_stuck(task, self._deadlock(task, finding))
                elif not finding.caller.done():
                    finding.caller.set_exception(self._deadlock(task, finding))
                break
            if lasted >= self._timeout:
                text = f"after stall_timeout={self._timeout:g} s: {self._deadlock(task, finding)}"
                self._fail_stuck(task, SchedulerStalled(text))
                break

    def _log(self, account: Account, text: str) -> None:
        """Log what is known of an account. For a while its stalls are not logged again, whatever the text was."""
        now = perf_counter()
        self._may_log = {one: at for one, at in self._may_log.items() if at > now} | {account: now + NEXT_LOG}
        log.warning("%s", text)

    def _preempts(self) -> bool:
        """Preempt a scope, if scopes wait for each other to grow: see `to_preempt`. Returns whether they did."""
        engine, longest = self._runtime.engine, self._runtime.room.longest_growth
        for task in self._known():
            account = task.scope.account
            victim = to_preempt(engine.root, account, longest(account) >= OVERDUE)
            if victim is not None:
                self._preempt(victim)
                return True
        return False

    def _preempt(self, victim: Scope) -> None:
        engine, claims = self._runtime.engine, growths(victim)
        victim.preempted = True
        engine.ledger.preempted += 1
        account, needed = claims[0].scope.account, victim.reserve + sum([claim.cost for claim in claims])
        error = Preempted(
            f"scope {victim.name!r}, of {victim.reserve:,} bytes, waits to grow to {needed:,}, and so do older scopes:"
            f" leave it, which gives its bytes back, and start over in a new one, by s.scope(reserve={needed})",
            sufficient_limit(engine.admission.tasks(), account),
            account.limit,
            needed,
        )
        for claim in claims:
            engine.settle(claim, Failure.of(error, claim.name, claim.site))
        self._runtime.dispatch()

    def _deadlock(self, task: Task, finding: Finding) -> MemoryDeadlockError:
        needed = sufficient_limit(self._runtime.engine.admission.tasks(), task.scope.account)
        return MemoryDeadlockError(text_told(task, finding, needed), needed, task.scope.account.limit)

    def _fail_stuck(self, first: Task, error: AsyncSchedError) -> None:
        """Fail a stuck task, and further ones until enough waiters are woken, or bytes come free."""
        engine, account = self._runtime.engine, first.scope.account
        stall = self._stalls[account]
        used, before, most = stall.failed or (account.used, engine.ledger.sequence, 1)
        more = most
        failures: dict[Scope, Failure] = {}
        waiting = [task for task in engine.admission.tasks() if task.scope.account is account and task.seq < before]
        for task in sorted(waiting, key=lambda task: task.scope is not first.scope):  # by age in each scope
            if task.state != PENDING or task.blockers:
                continue
            known, which = failures.get(task.scope), (task.name, task.site)
            failure = Failure.of(error, *which) if known is None else known.alongside(*which)
            failures.setdefault(task.scope, failure)
            more -= engine.settle(task, failure)
            engine.drain()
            if more <= 0 or account.used < used:
                break
        if more == most and perf_counter() >= self._unseen:
            self._unseen = perf_counter() + NEXT_LOG
            self._log(account, f"{error}\n{_NOBODY}")
        stall.failed = used, before, 2 * most
        self._runtime.dispatch()


LOOKING |= {StallWatch._look, StallWatch._found, Runtime._look_up}
