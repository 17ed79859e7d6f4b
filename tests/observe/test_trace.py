"""What a scheduler did is in the file of its trace: valid wherever it ends, and read back as it was."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched.observe import Recording


async def traced(path: Path, program: Any, **options: Any) -> Recording:
    trace = asc.Trace(path)
    async with asc.Scheduler("cpu", instruments=[trace], **options) as s:
        await program(s)
    await asyncio.to_thread(trace.close)
    return await asyncio.to_thread(Recording.read, path)


async def test_a_task_is_read_back_with_all_that_is_known(tmp_path: Path) -> None:
    async def program(s: asc.Scheduler) -> None:
        x = await s.put(np.ones((300, 300)))
        async with s.scope(name="request"):
            y = s.submit_nowait(np.matmul, x, x, shape=(300, 300), dtype=np.float64)
            await y
            z = s.submit_nowait(np.add, x, y, name="sum")
            await z
        del x, y, z

    found = await traced(tmp_path / "run.json", program, max_bytes="64 MiB", max_ops=8, streams=2)
    put, product, total = found.tasks
    assert (put.name, put.cost, put.kept, put.copies, put.inputs) == ("put", 720_000, 720_000, True, ())
    assert (product.name, product.inputs, total.name, total.inputs) == ("matmul", (0, 0), "sum", (0, 1))
    for task in found.tasks:
        assert task.state == "done"
        assert task.device == "cpu"
        times = (task.submitted, task.head, task.launched, task.began, task.ended, task.done)
        assert None not in times
        assert sorted(times) == list(times)  # type: ignore[type-var]
        assert "test_trace.py" in task.site
        assert task.site.endswith("in program")
    assert found.scopes[product.scope].name == "request"
    assert found.scopes[put.scope].name == "root"
    assert found.metadata["max_ops"] == 8
    assert found.metadata["max_bytes"] == 64 << 20
    assert found.metadata["devices"] == [{"name": "cpu", "kind": "cpu", "streams": 2}]
    assert found.complete
    assert not found.lost
    assert found.counters["time"]
    assert found.waits


@pytest.mark.parametrize("name", ["run.json", "run.json.gz"])
def test_a_file_cut_anywhere_is_read_as_far_as_it_goes(tmp_path: Path, name: str) -> None:
    async def program(s: asc.Scheduler) -> None:
        for _ in range(5):
            await s.call(max, 1, 2)

    whole = asyncio.run(traced(tmp_path / name, program))
    assert [task.name for task in whole.tasks] == ["max"] * 5
    text = (tmp_path / name).read_bytes()
    cut = tmp_path / f"cut-{name}"
    for length in range(0, len(text), 97):
        cut.write_bytes(text[:length])
        try:
            found = Recording.read(cut)
        except ValueError as error:
            assert "is no trace" in str(error)
        else:
            assert found.tasks in ([], whole.tasks)
            assert found.complete is False


async def test_what_is_freed_and_when_is_known_by_task(tmp_path: Path, gate: threading.Event) -> None:
    async def program(s: asc.Scheduler) -> None:
        x = await s.put(np.ones(1 << 16))
        s.submit_nowait(gate.wait)
        y = x + 1
        z = y * 2
        gate.set()
        await z
        del x, y
        await s.barrier()

    found = await traced(tmp_path / "run.json", program)
    by_name = {task.name: task for task in found.tasks}
    assert by_name["put"].released is not None
    assert by_name["add"].released is not None
    assert by_name["add"].seq in by_name["multiply"].inputs or by_name["multiply"].inline
