"""The rules of admission, one by one: turns, ageing, progress, what is stuck, and what the queues keep in memory."""

from __future__ import annotations

import weakref

import pytest

from asyncsched._core.audit import unused_reserve
from asyncsched._core.model import Task
from asyncsched.errors import TaskTooLarge
from tests.validate import validate

from .rig import Rig, execute, names


@pytest.fixture
def rig():
    return Rig(max_bytes=100)


# -- order and turns --------------------------------------------------------------------------------------------------


def test_one_scope_is_served_in_order_of_submission():
    rig = Rig(max_ops=2)
    for i in range(7):
        rig.submit(name=str(i))
    assert names(rig.dispatch()) == ["0", "1"]
    assert names(rig.run()) == list("0123456")


def test_scopes_take_turns():
    rig = Rig(max_ops=1)
    scopes = [rig.scope(name) for name in "abc"]
    for scope, count in zip(scopes, (5, 2, 3), strict=True):
        rig.fill(scope, count)
    assert names(rig.run()) == ["a0", "b0", "c0", "a1", "b1", "c1", "a2", "c2", "a3", "a4"]


def test_a_scope_without_a_queue_of_its_own_takes_no_extra_turns():
    rig = Rig(max_ops=1)
    a, b = rig.scope("a"), rig.scope("b")
    inner = rig.scope("inner", a, own_queue=False)
    for i in range(3):
        rig.submit(scope=a, name=f"a{i}")
        rig.submit(scope=inner, name=f"inner{i}")
        rig.submit(scope=b, name=f"b{i}")
    assert names(rig.run()) == ["a0", "b0", "inner0", "b1", "a1", "b2", "inner1", "a2", "inner2"]


def test_nothing_overtakes_the_head_of_its_scope(rig):
    first, held = rig.submit(cost=60)
    rig.submit(cost=60, name="large")
    rig.submit(cost=1, name="small")
    assert rig.dispatch() == [first]
    rig.finish(first)
    del held
    assert names(rig.dispatch()) == ["large", "small"]


def test_another_scope_may_overtake_a_blocked_head(rig):
    first, _held = rig.submit(cost=60)
    rig.submit(cost=60, name="large")
    rig.submit(cost=1, name="small", scope=rig.scope())
    assert names(rig.dispatch()) == [first.name, "small"]


def test_a_task_of_no_cost_fits_even_above_the_limit():
    rig = Rig(max_bytes=10)
    wrong, _held = rig.submit(cost=10)
    rig.dispatch()
    rig.finish(wrong, charge=50)  # the estimate was wrong
    free, _view = rig.submit(cost=0)
    assert rig.dispatch() == [free]
    assert rig.engine.ledger.account.used == 50
    assert rig.engine.ledger.peak_bytes == 50


# -- the front --------------------------------------------------------------------------------------------------------


def test_front_tasks_go_before_the_rest_of_their_scope_in_their_own_order():
    rig = Rig(max_ops=1)
    rig.submit(name="running")
    rig.dispatch()
    rig.submit(name="a")
    _, g = rig.submit(name="g1", expedited=True)
    rig.submit(g, name="g2", expedited=True)
    assert names(rig.run()) == ["running", "g1", "g2", "a"]


# -- stuck ------------------------------------------------------------------------------------------------------------


def test_stuck_names_the_oldest_task_that_only_lacks_bytes(rig):
    _, held = rig.submit(cost=100)
    rig.run()
    first, x = rig.submit(cost=10, name="first")
    rig.submit(x, cost=1, name="waits for the first")
    rig.submit(cost=10, name="second", scope=rig.scope())
    assert rig.dispatch() == []
    assert rig.engine.admission.stuck() == [first]
    del held
    assert len(rig.dispatch()) == 3
    assert rig.engine.admission.stuck() == []


# -- reserves ---------------------------------------------------------------------------------------------------------


def test_inside_a_reserve_nothing_stalls_on_bytes_held_outside(rig):
    inside = rig.scope("inside", reserve=40)
    _, held = rig.submit(cost=60)
    rig.run()
    rig.submit(cost=1, name="outside")
    rig.submit(cost=40, scope=inside, name="inside")
    assert names(rig.dispatch()) == ["inside"]
    del held


def test_bytes_that_a_reserve_still_holds_at_its_end_are_charged_to_the_parent(rig):
    outer = rig.scope("outer", reserve=80)
    inner = rig.scope("inner", outer, reserve=50)
    account = outer.account
    _, kept = rig.submit(cost=30, scope=inner)
    rig.run()
    assert (rig.engine.ledger.account.used, account.used, inner.account.used) == (80, 50, 30)
    assert unused_reserve(rig.root) == 30 + 20
    rig.engine.close_scope(inner)
    assert (rig.engine.ledger.account.used, account.used) == (80, 30)
    rig.engine.close_scope(outer)
    assert rig.engine.ledger.account.used == 30
    assert rig.engine.ledger.reserved == 0
    del kept
    rig.drain()
    assert rig.engine.ledger.account.used == 0


def test_a_scope_still_open_in_one_that_closes_goes_to_its_parent(rig):
    """As when a coroutine started inside a scope opens one of its own, and outlives it."""
    outer = rig.scope("outer", reserve=40)
    inner = rig.scope("inner", outer)
    deepest = rig.scope("deepest", inner)
    rig.submit(cost=40, scope=inner)
    rig.run()
    rig.engine.close_scope(outer)
    validate(rig.engine)
    task, kept = rig.submit(cost=90, scope=deepest)  # more than the reserve that is gone
    assert rig.dispatch() == [task]
    validate(rig.engine)
    assert rig.root.unfinished() == [task]
    assert rig.engine.ledger.account.used == 90
    rig.finish(task)
    rig.drain()
    assert rig.engine.ledger.account.used == 90
    del kept
    rig.drain()
    assert rig.engine.ledger.account.used == 0
    rig.engine.close_scope(deepest)
    rig.engine.close_scope(inner)
    assert not rig.root.children


def test_iterations_that_are_over_close_with_their_scope():
    rig = Rig()
    outer = rig.scope("outer")
    iteration = rig.scope("iteration", outer, own_queue=False)
    rig.fail(rig.submit(scope=iteration)[0], ValueError("unseen"))
    rig.engine.scopes.end(iteration)
    rig.engine.close_scope(outer)
    assert iteration.closed
    assert not rig.root.children
    assert [failure.kind for failure in outer.take_failures()[0]] == ["ValueError"]


# -- memory -----------------------------------------------------------------------------------------------------------


def test_cancelled_tasks_behind_a_blocked_head_do_not_pile_up():
    rig = Rig(max_bytes=10)
    rig.submit(cost=10)
    rig.dispatch()
    rig.submit(cost=10, name="blocked")
    queue = rig.root.queue
    longest, kept = 0, weakref.WeakSet[Task]()
    for i in range(2_000):
        task, value = rig.submit(cost=1, expedited=bool(i % 2))
        kept.add(task)
        rig.cancel(task)
        del task, value
        longest = max(longest, len(kept))
    assert queue.live == 1
    assert longest < 100
    assert names(rig.engine.admission.tasks()) == ["blocked"]


def test_queues_of_closed_scopes_leave_the_rotation():
    rig = Rig()
    for i in range(1_000):
        scope = rig.scope(str(i))
        rig.submit(scope=scope)
        rig.run()
        rig.engine.close_scope(scope)
    assert len(rig.engine.scopes.ordinary.tenants) <= 2
    assert not rig.engine.ledger.waiting
    assert not rig.root.children


def test_a_task_too_large_is_refused_even_when_negative_bytes_are_used():
    """A result larger than its task's cost was dropped, and its task has not ended."""
    rig = Rig(max_ops=1, max_bytes=20)
    task, value = rig.submit(cost=0)
    rig.dispatch()
    rig.streams[rig.lanes[0]].remove(task)
    execute(task, 1)
    del value
    rig.drain()
    assert rig.engine.ledger.account.used == -1
    with pytest.raises(TaskTooLarge):
        rig.submit(cost=21)
    rig.post(task)
    rig.dispatch()
    assert rig.engine.ledger.account.used == 0


def test_work_ahead_of_a_task_counts_by_class_and_share():
    rig = Rig(max_bytes=100)
    rig.claim(100)
    rig.dispatch()
    scopes = {
        name: rig.scope(name, tenant=tenant, weight=weight, priority=priority)
        for name, tenant, weight, priority in (
            ("first", "a", 1, 0), ("second", "a", 1, 0), ("busy", "b", 2, 0), ("small", None, None, 0),
            ("urgent", None, None, 1), ("idle", None, None, -1),
        )
    }  # fmt: skip
    for name, costs in (("first", [10]), ("busy", [20] * 9), ("small", [5]), ("urgent", [7]), ("idle", [50])):
        for cost in costs:
            rig.claim(cost, scopes[name])
    admission = rig.engine.admission
    assert admission.bytes_with(scopes["second"], 30) == 10 + 30 + 2 * 40 + 5 + 7
    assert admission.bytes_with(scopes["urgent"], 1) == 7 + 1
    assert admission.bytes_with(scopes["idle"], 2) == 50 + 2 + 7 + 10 + 9 * 20 + 5
    assert admission.bytes_with(rig.root, 3) == 3 + 3 + 2 * 3 + 3 + 7
