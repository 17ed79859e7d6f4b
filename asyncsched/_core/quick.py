"""Quick tasks that wait for their turn, and bare values: run on the event loop's thread, one after the other."""

from __future__ import annotations

from _thread import get_ident
from collections.abc import Callable

from .model import DONE, PENDING, Bare, Scope, Task, Value
from .scopes import Scopes


class Quick(Scopes):
    """The part of the engine that runs them."""

    run: Callable[[Task], bool]
    run_bare: Callable[[Value], bool]

    def run_heads(self, scope: Scope, most: int) -> int:
        """Run quick tasks at the head of the only queue that waits, each through all its states at once. Returns how
        many there were.

        It is what `admission.next`, `_start` and `_complete` do with such tasks one after the other, with the sums made
        at the end: nothing else moves meanwhile. So drops may go the shorter way, see `completions`. But what a row
        drops may have a finaliser of a user's, who submits or cancels there: for that all is in order around `run`.
        """
        admission, queue, account = self.admission, scope.queue, scope.account
        if queue.expedited or queue.rotating or account.grace or account.earmark is not None:
            return 0
        run, run_bare, limit = self.run, self.run_bare, account.limit
        ran, cost, peak = 0, 0, account.used
        self._running = True
        try:
            while ran < most and (tasks := queue.tasks):
                head = tasks[0]
                stand = head.task if type(head) is Value else None
                if type(stand) is Bare:
                    home, charged = stand.scope, head.plan.cost
                else:
                    stand, head = None, queue.first()
                    home, charged = head.scope, head.cost
                    if head.quick is None or head.blockers or head.state != PENDING:
                        break
                used = account.used + charged
                if home.account is not account or (limit is not None and used > limit):
                    break
                if not (run(head) if stand is None else run_bare(head)):
                    break
                if stand is None and head.state != PENDING:  # cancelled meanwhile, and out of the queue
                    account.used += charged - head.refund
                    continue
                tasks = queue.tasks  # which others may have been put in the place of meanwhile
                if tasks and tasks[0] is head:  # a bare value that is made may have been swept out
                    tasks.popleft()
                if not ran:
                    self.completions.direct = get_ident()  # what is dropped from now on is free at once
                ran += 1
                cost += charged
                if used > peak:
                    peak = used
                if stand is not None:
                    account.used += head.charge
                    home.bare -= 1
                    continue
                account.used += charged - head.refund
                head.state = DONE
                if head.after is not None:
                    unblock(head)
                    head.after = None
                del home.tasks[head]
                if head.waiters is not None:
                    self._news.append(head)
        finally:
            self._running = False
            if ran:
                self.completions.direct = 0
                for waiting in admission.waiting():
                    waiting.changed = True
                self.unfinished -= ran
                self.completed += ran
                admission.ran(queue, account, ran, cost)
                if account is self.account:
                    self.peak_bytes = max(self.peak_bytes, peak)
                self.note_peak(admission.in_flight + 1)
        return ran


def unblock(task: Task) -> None:
    """A task is launched: what reads it need not wait for that any more."""
    for dependent in task.dependents:
        dependent.blockers -= 1
        dependent.scope.account.changed = True
