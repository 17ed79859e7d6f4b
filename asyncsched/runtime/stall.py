"""Why nothing moves: finding out whether a stuck queue is a deadlock, and telling the tasks concerned.

Theory of operation. The engine says which tasks are stuck: they lack only bytes, and nothing in flight will free any.
Then either someone outside will drop what they hold, or nobody ever will. The second is a deadlock, and is proved,
never guessed: every holder of every byte must have been found, and be a coroutine that itself waits for a stuck task.
(`deadlock` does the finding.)

The engine calls `update` after each dispatch while anything is stuck, and once when nothing is any more. So it must
cost next to nothing: it compares a signature of what is stuck with the last one, and only a new one starts timers.
Then, as long as the signature stays:

1. *At once*, in the next iteration of the loop: a collection of young garbage, since a dead cycle (an exception that
   was kept, and the frames it passed) may hold the bytes. As long as that frees some it comes each time: nothing else
   would. Those that free none get a twentieth of the loop's time, and come later where that is used up. Those who have
   bytes to spare are asked for them (`reclaimers`: a pipeline's read-ahead). If pending tasks alone hold all the bytes
   it is a deadlock, and no search is needed; to see that takes of the same share of time.
2. *After `FIRST_LOOK`*: a whole collection; then the search for holders. It is repeated after pauses that double, since
   the loop stands still meanwhile, and holders outside may take hours. If the collection freed some, cycles have
   outlived those of young garbage, and more will: from then on a stall need only last as long as a whole one takes.
   Each that frees none doubles that; one that takes longer than a search may, and frees none, is the last. Looks that
   find no deadlock get a twentieth of the loop's time, also of one stall after another.

   Where more than `MANY` wait another thread searches, so that the loop goes on, and the collection comes after that.
   It begins after `EARLY` already, since it takes longer, unless such searches were in vain lately.
   Who runs meanwhile may let go of something, or get hold of it. So before anybody is told, what was found is compared
   with what is: those who wait have not moved, and each object has the references that were found, and no other.
3. *After `FIRST_LOG`*, and then every `NEXT_LOG`: the holders found so far are logged.
4. *After the user's `stall_timeout`*, if there is one: SchedulerStalled.

*Scopes that grow* (`Scope.grow`) wait for each other as a matter of course, and are there to be told so. No search is
needed, since the ledger knows what they hold: see `to_preempt`. It is asked at once, also when one more of them waits.

Whom to fail. One failure may free what all others wait for: its awaiter unwinds, and drops what it held. So the oldest
stuck task is failed, and on with the next only as long as that wakes nobody and frees nothing: of eighty that were
issued ahead all fail up to the one that is awaited. They fail for one cause, which is told once, with their number. If
the awaiter goes on without letting go of anything (it gathers exceptions, or tries the next), the stall is the same
one: it is looked at soon, `stall_timeout` counts from its beginning, and of those who waited then twice as many are
told each time. So n of them are told in log n looks. Where callers of a batcher keep reserves, the last of them is told
instead, and the batch goes on.

Alternatives. A timeout alone cannot tell a deadlock from a slow consumer, and says nothing of the cause; it is there,
off by default. A graph of who holds what and who waits for whom, kept up to date, would show a deadlock at once, but
would have to be told of every variable that a handle is put in; here nothing is paid until something is stuck. Claims
made in advance prevent deadlocks, and are offered: `s.scope(reserve=...)`. The times below are guesses: long enough
that a program which is merely slow seldom pays for a search, short enough for a person who waits for the message.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import inf
from threading import Thread
from time import perf_counter, thread_time
from typing import Final

from .._core.audit import growths, held_by_pending, sufficient_limit, to_preempt
from .._core.callsite import line_of
from .._core.failure import Failure
from .._core.model import PENDING, Account, Scope, Task
from .._log import Log
from ..errors import AsyncSchedError, MemoryDeadlockError, Preempted, SchedulerStalled
from .deadlock import BUDGET, Evidence, Finding, investigate
from .runtime import Runtime

log: Final = Log("asyncsched")

FIRST_LOOK = 0.25  # seconds without change before holders are looked for
NEXT_LOOK = 0.025  # the same, where some were told and nothing was freed by that, unless many wait
EARLY = 0.05  # the same, where another thread does
FIRST_LOG = 1.0
NEXT_LOG = 30.0
MANY = 1000  # asyncio tasks that wait here: the loop would stand still for long, so another thread searches
IN_VAIN = 0.05  # the share of time that collections of young garbage may take which free nothing, and searches in vain


class StallWatch:
    """Watches one scheduler's stuck tasks. All its work happens in callbacks of the loop."""

    def __init__(self, runtime: Runtime, timeout: float | None) -> None:
        self._runtime = runtime
        self._timeout = timeout
        self._signature: object = None  # what was stuck, and how
        self._growths = 0  # how many claims to grow there were by then
        # Where tasks were failed and no bytes came free by that: the bytes held, and under which number tasks belong to
        # that stall.
        self._told: dict[Account, tuple[int, int]] = {}
        self._at_a_time = 1  # tasks to fail at a look, of those that somebody waits for
        self._since = 0.0  # when the stall began
        self._began = 0.0  # the same, or since when some were told
        self._pause = FIRST_LOOK
        self._logged = FIRST_LOG
        self._may_collect = 0.0  # when garbage may be collected again, and what pending tasks hold be counted
        self._may_search = 0.0  # when it may be searched again, unless something is to be told by then
        self._wasted = 0.0  # seconds that the last collection of all garbage took, if it freed nothing
        self._patience = inf  # after how long all garbage is collected, if before the first thorough look
        self._searching = False  # on another thread
        self._overdue: asyncio.TimerHandle | None = None  # while scopes wait to grow
        self._soon: asyncio.Handle | None = None
        self._later: asyncio.TimerHandle | None = None

    def update(self, stuck: Sequence[Task]) -> None:
        """Tell which tasks are stuck now. Cheap: called after every change."""
        if not stuck:
            if self._signature is not None:
                self.stop()
            return
        signature = [(task.seq, task.scope.account.used) for task in stuck]
        grows = self._growths != self._runtime.ledger.growths  # one more waits to grow: perhaps the last that went on
        self._growths = self._runtime.ledger.growths
        if signature != self._signature:
            self._begin(signature, stuck)
        elif grows:
            self._look_soon()
        else:
            return
        self._watch_growths(grows)

    def _watch_growths(self, grows: bool = False) -> None:
        """Look again, while scopes wait to grow, since one may have waited for long though others go on."""
        waiting = self._runtime.room.waiting if self._growths else ()
        if self._overdue is None and (grows or any(claim.scope.grows for claim in waiting)):
            assert self._runtime.loop is not None
            self._overdue = self._runtime.loop.call_later(FIRST_LOOK, self._look_at_growths)

    def _look_at_growths(self) -> None:
        self._overdue = None
        self._look(False)
        if self._signature is not None:
            self._watch_growths()

    def _begin(self, signature: object, stuck: Sequence[Task]) -> None:
        told = {}
        for first in stuck:
            account = first.scope.account
            used, before = self._told.get(account, (-1, 0))
            if account.used == used and first.seq < before:
                told[account] = used, before
        self.stop()
        self._signature, self._told = signature, told
        if told:  # a search on another thread holds what it looks at: those who were told are to let go of theirs first
            self._pause = NEXT_LOOK if len(self._runtime.parked) <= MANY else FIRST_LOOK
        else:
            now = perf_counter()
            self._pause = EARLY if now >= self._may_search else FIRST_LOOK
            self._since, self._logged, self._at_a_time = now, FIRST_LOG, 1
        self._began = perf_counter()
        self._look_soon()

    def _look_soon(self) -> None:
        assert self._runtime.loop is not None
        if self._soon is not None:
            self._soon.cancel()
        self._soon = self._runtime.loop.call_soon(self._look, False)

    def stop(self) -> None:
        """Nothing is stuck, or the scheduler closes."""
        self._signature = None
        self._told = {}
        for handle in (self._soon, self._later, self._overdue):
            if handle is not None:
                handle.cancel()
        self._soon = self._later = self._overdue = None

    def _look(self, thorough: bool) -> None:
        """Free what dead cycles hold. If nothing comes of that, find out whether this is a deadlock."""
        runtime, signature = self._runtime, self._signature
        assert runtime.loop is not None
        elsewhere = thorough and len(runtime.parked) > MANY
        if elsewhere and self._searching:  # for what was stuck before
            self._later = runtime.loop.call_later(NEXT_LOOK, self._look, True)
            return
        if thorough and not elsewhere and self._pause == EARLY:  # few wait
            self._pause = FIRST_LOOK
            self._later = runtime.loop.call_later(self._next_pause(EARLY), self._look, True)
            return
        if thorough and not elsewhere and (pause := self._until_search()) > 0:
            self._later = runtime.loop.call_later(pause, self._look, True)
            return
        late, started = thorough or perf_counter() - self._began >= self._patience, thread_time()
        freed, early = self._collected(late and not elsewhere)
        if signature is None or freed:
            return
        if not thorough:
            self._plan(early)
        if any(reclaim() for reclaim in runtime.reclaimers):
            runtime.dispatch()
            return
        stuck, began = runtime.engine.admission.stuck(), thread_time()
        for task in stuck:
            if early <= 0 and self._only_pending_hold(task.scope.account):
                self._tell(task, self._deadlock(task, None))
                return
            if self._preempts(task.scope.account):
                if thorough and self._signature == signature:
                    self._look_again()
                return
        self._may_collect += (thread_time() - began) / IN_VAIN
        if elsewhere:
            self._search_elsewhere(stuck)
        elif thorough:
            findings = investigate(runtime, {task.scope.account: task for task in stuck}, BUDGET)
            if not any(finding.deadlock for finding in findings.values()):
                self._may_search = perf_counter() + (thread_time() - started) / IN_VAIN
            self._judge(stuck, findings)

    def _collected(self, whole: bool) -> tuple[bool, float]:
        """Collect garbage, unless that is too costly now. Returns whether that freed some of what is lacked, and how
        many seconds too early it was."""
        signature = self._signature
        whole = whole and self._wasted <= BUDGET
        early = 0.0 if whole else self._may_collect - perf_counter()
        spent = 0.0 if early > 0 else self._collect(whole)
        self._runtime.dispatch()
        freed = self._signature != signature
        if whole:
            self._wasted = 0.0 if freed else spent
            self._patience = spent if freed else 2 * self._patience
            if self._patience >= FIRST_LOOK:
                self._patience = inf
        elif spent and not freed:
            self._may_collect = perf_counter() + spent / IN_VAIN
        return freed, early

    def _collect(self, whole: bool) -> float:
        """Collect all garbage, or what was made lately. Returns the seconds it took of this thread.

        The youngest alone, where that is enough: what outlives a collection is older afterwards, and may be garbage
        soon.
        """
        completions = self._runtime.completions
        completions.wants_bytes = 0  # what comes free is taken in at once, with no wake-up
        started = thread_time()  # not by the clock, which counts what other threads and programs do meanwhile
        for generation in (2,) if whole else (0, 1):
            gc.collect(generation)
            if completions.items:
                break
        return thread_time() - started

    def _plan(self, early: float) -> None:
        """Plan the next look, after one in vain; or after one that came `early` seconds too soon to collect garbage."""
        loop = self._runtime.loop
        assert loop is not None
        pauses = [early] if early > 0 else []
        if self._patience < inf:
            pauses.append(self._began + self._patience - perf_counter())
        if pauses:
            self._soon = loop.call_later(max(0.0, min(pauses)), self._look, False)
        if self._later is None:
            self._later = loop.call_later(self._next_pause(perf_counter() - self._began), self._look, True)

    def _search_elsewhere(self, stuck: Sequence[Task]) -> None:
        """Search on a thread of its own, and see whether what was found still stands."""
        runtime, signature, evidence = self._runtime, self._signature, Evidence(self._runtime)
        loop = runtime.loop
        assert loop is not None

        def search() -> None:
            findings: dict[Account, Finding] = {}
            with suppress(RuntimeError):  # of what changed its size while it was looked at
                findings = investigate(runtime, {task.scope.account: task for task in stuck}, inf, evidence)
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._found, signature, stuck, findings, evidence, thread_time())

        self._searching = True
        Thread(target=search, name="asyncsched looks for a deadlock", daemon=True).start()

    def _found(
        self,
        signature: object,
        stuck: Sequence[Task],
        findings: dict[Account, Finding],
        evidence: Evidence,
        spent: float,
    ) -> None:
        """A search on another thread has ended, that took so many seconds of it."""
        self._searching = False
        same = signature == self._signature
        deadlock = same and any(finding.deadlock for finding in findings.values()) and evidence.stands()
        evidence.close()
        if same:
            self._runtime.dispatch()  # takes in what only the search held
        if not deadlock:
            self._may_search = perf_counter() + spent / IN_VAIN
        if signature != self._signature or (not deadlock and self._collected(True)[0]):
            return
        for finding in findings.values():
            finding.deadlock &= deadlock
        self._judge(stuck, findings)

    def _judge(self, stuck: Sequence[Task], findings: Mapping[Account, Finding]) -> None:
        """Tell of a deadlock, or of a stall that lasts."""
        waited = perf_counter() - self._since
        late = self._timeout is not None and waited >= self._timeout
        if log_it := waited >= self._logged:
            self._logged = waited + NEXT_LOG
        for task in stuck:
            finding = findings.get(task.scope.account, Finding())
            if finding.deadlock and finding.caller is not None:
                finding.caller.set_exception(self._deadlock(task, finding))
                break
            if finding.deadlock:
                self._tell(task, self._deadlock(task, finding))
                return
            if late or log_it:
                text = self._text(task, finding, self._sufficient_limit(task))
            if log_it:
                log.warning("%s", text)
            if late:
                self._tell(task, SchedulerStalled(f"after stall_timeout={self._timeout:g} s: {text}"))
                return
        self._look_again()

    def _look_again(self) -> None:
        """Plan the next thorough look, after a longer pause."""
        self._pause = max(FIRST_LOOK, 2 * self._pause)
        assert self._runtime.loop is not None
        self._later = self._runtime.loop.call_later(self._next_pause(), self._look, True)

    def _next_pause(self, over: float = 0.0) -> float:
        """Seconds until the next thorough look, when `over` seconds of the pause have passed."""
        return min(max(0.0, self._pause - over), self._until_told() + 0.001)

    def _until_search(self) -> float:
        """Seconds until the next one that may be in vain. Stalls follow each other where requests wait for their
        reserves as a matter of course: if each was searched, that would take most of the loop's time."""
        return min(self._may_search - perf_counter(), self._until_told())

    def _until_told(self) -> float:
        """Seconds until this stall is to be logged, or called one."""
        until = self._logged if self._timeout is None else min(self._logged, self._timeout)
        return max(0.0, until - (perf_counter() - self._since))

    def _only_pending_hold(self, account: Account) -> bool:
        engine = self._runtime.engine
        return (
            account is engine.ledger.account
            and account.used > 0
            and held_by_pending(engine.admission.tasks()) == account.used
        )

    def _preempts(self, account: Account) -> bool:
        """Whether scopes wait for each other to grow. Then one is told, see `to_preempt`."""
        engine = self._runtime.engine
        victim = to_preempt(engine.root, account, self._runtime.room.longest_growth(account) >= FIRST_LOOK)
        if victim is None:
            return False
        victim.preempted = True
        engine.ledger.preempted += 1
        claims = growths(victim)
        needed = victim.reserve + sum([claim.cost for claim in claims])
        for claim in claims:
            error = Preempted(
                f"scope {victim.name!r} is to give back the {victim.reserve:,} bytes that it reserved: it waits to grow"
                f" by {claim.cost:,}, as others do that are older, and {account.used:,} of the {account.limit:,} bytes"
                f" allowed are held. Leave it, and start over in a new one, by s.scope(reserve={needed})",
                self._sufficient_limit(claim),
                account.limit,
                needed,
            )
            engine.settle(claim, Failure.of(error, claim.name, claim.site))
        self._runtime.dispatch()
        return True

    def _deadlock(self, task: Task, finding: Finding | None) -> MemoryDeadlockError:
        needed = self._sufficient_limit(task)
        return MemoryDeadlockError(self._text(task, finding, needed), needed, task.scope.account.limit)

    def _sufficient_limit(self, task: Task) -> int:
        return sufficient_limit(self._runtime.engine.admission.tasks(), task.scope.account)

    def _tell(self, first: Task, error: AsyncSchedError) -> None:
        """Fail a stuck task, and the next until enough of those who wait are woken, or bytes come free."""
        engine, account = self._runtime.engine, first.scope.account
        used, more = account.used, self._at_a_time
        _, before = self._told.get(account, (used, engine.ledger.sequence))
        failures: dict[Scope, Failure] = {}
        waiting = [task for task in engine.admission.tasks() if task.scope.account is account]
        for task in sorted(waiting, key=lambda task: task.scope is not first.scope):  # by age in each
            if task.state != PENDING or task.blockers or task.seq >= before:
                continue
            known = failures.get(task.scope)
            if known is None:
                failure = failures[task.scope] = Failure.of(error, task.name, task.site)
            else:
                failure = known.alongside(task.name, task.site)
            more -= engine.settle(task, failure)
            engine.drain()
            if more <= 0 or account.used < used:
                break
        self._told[account] = used, before
        self._at_a_time *= 2
        self._runtime.dispatch()

    def _text(self, task: Task, finding: Finding | None, needed: int) -> str:
        account = task.scope.account
        others = account.pending - 1
        lines = [
            f"{task.name} (submitted at {line_of(task.site)}) needs {task.cost:,} bytes, and {account.used:,} of the"
            f" {account.limit:,} allowed are held; nothing in flight will free any"
            + (f", and {others:,} more task{'s wait' if others > 1 else ' waits'}" if others else "")
        ]
        if finding is None:
            lines.append("  pending tasks hold all of it as their inputs")
        else:
            lines += [f"  {holder}" for holder in finding.lines]
        if finding is not None and finding.queued:
            lines.append(
                "cure: give the queue between producer and consumer a size, as in asyncio.Queue(2), and have the"
                " consumer reserve what it needs before the producer begins:"
                f" s.scope(reserve={needed - finding.queued}), for what is held outside the queue and what waits"
            )
        elif finding is not None and finding.reserved:  # no limit: with more room, more who reserve may come in first
            lines.append(
                "cure: drop results sooner, take fewer at a time, reserve less at a time, or also for what waits"
                " (`Batcher(reserve=)` for a batch), or raise the limit"
            )
        else:
            lines.append(
                "cure: drop results sooner, take fewer at a time, reserve with s.scope(reserve=...), or raise the limit"
                f" to {needed:,} bytes, which would have sufficed for all that waits"
            )
        return "\n".join(lines)
