"""One wake-up per burst, and none lost."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from asyncsched._core.completions import Completions

from .rig import Rig, cancellation


@pytest.fixture
def rig():
    rig = Rig(max_ops=8)
    rig.woken = []
    rig.completions.wake = lambda: rig.woken.append(None)
    return rig


def drop(rig, nbytes):
    rig.completions.dropped(SimpleNamespace(account=rig.engine.ledger.account, charge=nbytes, seq=-1))


def finished(rig, **options):
    task, value = rig.submit(**options)
    rig.engine.dispatch()  # not by the rig, which takes a wake-up for done
    rig.streams[task.lane].clear()
    return task, value


def test_a_completion_that_nobody_waits_for_wakes_nobody(rig):
    task, _ = finished(rig)
    rig.post(task, True)
    assert not rig.woken
    assert list(rig.completions.items) == [task]


def test_a_failure_wakes_also_where_nobody_waits(rig):
    """Who awaits it may see it before its task ends, and waits no longer: else nothing would give back its slot."""
    task, _ = finished(rig)
    task.failure = cancellation(task)
    rig.post(task, False)
    assert len(rig.woken) == 1


def test_an_awaited_completion_wakes_once(rig):
    for _ in range(3):
        task, _ = finished(rig)
        task.waiters = {print: None}
        rig.post(task, False)
    assert len(rig.woken) == 1
    rig.completions.awake = False
    rig.post(task, False)
    assert len(rig.woken) == 2


@pytest.mark.parametrize(
    ("flags", "dry", "wakes_at"),
    [
        ({"wants_slots": True, "threshold": 3}, False, 3),
        ({"wants_slots": True, "threshold": 3}, True, 1),
        ({"wants_slots": True, "threshold": 3, "wants_bytes": True}, False, 1),
        ({"wants_slots": False, "threshold": 3}, True, None),
    ],
)
def test_while_tasks_wait_for_slots_a_burst_wakes_at_its_threshold(rig, flags, dry, wakes_at):
    task, _ = finished(rig)
    for name, flag in flags.items():  # each dispatch sets them anew
        setattr(rig.completions, name, flag)
    woken = []
    for i in range(1, 6):
        rig.post(task, dry)
        if rig.woken:
            woken.append(i)
    assert woken[:1] == ([] if wakes_at is None else [wakes_at])
    assert len(rig.woken) <= 1


@pytest.mark.parametrize("wants_bytes", [True, False])
def test_a_drop_wakes_only_if_someone_waits_for_bytes(rig, wants_bytes):
    task, value = finished(rig, cost=5)
    value.charge = 5
    rig.completions.wants_bytes = wants_bytes
    value.seq = 7
    task.value = None
    del value
    assert list(rig.completions.items) == [(rig.engine.ledger.account, 5, 7)]
    assert len(rig.woken) == wants_bytes
    drop(rig, 3)
    assert list(rig.completions.items)[-1] == (rig.engine.ledger.account, 3, -1)
    assert len(rig.woken) == wants_bytes


def test_where_a_wake_up_fails_the_next_is_made():
    """At the end of a recursion, say, in a finaliser: Python loses the exception."""
    woken = []

    def wake():
        woken.append(len(woken))
        if woken == [0]:
            raise RecursionError

    completions = Completions(wake)
    with pytest.raises(RecursionError):
        completions.notify()
    completions.notify()
    completions.notify()
    assert woken == [0, 1]


def test_the_drops_of_an_ending_task_are_posted_with_its_end(rig):
    """A wake-up in between would take the GIL from a stream that has the rest to do."""
    task, _ = finished(rig)
    rig.completions.wants_slots, rig.completions.threshold, rig.completions.wants_bytes = True, 9, True
    rig.completions.ending = True
    drop(rig, 8)
    assert not rig.woken
    rig.post(task, False)
    assert len(rig.woken) == 1
    assert not rig.completions.ending


def test_a_value_without_bytes_posts_nothing(rig):
    task, value = finished(rig)
    task.value = None
    del value
    assert not rig.completions.items


def test_a_new_inbox_is_asleep():
    completions = Completions(lambda: None)
    assert (completions.awake, completions.wants_slots, completions.wants_bytes) == (False, False, False)
