"""Replays in virtual time: the engine's own decisions, under other limits."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched.__main__ import main
from asyncsched._core.ledger import Limits
from asyncsched.observe import Recording, replan
from asyncsched.observe.analysis import memory_curve
from asyncsched.observe.recording import ScopeRecord, TaskRecord
from asyncsched.observe.replay import Outcome, Program
from asyncsched.runtime.runtime import INLINE_STREAM

KIB = 1024


def task(seq: int, took: float, *inputs: int, at: float = 0.0, kept: int = 0, **given: Any) -> TaskRecord:
    """A task that began when it was submitted. Its own bytes are freed as it ends, unless something reads it."""
    facts: dict[str, Any] = {
        "name": f"task {seq}", "site": "", "device": "cpu", "stream": "cpu stream 0", "copies": False, "state": "done",
        "claim": False, "scope": 0, "expedited": False, "cost": kept, "waited_for": "slots", "submitted": at,
        "head": at, "launched": at, "began": at, "ended": at + took, "done": at + took,
    }  # fmt: skip
    return TaskRecord(seq=seq, inputs=inputs, kept=kept, **(facts | given))


def recorded(*tasks: TaskRecord, waits: Any = (), scopes: Any = ()) -> Program:
    found = Recording({"max_ops": 64, "max_bytes": None}, list(tasks))
    found.waits = list(waits)
    found.scopes = {scope.number: scope for scope in scopes}
    return Program(found)


def replay(program: Program, max_bytes: int | None = None, streams: int = 1, max_ops: int | None = 64) -> Outcome:
    return program.run(Limits(max_ops, max_bytes), streams)


def test_what_is_independent_overlaps_and_what_depends_waits() -> None:
    program = recorded(task(0, 1.0), task(1, 1.0), task(2, 1.0, 1), task(3, 1.0, 0, 2))
    assert replay(program).seconds == pytest.approx(4.0)
    two = replay(program, streams=2)
    assert two.seconds == pytest.approx(3.0)
    assert two.busy == pytest.approx(4 / 6)
    assert replay(program, streams=2, max_ops=1).seconds == pytest.approx(4.0)


def test_what_ran_on_the_loops_thread_takes_no_stream() -> None:
    program = recorded(task(0, 1.0), task(1, 1.0, 0, at=1.0, stream=INLINE_STREAM), task(2, 2.0))
    found = replay(program)
    assert found.seconds == pytest.approx(3.0)
    assert found.busy == pytest.approx(1.0)


def test_what_ran_at_once_is_charged_at_once_and_takes_no_slot() -> None:
    at_once = {"device": "", "stream": INLINE_STREAM, "kept": 8 * KIB, "released": 1.3}
    program = recorded(*[task(i, 0.0, at=i * 0.1, **at_once) for i in range(3)], task(3, 1.0, 0, 1, 2, at=0.3))
    found = replay(program, max_ops=1)
    assert found.seconds == pytest.approx(1.3)
    assert found.peak_bytes == 24 * KIB


def loader(steps: int = 4) -> Program:
    """A program that puts 8 KiB each 0.1 s, and has it worked on for 1 s; it waits until a put is copied."""
    tasks, waits = [], []
    for i in range(steps):
        at, end = i * 0.1, 1.0 + i
        copied = task(2 * i, 0.0, at=at, kept=8 * KIB, copies=True, stream="cpu copies", name="put", released=end)
        tasks += [copied, task(2 * i + 1, 1.0, 2 * i, at=at, began=end - 1.0, ended=end, done=end, name="work")]
        waits.append((at, at, 2 * i, 1))
    return recorded(*tasks, waits=waits)


def test_a_limit_bounds_the_bytes_and_holds_up_who_waits_for_room() -> None:
    program = loader()
    free, bound = replay(program), replay(program, 16 * KIB)
    assert free.peak_bytes == 32 * KIB
    assert bound.peak_bytes == 16 * KIB
    assert free.seconds == pytest.approx(4.0)
    assert bound.seconds == pytest.approx(4.0, rel=0.01)
    tight = replay(program, 8 * KIB)
    assert tight.peak_bytes == 8 * KIB
    assert tight.seconds >= bound.seconds
    assert replan.smallest_limit(program, 1) == 8 * KIB


def test_what_cannot_finish_is_told() -> None:
    held = [task(i, 1.0, at=float(i), kept=8 * KIB) for i in range(4)]  # never released
    stuck = replay(recorded(*held), 16 * KIB)
    assert not stuck.finished
    assert stuck.why == "task 2 (8,192 bytes) is never admitted"
    assert not replay(recorded(*held), 4 * KIB).finished
    assert "one task alone needs 8,192 bytes" in replay(recorded(*held), 4 * KIB).why
    assert 32 * KIB <= replan.smallest_limit(recorded(*held), 1) <= 32 * KIB * 1.01


def test_the_program_takes_its_own_time_and_waits_for_what_it_waited_for() -> None:
    """0.5 s of its own, a task of 1 s on which it waits, 0.25 s of its own, and another."""
    tasks = [task(0, 1.0, at=0.5), task(1, 1.0, at=1.75)]
    program = recorded(task(9, 0.0, at=0.0), *tasks, waits=[(0.5, 1.5, 0, 1)])
    assert replay(program).seconds == pytest.approx(2.75)


def test_a_scope_of_its_own_takes_turns_and_a_reserve_is_a_claim() -> None:
    scope = ScopeRecord(1, 0, "request", 0.0, True, 0, closed=3.0, reserve=8 * KIB)
    claim = task(0, 0.0, kept=8 * KIB, claim=True, device="", stream="", began=None, ended=None, released=3.0)
    inside = task(1, 1.0, at=1.0, scope=1)
    program = recorded(claim, inside, scopes=[scope])
    assert replay(program).peak_bytes == 8 * KIB
    assert replay(program).finished
    assert not replay(program, 4 * KIB).finished


async def test_reserves_end_with_their_scopes_also_where_they_grew(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    trace = asc.Trace(path)
    async with asc.Scheduler("cpu", streams=1, max_bytes=10 * KIB, instruments=[trace]) as s:
        for _ in range(3):
            async with s.scope(reserve=3 * KIB) as scope:
                await scope.grow(2 * KIB)
                await s.call(int)
        peak = s.statistics().peak_bytes
    await asyncio.to_thread(trace.close)
    recording = await asyncio.to_thread(Recording.read, path)
    assert replay(Program(recording), 5 * KIB).finished
    assert max(used for _, used in memory_curve(recording)) == peak == 5 * KIB


async def test_a_trace_is_replayed_under_its_own_limits(tmp_path: Path) -> None:
    """Peak and order of a real run: with each step awaited they do not depend on who was quicker."""
    path = tmp_path / "run.json"
    trace = asc.Trace(path)
    async with asc.Scheduler("cpu", streams=1, max_bytes="4 MiB", instruments=[trace]) as s:
        x = await s.put(np.ones((256, 256), np.float32))
        for _ in range(5):
            y = asc.tanh(x) @ x
            await y.mean().item()
            del y
        peak = s.statistics().peak_bytes
        del x
    await asyncio.to_thread(trace.close)
    program = Program(await asyncio.to_thread(Recording.read, path))
    found = replay(program, 4 << 20)
    assert found.finished
    assert found.peak_bytes == pytest.approx(peak, rel=0.05)
    assert replan.smallest_limit(program, 1) == pytest.approx(3 * 2**18, rel=0.02)


def test_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recording, "read", lambda path: loader().recording)
    text = main(["replan", "run.json", "--max-bytes", "4KiB..16KiB", "--streams", "1..2"])
    lines = text.splitlines()
    assert lines[0].startswith("recorded: 8 tasks in 4.000 s, max_bytes none, 1 stream; the same replayed: 4.0")
    assert sum("does not finish: one task alone needs 8,192 bytes" in line for line in lines) == 2
    assert any("The smallest limit that finishes, on 2 streams: 8.0 KiB (8,192 bytes)" in line for line in lines)
    for bad, message in (
        (["--streams", "0"], "numbers from 1"),
        (["--streams", "two"], "numbers from 1"),
        (["--streams", "1..10000000000"], "to 256"),
        (["--max-bytes", "2GiB..1GiB"], "from the smaller limit"),
        (["--max-bytes", "lots"], "lots"),
    ):
        with pytest.raises(SystemExit):
            main(["replan", "run.json", *bad])
        assert message in capsys.readouterr().err


def test_more_bytes_are_judged_on_each_number_of_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    recording = Recording(
        {"max_ops": 64, "max_bytes": 8 * KIB}, [task(i, 1.0, kept=8 * KIB, released=1.0) for i in range(2)]
    )
    monkeypatch.setattr(Recording, "read", lambda path: recording)
    twice = "twice the recorded limit (16.0 KiB) would buy"
    assert f"On 1 stream {twice} nothing: the time is spent elsewhere.\nOn 2 streams {twice} 50% of the time." in main(
        ["replan", "run.json", "--streams", "1,2"]
    )


def test_an_empty_trace_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="no tasks"):
        recorded()
    with pytest.raises(SystemExit):
        main(["replan", str(tmp_path / "none.json")])
    assert "none.json" in capsys.readouterr().err
