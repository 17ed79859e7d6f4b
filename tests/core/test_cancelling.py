"""Cancelling tasks, in every state, with what depends on them."""

from __future__ import annotations

import contextvars
import gc
import weakref
from typing import Any

import pytest

from asyncsched._core.model import CANCELLED, DONE, FAILED, LAUNCHED, PENDING, Task
from tests.validate import validate

from .rig import Rig, answered, cancellation, execute


def test_a_cancelled_launched_task_keeps_its_slot_and_bytes_until_it_ends():
    rig = Rig(max_ops=1, max_bytes=100)
    task, x = rig.submit(cost=60)
    rig.dispatch()
    waiting, _ = rig.submit(cost=50)
    dependent, _ = rig.submit(x)
    called = []
    task.waiters = {answered(called): None}
    assert rig.cancel(task)
    assert rig.dispatch() == []
    assert called == [task]
    assert task.settled
    assert x.settled
    assert (task.state, waiting.state, dependent.state) == (LAUNCHED, PENDING, CANCELLED)
    assert (rig.engine.ledger.account.used, rig.engine.ledger.in_flight) == (60, 1)
    assert not rig.cancel(task)
    rig.finish(task)
    assert rig.dispatch() == [waiting]
    assert task.state == CANCELLED
    assert rig.engine.ledger.account.used == 50
    validate(rig.engine)


def test_a_waiter_that_leaves_while_others_are_called_takes_nobodys_place():
    """As a coroutine that waits does, which the collector closes in the middle of it."""
    rig, called = Rig(), list[Task]()
    task, _ = rig.submit()

    def leaves(job: Task) -> bool:
        assert job.waiters is not None
        del job.waiters[leaves]
        return answered(called)(job)

    task.waiters = {leaves: None, answered(called): None}
    rig.dispatch()
    rig.finish(task)
    rig.dispatch()
    assert called == [task, task]


def test_a_task_whose_body_has_raised_is_not_cancelled_any_more():
    """The completion is not posted yet. The exception would be lost, and nobody told of it."""
    rig = Rig()
    task, _ = rig.submit()
    rig.dispatch()
    rig.streams[task.lane].clear()
    kept = task.value
    execute(task, error=ValueError("no"))
    task.value = kept  # the stream is about to let go
    assert not rig.cancel(task)
    task.value = kept = None
    rig.post(task)
    rig.dispatch()
    assert task.state == FAILED
    assert [failure.kind for failure in rig.root.take_failures()[0]] == ["ValueError"]


def test_a_task_cancelled_while_its_body_returns_accounts_for_its_result():
    """The stream has put the result into the value, but the completion is not posted yet."""
    rig = Rig(max_bytes=100)
    task, value = rig.submit(cost=60)
    rig.dispatch()
    rig.streams[task.lane].clear()
    kept = task.value
    execute(task, 50)
    task.value = kept  # the stream is about to let go
    assert rig.cancel(task)
    task.value = kept = None
    rig.post(task, True)
    rig.dispatch()
    assert task.state == CANCELLED
    assert value.failure.cancelled
    assert rig.engine.ledger.account.used == 50
    del value
    rig.dispatch()
    assert rig.engine.ledger.account.used == 0


def ends_on_its_stream(rig: Rig, task: Task) -> None:
    """It comes to its end with a result, which is posted and not taken in. It had begun before any of this."""
    assert task.lane is not None
    value = task.value
    assert value is not None
    value.array, task.refund = object(), task.cost
    task.value, task.reads = None, ()
    rig.streams[task.lane].remove(task)
    rig.post(task)


@pytest.mark.parametrize("when", ["before the mark", "after the mark"])
def test_a_task_that_ends_while_it_is_cancelled_ends_like_its_reader(rig, monkeypatch, when):
    """Both end on their streams in the middle of `cancel`, at each point where another thread may run."""
    tasks, value = rig.chain(3)
    rig.dispatch()

    def streams_run(*_: Any) -> bool:
        for task in tasks:
            if task.value is not None:
                ends_on_its_stream(rig, task)
        return False

    if when == "after the mark":
        rig.on_cancel = streams_run
    else:
        monkeypatch.setattr(Task, "settled", property(streams_run))
    found = rig.engine.cancel(tasks[0], cancellation(tasks[0]))
    monkeypatch.undo()
    rig.on_cancel = lambda task: None
    rig.dispatch()
    assert found == (when == "after the mark")
    assert {task.state for task in tasks} == {CANCELLED if found else DONE}
    assert value.settled
    assert (value.failure is not None) == found
    validate(rig.engine)


def test_a_cancelled_task_lets_go_of_all_it_was_given():
    """Its handle may live on, and must not pin the arguments, nor what the submitter's context refers to."""

    class Thing:
        pass

    variable = contextvars.ContextVar("variable")
    things = [Thing(), Thing(), Thing()]
    references = [weakref.ref(thing) for thing in things]
    rig = Rig(max_ops=1)
    rig.submit()
    rig.dispatch()
    task, value = rig.task()
    task.args, task.options, task.context = (things[0],), {"option": things[1]}, contextvars.copy_context()
    task.context.run(variable.set, things[2])
    rig.engine.submit(task, hold=True)
    del things
    rig.cancel(task)
    gc.collect()
    assert [reference() for reference in references] == [None, None, None]
    assert value.task is task
