"""Cells of a notebook, which await: their variables count as those of who waits, and no look at them changes any."""

from __future__ import annotations

import ast
import asyncio
import importlib.util
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched.runtime import deadlock
from tests.waiting import held, until

BLOCK = np.ones((100, 100))
OPENS = """
import numpy as np
import asyncsched as asc

s = await asc.Scheduler("cpu", max_bytes=320_000).__aenter__()
"""
HOLDS = """
kept = [await s.put(np.ones((100, 100))) for _ in range(4)]
"""
WANTS = """
_ = await s.put(np.ones((100, 100)))
"""
CLOSES = """
kept.clear()
await s.aclose()
"""


def namespace() -> dict[str, Any]:
    return {"__name__": "__main__", "__spec__": None}


async def run(cell: str, names: dict[str, Any]) -> None:
    """As IPython runs a cell."""
    code = compile(cell, "<cell>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    done = eval(code, names)  # noqa: S307
    if done is not None:
        await done


async def test_a_deadlock_of_a_cell_is_raised_and_its_variables_stay(looks: list[deadlock.Finding]) -> None:
    names = namespace()
    await run(OPENS + HOLDS, names)
    before = {name: id(held) for name, held in names.items()}
    with pytest.raises(asc.MemoryDeadlockError) as caught:
        await run(WANTS, names)
    assert {name: id(held) for name, held in names.items()} == before
    assert "held by coroutine <module> (variable 'kept'), which waits at <cell>:2" in str(caught.value)
    assert [finding.deadlock for finding in looks] == [True]
    await run(CLOSES, names)


async def test_while_another_cell_s_task_may_change_them_nobody_is_accused(looks: list[deadlock.Finding]) -> None:
    names, go_on = namespace(), asyncio.Event()
    await run(OPENS + HOLDS, names)
    await run("async def frees(go_on):\n    await go_on.wait()\n    kept.clear()\n", names)
    other = asyncio.create_task(names["frees"](go_on))
    waiting = asyncio.create_task(run(WANTS, names))
    await until(lambda: looks)
    assert not any(finding.deadlock for finding in looks)
    go_on.set()
    await waiting
    await other
    await run(CLOSES, names)


async def test_while_a_thread_runs_code_of_theirs_nobody_is_accused(looks: list[deadlock.Finding]) -> None:
    gate = threading.Event()
    names = namespace() | {"held": held, "gate": gate}
    await run(OPENS + HOLDS, names)
    await run("def frees():\n    held(gate)\n    kept.clear()\n", names)
    thread = threading.Thread(target=names["frees"])
    thread.start()
    waiting = asyncio.create_task(run(WANTS, names))
    await until(lambda: looks)
    assert not any(finding.deadlock for finding in looks)
    gate.set()
    await waiting
    await asyncio.to_thread(thread.join)
    await run(CLOSES, names)


async def test_a_locals_that_is_kept_stays_as_it_is(looks: list[deadlock.Finding]) -> None:
    async def work(s: asc.Scheduler) -> None:
        number = 5
        kept = locals()
        before = dict(kept)
        mine = [await s.put(BLOCK) for _ in range(4)]
        with pytest.raises(asc.MemoryDeadlockError):
            await s.put(BLOCK)
        assert (kept, number) == (before, 5)
        mine.clear()

    async with asc.Scheduler("cpu", max_bytes=320_000) as s:
        await asyncio.create_task(work(s))
    assert looks[0].deadlock


async def test_explain_changes_nothing(looks: list[deadlock.Finding]) -> None:
    names = namespace()
    await run(OPENS + HOLDS, names)
    await run("waits = s.submit_nowait(int, nbytes=8)\ntold = s.explain(waits)\n", names)
    assert "'kept'" in names["told"]
    assert set(names) == {*namespace(), "__builtins__", "np", "asc", "s", "kept", "waits", "told"}
    await run("waits.cancel()" + CLOSES, names)


KERNEL = """
import sys, nbclient, nbformat
cells = [nbformat.v4.new_code_cell(cell) for cell in sys.argv[1:]]
done = nbclient.NotebookClient(nbformat.v4.new_notebook(cells=cells), timeout=60, kernel_name="python3").execute()
print(done.cells[-1].outputs[0].text)
"""
TRIES = (
    "try:\n    x = await s.put(np.ones((100, 100)))\nexcept asc.MemoryDeadlockError as error:\n    told = str(error)\n"
)
TELLS = "print('kept' in told, len(kept), asc.__name__, np.__name__)\n"


@pytest.mark.one_loop
@pytest.mark.skipif(importlib.util.find_spec("nbclient") is None, reason="it needs a kernel: asyncsched[test,demos]")
@pytest.mark.timeout(120)
def test_in_a_kernel(tmp_path: Path) -> None:
    environment = os.environ | {"IPYTHONDIR": str(tmp_path), "JUPYTER_RUNTIME_DIR": str(tmp_path)}
    command = [sys.executable, "-c", KERNEL, OPENS, HOLDS, TRIES, TELLS]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "True 4 asyncsched numpy"
