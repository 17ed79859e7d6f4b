"""Turns: shares by cost between tenants, turns within one, classes that go first and those that wait."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from itertools import combinations, pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asyncsched._core.admission import PATIENCE
from asyncsched._core.model import PENDING
from asyncsched._core.tenants import QUANTUM

from .rig import Rig


def order(rig):
    """The scopes in the order in which their tasks run, as text. One slot, so that this is the order of admission."""
    assert rig.engine.ledger.limits.max_ops == 1
    return "".join(task.scope.name for task in rig.run())


@pytest.fixture
def rig():
    """One slot, so that the order in which tasks run is that of admission."""
    return Rig(max_ops=1)


# -- tenants ----------------------------------------------------------------------------------------------------------


def test_the_scopes_of_a_tenant_share_its_turns_and_take_turns_within_it(rig):
    for name in "abc":
        rig.fill(rig.scope(name, tenant="many"), 3)
    rig.fill(rig.scope("x", tenant="one"), 9)
    assert order(rig) == "axbxcx" * 3


def test_scopes_without_a_tenant_are_each_their_own(rig):
    for name in "abc":
        rig.fill(rig.scope(name), 2)
    rig.fill(rig.scope("x", tenant="x"), 2)
    assert order(rig) == "abcx" * 2


def test_a_scope_within_a_tenants_is_the_tenants(rig):
    outer = rig.scope("a", tenant="many")
    for scope in (outer, rig.scope("b", outer), rig.scope("c", rig.scope("d", outer))):
        rig.fill(scope, 2)
    rig.fill(rig.scope("x", outer, tenant="one"), 6)
    assert order(rig) == "axbxcx" * 2


def test_weights_scale_the_shares(rig):
    rig.fill(rig.scope("a", tenant="a", weight=3), 30)
    rig.fill(rig.scope("b", tenant="b"), 10)
    rig.fill(rig.scope("c", tenant="c", weight=0.5), 5)
    served = order(rig)
    for end in range(9, 46, 9):
        counts = Counter(served[:end])
        assert abs(counts["a"] - end * 3 / 4.5) <= 3
        assert abs(counts["b"] - end / 4.5) <= 1
        assert abs(counts["c"] - end / 9) <= 1


def test_the_weight_given_last_holds_for_the_tenant(rig):
    first = rig.scope("a", tenant="a", weight=3)
    assert rig.scope("b", tenant="a").queue.tenant.weight == 3
    rig.scope("c", tenant="a", weight=2)
    assert first.queue.tenant.weight == 2
    assert rig.scope("d", first, priority=1).queue.tenant.weight == 2
    assert rig.scope("e", first, tenant="e").queue.tenant.weight == 1


def test_shares_are_by_bytes_and_a_quantum_for_the_slot(rig):
    rig.fill(rig.scope("a", tenant="large"), 8, cost=3 * QUANTUM)
    rig.fill(rig.scope("b", tenant="small"), 32, cost=0)
    served = order(rig)
    for end in range(5, 41, 5):
        assert abs(Counter(served[:end])["a"] - end / 5) <= 1


def test_a_small_task_never_waits_for_a_second_large_one(rig):
    rig.fill(rig.scope("a", tenant="large"), 5, cost=1000 * QUANTUM)
    rig.fill(rig.scope("b", tenant="small"), 500)
    served = order(rig)
    assert served.index("a", 1) == 501
    assert served.endswith("aaaa")


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # the machine may be busy
@given(
    tenants=st.lists(
        st.tuples(st.sampled_from([0.25, 1, 2, 7.5]), st.lists(st.integers(0, 50), min_size=1, max_size=30)),
        min_size=2,
        max_size=5,
    )
)
def test_shares_differ_by_two_quanta_and_a_task_of_each_at_most(tenants):
    """In every stretch in which two tenants always had something pending."""
    rig = Rig(max_ops=1)
    for i, (weight, costs) in enumerate(tenants):
        scope = rig.scope(str(i), tenant=i, weight=weight)
        for cost in costs:
            rig.submit(scope=scope, cost=cost * QUANTUM // 4)
    paid = [0.0] * len(tenants)
    largest = [(1 + max(costs) / 4) / weight for weight, costs in tenants]
    left = [len(costs) for _, costs in tenants]
    lead = {pair: [0.0, 0.0] for pair in combinations(range(len(tenants)), 2)}  # the least and the most so far
    for task in rig.run():
        served = int(task.scope.name)
        paid[served] += (1 + task.cost / QUANTUM) / tenants[served][0]
        for (i, j), range_ in lead.items():
            if left[i] and left[j]:
                range_[:] = min(range_[0], paid[i] - paid[j]), max(range_[1], paid[i] - paid[j])
                assert range_[1] - range_[0] <= 2 + largest[i] + largest[j] + 1e-9
        left[served] -= 1
    assert not any(left)


def test_a_tenant_at_rest_saves_nothing_up(rig):
    busy, idle = rig.scope("a", tenant="busy"), rig.scope("b", tenant="idle")
    rig.fill(idle, 1)
    rig.fill(busy, 50)
    rig.run()
    rig.fill(busy, 4)
    rig.fill(idle, 4)
    assert order(rig) in ("abababab", "babababa")


def test_alone_nobody_runs_into_debt(rig):
    busy = rig.scope("a", tenant="busy")
    rig.fill(busy, 50, cost=QUANTUM)
    rig.run()
    rig.fill(busy, 4)
    rig.fill(rig.scope("b", tenant="late"), 4)
    assert "bbbb" not in order(rig)


def test_a_scope_that_cannot_go_saves_nothing_up():
    rig = Rig(max_ops=1, max_bytes=100)
    running, held = rig.submit(cost=60)
    rig.dispatch()
    blocked = rig.scope("a", tenant="a")
    rig.fill(blocked, 3, cost=50)
    other = rig.scope("b", tenant="b")
    rig.fill(other, PATIENCE - 2)
    rig.finish(running)
    assert order(rig) == "b" * (PATIENCE - 2)
    rig.fill(other, 3)
    del held
    assert order(rig) in ("ababab", "bababa")


def test_ten_times_the_scopes_give_no_more_turns(rig):
    """A tenant that sends ten times what another does."""
    for _ in range(100):
        rig.fill(rig.scope("a", tenant="greedy"), 1)
    for _ in range(10):
        rig.fill(rig.scope("b", tenant="modest"), 1)
    assert order(rig) == "ab" * 10 + "a" * 90


def test_debts_outlive_the_scopes_of_a_tenant(rig):
    others = rig.scope("b", tenant="others")
    rig.fill(others, 20)
    first = rig.scope("a", tenant="large")
    rig.fill(first, 1, cost=7 * QUANTUM)
    for _ in range(2):
        (task,) = rig.dispatch()
        rig.finish(task)
        rig.drain()
    rig.engine.close_scope(first)
    del first, task
    gc.collect()
    rig.fill(rig.scope("c", tenant="large"), 1)
    assert order(rig).index("c") == 7


def test_tenants_and_classes_that_are_gone_leave_nothing_behind(rig):
    busy, alive, most = rig.scope("busy"), weakref.WeakSet[Any](), list[int]()
    for i in range(3_000):
        scope = rig.scope(str(i), tenant=i, priority=i)
        alive |= {scope.queue.tenant, scope.queue.tenant.priority}
        rig.fill(scope, 1, cost=5 * QUANTUM)
        rig.fill(busy, 1)
        rig.run()
        rig.engine.close_scope(scope)
        del scope
        if i % 1_500 == 1_499:
            gc.collect()
            most.append(len(alive))
    assert most[0] == most[1] < 3_000  # those that came last


def test_an_overdrawn_tenant_that_has_nothing_more_leaves_the_turns(rig):
    busy = rig.scope("busy")
    for i in range(100):
        rig.fill(rig.scope(str(i)), 1, cost=1000 * QUANTUM)
        rig.fill(busy, 2)
        rig.run()
    assert len(rig.engine.scopes.ordinary.tenants) <= 3


# -- priority classes -------------------------------------------------------------------------------------------------


def test_the_higher_class_goes_first(rig):
    rig.fill(rig.scope("n"), 3)
    rig.fill(rig.scope("l", priority=-1), 3)
    rig.fill(rig.scope("h", priority=1), 3)
    assert order(rig) == "hhhnnnlll"


def test_a_scope_is_in_its_parents_class_unless_it_says_otherwise(rig):
    outer = rig.scope("h", priority=2, tenant="a")
    rig.fill(rig.scope("n"), 2)
    rig.fill(rig.scope("i", outer), 2)
    rig.fill(rig.scope("z", outer, priority=0), 1)
    assert order(rig) == "iinzn"


def test_tenants_share_within_a_class(rig):
    for name in "ab":
        rig.fill(rig.scope(name, tenant=name, priority=1), 2)
        rig.fill(rig.scope(name.upper(), tenant=name), 2)
    assert order(rig) == "ababABAB"


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_no_class_waits_for_more_than_patience_and_the_other_classes(rig, classes):
    for level in range(classes):
        rig.fill(rig.scope(str(level), priority=level), 200)
    served = order(rig)[:200]
    for level in map(str, range(classes)):
        turns = [-1, *(i for i, name in enumerate(served) if name == level)]
        assert len(turns) > 200 // (PATIENCE + classes)
        assert max(b - a for a, b in pairwise(turns)) <= PATIENCE + classes - 1
    assert Counter(served).most_common(1)[0][0] == str(classes - 1)


def test_a_class_counts_anew_when_it_went_alone(rig):
    high, low = rig.scope("h", priority=1), rig.scope("l")
    rig.fill(low, 3)
    rig.fill(high, PATIENCE - 1)
    for _ in range(PATIENCE):
        (running,) = rig.dispatch()
        rig.finish(running)
    assert running.name == "l0"
    rig.fill(high, 5)
    assert order(rig) == "hhhhhll"


def test_a_class_counts_anew_when_it_has_nothing_left(rig):
    high, low = rig.scope("h", priority=1), rig.scope("l")
    rig.fill(high, PATIENCE - 1)
    task, _ = rig.submit(scope=low)
    for _ in range(PATIENCE - 2):
        (running,) = rig.dispatch()
        rig.finish(running)
    rig.cancel(task)
    rig.run()
    rig.fill(low, 1)
    rig.fill(high, 5)
    assert order(rig) == "hhhhhl"


def test_a_large_task_of_a_low_class_has_bytes_kept_for_it_in_the_end():
    rig = Rig(max_bytes=100)
    high, low = rig.scope("h", priority=1), rig.scope("l")
    rig.fill(high, 2, cost=40)
    running = rig.dispatch()
    large, _held = rig.submit(cost=90, scope=low)
    passed = 0
    while large.state == PENDING:
        rig.fill(high, 1, cost=40)
        rig.finish(running.pop(0))
        running += rig.dispatch()
        passed += 1
        assert passed < 200
    assert PATIENCE < passed <= 2 * PATIENCE + 2
