"""The file of a trace: what viewers ask of it, its size, and what becomes of it when a process or a disk dies."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import tracemalloc
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched.observe import Recording, trace
from asyncsched.runtime.life import InlineMode
from tests.ledger import runtime_of

MOST_BYTES = 104  # a task: a million in 100 MiB


def check(events: list[dict[str, Any]]) -> None:
    """That a viewer finds these in order: every slice nests, every beginning has its end, every arrow two ends."""
    slices: dict[Any, list[tuple[float, float]]] = defaultdict(list)
    spans: dict[Any, list[str]] = defaultdict(list)
    arrows: dict[Any, list[str]] = defaultdict(list)
    named = {event["tid"] for event in events if event["name"] == "thread_name"}
    for event in events:
        phase = event["ph"]
        assert phase in "XbeinsfCM"
        assert isinstance(event["name"], str)
        assert event["pid"] == 1
        if phase == "M":
            continue
        assert event["ts"] >= 0
        if phase == "C":
            assert all(isinstance(value, int | float) for value in event["args"].values())
            continue
        assert event["tid"] in named
        key = event.get("cat"), event.get("id")
        if phase == "X":
            assert event["dur"] >= 0
            slices[event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
        elif phase in "sf":
            arrows[key].append(phase)
        elif phase not in "ni":
            spans[key].append(phase)
    for track in slices.values():
        around: list[float] = []
        for since, until in sorted(track, key=lambda pair: (pair[0], -pair[1])):
            while around and around[-1] <= since + 0.11:  # a tenth of a microsecond: times are rounded
                around.pop()
            assert not around or until <= around[-1] + 0.11
            around.append(until)
    assert all(ends.count("b") == ends.count("e") for ends in spans.values())
    assert all(sorted(ends) == ["f", "s"] for ends in arrows.values())
    assert slices
    assert spans
    assert arrows


async def everything(s: asc.Scheduler) -> None:
    """Something of each kind."""
    x = await s.put(np.ones((100, 100)))
    window = s.window(2)
    async with s.scope(name='a "request"', reserve="1 MiB"):
        await asc.gather(*[x @ x + i for i in range(5)])
    for _ in range(4):
        async with window:
            loss = (x * 2).sum()
    await loss
    small = await s.put(np.ones(3))
    for _ in range(5):
        small = small + 1
    batcher = asc.Batcher(lambda items: items, scheduler=s)
    await asyncio.gather(batcher(1), batcher(2))
    bad = s.submit_nowait(divmod, 1, 0)
    dropped = s.submit_nowait(repr, bad)
    dropped.cancel()
    for task in (bad, dropped):
        with pytest.raises((ZeroDivisionError, asc.TaskCancelled)):
            await task


async def test_a_viewer_finds_it_in_order(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    trace = asc.Trace(path)
    async with asc.Scheduler("cpu", streams=2, max_ops=4, instruments=[trace]) as s:
        await everything(s)
    await asyncio.to_thread(trace.close)
    events = json.loads(await asyncio.to_thread(path.read_text))
    check(events)
    shown = {(event["ph"], event["name"]) for event in events}
    assert {("X", "matmul"), ("b", 'a "request"'), ("b", "iteration 1"), ("n", "batch"), ("C", "tasks")} <= shown
    assert ("b", "runs") in shown
    assert any(name.startswith("await ") for _, name in shown)
    assert ("i", "scope 'a \"request\"'") in shown  # its reserve, which has no body
    lines = [event["args"]["site"] for event in events if event["ph"] == "X" and event["name"] == "matmul"]
    assert lines
    assert all("test_trace_file.py" in line for line in lines)
    scopes = [event["name"] for event in events if event["ph"] == "C" and "a scope" not in event["name"]]
    assert {"tasks", "bytes"} <= set(scopes)


async def test_a_part_is_traced_and_nothing_of_it_is_kept(s: asc.Scheduler, tmp_path: Path) -> None:
    before = await s.put(np.ones(8))
    async with asc.Trace(tmp_path / "part.json") as trace:
        inside = before + 1
        await s.call(max, 1, 2)
    assert (inside + 1).shape == (8,)
    found = await asyncio.to_thread(Recording.read, tmp_path / "part.json")
    assert [task.name for task in found.tasks] == ["add", "max"]
    assert found.metadata["bytes_before"] == 64
    assert found.complete
    assert [*trace._tasks, *trace._notes, *trace._waits] == []
    with pytest.raises(RuntimeError, match="for one scheduler, once"):
        s.add_instrument(trace)


@pytest.mark.parametrize("details", ["5", None, True, -1])
def test_details_are_checked(tmp_path: Path, details: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="details must be"):
        asc.Trace(tmp_path / "run.json", details=details)
    assert not [*tmp_path.iterdir()]


@pytest.mark.one_loop
async def test_a_million_would_take_less_than_100_mib_compressed(tmp_path: Path) -> None:
    path, count = tmp_path / "run.json.gz", 4000
    trace = asc.Trace(path, details=0)
    async with asc.Scheduler("cpu", instruments=[trace]) as s:
        x = await s.put(np.ones((1, 2048), np.float32))
        for i in range(count // 500):
            runtime_of(s).inline = InlineMode.NEVER  # as tasks, not inline
            for _ in range(500):
                y = x + i
            await s.barrier()
        del y
    await asyncio.to_thread(trace.close)
    size = (await asyncio.to_thread(path.stat)).st_size
    assert size / count < MOST_BYTES
    found = await asyncio.to_thread(Recording.read, path)
    assert len(found.tasks) == count + 1
    assert {task.inputs for task in found.tasks[1:]} == {(0,)}


def test_what_a_killed_process_wrote_is_whole(tmp_path: Path) -> None:
    program = (
        "import numpy as np, asyncsched as asc\n"
        "async def main():\n"
        "    async with asc.Scheduler('cpu', instruments=[asc.Trace('run.json')]) as s:\n"
        "        while True:\n"
        "            await s.call(max, 1, 2)\n"
        "asc.run(main)\n"
    )
    path = tmp_path / "run.json"
    with subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path) as process:
        while not path.exists() or path.read_bytes().count(b"\n") < 300:  # events that are whole
            assert process.poll() is None
        os.kill(process.pid, signal.SIGKILL)
    text = path.read_text()
    text = text[: text.rindex("},\n") + 1]  # the kernel may give up a write on the way: then one event is cut
    assert len(json.loads(text + "]")) > 100
    found = Recording.read(path)
    assert found.tasks
    assert not found.complete


async def test_what_a_slow_disk_lost_is_counted_and_the_rest_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.json"
    monkeypatch.setattr(trace, "_PAUSE", 3600.0)  # its thread waits
    monkeypatch.setattr("asyncsched.observe.trace._EVERY", 0.0)
    async with asc.Scheduler("cpu") as s, asc.Trace(path):
        with monkeypatch.context() as disk:
            disk.setattr(trace, "_MOST", 0)
            async with s.scope(name="lost"):
                await s.call(int)
        await s.call(str)
    found = Recording.read(path)
    assert found.lost == 1
    assert [task.name for task in found.tasks] == ["str"]
    assert not found.scopes
    assert found.complete


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full here")
async def test_a_full_disk_ends_the_trace_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    trace = asc.Trace("/dev/full")
    with caplog.at_level(logging.ERROR, "asyncsched"):
        async with asc.Scheduler("cpu", instruments=[trace]) as s:
            for _ in range(20):
                assert await s.call(max, 1, 2) == 2
        await asyncio.to_thread(trace.close)
    assert "cannot be written" in caplog.text
    assert not trace._notes


def head() -> bytes:
    device = {"name": "cpu", "streams": 1}
    found = {"format": 2, "max_ops": 1, "max_bytes": None, "devices": [device], "wall_clock": 0, "perf_counter": 0}
    return b"[\n" + json.dumps({"name": "asyncsched.metadata", "ph": "M", "args": found}).encode() + b",\n"


COUNTER = b'{"name": "tasks", "ph": "C", "ts": 1, "args": {"pending": 1}},\n'
BOMBS: dict[str, tuple[bytes, bytes]] = {
    "one line": (head(), b" " * 2**20),
    "one line before all others": (b"", b" " * 2**20),
    "one value": (head() + b'{"name": "a", "ph": "', b"[" * 2**20),
    "many events": (head(), COUNTER * 2**14),
}


@pytest.mark.parametrize("kind", BOMBS)
def test_a_file_that_would_unpack_to_more_than_a_trace_has_is_refused(kind: str, tmp_path: Path) -> None:
    begin, block = BOMBS[kind]
    path = tmp_path / "run.json.gz"
    with gzip.open(path, "wb", compresslevel=9) as file:
        file.write(begin)
        for _ in range(256):
            file.write(block)
    if kind != "many events":  # each of which it would follow
        tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="packed tighter, than any trace"):
            Recording.read(path)
        assert tracemalloc.get_traced_memory()[1] < 256 * 2**20
    finally:
        tracemalloc.stop()


def test_a_long_line_is_refused_unpacked_too(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(head() + b" " * 2**23 + b"\n")
    with pytest.raises(ValueError, match="it has a longer line"):
        Recording.read(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="it has no named pipes")
async def test_a_named_pipe_without_another_end_is_not_waited_for(s: asc.Scheduler, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    await asyncio.to_thread(os.mkfifo, pipe)
    with pytest.raises(OSError, match="pipe"):
        async with asc.Trace(pipe):
            pass
    graph = s.graph(await s.put(np.ones(2)))
    for ends_at_once in (partial(graph.save, pipe), partial(Recording.read, pipe)):
        with pytest.raises((OSError, ValueError), match="pipe"):
            await asyncio.to_thread(ends_at_once)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="it has no named pipes")
async def test_a_trace_is_read_from_a_pipe_that_somebody_writes_to(s: asc.Scheduler, tmp_path: Path) -> None:
    path, pipe = tmp_path / "run.json", tmp_path / "pipe"
    async with asc.Trace(path):
        await (await s.put(np.ones(2))).mean().item()

    def piped() -> Recording:
        os.mkfifo(pipe)
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)  # so that the writer can open it
        with pipe.open("wb") as writer:
            os.close(reader)
            thread = threading.Thread(target=lambda: (writer.write(path.read_bytes()), writer.close()))
            reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)  # it has a reader until this test has ended
            thread.start()
            found = Recording.read(pipe)
            thread.join()
            os.close(reading)
            return found

    assert len((await asyncio.to_thread(piped)).tasks) == len(Recording.read(path).tasks)
