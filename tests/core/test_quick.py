"""Quick tasks end where they are admitted: the same bounds, order and books as of those that go to a stream."""

from __future__ import annotations

import random

import pytest

from asyncsched._core.engine import _MOST_HERE
from asyncsched._core.instrument import Instrument
from asyncsched._core.model import DONE, PENDING, Scope, Task, Value

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


def test_what_reads_what_runs_goes_to_its_stream():
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
    value[0].task.waiters = [answered(told)]
    rig.dispatch()
    rig.finish(slow)
    rig.dispatch()
    assert names(rig.ran) == ["0", "1", "2", "3", "4"]
    assert names(told) == ["4"]
    rig.drain()
    assert rig.engine.ledger.account.used == 1  # the last result


def test_one_that_lacks_bytes_holds_up_those_behind_it():
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
    for _ in range(2 * _MOST_HERE + 1):
        rig.submit(quick=True)
    rig.finish(slow)
    for ran in (_MOST_HERE, 2 * _MOST_HERE, 2 * _MOST_HERE + 1):
        rig.completions.awake = False
        woken.clear()
        rig.engine.dispatch()
        assert len(rig.ran) == ran
        assert bool(woken) == bool(rig.engine.ledger.pending)


@pytest.mark.parametrize("seed", range(30))
def test_random_histories_keep_the_books(seed):
    chance = random.Random(seed)
    most, limit = chance.choice([1, 2, None]), chance.choice([12, 40, None])
    rig = Rig(max_ops=most, max_bytes=limit, lanes=chance.choice([1, 2]))
    if chance.random() < 0.3:  # told of, they go the longer way
        rig.engine.ledger.observer = Instrument()
    scopes: list[Scope] = [rig.root]
    tasks: list[Task] = []
    held: list[Value] = []
    for _ in range(60):
        match chance.choice(["submit", "submit", "submit", "dispatch", "finish", "cancel", "drop", "scope"]):
            case "submit":
                inputs = chance.sample(held, min(len(held), chance.choice([0, 0, 1, 2])))
                inputs = [value for value in inputs if value.charge + 8 <= 12]
                task, value = rig.submit(
                    *inputs[:1],
                    cost=chance.randrange(5),
                    quick=chance.random() < 0.7,
                    scope=chance.choice(scopes),
                    expedited=chance.random() < 0.1,
                )
                tasks.append(task)
                held.append(value)
                del value, inputs
            case "dispatch":
                rig.dispatch()
            case "finish" if running := [task for stream in rig.streams.values() for task in list(stream)[:1]]:
                rig.finish(chance.choice(running), error=ValueError("no") if chance.random() < 0.2 else None)
                del running
            case "cancel" if tasks:
                rig.cancel(chance.choice(tasks))
            case "drop" if held:
                held.pop(chance.randrange(len(held)))
            case "scope" if len(scopes) < 3:
                scopes.append(rig.scope())
        rig.drain()
        rig.engine.audit.validate()
        assert limit is None or rig.engine.ledger.account.used <= limit
        assert most is None or rig.engine.ledger.in_flight <= most
    held.clear()
    rig.run()
    while stuck := rig.engine.admission.stuck():  # on bytes that pending tasks hold
        rig.cancel(stuck[0])
        rig.run()
    assert all(task.state >= DONE for task in tasks)
    assert rig.engine.ledger.account.used == 0
    assert rig.engine.ledger.unfinished == 0
    if limit is None and len(scopes) == 1:  # else what lacks bytes, or waits for another scope, may be overtaken
        order = [task.seq for task in rig.ran if not task.expedited]
        assert order == sorted(order)
    assert not any(task.state == PENDING for task in tasks)
