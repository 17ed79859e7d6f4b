"""Events in, launches and settled tasks out: one test per promise of the engine."""

from __future__ import annotations

import pytest

from asyncsched._core.model import DONE, FAILED, LAUNCHED, PENDING, Lease
from asyncsched.errors import QueueFull, TaskTooLarge
from tests.validate import validate

from .rig import Rig

# -- submitting -------------------------------------------------------------------------------------------------------


def test_a_task_goes_through_its_states():
    rig = Rig(max_bytes=100)
    task, value = rig.submit(cost=10)
    assert task.state == PENDING
    assert repr(task) == "<task #0 pending>"
    rig.dispatch()
    assert task.state == LAUNCHED
    assert rig.engine.ledger.account.used == 10
    rig.finish(task, charge=4)
    assert not value.settled
    rig.dispatch()
    assert task.state == DONE
    assert value.settled
    assert rig.engine.ledger.account.used == 4
    del value
    rig.dispatch()
    assert rig.engine.ledger.account.used == 0
    assert rig.engine.ledger.peak_bytes == 10
    validate(rig.engine)


def test_a_full_backlog_refuses_bounded_tasks_and_changes_nothing():
    rig = Rig(max_pending=2, max_ops=1)
    rig.submit()
    rig.dispatch()
    rig.submit()
    rig.submit()
    task, _value = rig.task(name="matmul")
    with pytest.raises(QueueFull, match=r"matmul: the backlog holds 2 tasks .*await s.barrier\(\).*s.window\(2\)"):
        rig.engine.submit(task, hold=True)
    validate(rig.engine)
    assert (rig.engine.ledger.submitted, rig.engine.ledger.unfinished) == (3, 3)
    rig.engine.submit(task, bounded=False, hold=True)
    validate(rig.engine)
    assert rig.engine.ledger.pending == 3


def test_reading_a_finished_value_forgets_its_producer(rig):
    _, x = rig.submit()
    rig.run()
    assert x.task is not None
    task, _ = rig.submit(x)
    assert x.task is None
    assert task.blockers == 0


def test_a_task_that_reads_a_result_twice_waits_for_it_once(rig):
    producer, value = rig.submit()
    other, _other = rig.submit(value)
    twice, _twice = rig.submit(value, value)
    alone, only = rig.submit()
    both, _both = rig.submit(only, only, value)
    assert producer.dependents == [other, twice, both]
    assert alone.dependents == (both,)
    assert (twice.blockers, both.blockers) == (1, 2)
    rig.run()
    assert {task.state for task in (other, twice, both)} == {DONE}


def test_a_reader_fails_with_its_input_and_not_when_its_turn_has_come():
    rig = Rig(max_ops=1)
    bad, x = rig.submit()
    rig.dispatch()
    other, _ = rig.submit()  # it takes the only slot
    task, value = rig.submit(x)
    rig.fail(bad)
    assert (other.state, task.state) == (LAUNCHED, FAILED)
    assert value.failure.upstream is x.failure
    validate(rig.engine)


@pytest.mark.parametrize("launched", [True, False])
@pytest.mark.parametrize("end", ["finish", "fail", "cancel", "producer fails"])
def test_a_write_over_a_buffer_waits_only_for_the_end_of_its_readers(end, launched):
    rig = Rig(max_ops=9 if launched else 1)
    bad, x = rig.submit()
    rig.dispatch()
    reader, _ = rig.submit(x)
    follower, _ = rig.submit()
    writer, value = rig.task()
    writer.after = [reader]
    rig.engine.submit(writer, hold=True)
    validate(rig.engine)
    rig.dispatch()
    validate(rig.engine)
    assert {reader.state, writer.state} == {LAUNCHED if launched else PENDING}
    if end == "cancel":
        rig.cancel(reader)
    validate(rig.engine)
    rig.finish(bad, error=ValueError("no") if end == "producer fails" else None)
    rig.dispatch()
    validate(rig.engine)
    if reader.state == LAUNCHED:
        assert (writer.state == LAUNCHED) == launched or writer.blockers == 0
        rig.finish(reader, error=ValueError("no") if end == "fail" else None)
    rig.run()
    validate(rig.engine)
    assert (reader.state == DONE) == (end == "finish")
    assert (follower.state, writer.state, value.failure) == (DONE, DONE, None)
    assert writer.after is None


def test_reading_a_failed_value_fails_at_once():
    rig = Rig(max_ops=1)
    bad, x = rig.submit()
    rig.fail(bad)
    task, value = rig.submit(x)
    assert task.state == FAILED
    assert value.failure.upstream is x.failure
    assert rig.engine.ledger.ended[FAILED] == 2
    validate(rig.engine)


# -- too large --------------------------------------------------------------------------------------------------------


def test_too_large_by_itself():
    rig = Rig(max_bytes=1_000)
    with pytest.raises(TaskTooLarge) as caught:
        rig.submit(cost=1_001, name="matmul")
    assert (caught.value.needed, caught.value.limit) == (1_001, 1_000)
    assert str(caught.value) == (
        "matmul needs 1,001 bytes (1,001 of its own, 0 of inputs) and the limit is 1,000: raise max_bytes"
        " (or the scope's reserve) to at least 1,001, or split the task"
    )
    assert caught.value.suggested_limit == 2_000
    with pytest.raises(TaskTooLarge) as caught:
        rig.submit(cost=5_000)
    assert caught.value.suggested_limit == 5_000  # more than twice the limit
    rig.submit(cost=1_000)
    validate(rig.engine)


def view_of(rig, value):
    """A view, as the table's view rows make them."""
    _, view = rig.submit(value, cost=0)
    view.base = Lease(value)
    return view


def test_inputs_held_outside_do_not_count_against_a_reserve():
    """A request with a reserve of 32 MiB may read the model's 10 GiB."""
    rig = Rig(max_bytes=1_000)
    _, model = rig.submit(cost=800)
    outer = rig.scope("outer", reserve=50)
    inner = rig.scope("inner", outer, reserve=20)
    _, x = rig.submit(model, cost=20, scope=inner)
    _, y = rig.submit(model, view_of(rig, model), x, cost=30, scope=outer)
    with pytest.raises(TaskTooLarge) as caught:
        rig.submit(model, x, y, cost=1, scope=outer)
    assert (caught.value.needed, caught.value.limit) == (51, 50)
    with pytest.raises(TaskTooLarge) as caught:
        rig.submit(model, x, cost=181)  # what is charged to a reserve is held in the scheduler too
    assert (caught.value.needed, caught.value.limit) == (1_001, 1_000)


# -- who is told ------------------------------------------------------------------------------------------------------


# -- scopes -----------------------------------------------------------------------------------------------------------


def test_iterations_that_are_over_are_swept_when_the_next_begins(rig):
    for i in range(100):
        scope = rig.scope(f"iteration {i}", rig.root, own_queue=False)
        assert scope.queue is rig.root.queue
        task, value = rig.submit(scope=scope)
        rig.dispatch()
        rig.finish(task, error=ValueError("seen") if i % 2 else None)
        rig.dispatch()
        if i % 2:
            assert value.failure.exception is not None
        rig.engine.scopes.end(scope)
        assert len(rig.root.children) <= 2


def test_iterations_of_a_loop_inside_an_iteration_do_not_keep_it(rig):
    for _ in range(50):
        outer = rig.scope("outer", rig.root, own_queue=False)
        for _ in range(3):
            rig.engine.scopes.end(rig.scope("inner", outer, own_queue=False))
        rig.engine.scopes.end(outer)
    assert len(rig.root.children) <= 2


def test_every_unfinished_task_below_a_scope():
    rig = Rig(max_ops=0)
    outer = rig.scope("outer")
    inner = rig.scope("inner", outer)
    tasks = [rig.submit(scope=scope)[0] for scope in (rig.root, outer, inner)]
    assert set(rig.root.unfinished()) == set(tasks)
    assert set(outer.unfinished()) == set(tasks[1:])


def test_validate_notices_what_is_wrong(rig):
    rig.submit()
    validate(rig.engine)
    rig.engine.ledger.pending += 1
    with pytest.raises(AssertionError):
        validate(rig.engine)
