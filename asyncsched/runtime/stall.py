"""The watch over stuck tasks: it finds out whether they are in a deadlock, and fails tasks to end it.

Theory of operation. The engine says which tasks are stuck: they lack only bytes, and nothing in flight will free any.
Either someone outside will drop bytes, or nobody ever will. The second is a deadlock. It is proved, never guessed:
every holder of every byte must have been found, and must be a coroutine that itself waits for a stuck task. (`deadlock`
does the search.)

The engine calls `update` after each dispatch while tasks are stuck, and once when none is any more. So it must cost
next to nothing: it compares a signature of the stuck tasks with the last one, and only a new signature starts timers.
Then, as long as the signature stays:

1. *At once*, in the next iteration of the loop: a collection of young garbage, since a dead cycle (a stored exception
   with its frames) may hold the bytes. It is repeated at each stall as long as it frees bytes: nothing else would.
   Collections that free none get a twentieth of the loop's time, and come later once that is used up. Those with bytes
   to spare are asked for them (`reclaimers`: a pipeline's read-ahead). If pending tasks alone hold all the bytes, it is
   a deadlock, and no search is needed. The time for this check comes from the same twentieth.
2. *After `FIRST_LOOK`*: a whole collection, then the search for holders. The search is repeated after pauses that
   double, since the loop stands still meanwhile, and holders outside may take hours. If the collection freed bytes,
   cycles have outlived the young generation, and more will. So from then on a whole collection comes once a stall has
   lasted as long as one takes. Each that frees nothing doubles that time. One that takes longer than a search may, and
   frees nothing, is the last. Searches that find no deadlock get a twentieth of the loop's time, over all stalls
   together.

   If more than `MANY` asyncio tasks wait, another thread searches, so that the loop goes on, and the collection comes
   after the search. Such a search begins after `EARLY`, since it takes longer, unless recent searches were in vain.
   Code that runs meanwhile may release something, or get hold of it. So before any task fails, the findings are
   compared with the present state: the waiting tasks have not moved, and each object has exactly the references that
   were found.
3. *After `FIRST_LOG`*, and then every `NEXT_LOG`: the holders found so far are logged.
4. *After the user's `stall_timeout`*, if it is set: SchedulerStalled.

*Scopes that grow* (`Scope.grow`) often wait for each other, and expect Preempted. No search is needed,
since the ledger knows what they hold: see `to_preempt`. It is asked at once, and again when another scope begins to
wait.

Which task fails. One failure may free the bytes that all others wait for: its awaiter unwinds, and drops what it held.
So the oldest stuck task fails, and further ones only as long as no waiter was woken and no bytes came free: of eighty
tasks issued ahead, all fail up to the one that is awaited. They fail for one cause, which is reported once, with their
number. If nobody awaits a task that fails, its bytes may let the program go on to the next such stall, and so on to its
end, without a word: so that is logged, at most every `NEXT_LOG`. The awaiter may go on without releasing anything (it
gathers exceptions, or tries the next task). Then it is the same stall: it is looked at soon, `stall_timeout` counts
from its beginning, and each look fails twice as many of the tasks that waited then. So n of them fail in log n looks.
If callers of a batcher keep reserves, the last of them gets the error instead, and the batch goes on.

Alternatives. A timeout alone cannot tell a deadlock from a slow consumer, and does not name the cause; it exists, off
by default. An up-to-date graph of who holds what and who waits for whom would show a deadlock at once, but would have
to be told of every variable that a handle is put in; this watch costs nothing until tasks are stuck. Claims made in
advance prevent deadlocks, and are offered: `s.scope(reserve=...)`. The times below are guesses: long enough that a slow
program seldom pays for a search, short enough for a person who waits for the message.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import inf
from time import perf_counter, thread_time

from .._core.audit import growths, held_by_pending, sufficient_limit, to_preempt
from .._core.callsite import line_of
from .._core.failure import Failure
from .._core.model import PENDING, Account, Scope, Task
from .._log import log
from .._threads import start_thread
from ..errors import AsyncSchedError, MemoryDeadlockError, Preempted, SchedulerStalled
from .deadlock import BUDGET, Evidence, Finding, investigate
from .runtime import Runtime

FIRST_LOOK = 0.25  # seconds without change before the holders are searched for
NEXT_LOOK = 0.025  # the same, after some tasks failed and that freed nothing, unless many wait
EARLY = 0.05  # the same, for a search on another thread
FIRST_LOG = 1.0
NEXT_LOG = 30.0
MANY = 1000  # waiting asyncio tasks; with more, the loop would stand still for long, so another thread searches
IN_VAIN = 0.05  # the largest share of time for collections of young garbage that free nothing, and for searches in vain


class StallWatch:
    """Watches one scheduler's stuck tasks. All its work happens in callbacks of the loop."""

    def __init__(self, runtime: Runtime, timeout: float | None) -> None:
        self._runtime = runtime
        self._timeout = timeout
        self._signature: object = None  # of the stuck tasks
        self._growths = 0  # the number of growths by then
        # For accounts where tasks were failed and no bytes came free: the bytes held, and the number under which tasks
        # belong to that stall.
        self._failed_in: dict[Account, tuple[int, int]] = {}
        self._at_a_time = 1  # tasks with waiters to fail at one look
        self._since = 0.0  # when the stall began
        self._began = 0.0  # the same, or when tasks last failed
        self._pause = FIRST_LOOK
        self._logged = FIRST_LOG
        self._may_collect = 0.0  # when garbage may be collected again, and the bytes of pending tasks counted
        self._may_search = 0.0  # when the next search may begin, unless a message is due earlier
        self._wasted = 0.0  # seconds that the last whole collection took, if it freed nothing
        self._patience = inf  # seconds of a stall before a whole collection, if sooner than the first thorough look
        self._searching = False  # on another thread
        self._unseen = 0.0  # when a failure that nobody awaits may be logged again
        self._overdue: asyncio.TimerHandle | None = None  # set while scopes wait to grow
        self._soon: asyncio.Handle | None = None
        self._later: asyncio.TimerHandle | None = None

    @property
    def _loop(self) -> asyncio.AbstractEventLoop:
        assert self._runtime.loop is not None
        return self._runtime.loop

    def update(self, stuck: Sequence[Task]) -> None:
        """Take in which tasks are stuck now. Cheap, since it is called after every change."""
        if not stuck:
            if self._signature is not None:
                self.stop()
            return
        signature = [(task.seq, task.scope.account.used) for task in stuck]
        # One more scope waits to grow, perhaps the last that went on
        grows = self._growths != self._runtime.ledger.growths
        self._growths = self._runtime.ledger.growths
        if signature != self._signature:
            self._begin(signature, stuck)
        elif grows:
            self._look_soon()
        else:
            return
        self._watch_growths(grows)

    def _watch_growths(self, grows: bool = False) -> None:
        """Look again while scopes wait to grow, since one may have waited for long though others go on."""
        waiting = self._runtime.room.waiting if self._growths else ()
        if self._overdue is None and (grows or any(claim.scope.grows for claim in waiting)):
            self._overdue = self._loop.call_later(FIRST_LOOK, self._look_at_growths)

    def _look_at_growths(self) -> None:
        self._overdue = None
        self._look(False)
        if self._signature is not None:
            self._watch_growths()

    def _begin(self, signature: object, stuck: Sequence[Task]) -> None:
        same = {}
        for first in stuck:
            account = first.scope.account
            used, before = self._failed_in.get(account, (-1, 0))
            if account.used == used and first.seq < before:
                same[account] = used, before
        self.stop()
        self._signature, self._failed_in = signature, same
        if same:  # a search on another thread keeps objects alive: first let the failed tasks release theirs
            self._pause = NEXT_LOOK if len(self._runtime.parked) <= MANY else FIRST_LOOK
        else:
            now = perf_counter()
            self._pause = EARLY if now >= self._may_search else FIRST_LOOK
            self._since, self._logged, self._at_a_time = now, FIRST_LOG, 1
        self._began = perf_counter()
        self._look_soon()

    def _look_soon(self) -> None:
        if self._soon is not None:
            self._soon.cancel()
        self._soon = self._loop.call_soon(self._look, False)

    def stop(self) -> None:
        """Stop watching: nothing is stuck, or the scheduler closes."""
        self._signature = None
        self._failed_in = {}
        for handle in (self._soon, self._later, self._overdue):
            if handle is not None:
                handle.cancel()
        self._soon = self._later = self._overdue = None

    def _look(self, thorough: bool) -> None:
        """Free what dead cycles hold. If that frees nothing, find out whether this is a deadlock."""
        runtime, signature = self._runtime, self._signature
        elsewhere, pause = thorough and len(runtime.parked) > MANY, 0.0
        if elsewhere and self._searching:  # for an earlier stall
            pause = NEXT_LOOK
        elif thorough and not elsewhere and self._pause == EARLY:  # few tasks wait
            self._pause = FIRST_LOOK
            pause = self._next_pause(EARLY)
        elif thorough and not elsewhere:
            pause = self._until_search()
        if pause > 0:
            self._later = self._loop.call_later(pause, self._look, True)
            return
        late, started = thorough or perf_counter() - self._began >= self._patience, thread_time()
        freed, early = self._collected(late and not elsewhere)
        if signature is None or freed:
            return
        if not thorough:
            self._plan(early)
        if any(reclaim() for reclaim in runtime.reclaimers):
            runtime.dispatch()
            # the bytes may have gone to another claim of as many: then this is the same stall
            if thorough and self._signature == signature:
                self._look_again()
            return
        stuck, began = runtime.engine.admission.stuck(), thread_time()
        for task in stuck:
            if early <= 0 and self._only_pending_hold(task.scope.account):
                self._fail_stuck(task, self._deadlock(task, None))
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
        """Collect garbage, unless that is too costly now.

        Returns whether that freed bytes for the stuck tasks, and how many seconds too early it was.
        """
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
        """Collect all garbage (`whole`), or recent garbage. Returns the seconds of this thread that it took.

        Collects only the youngest generation if that is enough: objects that outlive a collection are older afterwards,
        and may be garbage soon.
        """
        completions = self._runtime.completions
        completions.wants_bytes = 0  # freed bytes are taken in at once, without a wake-up
        started = thread_time()  # not the clock, which would count other threads and programs
        for generation in (2,) if whole else (0, 1):
            gc.collect(generation)
            if completions.items:
                break
        return thread_time() - started

    def _plan(self, early: float) -> None:
        """Plan the next look, after one that found nothing or came `early` seconds too soon to collect garbage."""
        pauses = [early] if early > 0 else []
        if self._patience < inf:
            pauses.append(self._began + self._patience - perf_counter())
        if pauses:
            self._soon = self._loop.call_later(max(0.0, min(pauses)), self._look, False)
        if self._later is None:
            self._later = self._loop.call_later(self._next_pause(perf_counter() - self._began), self._look, True)

    def _search_elsewhere(self, stuck: Sequence[Task]) -> None:
        """Search on a thread of its own; then check whether the findings still hold."""
        runtime, signature, evidence = self._runtime, self._signature, Evidence(self._runtime)
        loop = self._loop

        def search() -> None:
            findings: dict[Account, Finding] = {}
            with suppress(RuntimeError):  # an object changed its size during the search
                findings = investigate(runtime, {task.scope.account: task for task in stuck}, inf, evidence)
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._found, signature, stuck, findings, evidence, thread_time())

        self._searching = True
        try:
            start_thread(search, "looks for a deadlock")
        except RuntimeError:  # no thread is left: the loop waits for the search, and its tasks wait for it as well
            search()

    def _found(
        self,
        signature: object,
        stuck: Sequence[Task],
        findings: dict[Account, Finding],
        evidence: Evidence,
        spent: float,
    ) -> None:
        """Take in the result of a search on another thread, which took `spent` seconds of that thread."""
        self._searching = False
        same = signature == self._signature
        deadlock = same and any(finding.deadlock for finding in findings.values()) and evidence.stands()
        evidence.close()
        if same:
            self._runtime.dispatch()  # takes in objects that only the search held
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
                self._fail_stuck(task, self._deadlock(task, finding))
                return
            if late or log_it:
                text = self._text(task, finding, self._sufficient_limit(task))
            if log_it:
                log.warning("%s", text)
            if late:
                self._fail_stuck(task, SchedulerStalled(f"after stall_timeout={self._timeout:g} s: {text}"))
                return
        self._look_again()

    def _look_again(self) -> None:
        """Plan the next thorough look, after a longer pause."""
        self._pause = max(FIRST_LOOK, 2 * self._pause)
        self._later = self._loop.call_later(self._next_pause(), self._look, True)

    def _next_pause(self, over: float = 0.0) -> float:
        """Seconds until the next thorough look, after `over` seconds of the pause have passed."""
        return min(max(0.0, self._pause - over), self._until_report() + 0.001)

    def _until_search(self) -> float:
        """Seconds until the next search that may be in vain.

        Stalls follow each other where requests wait for their reserves as a matter of course: a search in each would
        take most of the loop's time.
        """
        return min(self._may_search - perf_counter(), self._until_report())

    def _until_report(self) -> float:
        """Seconds until this stall must be logged or raised."""
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
        """Whether scopes wait for each other to grow. If so, one of them is preempted: see `to_preempt`."""
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
                f"scope {victim.name!r} must give back its reserve of {victim.reserve:,} bytes: it waits to grow by"
                f" {claim.cost:,}, and so do older scopes, while {account.used:,} of the {account.limit:,} bytes"
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

    def _fail_stuck(self, first: Task, error: AsyncSchedError) -> None:
        """Fail a stuck task, and further ones until enough waiters are woken, or bytes come free."""
        engine, account = self._runtime.engine, first.scope.account
        used, more = account.used, self._at_a_time
        _, before = self._failed_in.get(account, (used, engine.ledger.sequence))
        failures: dict[Scope, Failure] = {}
        waiting = [task for task in engine.admission.tasks() if task.scope.account is account]
        for task in sorted(waiting, key=lambda task: task.scope is not first.scope):  # by age in each scope
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
        if more == self._at_a_time and perf_counter() >= self._unseen:
            self._unseen = perf_counter() + NEXT_LOG
            log.warning("%s\nnobody awaits the tasks that fail: a window in the loop that makes them raises it", error)
        self._failed_in[account] = used, before
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
                "cure: give each side bytes of its own, by `async with` around its loop: the consumer"
                f" s.scope(reserve={needed - finding.queued}), for what is held outside the queue and what waits; the"
                " producer s.scope(reserve=...), which bounds what is in the queue; together at most the limit"
            )
        # Names no limit: with a higher one, more scopes that reserve may come in first
        elif finding is not None and finding.reserved:
            lines.append(
                "cure: drop results sooner, take fewer at a time, reserve less at a time, or reserve also for waiting"
                " tasks (`Batcher(reserve=)` for a batch, `Stepper(scheduler=scope)` for steps), or raise the limit"
            )
        else:
            lines.append(
                "cure: drop results sooner, take fewer at a time, reserve with s.scope(reserve=...), or raise the limit"
                f" to {needed:,} bytes, which would have been enough for all waiting tasks"
            )
        return "\n".join(lines)
