"""Events in, launches and settled tasks out: one test per promise of the engine."""

from __future__ import annotations

import contextvars
import gc
import weakref
from typing import Any

import pytest

from asyncsched._core.failure import Failure
from asyncsched._core.model import CANCELLED, DONE, FAILED, LAUNCHED, PENDING, Task
from asyncsched.errors import MemoryDeadlockError, QueueFull, TaskTooLarge

from .rig import Rig, answered, cancellation, ended, execute

DEEP = 100_000


def states(tasks):
    return {task.state for task in tasks}


@pytest.fixture
def rig():
    return Rig()


# -- submitting -------------------------------------------------------------------------------------------------------


def test_a_task_goes_through_its_states():
    rig = Rig(max_bytes=100)
    task, value = rig.submit(cost=10)
    assert task.state == PENDING
    assert repr(task) == "<task #0 pending>"
    rig.dispatch()
    assert task.state == LAUNCHED
    assert rig.engine.account.used == 10
    rig.finish(task, charge=4)
    assert not value.done
    rig.dispatch()
    assert task.state == DONE
    assert value.done
    assert rig.engine.account.used == 4
    del value
    rig.dispatch()
    assert rig.engine.account.used == 0
    assert rig.engine.peak_bytes == 10
    rig.engine.validate()


def test_nothing_is_admitted_by_submitting(rig):
    task, _ = rig.submit()
    assert task.state == PENDING
    assert rig.dispatch() == [task]


def test_a_full_backlog_refuses_bounded_tasks_and_changes_nothing():
    rig = Rig(max_pending=2, max_ops=1)
    rig.submit()
    rig.dispatch()
    rig.submit()
    rig.submit()
    task, _value = rig.task(name="matmul")
    with pytest.raises(QueueFull, match=r"matmul: the backlog holds 2 tasks .*await s.barrier\(\).*s.window\(2\)"):
        rig.engine.submit(task, hold=True)
    rig.engine.validate()
    assert (rig.engine.submitted, rig.engine.unfinished) == (3, 3)
    rig.engine.submit(task, bounded=False, hold=True)
    rig.engine.validate()
    assert rig.engine.admission.pending == 3


def test_room_in_the_backlog_comes_back():
    rig = Rig(max_pending=1, max_ops=1)
    for _ in range(5):
        rig.submit()
        rig.run()
        cancelled, _value = rig.submit()
        rig.cancel(cancelled)
    assert rig.engine.submitted == 10


def test_a_task_may_read_the_same_value_twice(rig):
    first, x = rig.submit()
    second, _ = rig.submit(x, x)
    assert second.blockers == 2
    assert rig.dispatch() == [first, second]
    rig.engine.validate()


def test_reading_a_finished_value_forgets_its_producer(rig):
    _, x = rig.submit()
    rig.run()
    assert x.task is not None
    task, _ = rig.submit(x)
    assert x.task is None
    assert task.blockers == 0


def test_reading_a_failed_value_fails_at_once():
    rig = Rig(max_ops=1)
    bad, x = rig.submit()
    rig.fail(bad)
    task, value = rig.submit(x)
    assert task.state == FAILED
    assert value.failure.upstream is x.failure
    assert rig.engine.failed == 2
    rig.engine.validate()


def test_counters_add_up():
    rig = Rig(max_ops=2)
    bad, x = rig.submit()
    rig.submit(x)
    cancelled, _ = rig.submit()
    rig.submit()
    rig.claim(0)
    rig.dispatch()
    rig.cancel(cancelled)
    rig.finish(bad, error=ValueError("no"))
    rig.run()
    engine = rig.engine
    assert (engine.submitted, engine.completed, engine.failed, engine.cancelled) == (4, 1, 2, 1)
    assert engine.peak_in_flight == 2
    engine.validate()


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
    assert caught.value.__notes__ == ["where more will follow, a limit of 2,000 is the one to try next"]
    with pytest.raises(TaskTooLarge) as caught:
        rig.submit(cost=5_000)
    assert caught.value.suggested_limit == 5_000  # more than twice the limit
    rig.submit(cost=1_000)
    rig.engine.validate()


def test_too_large_with_its_inputs_each_counted_once():
    rig = Rig(max_bytes=100)
    _, x = rig.submit(cost=40)
    _, y = rig.submit(cost=30)
    rig.submit(x, x, y, cost=30)
    with pytest.raises(TaskTooLarge, match=r"\(31 of its own, 70 of inputs\)") as caught:
        rig.submit(x, x, y, cost=31)
    assert (caught.value.needed, caught.value.limit) == (101, 100)
    assert rig.engine.submitted == 3


def view_of(rig, value):
    """A view, as the table's view rows make them."""
    _, view = rig.submit(value, cost=0)
    view.base = value
    return view


def test_a_view_counts_as_its_whole_base():
    rig = Rig(max_bytes=100)
    _, x = rig.submit(cost=60)
    view = view_of(rig, x)
    rig.submit(view, x, cost=40)
    with pytest.raises(TaskTooLarge, match="60 of inputs"):
        rig.submit(view, x, cost=41)


def test_a_view_of_a_view_counts_as_the_base_of_both():
    rig = Rig(max_bytes=100)
    _, x = rig.submit(cost=60)
    deep = view_of(rig, view_of(rig, view_of(rig, x)))
    assert deep.owner is x
    rig.submit(deep, view_of(rig, x), x, cost=40)
    with pytest.raises(TaskTooLarge, match="60 of inputs"):
        rig.submit(deep, cost=41)


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


# -- cancelling, in every state ---------------------------------------------------------------------------------------


def test_cancelling_a_pending_task_ends_it_and_its_dependents():
    rig = Rig(max_ops=1)
    rig.submit()
    rig.dispatch()
    task, x = rig.submit(name="a")
    dependent, y = rig.submit(x, name="b")
    assert rig.cancel(task)
    assert (task.state, dependent.state) == (CANCELLED, CANCELLED)
    assert x.done
    assert y.failure.root is task.failure
    assert rig.run()
    rig.engine.validate()
    assert not rig.cancel(task)
    assert not rig.cancel(dependent)


def test_a_cancelled_launched_task_keeps_its_slot_and_bytes_until_it_ends():
    rig = Rig(max_ops=1, max_bytes=100)
    task, x = rig.submit(cost=60)
    rig.dispatch()
    waiting, _ = rig.submit(cost=50)
    dependent, _ = rig.submit(x)
    called = []
    task.waiters = [answered(called)]
    assert rig.cancel(task)
    assert rig.dispatch() == []
    assert called == [task]
    assert task.settled()
    assert x.done
    assert (task.state, waiting.state, dependent.state) == (LAUNCHED, PENDING, CANCELLED)
    assert (rig.engine.account.used, rig.engine.admission.in_flight) == (60, 1)
    assert not rig.cancel(task)
    rig.finish(task)
    assert rig.dispatch() == [waiting]
    assert task.state == CANCELLED
    assert rig.engine.account.used == 50
    rig.engine.validate()


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
    assert rig.engine.account.used == 50
    del value
    rig.dispatch()
    assert rig.engine.account.used == 0


def test_cancelling_what_has_its_result_already_does_nothing(rig):
    task, value = rig.submit()
    rig.dispatch()
    rig.finish(task)
    assert not rig.engine.cancel(task, cancellation(task))  # ended, though nobody knows yet
    rig.dispatch()
    assert not rig.cancel(task)
    assert task.state == DONE
    assert value.failure is None


def test_a_launched_dependent_of_a_cancelled_task_ends_as_cancelled(rig):
    task, x = rig.submit()
    dependent, y = rig.submit(x)
    rig.dispatch()
    rig.cancel(task)
    assert dependent.state == LAUNCHED
    rig.run()
    assert dependent.state == CANCELLED
    assert y.failure.root is task.failure
    assert rig.engine.failed == 0


def ends_on_its_stream(rig: Rig, task: Task) -> None:
    """It comes to its end with a result, which is posted and not taken in. It had begun before any of this."""
    assert task.lane is not None
    value = task.value
    assert value is not None
    value.array, task.refund = object(), task.cost
    task.value, task.inputs, task.move = None, (), None
    rig.streams[task.lane].remove(task)
    rig.post(task)


@pytest.mark.parametrize("when", ["before the mark", "after the mark"])
def test_what_ends_while_it_is_cancelled_and_what_reads_it_end_alike(rig, monkeypatch, when):
    """Both end on their streams in the middle of `cancel`, at each point where another thread may run."""
    tasks, values = [], ()
    for _ in range(3):
        task, value = rig.submit(*values)
        tasks.append(task)
        values = (value,)
    rig.dispatch()

    def streams_run(*_: Any) -> bool:
        for task in tasks:
            if task.value is not None:
                ends_on_its_stream(rig, task)
        return False

    if when == "after the mark":
        rig.engine.on_cancel = streams_run
    else:
        monkeypatch.setattr(Task, "settled", streams_run)
    found = rig.engine.cancel(tasks[0], cancellation(tasks[0]))
    monkeypatch.undo()
    rig.engine.on_cancel = lambda task: None
    rig.dispatch()
    assert found == (when == "after the mark")
    assert {task.state for task in tasks} == {CANCELLED if found else DONE}
    assert value.done
    assert (value.failure is not None) == found
    rig.engine.validate()


@pytest.mark.parametrize("launched", range(5))
def test_cancelling_goes_all_the_way_down_whatever_is_launched(launched):
    """A launched dependent has dependents of its own, launched or pending."""
    rig = Rig(max_ops=launched or 1)
    if not launched:
        rig.submit()
    tasks, values = [], ()
    for _ in range(4):
        task, value = rig.submit(*values)
        tasks.append(task)
        values = (value,)
    rig.dispatch()
    assert [task.state == LAUNCHED for task in tasks] == [i < launched for i in range(4)]
    told = []
    for task in tasks:
        task.waiters = [answered(told)]
    assert rig.cancel(tasks[0])
    rig.dispatch()
    assert set(told) == set(tasks)
    assert {task.failure.root for task in tasks} == {tasks[0].failure}
    rig.run()
    assert states(tasks) == {CANCELLED}
    rig.engine.validate()


def test_a_cancelled_claim_leaves_no_trace():
    rig = Rig(max_bytes=10)
    task, _held = rig.submit(cost=10)
    rig.dispatch()
    claim = rig.claim(5, rig.scope())
    rig.dispatch()
    assert claim.state == PENDING
    assert rig.cancel(claim)
    rig.finish(task)
    rig.dispatch()
    rig.engine.validate()
    assert rig.engine.admission.claims == 0
    assert rig.engine.account.used == 10
    assert (rig.engine.submitted, rig.engine.cancelled) == (1, 0)


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


# -- failing ----------------------------------------------------------------------------------------------------------


def test_a_failure_reaches_every_dependent():
    rig = Rig(max_ops=1)
    bad, x = rig.submit(name="bad")
    _, y = rig.submit(x, name="left")
    _, z = rig.submit(x, name="right")
    last, w = rig.submit(y, z, name="last")
    rig.fail(bad)
    assert states([bad, last]) == {FAILED}
    assert {v.failure.root for v in (x, y, z, w)} == {bad.failure}
    assert rig.engine.unfinished == 0
    assert rig.root.take_failures() == ([bad.failure], 0)


def test_dependents_are_told_at_once_not_when_their_turn_comes():
    rig = Rig(max_ops=1)
    bad, x = rig.submit()
    rig.dispatch()
    rig.submit(name="before them in the queue")
    _, y = rig.submit(x)
    dependent, _ = rig.submit(y)
    rig.finish(bad, error=ValueError("no"))
    rig.drain()
    assert dependent.state == FAILED


def test_a_task_waits_for_all_its_producers():
    rig = Rig(max_bytes=10)
    base, held = rig.submit(cost=10)
    rig.dispatch()
    _, x = rig.submit()
    second, y = rig.submit(cost=5, scope=rig.scope())
    task, _ = rig.submit(x, y, scope=rig.scope())
    rig.dispatch()
    assert (task.blockers, task.state) == (1, PENDING)
    rig.finish(base)
    del held
    assert rig.dispatch() == [second, task]


def test_a_failing_task_gives_its_bytes_back():
    rig = Rig(max_bytes=10)
    bad, value = rig.submit(cost=10)
    rig.fail(bad)
    assert rig.engine.account.used == 0
    assert value.charge == 0


def test_a_task_whose_producer_failed_unnoticed_is_not_launched():
    """The producer's completion is still on its way, but its failure is there to be seen."""
    rig = Rig(max_ops=2)
    rig.submit(name="other")
    bad, x = rig.submit()
    rig.dispatch()
    task, _ = rig.submit(x)
    rig.streams[bad.lane].remove(bad)
    execute(bad, 0, ValueError("no"))
    rig.engine.admission.free += 1
    rig.engine.dispatch()
    assert task not in rig.streams[bad.lane]
    assert task.state == FAILED
    rig.engine._complete(bad)
    rig.engine.validate()


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
        task.waiters = [answered(settled)]
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
    assert rig.engine.unfinished == rig.engine.admission.pending == 0
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
    assert rig.engine.admission.pending == 0


# -- who is told ------------------------------------------------------------------------------------------------------


def test_only_tasks_with_waiters_are_settled(rig):
    silent, _x = rig.submit()
    awaited, _y = rig.submit()
    called = []
    awaited.waiters = [answered(called), answered(called)]
    rig.dispatch()
    assert called == []  # told of the launch, which is no answer
    rig.finish(silent)
    rig.drain()
    assert rig.engine._news == []
    rig.finish(awaited)
    rig.drain()
    assert rig.engine._news == [awaited]
    rig.dispatch()
    assert called == [awaited, awaited]


def test_who_waits_for_the_physical_end_of_a_cancelled_task_is_told_then(rig):
    task, _value = rig.submit()
    rig.dispatch()
    first, second = [], []
    task.waiters = [answered(first)]
    rig.cancel(task)
    rig.dispatch()
    assert task.waiters is None
    task.waiters = [ended(second)]
    rig.dispatch()
    assert (first, second) == ([task], [])
    rig.finish(task)
    rig.dispatch()
    assert (first, second) == ([task], [task])


def test_a_claim_tells_its_waiters_when_it_is_granted(rig):
    called = []
    claim = rig.claim(5)
    claim.waiters = [answered(called)]
    rig.dispatch()
    assert called == [claim]
    assert claim.state == DONE


def test_a_stuck_task_can_be_told_why():
    rig = Rig(max_bytes=10)
    _, held = rig.submit(cost=10)
    rig.run()
    task, value = rig.submit(cost=1)
    rig.dispatch()
    (stuck,) = rig.engine.admission.stuck()
    assert stuck is task
    rig.engine.settle(task, Failure.of(MemoryDeadlockError("no room"), task.name, task.site))
    assert rig.dispatch() == []
    assert isinstance(value.failure.exception, MemoryDeadlockError)
    assert rig.engine.admission.stuck() == []
    rig.engine.validate()
    del held


# -- what is held -----------------------------------------------------------------------------------------------------


def test_bytes_that_only_pending_tasks_hold():
    rig = Rig(max_bytes=100)
    _, x = rig.submit(cost=30)
    _, y = rig.submit(cost=20)
    rig.run()
    rig.submit(x, y, cost=60 - 10)
    rig.submit(x, x, cost=51 - 1)
    assert rig.engine.held_by_pending() == 0  # there are handles
    del x
    assert rig.engine.held_by_pending() == 30
    del y
    assert rig.engine.held_by_pending() == 50


def test_bytes_that_a_pending_task_reads_twice_are_held_by_it_alone():
    rig = Rig(max_bytes=100, max_ops=1)
    _, x = rig.submit(cost=30)
    rig.run()
    rig.submit(cost=70, name="running")
    rig.dispatch()
    rig.submit(x, cost=10)
    rig.submit(x, x, cost=10)
    assert rig.engine.held_by_pending() == 0
    del x
    assert rig.engine.held_by_pending() == 30


def test_bytes_in_flight_are_costs_and_what_only_launched_tasks_read():
    rig = Rig(max_bytes=100, max_ops=2)
    _, x = rig.submit(cost=30)
    _, y = rig.submit(cost=20)
    rig.run()
    rig.submit(x, y, cost=5)
    rig.submit(x, x, cost=6)
    rig.dispatch()
    assert rig.engine.in_flight_bytes() == 11
    del x
    assert rig.engine.in_flight_bytes() == 41
    del y
    assert rig.engine.in_flight_bytes() == 61
    rig.submit(cost=1)
    assert rig.engine.in_flight_bytes() == 61


def test_a_result_whose_end_was_not_told_yet_is_in_flight_once():
    """As its task's cost, and not as what the next task alone reads, too."""
    rig = Rig(max_bytes=100)
    made, value = rig.submit(cost=60)
    rig.submit(value, cost=5)
    rig.dispatch()
    del value
    rig.streams[made.lane].remove(made)
    execute(made, 60)
    assert rig.engine.in_flight_bytes() == rig.engine.account.used == 65
    rig.post(made)
    rig.dispatch()
    assert rig.engine.in_flight_bytes() == rig.engine.account.used == 65


def test_a_wrong_estimate_is_put_right_at_completion():
    rig = Rig(max_bytes=100)
    task, value = rig.submit(cost=10)
    rig.dispatch()
    rig.finish(task, charge=120)
    rig.dispatch()
    assert rig.engine.account.used == 120
    assert rig.engine.peak_bytes == 120
    del value
    rig.dispatch()
    assert rig.engine.account.used == 0


def test_a_value_dropped_before_its_completion_arrives_balances():
    rig = Rig(max_bytes=100)
    task, value = rig.submit(cost=60)
    rig.dispatch()
    rig.streams[task.lane].clear()
    execute(task, 25)
    del value
    rig.drain()
    assert rig.engine.account.used == 35
    rig.engine._complete(task)
    assert rig.engine.account.used == 0


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
        rig.engine.end_scope(scope)
        assert len(rig.root.children) <= 2


def test_iterations_of_a_loop_inside_an_iteration_do_not_keep_it(rig):
    for _ in range(50):
        outer = rig.scope("outer", rig.root, own_queue=False)
        for _ in range(3):
            rig.engine.end_scope(rig.scope("inner", outer, own_queue=False))
        rig.engine.end_scope(outer)
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
    rig.engine.validate()
    rig.engine.admission.pending += 1
    with pytest.raises(AssertionError):
        rig.engine.validate()
