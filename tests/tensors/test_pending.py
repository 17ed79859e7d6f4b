"""What an operation that is pending is made of: Python's collector visits it over and over while the backlog grows."""

import gc
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from bench.graphs import add_in_a_row, add_repeatedly, keep_each
from tests.waiting import held

Issue = Callable[[Any, int], Any]


@pytest.mark.one_loop
@pytest.mark.parametrize(
    ("issue", "handles"), [(add_repeatedly, 0), (add_in_a_row, 0), (keep_each, 1)], ids=["independent", "chain", "kept"]
)
async def test_an_operation_is_a_task_and_a_value(
    s: asc.Scheduler, gate: threading.Event, issue: Issue, handles: int
) -> None:
    s.submit_nowait(held, gate)
    x = s.submit_nowait(held, gate, np.ones(2), shape=(2,), dtype=np.float64)
    n = 1000  # more than whatever else goes on makes meanwhile
    first = issue(x, n)  # what is made once, is made by now
    gc.disable()
    try:
        before = Counter(map(type, gc.get_objects()))
        second = issue(x, n)
        after = Counter(map(type, gc.get_objects()))
    finally:
        gc.enable()
    made = {kind.__name__: count for kind, count in (after - before).items() if count >= n}
    assert made == {"Task": n, "Value": n} | ({"Tensor": n} if handles else {})
    gate.set()
    await s.barrier()
    for tensor in (first, second) if not handles else (*first, *second):
        assert (await tensor)[0] == (1 + n if issue is add_in_a_row else 2)


async def test_several_tasks_and_several_operands_go_in_order(s: asc.Scheduler, gate: threading.Event) -> None:
    x = s.submit_nowait(held, gate, np.ones(2), shape=(2,), dtype=np.float64)
    y = x + 1  # the only one that waits for `x`, then one of two, then of three
    z = x + y
    w = z * x
    gate.set()
    assert [a[0] for a in await asc.gather(y, z, w)] == [2, 3, 3]
    await s.barrier()


async def test_each_of_several_dependents_is_cancelled(s: asc.Scheduler, gate: threading.Event) -> None:
    s.submit_nowait(held, gate)
    for count in (1, 2, 3):
        x = s.submit_nowait(held, gate, np.ones(2), shape=(2,), dtype=np.float64)
        below = [x + 1 for _ in range(count)]
        assert x.cancel()
        for tensor in below:
            with pytest.raises(asc.TaskCancelled):
                await tensor
    gate.set()
