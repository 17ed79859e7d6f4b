"""Which stream gets the next task."""

from __future__ import annotations

from typing import Any

from asyncsched._core.admission import place
from asyncsched._core.model import CallPlan, Lane, Value

from .rig import Rig


def lanes(rig: Rig, tasks: list[Any]) -> list[int]:
    return [rig.lanes.index(task.lane) for task in tasks]


def test_a_chain_stays_on_one_lane() -> None:
    rig = Rig(lanes=3)
    _, x = rig.submit()
    for _ in range(10):
        _, x = rig.submit(x)
    assert set(lanes(rig, rig.dispatch())) == {0}


def test_a_diamond_uses_two_lanes() -> None:
    rig = Rig(lanes=2)
    a, x = rig.submit()
    b, y = rig.submit(x)
    c, z = rig.submit(x)
    d, _ = rig.submit(y, z)
    assert rig.dispatch() == [a, b, c, d]
    assert lanes(rig, [a, b, c]) == [0, 0, 1]
    assert d.lane is b.lane


def test_independent_tasks_take_the_least_loaded_lane() -> None:
    rig = Rig(lanes=3)
    for _ in range(6):
        rig.submit()
    tasks = rig.dispatch()
    assert lanes(rig, tasks) == [0, 1, 2, 0, 1, 2]
    rig.finish(tasks[1])
    rig.drain()
    rig.submit()
    assert lanes(rig, rig.dispatch()) == [1]


def test_a_finished_producer_does_not_attract() -> None:
    rig = Rig(lanes=2)
    a, x = rig.submit()
    rig.dispatch()
    rig.submit()
    rig.submit()
    rig.dispatch()
    assert [lane.load for lane in rig.lanes] == [2, 1]
    rig.finish(a)
    rig.drain()
    assert rig.lanes[0].tail is not a
    b, _ = rig.submit(x)
    rig.submit(name="more")
    rig.dispatch()
    assert lanes(rig, [b]) == [0]  # by load, not for its producer


def test_a_producer_on_another_device_does_not_attract() -> None:
    rig = Rig()
    _, x = rig.submit()
    rig.dispatch()
    task, _ = rig.task(x)
    task.lanes = [Lane(), Lane()]
    place(task, float)
    assert task.lane is task.lanes[0]


def test_loads_return_to_nothing() -> None:
    rig = Rig(lanes=2)
    for _ in range(5):
        rig.submit()
    rig.run()
    assert [(lane.load, lane.tail) for lane in rig.lanes] == [(0, None), (0, None)]


# -- where a hop to another lane takes long -------------------------------------------------------------------------


def _hopping(*seconds: float) -> tuple[Rig, Value]:
    """Lanes that take 1 s to begin; and a value that takes so long, on the first of them."""
    rig = Rig(lanes=2)
    for lane in rig.lanes:
        lane.hop = 1.0
    return rig, _launched(rig, seconds[0])[1]


def _launched(rig: Rig, seconds: float, *reads: Value) -> tuple[int, Value]:
    """On which lane a task is that takes so long, and its value."""
    task, value = rig.task(*reads)
    task.plan = CallPlan("task", seconds)
    rig.engine.submit(task)
    assert task.lane is not None
    return rig.lanes.index(task.lane), value


def test_a_task_shorter_than_a_hop_stays_where_its_producer_is() -> None:
    rig, x = _hopping(0.1)
    found = [_launched(rig, 0.2, x) for _ in range(3)]
    assert [lane for lane, _ in found] == [0, 0, 0]
    assert _launched(rig, 0.1, *[value for _, value in found])[0] == 0


def test_a_longer_task_goes_to_another_lane_and_the_sum_to_the_last_to_end() -> None:
    rig, x = _hopping(0.1)
    found = [_launched(rig, 5.0, x) for _ in range(2)]
    assert [lane for lane, _ in found] == [0, 1]
    assert _launched(rig, 0.1, *[value for _, value in found])[0] == 1


def test_independent_short_tasks_stay_together_until_they_take_longer_than_a_hop() -> None:
    rig, _ = _hopping(0.4)
    assert [_launched(rig, 0.4)[0] for _ in range(4)] == [0, 0, 1, 1]
    long, _ = _hopping(9.0)
    assert [_launched(long, 0.1)[0] for _ in range(2)] == [1, 1]


def test_a_lane_whose_ends_are_known_is_as_far_as_was_thought() -> None:
    rig, _ = _hopping(9.0)
    rig.run()
    assert [(lane.load, lane.booked_until - lane.done_until) for lane in rig.lanes] == [(0, 0.0), (0, 0.0)]
    assert _launched(rig, 0.1)[0] == 0


def test_short_tasks_do_not_pile_up_behind_one_that_takes_longer_than_was_thought() -> None:
    rig, _ = _hopping(0.1)
    rig.clock = lambda: 60.0  # so long it has run
    assert [_launched(rig, 1.0)[0] for _ in range(20)] == [1] * 20
    rig.run()
    assert _launched(rig, 0.1)[0] == 0


def test_the_lateness_of_a_lane_counts_from_its_last_known_end() -> None:
    rig, x = _hopping(0.1)
    assert _launched(rig, 5.0, x)[0] == 0
    rig.clock = lambda: 60.0
    rig.finish(rig.streams[rig.lanes[0]][0])
    rig.drain()
    rig.clock = lambda: 61.0
    assert _launched(rig, 9.0)[0] == 1
    assert _launched(rig, 1.0)[0] == 0
