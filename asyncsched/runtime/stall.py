"""Why nothing moves: finding out whether a stuck queue is a deadlock, and telling the tasks concerned.

Theory of operation. The engine says which tasks are stuck: they lack only bytes, and nothing in flight will free any.
Then either someone outside will drop what they hold, or nobody ever will. The second is a deadlock, and is proved,
never guessed: every holder of every byte must have been found, and be a coroutine that itself waits for a stuck task.
(`deadlock` does the finding.)

The engine calls `update` after each dispatch while anything is stuck, and once when nothing is any more. So it must
cost next to nothing: it compares a signature of what is stuck with the last one, and only a new one starts timers.
Then, as long as the signature stays:

1. *At once*, in the next iteration of the loop, and first in each later look: those who have bytes to spare are asked
   for them (`reclaimers`: a pipeline's read-ahead). If pending tasks alone hold all the bytes it is a deadlock, and no
   search is needed.
2. *After `FIRST_LOOK`*: a garbage collection, since a dead cycle may hold the bytes; then the search for holders. It is
   repeated after pauses that double, since the loop stands still meanwhile, and holders outside may take hours; its
   budget of time grows with the pauses, up to a limit.
3. *After `FIRST_LOG`*, and then every `NEXT_LOG`: the holders found so far are logged.
4. *After the user's `stall_timeout`*, if there is one: SchedulerStalled.

Only one task is failed at a time: that may free what the others wait for. If not, they are stuck anew, and found so.

Alternatives. A timeout alone cannot tell a deadlock from a slow consumer, and says nothing of the cause; it is there,
off by default. A graph of who holds what and who waits for whom, kept up to date, would show a deadlock at once, but
would have to be told of every variable that a handle is put in; here nothing is paid until something is stuck. Claims
made in advance prevent deadlocks, and are offered: `s.scope(reserve=...)`. The times below are guesses: long enough
that a program which is merely slow seldom pays for a search, short enough for a person who waits for the message.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Sequence
from time import perf_counter

from .._core.callsite import line_of
from .._core.failure import Failure
from .._core.model import PENDING, Account, Task
from ..errors import AsyncSchedError, MemoryDeadlockError, SchedulerStalled
from .deadlock import BUDGET, MOST_BUDGET, Finding, investigate
from .runtime import Runtime

log = logging.getLogger("asyncsched")

FIRST_LOOK = 0.25  # seconds without change before holders are looked for
FIRST_LOG = 1.0
NEXT_LOG = 30.0


class StallWatch:
    """Watches one scheduler's stuck tasks. All its work happens in callbacks of the loop."""

    def __init__(self, runtime: Runtime, timeout: float | None) -> None:
        self._runtime = runtime
        self._timeout = timeout
        self._signature: object = None  # what was stuck, and how
        self._since = 0.0
        self._pause = FIRST_LOOK
        self._logged = FIRST_LOG
        self._soon: asyncio.Handle | None = None
        self._later: asyncio.TimerHandle | None = None

    def update(self, stuck: Sequence[Task]) -> None:
        """Tell which tasks are stuck now. Cheap: called after every change."""
        if not stuck:
            if self._signature is not None:
                self.stop()
            return
        signature = [(task.seq, task.scope.account.used) for task in stuck]
        if signature == self._signature:
            return
        self.stop()
        self._signature = signature
        self._since = perf_counter()
        self._pause, self._logged = FIRST_LOOK, FIRST_LOG
        loop = self._runtime.loop
        assert loop is not None
        self._soon = loop.call_soon(self._look, False)
        self._later = loop.call_later(self._next_pause(), self._look, True)

    def stop(self) -> None:
        """Nothing is stuck, or the scheduler closes."""
        self._signature = None
        for handle in (self._soon, self._later):
            if handle is not None:
                handle.cancel()
        self._soon = self._later = None

    def _look(self, thorough: bool) -> None:
        runtime, signature = self._runtime, self._signature
        if thorough:
            gc.collect()
        runtime.dispatch()
        if signature is None or self._signature != signature:
            return
        if any(reclaim() for reclaim in runtime.reclaimers):
            runtime.dispatch()
            return
        stuck = runtime.engine.admission.stuck()
        for task in stuck:
            if self._only_pending_hold(task.scope.account):
                self._fail(task, self._deadlock(task, None))
                return
        if not thorough:
            return
        waited = perf_counter() - self._since
        finding = None
        budget = min(MOST_BUDGET, BUDGET * self._pause / FIRST_LOOK)
        for task in stuck:
            finding = investigate(runtime, task.scope.account, {t.scope.account for t in stuck}, budget)
            if finding.deadlock:
                self._fail(task, self._deadlock(task, finding))
                return
            if waited >= self._logged:
                log.warning("%s", self._text(task, finding))
        if waited >= self._logged:
            self._logged = waited + NEXT_LOG
        if self._timeout is not None and waited >= self._timeout:
            self._fail(task, SchedulerStalled(f"after stall_timeout={self._timeout:g} s: {self._text(task, finding)}"))
            return
        self._pause *= 2
        assert runtime.loop is not None
        self._later = runtime.loop.call_later(self._next_pause(), self._look, True)

    def _next_pause(self) -> float:
        waited = perf_counter() - self._since
        marks = [self._pause, max(0.0, self._logged - waited) + 0.001]
        if self._timeout is not None:
            marks.append(max(0.0, self._timeout - waited) + 0.001)
        return min(marks)

    def _only_pending_hold(self, account: Account) -> bool:
        engine = self._runtime.engine
        return account is engine.account and account.used > 0 and engine.held_by_pending() == account.used

    def _deadlock(self, task: Task, finding: Finding | None) -> MemoryDeadlockError:
        account = task.scope.account
        return MemoryDeadlockError(self._text(task, finding), account.used + task.cost, account.limit)

    def _fail(self, task: Task, error: AsyncSchedError) -> None:
        if task.state == PENDING:
            self._runtime.engine.settle(task, Failure.of(error, task.name, task.site))
        self._runtime.dispatch()

    def _text(self, task: Task, finding: Finding | None) -> str:
        account = task.scope.account
        lines = [
            f"{task.name} (submitted at {line_of(task.site)}) needs {task.cost:,} bytes, and {account.used:,} of the"
            f" {account.limit:,} allowed are held; nothing in flight will free any"
        ]
        if finding is None:
            lines.append("  pending tasks hold all of it as their inputs")
        else:
            lines += [f"  {holder}" for holder in finding.lines]
        lines.append(
            f"cure: drop results sooner, take fewer at a time, reserve with s.scope(reserve=...), "
            f"or raise the limit to {account.used + task.cost:,} bytes, which would have admitted this task"
        )
        return "\n".join(lines)
