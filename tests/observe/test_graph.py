"""`s.graph`: what is unfinished, with what it reads."""

from __future__ import annotations

import asyncio
import sys

import numpy as np
import pytest

import asyncsched as asc
from asyncsched.observe import Node
from tests.waiting import fail, held, settled, until


async def test_all_that_is_unfinished_and_what_it_reads(gate):
    async with asc.Scheduler("cpu", max_ops=1) as s:
        w = await s.put(np.ones((3, 3), np.float32))
        put_line = f"{__file__}:{sys._getframe().f_lineno - 1} in test_all_that_is_unfinished_and_what_it_reads"
        other = await s.submit(held, gate, name="slow")
        x = s.submit_nowait(np.ones, (2, 3), np.float32, shape=(2, 3), dtype=np.float32, name="load")
        y = x @ w
        z = y + y
        before = s.statistics()
        graph = s.graph()
        by_name = {node.name: node for node in graph.nodes}
        names = [node.name for node in graph.nodes]
        assert names == ["slow", "load", "s.put", "matmul", "add"]
        assert by_name["slow"].state == "launched"
        assert by_name["slow"].shape is None
        assert by_name["s.put"] == Node("s.put", (3, 3), "float32", "done", "cpu", (), put_line)
        assert by_name["matmul"].inputs == (1, 2)
        assert by_name["add"].inputs == (3, 3)
        assert by_name["add"].shape == (2, 3)
        assert [node.name for node in s.graph(y).nodes] == ["load", "s.put", "matmul"]
        assert [node.name for node in s.graph(x, other).nodes] == ["slow", "load"]
        assert [node.state for node in s.graph(w).nodes] == ["done"]
        assert s.statistics() == before
        assert s.graph(z).svg()
        gate.set()
    assert len(s.graph()) == 0


async def test_failed_and_cancelled_ones(s, gate):
    failed = await settled(s.submit_nowait(fail))
    running = await s.submit(held, gate, shape=(), dtype=float, name="slow")
    await until(lambda: "now at" in s.explain(running))
    running.cancel()
    states = {node.name: node.state for node in s.graph(failed, running).nodes}
    assert states == {"fail": "failed", "slow": "cancelled"}
    assert isinstance(failed.exception(), LookupError)
    gate.set()


async def test_what_cannot_be_drawn(s):
    with pytest.raises(TypeError, match="not ndarray"):
        s.graph(np.ones(3))
    async with asc.Scheduler("cpu") as other:
        with pytest.raises(ValueError, match="another scheduler"):
            s.graph(await other.put(np.ones(3)))


async def test_what_is_there_is_named_by_what_made_it(gate):
    async with asc.Scheduler("cpu", max_ops=1) as s:
        x, loaded = (
            await s.put(np.ones((200, 200), np.float32)),
            await s.submit(np.ones, (200, 200), shape=(200, 200), dtype=float),
        )
        w = asc.nn.Linear(
            200,
            200,
            rng=0,
        )
        product = x @ loaded
        view = x[0]
        await asc.gather(x, loaded, product, view)
        (from_elsewhere,) = await asyncio.gather(s.put(np.ones(200)))
        await s.submit(held, gate, name="slow")
        y = w(x) + loaded + product + view + from_elsewhere
        found = {node.name: node.line.rpartition(" in ")[2] for node in s.graph(y).nodes if node.state == "done"}
        assert {*found} == {"s.put", "asc.nn.Linear", "s.submit", "x @ loaded", "x[0]", "result"}
        assert found["s.submit"] == "test_what_is_there_is_named_by_what_made_it"
        gate.set()


async def test_without_its_text_what_is_there_is_a_result(gate):
    async with asc.Scheduler("cpu", max_ops=1) as s:
        names: dict[str, object] = {"s": s, "np": np}
        exec(compile("async def make(): return await s.put(np.ones(3))", "gone.py", "exec"), names)
        x = await names["make"]()  # type: ignore[operator]
        await s.submit(held, gate, name="slow")
        assert [node.name for node in s.graph(x + 1).nodes] == ["result", "add"]
        gate.set()
