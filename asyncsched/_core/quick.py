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
        ran = cost = 0
        self._running = True
        try:
            while ran < most and queue.tasks:
                task = queue.tasks[0]
                if type(task) is Value:
                    value, stand = task, task.task
                    if type(stand) is Bare and stand.scope.account is account:
                        charged = value.nbytes + value.plan.workspace
                        used = account.used + charged
                        if (limit is None or used <= limit) and run_bare(value):
                            if queue.tasks and queue.tasks[0] is value:  # else it was swept out
                                queue.tasks.popleft()
                            if not ran:
                                self.completions.direct = get_ident()
                            ran += 1
                            cost += charged
                            account.used += value.charge
                            if used > self.peak_bytes and account is self.account:
                                self.peak_bytes = used
                            stand.scope.bare -= 1
                            continue
                    task = queue.head()
                    if task is None:  # cancelled by a finaliser
                        break
                if task.quick is None or task.blockers or task.state != PENDING or task.scope.account is not account:
                    break
                used = account.used + task.cost
                if (limit is not None and used > limit) or not run(task):
                    break
                if task.state != PENDING:  # cancelled meanwhile, and out of the queue
                    account.used += task.cost - task.refund
                    continue
                queue.tasks.popleft()
                if not ran:
                    self.completions.direct = get_ident()  # what is dropped from now on is free at once
                ran += 1
                cost += task.cost
                task.state = DONE
                account.used += task.cost - task.refund
                if used > self.peak_bytes and account is self.account:
                    self.peak_bytes = used
                if task.after is not None:
                    unblock(task)
                    task.after = None
                del task.scope.tasks[task]
                if task.waiters is not None:
                    self._news.append(task)
        finally:
            self._running = False
            if ran:
                self.completions.direct = 0
                for waiting in admission.waiting():
                    waiting.changed = True
                self.unfinished -= ran
                self.completed += ran
                admission.ran(queue, account, ran, cost)
                self.note_peak(admission.in_flight + 1)
        return ran


def unblock(task: Task) -> None:
    """A task is launched: what reads it need not wait for that any more."""
    for dependent in task.dependents:
        dependent.blockers -= 1
        dependent.scope.account.changed = True
