"""Ageing heads, and the rule by which something always goes on."""

from __future__ import annotations

import sys

import pytest

from asyncsched._core.admission import GRACE, PATIENCE
from asyncsched._core.model import DONE, PENDING

from .rig import Rig, names


@pytest.fixture
def rig():
    return Rig(max_bytes=100)


def large_beside_small(rig, streams=1):
    """A large head in one scope, small tasks without end in others. Returns it, and how many were admitted before."""
    smalls = [rig.scope(f"small {i}") for i in range(streams)]
    waiting = rig.scope("large")
    running = []
    for i in range(4 * streams):
        task, _ = rig.submit(cost=25 // streams, scope=smalls[i % streams])
        running.append(task)
    del _
    rig.dispatch()
    large, _held = rig.submit(cost=90, scope=waiting, name="large")
    passed = 0
    for i in range(100 * streams):
        if large.state != PENDING:
            return large, passed
        task, value = rig.submit(cost=25 // streams, scope=smalls[i % streams])
        running.append(task)
        del value
        ready = next(task for task in running if task.state != PENDING)
        running.remove(ready)
        rig.finish(ready)
        passed += len([task for task in rig.dispatch() if task is not large])
    raise AssertionError("the large task starves")


def test_a_large_head_beside_a_stream_of_small_tasks_is_passed_over_16_times(rig):
    large, passed = large_beside_small(rig)
    assert large.passed == PATIENCE
    assert passed <= PATIENCE + 1  # one before its first turn came
    assert rig.engine.ledger.account.earmark is None


def test_with_several_streams_of_small_tasks_each_has_16_turns_at_most(rig):
    _, passed = large_beside_small(rig, streams=3)
    assert PATIENCE <= passed <= 3 * (PATIENCE + 1)


def age(rig):
    """A head that has been passed over until bytes are kept for it, beside one task that is in flight."""
    base, held = rig.submit(cost=50)
    rig.dispatch()
    scope = rig.scope("aged")
    aged, _ = rig.submit(cost=60, scope=scope, name="aged")
    other = rig.scope("other")
    for _ in range(PATIENCE):
        small, value = rig.submit(cost=1, scope=other)
        del value
        rig.dispatch()
        rig.finish(small)
        rig.dispatch()
    assert rig.engine.ledger.account.earmark is aged
    return base, held, aged, other


def test_freed_bytes_are_kept_for_an_aged_head(rig):
    base, held, aged, other = age(rig)
    del held
    for _ in range(3):
        rig.submit(cost=1, scope=other, name="barred")
    assert rig.dispatch() == []
    rig.finish(base)
    assert names(rig.dispatch()) == ["aged", "barred", "barred", "barred"]
    assert rig.engine.ledger.account.earmark is None
    assert aged.state != PENDING


def test_cancelling_the_aged_head_frees_what_was_kept_for_it(rig):
    _base, _held, aged, other = age(rig)
    rig.submit(cost=1, scope=other, name="barred")
    assert rig.dispatch() == []
    assert rig.cancel(aged)
    assert rig.engine.ledger.account.earmark is None
    assert names(rig.dispatch()) == ["barred"]


def test_an_aged_head_goes_as_soon_as_it_fits_whatever_else_is_in_flight(rig):
    base, held, aged, other = age(rig)
    assert base.lane.load == 1
    _, kept = rig.submit(cost=0, scope=aged.scope, name="front", expedited=True)
    assert names(rig.dispatch()) == ["front"]  # its own scope is not barred
    rig.submit(cost=1, scope=other, name="barred")
    del held
    rig.finish(base)
    assert names(rig.dispatch()) == ["aged", "barred"]
    del kept


def test_a_head_does_not_age_by_what_is_admitted_in_another_account():
    rig = Rig(max_bytes=200)
    inside = rig.scope("inside", reserve=10)
    _, held = rig.submit(cost=10, scope=inside)
    rig.run()
    blocked, _ = rig.submit(cost=5, scope=inside)
    for _ in range(3 * PATIENCE):
        rig.submit(cost=1)
        rig.run()
    assert blocked.passed == 0
    assert inside.account.earmark is None
    del held


def test_an_aged_head_bars_nobody_in_another_account():
    rig = Rig(max_bytes=200)
    reserved = rig.scope("reserved", reserve=100)
    age(rig)
    rig.submit(cost=1, scope=reserved, name="inside")
    assert names(rig.dispatch()) == ["inside"]


# -- progress ---------------------------------------------------------------------------------------------------------


def test_a_loader_waiting_for_room_does_not_stop_the_trainer_behind_it(rig):
    load, x = rig.submit(cost=80)
    rig.run()
    rig.submit(cost=80, name="next load")  # the head, which cannot fit while x is held
    rig.submit(x, cost=10, name="train")
    assert names(rig.dispatch()) == ["train"]
    assert load.state == DONE


def test_progress_takes_the_oldest_that_fits_and_lets_16_more_pass():
    rig = Rig(max_bytes=1000)
    _, held = rig.submit(cost=900)
    rig.run()
    large, _large = rig.submit(cost=200, name="large")
    small = [rig.submit(cost=1, name=f"small {i}")[0] for i in range(40)]
    assert rig.dispatch() == small[: 1 + GRACE]
    for task in small[: 1 + GRACE]:
        assert rig.dispatch() == []  # order holds again until nothing is in flight
        rig.finish(task)
    assert rig.dispatch() == small[1 + GRACE : 2 * (1 + GRACE)]
    assert (large.state, large.passed) == (PENDING, 0)
    del held


def test_progress_ignores_an_earmark_once_nothing_is_in_flight(rig):
    base, held, aged, other = age(rig)
    barred, _ = rig.submit(cost=1, scope=other, name="barred")
    assert rig.dispatch() == []
    rig.finish(base)  # its value is held, so the aged head has no room, and nothing in flight will make any
    assert rig.dispatch() == [barred]
    assert rig.engine.ledger.account.earmark is aged
    del held


@pytest.mark.parametrize("front_scope_first", [True, False])
def test_progress_prefers_the_older_task_to_a_newer_one_at_the_front_of_another_scope(front_scope_first):
    rig = Rig(max_ops=1, max_bytes=100)
    _, held = rig.submit(cost=90)
    rig.run()
    a, b = rig.scope("a"), rig.scope("b")
    order = (b, a) if front_scope_first else (a, b)
    large = [rig.submit(cost=50, scope=scope, name="large", expedited=scope is b)[0] for scope in order]
    old, _old = rig.submit(cost=1, scope=a, name="old")
    rig.submit(cost=1, scope=b, name="new", expedited=True)
    assert rig.dispatch() == [old]
    assert [task.state for task in large] == [PENDING, PENDING]
    del held


def test_progress_waits_for_memory_that_is_on_its_way_back(rig):
    """It may be what the head lacks; what goes first may be held for good. Nor is anything stuck until it is there."""
    woken = []
    rig.completions.wake = lambda: woken.append(None)
    _, held = rig.submit(cost=60)
    rig.run()
    head, _head = rig.submit(cost=60, name="head")
    small, _small = rig.submit(cost=30, name="small")
    rig.completions.returning[1] = rig.completions.returning[2] = "memory"
    for returned in (1, 2):
        assert rig.dispatch() == []
        assert rig.engine.admission.stuck() == []
        assert not woken
        rig.completions.returned(returned)
        assert woken.pop() is None
        rig.completions.awake = False
    assert rig.dispatch() == [small]
    rig.completions.returned(2)
    assert not woken
    del held
    assert rig.dispatch() == [head]


def test_progress_in_one_account_does_not_need_the_others_to_be_idle():
    rig = Rig(max_bytes=200)
    inside = rig.scope("inside", reserve=100)
    rig.submit(cost=10, name="in flight for ever")
    task, held = rig.submit(cost=90, scope=inside)
    rig.dispatch()
    rig.finish(task)
    rig.dispatch()
    rig.submit(cost=50, scope=inside, name="large")
    rig.submit(cost=5, scope=inside, name="small")
    assert names(rig.dispatch()) == ["small"]
    del held


@pytest.mark.parametrize("event", ["a drop", "a completion", "a launch", "a scope that closes", "another submission"])
def test_progress_looks_again_whenever_something_changed(rig, event):
    """After a scan in vain the account is not scanned again until something could make a difference."""
    inner = rig.scope("inner", reserve=30)
    base, held = rig.submit(cost=70)
    inside, kept = rig.submit(cost=30, scope=inner)
    rig.dispatch()
    rig.finish(inside)
    rig.submit(cost=90, name="large")
    _, x = rig.submit(cost=1, scope=inner, name="producer")
    if event == "a launch":
        rig.submit(x, cost=0, name="small")
    else:
        rig.submit(cost=30, name="small")
    if event == "a completion":
        assert rig.dispatch() == []
        rig.finish(base, charge=40)
        assert names(rig.dispatch()) == ["small"]
        return
    rig.finish(base)
    assert rig.dispatch() == []
    assert not rig.engine.ledger.account.changed
    if event == "a drop":
        del held
        assert names(rig.dispatch()) == ["small"]
    elif event == "a launch":
        del kept
        assert names(rig.dispatch()) == ["producer", "small"]
    elif event == "a scope that closes":
        rig.cancel(x.task)
        del kept
        rig.drain()
        rig.engine.close_scope(inner)
        assert names(rig.dispatch()) == ["small"]
    else:
        rig.submit(cost=31, name="does not fit either")
        assert rig.dispatch() == []
        rig.submit(cost=0, name="fits")
        assert names(rig.dispatch()) == ["fits"]


@pytest.mark.parametrize("full", [False, True])
def test_scopes_that_all_wait_for_bytes_are_not_asked_each_time_one_comes_or_goes(full):
    """Counted in lines, as below. If slots are full, too, a small task waits for one."""
    rig, many, steps = Rig(max_bytes=100, max_ops=1 if full else None), 300, 0
    if full:
        rig.submit(cost=0, name="in flight")
        rig.dispatch()
        rig.submit(cost=1, name="small")

    done = list[bool]()

    def count(frame, event, _):
        nonlocal steps
        if not frame.f_code.co_filename.endswith(("admission.py", "tenants.py")):
            return None
        steps += event == "line"
        return count

    sys.settrace(count)
    try:
        claims = []
        for _ in range(many):
            claims.append(rig.claim(60, rig.scope()))
            rig.dispatch()
        for claim in claims:
            done.append(claim.state == DONE)
            rig.give_back(claim)
            rig.dispatch()
    finally:
        sys.settrace(None)
    assert all(done)
    assert steps < many * 250


def test_a_synchronous_loop_of_submissions_while_stuck_is_not_quadratic(rig):
    """Each submission dispatches. Counted in lines of the scan, since a clock would make the test flaky."""
    _, held = rig.submit(cost=100)
    rig.run()
    _, x = rig.submit(cost=1, name="stuck")
    steps = 0
    code = type(rig.engine.admission)._oldest.__code__

    def count(frame, event, _):
        nonlocal steps
        if frame.f_code is not code:
            return None
        steps += event == "line"
        return count

    sys.settrace(count)
    try:
        for _ in range(500):
            _, x = rig.submit(x, cost=1)
            rig.dispatch()
    finally:
        sys.settrace(None)
    assert steps < 500 * 20
    del held
