"""One wake-up per burst, and none lost."""

from __future__ import annotations

import pytest

from asyncsched._core.inbox import Inbox

from .rig import Rig


@pytest.fixture
def rig():
    rig = Rig(max_ops=8)
    rig.woken = []
    rig.inbox.wake = lambda: rig.woken.append(None)
    return rig


def finished(rig, **options):
    task, value = rig.submit(**options)
    rig.pump()
    rig.streams[task.lane].clear()
    return task, value


def test_a_completion_that_nobody_waits_for_wakes_nobody(rig):
    task, _ = finished(rig)
    rig.inbox.completed(task, True)
    assert not rig.woken
    assert list(rig.inbox.items) == [task]


def test_an_awaited_completion_wakes_once(rig):
    for _ in range(3):
        task, _ = finished(rig)
        task.waiters = [print]
        rig.inbox.completed(task, False)
    assert len(rig.woken) == 1
    rig.inbox.awake = False
    rig.inbox.completed(task, False)
    assert len(rig.woken) == 2


@pytest.mark.parametrize(
    ("flags", "dry", "wakes_at"),
    [
        ({"hungry": True, "threshold": 3}, False, 3),
        ({"hungry": True, "threshold": 3}, True, 1),
        ({"hungry": True, "threshold": 3, "starved": True}, False, 1),
        ({"hungry": False, "threshold": 3}, True, None),
    ],
)
def test_while_tasks_wait_for_slots_a_burst_wakes_at_its_threshold(rig, flags, dry, wakes_at):
    for name, flag in flags.items():
        setattr(rig.inbox, name, flag)
    task, _ = finished(rig)
    woken = []
    for i in range(1, 6):
        rig.inbox.completed(task, dry)
        if rig.woken:
            woken.append(i)
    assert woken[:1] == ([] if wakes_at is None else [wakes_at])
    assert len(rig.woken) <= 1


@pytest.mark.parametrize("starved", [True, False])
def test_a_drop_wakes_only_if_someone_waits_for_bytes(rig, starved):
    task, value = finished(rig, cost=5)
    value.charge = 5
    rig.inbox.starved = starved
    task.value = None
    del value
    assert list(rig.inbox.items) == [(rig.engine.account, 5)]
    assert len(rig.woken) == starved
    rig.inbox.dropped(rig.engine.account, 3)
    assert list(rig.inbox.items)[-1] == (rig.engine.account, 3)
    assert len(rig.woken) == starved


def test_a_value_without_bytes_posts_nothing(rig):
    task, value = finished(rig)
    task.value = None
    del value
    assert not rig.inbox.items


def test_a_new_inbox_is_asleep():
    inbox = Inbox(lambda: None)
    assert (inbox.awake, inbox.hungry, inbox.starved) == (False, False, False)
