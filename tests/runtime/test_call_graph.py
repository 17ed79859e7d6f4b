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
async def test_a_call_graph_shows_the_coroutines_that_wait_for_tasks(
    s: asc.Scheduler, gate: threading.Event, wait: Any
) -> None:
    task = asyncio.create_task(wait(s, gate))
    await turns()
    shown = asyncio.format_call_graph(task)
    assert f"async {wait.__name__}()" in shown
    assert WAITS[wait] in shown
    gate.set()
    await task


@pytest.mark.one_loop
async def test_pstree_shows_the_coroutines_that_wait_for_tasks(s: asc.Scheduler, gate: threading.Event) -> None:
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


IN_ANOTHER = {
    "to import it": """with_none.exec("import asyncsched")""",
    "a pool": """
with InterpreterPoolExecutor(1) as pool:
    pool.submit(import_module, "asyncsched").result()
""",
    "one that shares the GIL": """
found = _interpreters.exec(one := _interpreters.create("legacy"), "import asyncsched")
_interpreters.destroy(one)
raise ImportError(found.msg)
""",
    "a tensor": """
async def main():
    async with asyncsched.Scheduler("cpu") as s:
        x = await s.put([1.0])
        try:
            with_none.call(type, x)
        finally:
            assert await x.item() == 1.0
asyncio.run(main())
""",
}


@pytest.mark.parametrize("way", IN_ANOTHER)
def test_another_interpreter_is_refused_by_a_sentence(way: str) -> None:
    """NumPy lives in one of a process."""
    code = f"""
import asyncio, _interpreters
from concurrent import interpreters
from concurrent.futures import InterpreterPoolExecutor
from importlib import import_module
import asyncsched
with_none = interpreters.create()
try:
    exec({IN_ANOTHER[way]!r})
except Exception as error:
    print(str(error))
with_none.close()
"""
    said = "does not support cross-interpreter data" if way == "a tensor" else "use threads, beside which NumPy"
    assert said in fresh(code)
