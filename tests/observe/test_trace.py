"""What a scheduler did is in the file of its trace: valid wherever it ends, and read back as it was."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched.devices.sim import SimDevice
from asyncsched.observe import Recording
from asyncsched.observe.analysis import memory_curve
from asyncsched.observe.recording import FORMAT
from asyncsched.observe.report import describe, findings


async def traced(path: Path, program: Any, **options: Any) -> Recording:
    trace = asc.Trace(path)
    async with asc.Scheduler("cpu", instruments=[trace], **options) as s:
        await program(s)
    await asyncio.to_thread(trace.close)
    return await asyncio.to_thread(Recording.read, path)


async def test_a_task_is_read_back_with_all_that_is_known(tmp_path: Path) -> None:
    async def program(s: asc.Scheduler) -> None:
        x = await s.put(np.ones((300, 300)))
        async with s.scope(name="request", tenant=("ann", 1)):
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
    assert found.scopes[product.scope].tenant == "('ann', 1)"
    assert (found.scopes[put.scope].name, found.scopes[put.scope].tenant) == ("root", "")
    assert found.metadata["max_ops"] == 8
    assert found.metadata["max_bytes"] == 64 << 20
    assert found.metadata["devices"] == [{"name": "cpu", "kind": "cpu", "streams": 2}]
    assert found.complete
    assert not found.lost
    assert found.counters["tasks"]
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
            assert found.tasks == whole.tasks[: len(found.tasks)]
            assert len(found.tasks) == 5 or not found.complete  # of a compressed file the last bytes are a sum


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


async def test_with_traces_a_part(s: asc.Scheduler, tmp_path: Path) -> None:
    await s.call(max, 1, 2)
    with asc.Trace(tmp_path / "run.json", scheduler=s) as trace:
        await s.call(min, 1, 2)
    await s.call(max, 1, 2)
    await asyncio.to_thread(trace.close)
    found = await asyncio.to_thread(Recording.read, tmp_path / "run.json")
    assert [task.name for task in found.tasks] == ["min"]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.one_loop
async def test_bytes_added_up_from_a_trace_are_those_of_the_scheduler(tmp_path: Path, seed: int) -> None:
    """Whatever the order, with cancelled tasks, failures and a scope that has a reserve."""
    trace = asc.Trace(tmp_path / "run.json")
    kept: list[asc.Tensor] = []
    async with asc.Scheduler(SimDevice(seed), max_ops=3, max_bytes="64 KiB", instruments=[trace]) as s:
        x = await s.put(np.ones(100))
        async with s.scope(reserve="8 KiB"):
            kept += [await s.put(np.ones(200)), x + 3]
        for i in range(60):
            y = x * i + 1
            if i % 7 == 0:
                kept.append(y)
            if i % 11 == 0:
                y.cancel()
            if i % 5 == 0:
                await asyncio.sleep(0)
        await s.barrier()
        del y
        statistics = s.statistics()
        s.remove_instrument(trace)
        del x, kept[:]
    await asyncio.to_thread(trace.close)
    curve = memory_curve(await asyncio.to_thread(Recording.read, tmp_path / "run.json"))
    assert curve[-1][1] == statistics.bytes_retained
    assert max(used for _, used in curve) == pytest.approx(statistics.peak_bytes, abs=1600)  # two in the same tick


async def test_a_trace_of_a_scheduler_that_opens_late_knows_its_devices(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    trace = asc.Trace(path)
    s = asc.Scheduler("cpu", streams=2, max_bytes="auto", instruments=[trace])
    async with s:
        await s.call(max, 1, 2)
        limit = s.statistics().max_bytes
    await asyncio.to_thread(trace.close)
    found = await asyncio.to_thread(Recording.read, path)
    assert found.metadata["max_bytes"] == limit
    assert [device["streams"] for device in found.metadata["devices"]] == [2]


@pytest.mark.parametrize("name", ["run.json", "run.json.gz"])
def test_a_flipped_bit_is_told_or_changes_nothing_that_matters(tmp_path: Path, name: str) -> None:
    async def program(s: asc.Scheduler) -> None:
        await s.call(max, 1, 2)

    asyncio.run(traced(tmp_path / name, program, streams=1))
    text, damaged = (tmp_path / name).read_bytes(), 0
    broken = tmp_path / f"broken-{name}"
    for place in range(0, len(text), 5):
        broken.write_bytes(text[:place] + bytes([text[place] ^ 1 << place % 7]) + text[place + 1 :])
        try:
            describe(*findings(Recording.read(broken), name))
        except ValueError as error:
            damaged += "is damaged: " in str(error)
            assert any(
                told in str(error) for told in ("is damaged", "is no trace", "newer asyncsched", "older asyncsched")
            )
    assert damaged > 20


def test_fields_of_another_type_are_told_or_change_nothing_that_matters(tmp_path: Path) -> None:
    """None of them ends a report in an error of its own."""

    async def program(s: asc.Scheduler) -> None:
        async with s.scope(name="request", reserve="1 MiB"):
            await s.call(max, 1, 2)

    path, broken, damaged = tmp_path / "run.json", tmp_path / "broken.json", 0
    asyncio.run(traced(path, program))
    lines = path.read_text().splitlines(keepends=True)
    for place in range(1, len(lines) - 1):
        event = json.loads(lines[place].removesuffix(",\n"))
        inside = event.get("args", {})
        for where, name in [*[(event, name) for name in event], *[(inside, name) for name in inside]]:
            kept, where[name] = where[name], {"a": 1}
            broken.write_text("".join([*lines[:place], json.dumps(event) + ",\n", *lines[place + 1 :]]))
            where[name] = kept
            try:
                recording = Recording.read(broken)
                describe(*findings(recording, "a trace"))
                assert recording.limits.max_ops == 64
            except ValueError as error:
                damaged += "is damaged: " in str(error)
    assert damaged > 40


async def test_a_reserve_that_was_never_granted_is_no_task_either(tmp_path: Path) -> None:
    async def program(s: asc.Scheduler) -> None:
        x = await s.put(np.ones(1000))
        with pytest.raises(asc.QueueFull):
            async with s.scope(reserve=8000, wait=0):
                pass
        await x

    found = await traced(tmp_path / "run.json", program, max_bytes=10_000)
    assert [(task.name, task.state, task.claim) for task in found.tasks] == [
        ("put", "done", False),
        ("scope 'unnamed'", "cancelled", True),
    ]
    assert [node.name for node in found.graph().nodes] == ["put"]


def test_a_trace_of_a_reserve_alone_is_reported(tmp_path: Path) -> None:
    async def program(s: asc.Scheduler) -> None:
        async with s.scope(reserve="1 MiB"):
            pass

    path = tmp_path / "run.json"
    asyncio.run(traced(path, program))
    assert "1.0 MiB were tracked" in describe(*findings(Recording.read(path), "a trace"))


def test_scopes_that_are_in_each_other_are_damage(tmp_path: Path) -> None:
    async def program(s: asc.Scheduler) -> None:
        async with s.scope(name="request", reserve="1 MiB"):
            await s.call(max, 1, 2)

    path = tmp_path / "run.json"
    asyncio.run(traced(path, program))
    text = path.read_text()
    for inner, outer in ((2, 2), (1, 2)):
        opened = f'"id":{inner},"ts":'
        lines = [
            re.sub(r'"parent":\d', f'"parent":{outer}', line) if opened in line and '"ph":"b"' in line else line
            for line in text.splitlines(keepends=True)
        ]
        path.write_text("".join(lines))
        with pytest.raises(
            ValueError, match=f"is damaged: .*scope {inner} is in scope {outer}, which was opened after"
        ):
            Recording.read(path)


def test_what_another_version_wrote_is_refused_with_the_cure(tmp_path: Path) -> None:
    async def program(s: asc.Scheduler) -> None:
        await s.call(max, 1, 2)

    path = tmp_path / "run.json"
    asyncio.run(traced(path, program))
    text = path.read_text()
    for other, cure in ((-1, "an older asyncsched: record it again"), (1, "a newer asyncsched: upgrade")):
        path.write_text(text.replace(f'"format":{FORMAT}', f'"format":{FORMAT + other}'))
        with pytest.raises(ValueError, match=cure):
            Recording.read(path)


def test_half_of_a_surrogate_pair_in_a_name_is_written_as_it_is_escaped(tmp_path: Path) -> None:
    async def program(s: asc.Scheduler) -> None:
        await s.submit(len, "", name="\ud800!")

    found = asyncio.run(traced(tmp_path / "run.json", program))
    assert [task.name for task in found.tasks] == ["\ud800!"]
    page = tmp_path / "run.html"
    command = [sys.executable, "-m", "asyncsched", "trace", str(tmp_path / "run.json"), "--html", str(page)]
    said = subprocess.run(command, check=True, capture_output=True, encoding="utf-8").stdout
    found.graph().save(tmp_path / "run.svg")
    for written in (said, page.read_text("utf-8"), (tmp_path / "run.svg").read_text("utf-8")):
        assert "\\ud800!" in written


async def test_a_trace_of_a_scheduler_that_never_opens_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    trace = asc.Trace(path)
    s = asc.Scheduler("cpu", instruments=[trace])
    s.remove_instrument(trace)
    trace.close()
    with pytest.raises(ValueError, match="is no trace"):
        await asyncio.to_thread(Recording.read, path)


async def test_what_depended_on_what_is_drawn_from_a_trace(tmp_path: Path) -> None:
    async def program(s: asc.Scheduler) -> None:
        x = await s.put(np.ones((100, 100)))
        y = s.submit_nowait(np.matmul, x, x, shape=(100, 100), dtype=np.float64)
        await s.call(np.sum, y)

    graph = (await traced(tmp_path / "run.json", program)).graph()
    assert [(node.name, node.dtype, node.state, node.inputs) for node in graph.nodes] == [
        ("put", "78.1 KiB", "done", ()),
        ("matmul", "78.1 KiB", "done", (0, 0)),
        ("sum", "78.1 KiB", "done", (1,)),
    ]
    assert "matmul" in graph.svg()
