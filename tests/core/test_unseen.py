"""Failures that nobody has seen: kept, counted, and given to whoever asks first."""

from __future__ import annotations

from asyncsched._core.failure import KEPT_FAILURES
from asyncsched._core.model import CANCELLED, FAILED, Scope, Value

from .rig import Rig, cancellation


def fail(rig: Rig, count: int, scope: Scope | None = None) -> list[Value]:
    values = []
    for i in range(count):
        task, value = rig.submit(name=f"bad {i}", scope=scope)
        rig.fail(task, ValueError(i))
        values.append(value)
    return values


def test_100_failures_are_kept_and_the_others_counted() -> None:
    rig = Rig()
    fail(rig, KEPT_FAILURES + 7)
    failures, lost = rig.root.take_failures()
    assert [failure.exception.args[0] for failure in failures] == list(range(KEPT_FAILURES))
    assert lost == 7
    assert rig.root.take_failures() == ([], 0)


def test_seen_failures_make_room_for_others() -> None:
    rig = Rig()
    for value in fail(rig, KEPT_FAILURES):
        assert value.failure.exception is not None
    fail(rig, 3)
    failures, lost = rig.root.take_failures()
    assert len(failures) == 3
    assert lost == 0


def test_a_barrier_takes_only_what_was_submitted_before_it() -> None:
    rig = Rig()
    inner = rig.scope("inner")
    fail(rig, 1)
    fail(rig, 1, inner)
    before = rig.engine.ledger.sequence
    fail(rig, 1, inner)
    assert len(rig.root.take_failures(before)[0]) == 2
    assert len(inner.take_failures()[0]) == 1
    assert rig.root.take_failures() == ([], 0)


def test_cancelled_tasks_are_no_failures() -> None:
    rig = Rig()
    task, value = rig.submit()
    dependent, _ = rig.submit(value)
    rig.engine.cancel(task, cancellation(task))
    assert rig.root.take_failures() == ([], 0)
    assert (rig.engine.ledger.ended[CANCELLED], rig.engine.ledger.ended[FAILED]) == (2, 0)
    assert dependent.failure is not None


def test_an_iteration_with_unseen_failures_is_kept() -> None:
    rig = Rig()
    scope = rig.scope("iteration", rig.root, own_queue=False)
    task, _ = rig.submit(scope=scope)
    rig.fail(task, ValueError("unseen"))
    rig.engine.scopes.end(scope)
    rig.scope("next", rig.root, own_queue=False)
    assert not scope.closed
    assert len(rig.root.take_failures()[0]) == 1


def test_failures_that_were_counted_and_not_kept_are_not_swept_away() -> None:
    rig = Rig()
    scope = rig.scope("iteration", rig.root, own_queue=False)
    for value in fail(rig, KEPT_FAILURES + 5, scope)[:KEPT_FAILURES]:
        value.failure.see()
    rig.engine.scopes.end(scope)
    for i in range(5):
        rig.engine.scopes.end(rig.scope(f"later {i}", rig.root, own_queue=False))
    assert rig.root.take_failures() == ([], 5)
