"""Quick tasks end where they are admitted: the same bounds, order and books as of those that go to a stream."""

from __future__ import annotations

from asyncsched._core.engine import _MOST_INLINE
from asyncsched._core.model import Task, Value

from .rig import Rig, answered, names


def test_they_run_in_their_turn():
    rig = Rig(max_ops=1)
    (slow, made) = rig.submit(name="slow")
    held = [made, *(rig.submit(quick=True, name=f"quick{i}")[1] for i in range(3))]
    rig.dispatch()
    assert not rig.ran
    rig.finish(slow)
    last, _ = rig.submit(name="last")
    assert rig.dispatch() == [last]
    assert names(rig.ran) == ["quick0", "quick1", "quick2"]
    assert all(value.settled for value in held)
    assert rig.engine.ledger.peak_in_flight == 1


def test_a_reader_of_a_running_task_goes_to_its_stream():
    rig = Rig()
    slow, value = rig.submit(name="slow")
    reader, _ = rig.submit(value, quick=True, name="reader")
    assert rig.dispatch() == [slow, reader]
    assert not rig.ran


def test_a_chain_runs_at_once():
    rig = Rig(max_ops=1)
    slow, _ = rig.submit()
    value: tuple[Value, ...] = ()
    for i in range(5):
        value = (rig.submit(*value, cost=1, quick=True, name=f"{i}")[1],)
    told: list[Task] = []
    assert value[0].task is not None
    value[0].task.waiters = {answered(told): None}
    rig.dispatch()
    rig.finish(slow)
    rig.dispatch()
    assert names(rig.ran) == ["0", "1", "2", "3", "4"]
    assert names(told) == ["4"]
    rig.drain()
    assert rig.engine.ledger.account.used == 1  # the last result


def test_a_task_that_lacks_bytes_holds_up_those_behind_it():
    rig = Rig(max_ops=2, max_bytes=10)
    slow, value = rig.submit(cost=6)
    rig.submit(name="in flight")  # so that nothing overtakes
    rig.dispatch()
    held = [rig.submit(cost=cost, quick=True, name=str(cost))[1] for cost in (2, 4, 1)]
    rig.finish(slow)
    rig.dispatch()
    assert names(rig.ran) == ["2"]
    assert rig.engine.ledger.peak_bytes <= 10
    del value
    rig.dispatch()
    assert names(rig.ran) == ["2", "4", "1"]
    assert rig.engine.ledger.account.used == sum(value.charge for value in held) == 7


def test_the_loop_breathes():
    rig = Rig(max_ops=1)
    woken: list[None] = []
    rig.completions.wake = lambda: woken.append(None)
    slow, _ = rig.submit()
    rig.dispatch()
    for _ in range(2 * _MOST_INLINE + 1):
        rig.submit(quick=True)
    rig.finish(slow)
    for ran in (_MOST_INLINE, 2 * _MOST_INLINE, 2 * _MOST_INLINE + 1):
        rig.completions.awake = False
        woken.clear()
        rig.engine.dispatch()
        assert len(rig.ran) == ran
        assert bool(woken) == bool(rig.engine.ledger.pending)


def test_drops_in_another_account_let_its_tasks_go():
    """Such a drop goes the shorter way, which tells nobody. So what waits in any account is looked at again."""
    rig = Rig(max_bytes=100)
    inside = rig.scope("inside", reserve=50)
    held = [rig.submit(cost=cost, scope=inside)[1] for cost in (20, 30)]
    rig.run()
    rig.submit(cost=40, scope=inside, name="large")
    small, _ = rig.submit(cost=20, scope=inside, name="small")
    assert rig.dispatch() == []
    rig.submit(held.pop(), quick=True)
    assert rig.dispatch() == [small]
