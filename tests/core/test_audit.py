"""What the engine says of the bytes that are held, and of its own counts."""

from __future__ import annotations

from typing import Any

from asyncsched._core.audit import held_by_pending, in_flight_bytes
from asyncsched._core.model import Lease, Task
from tests.ledger import value_of

from .rig import Rig, execute


def submit(rig: Rig, *handles: Lease, **options: Any) -> tuple[Task, Lease]:
    """A task in the backlog, and a handle on its value."""
    task, value = rig.submit(*[value_of(handle) for handle in handles], **options)
    return task, Lease(value)


def test_bytes_that_only_pending_tasks_hold():
    rig = Rig(max_bytes=100)
    _, x = submit(rig, cost=30)
    _, y = submit(rig, cost=20)
    rig.run()
    submit(rig, x, y, cost=60 - 10)
    submit(rig, x, x, cost=51 - 1)
    assert held_by_pending(rig.engine.admission.tasks()) == 0  # there are handles
    del x
    assert held_by_pending(rig.engine.admission.tasks()) == 30
    del y
    assert held_by_pending(rig.engine.admission.tasks()) == 50


def test_bytes_that_a_pending_task_reads_twice_are_held_by_it_alone():
    rig = Rig(max_bytes=100, max_ops=1)
    _, x = submit(rig, cost=30)
    rig.run()
    submit(rig, cost=70, name="running")
    rig.dispatch()
    submit(rig, x, cost=10)
    submit(rig, x, x, cost=10)
    assert held_by_pending(rig.engine.admission.tasks()) == 0
    del x
    assert held_by_pending(rig.engine.admission.tasks()) == 30


def test_bytes_in_flight_are_costs_and_inputs_that_only_launched_tasks_read():
    rig = Rig(max_bytes=100, max_ops=2)
    _, x = submit(rig, cost=30)
    _, y = submit(rig, cost=20)
    rig.run()
    submit(rig, x, y, cost=5)
    submit(rig, x, x, cost=6)
    rig.dispatch()
    assert in_flight_bytes(rig.root) == 11
    del x
    assert in_flight_bytes(rig.root) == 41
    del y
    assert in_flight_bytes(rig.root) == 61
    submit(rig, cost=1)
    assert in_flight_bytes(rig.root) == 61


def test_a_result_whose_end_was_not_taken_in_yet_is_in_flight_once():
    """As its task's cost, and not as what the next task alone reads, too."""
    rig = Rig(max_bytes=100)
    made, value = submit(rig, cost=60)
    submit(rig, value, cost=5)
    rig.dispatch()
    del value
    rig.streams[made.lane].remove(made)
    execute(made, 60)
    assert in_flight_bytes(rig.root) == rig.engine.ledger.account.used == 65
    rig.post(made)
    rig.dispatch()
    assert in_flight_bytes(rig.root) == rig.engine.ledger.account.used == 65
