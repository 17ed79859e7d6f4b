"""What a finaliser asks for in the middle of a change is done afterwards: whole, and in order."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from asyncsched._core.instrument import Instrument
from asyncsched._core.model import CANCELLED, Task

from .rig import Rig, answered, cancellation


def as_one_ends(rig: Rig, act: Callable[[], None]) -> None:
    """Act in the middle of the change in which a task ends."""
    task, _ = rig.submit(name="ends")
    rig.dispatch()

    class Finaliser(Instrument):
        def task_ended(self, ended: Task) -> None:
            if ended is task:
                assert rig.ledger.busy
                act()

    rig.ledger.observer = Finaliser()
    rig.finish(task)


def test_a_request_put_off_is_a_change_of_its_own(rig):
    running, _value = rig.submit(name="running")
    busy = []
    rig.on_cancel = lambda task: busy.append(rig.ledger.busy)
    as_one_ends(rig, lambda: rig.engine.cancel(running, cancellation(running)))
    rig.dispatch()
    assert busy == [True]
    rig.run()
    assert running.state == CANCELLED


def test_requests_put_off_keep_their_order(rig):
    """Also if something else is there to be taken in when the first of them joins."""
    first, value = rig.task(name="first")
    second, _ = rig.task(value, name="second")

    def act() -> None:
        rig.engine.submit(first)
        rig.engine.submit(second)

    as_one_ends(rig, act)
    catch_up = rig.engine._run_put_off

    def catch_up_with_a_drop() -> None:
        rig.completions.dropped(SimpleNamespace(account=rig.ledger.account, charge=0, seq=-1))
        catch_up()

    rig.engine._run_put_off = catch_up_with_a_drop
    assert rig.dispatch() == [first, second]


def test_requests_put_off_are_abandoned_with_the_rest(rig):
    """The change is interrupted in which a finaliser submitted: who waits for that is told, too."""
    late, value = rig.task(name="late")
    told: list[Task] = []
    late.waiters = {answered(told): None}

    def act() -> None:
        rig.engine.submit(late)
        raise KeyboardInterrupt

    rig.on_interrupted = lambda error: rig.engine.abandon(cancellation(late))
    as_one_ends(rig, act)
    with pytest.raises(KeyboardInterrupt):
        rig.dispatch()
    rig.engine.dispatch()
    assert told == [late]
    assert value.failure is not None


def test_a_task_that_is_cancelled_before_it_joins_stays_cancelled(rig):
    """Also if an input has failed, so that it would fail as it joins."""
    producer, value = rig.submit(name="producer")
    rig.dispatch()
    producer.call.error = ValueError()
    rig.finish(producer)
    rig.dispatch()
    reader, _value = rig.task(value, name="reader")
    told: list[bool] = []

    def act() -> None:
        rig.engine.submit(reader)
        told.append(rig.engine.cancel(reader, cancellation(reader)))

    as_one_ends(rig, act)
    rig.dispatch()
    assert told == [True]
    assert reader.state == CANCELLED
    assert reader.failure.cancelled
