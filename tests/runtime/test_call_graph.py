"""What Python's own tools show of a program that waits for us, and where it may not run."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

import asyncsched as asc
from tests.processes import fresh
from tests.waiting import held, turns

pytestmark = pytest.mark.skipif(sys.version_info < (3, 14), reason="Python 3.14 brought it")


async def awaits(s: asc.Scheduler, gate: threading.Event) -> None:
    await s.submit_nowait(held, gate)


async def gathers(s: asc.Scheduler, gate: threading.Event) -> None:
    await asc.gather(s.submit_nowait(held, gate), s.submit_nowait(held, gate))


async def calls(s: asc.Scheduler, gate: threading.Event) -> None:
    await s.call(held, gate)


async def waits_for_all(s: asc.Scheduler, gate: threading.Event) -> None:
    s.submit_nowait(held, gate)
    await s.barrier()


WAITS: dict[Callable[[asc.Scheduler, threading.Event], Coroutine[Any, Any, None]], str] = {
    awaits: "", gathers: "", calls: "Tasks.call", waits_for_all: "Submitter.barrier",
}  # fmt: skip


@pytest.mark.parametrize("wait", WAITS, ids=lambda wait: wait.__name__)
async def test_a_call_graph_shows_what_waits_for_us(s: asc.Scheduler, gate: threading.Event, wait: Any) -> None:
    task = asyncio.create_task(wait(s, gate))
    await turns()
    shown = asyncio.format_call_graph(task)
    assert f"async {wait.__name__}()" in shown
    assert WAITS[wait] in shown
    gate.set()
    await task


@pytest.mark.one_loop
async def test_pstree_shows_what_waits_for_us(s: asc.Scheduler, gate: threading.Event) -> None:
    task = asyncio.create_task(calls(s, gate), name="who calls")
    await turns()
    command = [sys.executable, "-m", "asyncio", "pstree", str(os.getpid())]
    process = await asyncio.create_subprocess_exec(*command, stdout=-1, stderr=-1)
    shown, errors = [text.decode() for text in await process.communicate()]
    gate.set()
    await task
    if process.returncode:
        pytest.skip(f"the system does not allow it here: {errors.splitlines()[-1]}")
    assert "who calls" in shown
    assert "Tasks.call" in shown


def test_another_interpreter_is_refused_by_a_sentence() -> None:
    """By NumPy, which lives in one of a process."""
    code = """
from concurrent import interpreters
with_none = interpreters.create()
try:
    with_none.exec("import asyncsched")
except interpreters.ExecutionFailed as error:
    print("does not support loading in subinterpreters" in str(error))
with_none.close()
"""
    assert fresh(code) == "True\n"
