"""Whether the counts of an engine agree with its tasks, whatever happened to it."""

from __future__ import annotations

from asyncsched._core.engine import Engine
from asyncsched._core.model import LAUNCHED, PENDING


def validate(engine: Engine) -> None:
    """Assert every invariant. It walks everything."""
    ledger, tasks = engine.ledger, engine.root.unfinished()
    pending = [t for t in tasks if t.state == PENDING]
    launched = [t for t in tasks if t.state == LAUNCHED]
    limits, submitted = ledger.limits, sum(ledger.ended.values())
    assert not ledger.busy
    assert len(tasks) == ledger.unfinished == len(set(tasks))
    assert ledger.pending == len(pending)
    assert ledger.pending_bytes == sum(t.cost for t in pending)
    assert ledger.claims == sum(not t.lanes for t in pending)
    assert ledger.claim_bytes == sum(t.cost for t in pending if not t.lanes)
    assert set(engine.admission.tasks()) == set(pending)
    assert ledger.in_flight == len(launched)
    assert limits.max_ops is None or ledger.peak_in_flight <= limits.max_ops
    assert ledger.submitted == submitted + sum(bool(t.lanes) for t in tasks)
    for task in pending:
        waits_for = {*[v.task for v in task.inputs if v.task is not None], *(task.after or ())}
        waiting = sum(1 for t in waits_for if t.state == PENDING)
        assert task.blockers == waiting, task
        assert task.scope.queue.since <= task.seq
    began = [queue.since for queue in engine.admission._queues]
    assert began == sorted(began)
    for task in launched:
        assert task.blockers == 0, task
        assert task.lane is not None, task
    accounts = {t.scope.account for t in tasks} | {ledger.account}
    assert set(ledger.waiting) == {account for account in accounts if account.pending}
    for account in accounts:
        assert account.in_flight == sum(t.scope.account is account for t in launched)
        assert account.pending == sum(t.scope.account is account for t in pending)
        waiting = [t for t in pending if t.scope.account is account]
        assert account.claims == sum(not t.lanes for t in waiting)
        assert all(t.cost >= (account.least if t.lanes else account.least_claim) for t in waiting)
        # Not below zero, but for a result larger than its task's cost and dropped before the task's completion.
        assert account.used >= 0 or account.in_flight
        assert account.earmark is None or account.earmark.state == PENDING
