"""What is issued together joins the backlog together, and what is tiny runs at once again afterwards."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched.autograd.transaction import transaction
from tests.ledger import runtime_of
from tests.waiting import held, settled

BLOCK = np.ones((200, 200))


@pytest.mark.parametrize("missing", [0, 1])
@pytest.mark.parametrize("waiting", [0, 2])
async def test_as_many_as_there_is_room_for_and_not_one_more(gate: threading.Event, missing: int, waiting: int) -> None:
    async with asc.Scheduler("cpu", max_ops=1, max_pending=3 + waiting - missing) as s:
        x = await settled(await s.put(BLOCK))
        s.submit_nowait(held, gate)  # it has the one slot
        before = [s.submit_nowait(int) for _ in range(waiting)]
        results: list[asc.Tensor] = []

        def issue() -> None:
            with transaction(runtime_of(s), "it"):
                results.extend([x + 1, x + 2, x + 3])

        if missing:
            with pytest.raises(asc.QueueFull, match=r"it takes 3 tasks .* has room for 2"):
                issue()
            assert s.statistics().tasks_pending == waiting
        else:
            issue()
            assert s.statistics().tasks_pending == waiting + 3
        gate.set()
        assert await asc.gather(*before) == [0] * waiting
        if not missing:
            assert [float(a[0, 0]) for a in await asc.gather(*results)] == [2, 3, 4]


@pytest.mark.parametrize("how", ["in order", "by an error", "for lack of room"])
async def test_afterwards_tiny_rows_run_at_once_again(how: str) -> None:
    async with asc.Scheduler("cpu", max_pending=1 if how == "for lack of room" else None) as s:
        x, tiny = await settled(await s.put(BLOCK)), await s.put(np.ones(3))

        def issue() -> Any:
            with transaction(runtime_of(s), "it"):
                assert (tiny + 1).done()
                large = x + 1
                assert not (tiny + 1).done()  # it could depend on what is gathered
                if how == "by an error":
                    raise KeyError
                return large

        if how == "in order":
            assert (await issue())[0, 0] == 2
        else:
            with pytest.raises(KeyError if how == "by an error" else asc.QueueFull):
                issue()
        await s.barrier()
        assert (tiny + 1).done()
        assert s.statistics().tasks_pending == 0
