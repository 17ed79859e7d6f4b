"""Tenants, weights and priorities through the scheduler; and what leaving a scope by cancellation drops and keeps."""

from __future__ import annotations

import asyncio
import threading
from contextlib import AsyncExitStack
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from tests.ledger import engine_of
from tests.validate import validate
from tests.waiting import held


async def served(*plan: tuple[str, int, dict[str, Any]]) -> str:
    """What is submitted in scopes while the only slot is taken, in the order in which it runs."""
    gate, order = threading.Event(), list[str]()
    async with asc.Scheduler("cpu", max_ops=1) as s:
        s.submit_nowait(held, gate)
        async with s.scope() as around, AsyncExitStack() as stack:
            for name, count, options in plan:
                scope = await stack.enter_async_context(around.scope(name=name, **options))
                for _ in range(count):
                    scope.submit_nowait(order.append, name)
            gate.set()
    return "".join(order)


async def test_tenants_share_whatever_their_scopes() -> None:
    assert await served(("a", 3, {"tenant": 1}), ("b", 3, {"tenant": 1}), ("x", 6, {"tenant": 2})) == "axbx" * 3


async def test_of_the_scopes_with_a_deadline_the_oldest_goes_first() -> None:
    dated = {"tenant": 1, "deadline": 60}
    assert await served(("a", 3, dated), ("b", 3, dated), ("c", 1, dated)) == "aaabbbc"


async def test_scopes_with_a_deadline_take_turns_with_the_others_of_their_tenant_and_with_other_tenants() -> None:
    dated = {"tenant": 1, "deadline": 60}
    order = await served(("a", 2, dated), ("x", 4, {"tenant": 1}), ("b", 2, dated), ("o", 8, {"tenant": 2}))
    assert order[1::2] == "o" * 8
    assert order[::2] == "axaxbxbx"


async def test_scopes_inside_one_with_a_deadline_go_with_it_and_alternate() -> None:
    order, gate = list[str](), threading.Event()
    async with asc.Scheduler("cpu", max_ops=1) as s:
        s.submit_nowait(held, gate)
        async with (
            s.scope() as around, around.scope(tenant=1, deadline=60) as old,
            around.scope(tenant=1, deadline=60) as young,
        ):  # fmt: skip
            young.submit_nowait(order.append, "y")
            async with old.scope(name="a") as first, old.scope(name="b", deadline=30) as second:
                for _ in range(2):
                    first.submit_nowait(order.append, "a")
                    second.submit_nowait(order.append, "b")
                gate.set()
    assert "".join(order) == "ababy"


async def test_weights() -> None:
    order = await served(("a", 9, {"tenant": "a", "weight": 3}), ("b", 3, {"tenant": "b"}))
    assert all(order[i : i + 4].count("b") == 1 for i in range(0, 12, 4))


async def test_a_weight_of_few_bits_shares_for_ever() -> None:
    """In sums of float16 one more than 2,048 is 2,048: the tenant would pay nothing from there on, and go alone."""
    order = await served(("a", 2500, {"tenant": 1, "weight": np.float16(1)}), ("b", 2500, {"tenant": 2}))
    assert order == "ab" * 2500


async def test_priorities() -> None:
    assert await served(("l", 2, {"priority": -1}), ("n", 2, {}), ("h", 2, {"priority": 1})) == "hhnnll"


async def test_repr_names_the_tenant(s: asc.Scheduler) -> None:
    async with s.scope(name="request", tenant="ada", deadline=2.5) as scope:
        assert repr(scope) == "Scope('request', tenant='ada', deadline=2.5 s, 0 unfinished)"
    assert repr(scope) == "Scope('request', tenant='ada', deadline=2.5 s, closed)"


async def test_leaving_by_cancellation_drops_what_waits_and_counts_what_runs() -> None:
    gate, entered, submitted = threading.Event(), threading.Event(), asyncio.Event()

    def body() -> None:
        entered.set()
        held(gate)

    async with asc.Scheduler("cpu", max_ops=1, max_bytes=1000) as s:

        async def request() -> None:
            async with s.scope(tenant="ada") as scope:
                running = await scope.submit(body, nbytes=100)
                for _ in range(50):
                    scope.submit_nowait(int, nbytes=10)
                submitted.set()
                await running

        task = asyncio.create_task(request())
        await submitted.wait()
        assert await asyncio.to_thread(entered.wait, 60)
        assert (s.load().tasks_pending, s.load().bytes_pending) == (50, 500)
        task.cancel()
        await asyncio.sleep(0)
        for _ in range(3):
            load = s.load()
            assert (load.tasks_pending, load.bytes_pending) == (0, 0)
            assert (load.tasks_in_flight, load.bytes_tracked) == (1, 100)
            assert s.statistics().tasks_cancelled == 50
            validate(engine_of(s))
            assert not task.done()
            await asyncio.sleep(0)
        gate.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        statistics = s.statistics()
        assert (statistics.tasks_in_flight, statistics.tasks_cancelled) == (0, 51)
        assert s.load().bytes_tracked == 0
