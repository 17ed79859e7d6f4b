"""Failing tasks, and how failures reach what depends on them."""

from __future__ import annotations

import gc
import weakref

import pytest

from asyncsched._core.model import CANCELLED, DONE, FAILED
from tests.validate import validate

from .rig import Rig, answered, execute, states

DEEP = 30_000


def test_a_failure_reaches_every_dependent():
    rig = Rig(max_ops=1)
    bad, x = rig.submit(name="bad")
    _, y = rig.submit(x, name="left")
    _, z = rig.submit(x, name="right")
    last, w = rig.submit(y, z, name="last")
    rig.fail(bad)
    assert states([bad, last]) == {FAILED}
    assert {v.failure.root for v in (x, y, z, w)} == {bad.failure}
    assert rig.engine.ledger.unfinished == 0
    assert rig.root.take_failures() == ([bad.failure], 0)


def test_a_task_whose_producer_failed_unnoticed_is_not_launched():
    """The producer's completion is still on its way, but its failure is there to be seen."""
    rig = Rig(max_ops=2)
    rig.submit(name="other")
    bad, x = rig.submit()
    rig.dispatch()
    task, _ = rig.submit(x)
    rig.streams[bad.lane].remove(bad)
    execute(bad, 0, ValueError("no"))
    rig.engine.ledger.slots += 1
    rig.engine.dispatch()
    assert task not in rig.streams[bad.lane]
    assert task.state == FAILED
    rig.engine.ledger.slots -= 1
    rig.post(bad)
    rig.drain()
    validate(rig.engine)


@pytest.mark.parametrize("how", ["cancel the first", "fail the first", "run them"])
def test_a_deep_chain_settles_without_recursion(how):
    rig = Rig(max_ops=1 if how == "fail the first" else 0 if how == "cancel the first" else None)
    first, value = rig.submit()
    tasks = [first]
    for _ in range(DEEP - 1):
        task, value = rig.submit(value)
        tasks.append(task)
    settled = []
    for task in tasks:
        task.waiters = {answered(settled): None}
    if how == "cancel the first":
        rig.cancel(first)
        rig.dispatch()
    elif how == "fail the first":
        rig.fail(first)
    else:
        assert len(rig.run()) == DEEP
    expected = {"cancel the first": CANCELLED, "fail the first": FAILED, "run them": DONE}[how]
    assert states(tasks) == {expected}
    assert len(settled) == len(set(settled)) == DEEP
    assert rig.engine.ledger.unfinished == rig.engine.ledger.pending == 0
    if how != "run them":
        assert value.failure.root is first.failure
        assert value.failure.depth == DEEP - 1
    del first, value, task, tasks, settled  # nor does dropping it recurse
    gc.collect()


def test_a_deep_chain_that_is_dropped_unsettled_does_not_recurse():
    rig = Rig(max_ops=0)
    _, value = rig.submit()
    for _ in range(DEEP):
        _, value = rig.submit(value)
    reference = weakref.ref(rig)
    del rig, value, _
    gc.collect()
    assert reference() is None


def test_a_wide_fan_of_dependents_settles():
    rig = Rig(max_ops=1)
    bad, x = rig.submit()
    rig.dispatch()
    tasks = [rig.submit(x)[0] for _ in range(10_000)]
    rig.finish(bad, error=ValueError("no"))
    rig.dispatch()
    assert states(tasks) == {FAILED}
    assert rig.engine.ledger.pending == 0
