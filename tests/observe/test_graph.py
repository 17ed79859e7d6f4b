"""`s.graph`: what is unfinished, with what it reads."""

from __future__ import annotations

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
        assert names == ["slow", "load", "result", "matmul", "add"]
        assert by_name["slow"].state == "launched"
        assert by_name["slow"].shape is None
        assert by_name["result"] == Node("result", (3, 3), "float32", "done", "cpu", (), put_line)
        assert by_name["matmul"].inputs == (1, 2)
        assert by_name["add"].inputs == (3, 3)
        assert by_name["add"].shape == (2, 3)
        assert [node.name for node in s.graph(y).nodes] == ["load", "result", "matmul"]
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


async def test_what_is_there_is_a_result_or_a_view_of_its_line(gate):
    async with asc.Scheduler("cpu", max_ops=1) as s:
        x = await s.put(np.ones((200, 200), np.float32))
        line = f"{__file__}:{sys._getframe().f_lineno - 1} in test_what_is_there_is_a_result_or_a_view_of_its_line"
        view = x[0]
        await view
        await s.submit(held, gate, name="slow")
        found = {node.name: node.line for node in s.graph(x + view).nodes}
        assert {*found} == {"result", "view", "add"}
        assert found["result"] == line
        gate.set()
