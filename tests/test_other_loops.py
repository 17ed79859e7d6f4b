"""What a scheduler says on a closed loop, on another one, in a child of a fork, and when nobody closed it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched.flow.pipeline import Pipeline  # imported here, since that blocks
from tests.conftest import LOOPS
from tests.ledger import runtime_of
from tests.waiting import held

BLOCK = np.ones((200, 200))


def test_a_closed_loop(gate: threading.Event) -> None:
    async def leave_open() -> tuple[asc.Scheduler, asc.Tensor]:
        s = asc.Scheduler("cpu")
        await s.__aenter__()
        return s, s.submit_nowait(held, gate, shape=(), dtype=float)

    s, pending = asyncio.run(leave_open())
    with pytest.raises(asc.SchedulerClosed, match="not running"):
        float(pending)
    with pytest.raises(asc.SchedulerClosed, match="loop is closed"):
        pending + 1
    with pytest.warns(ResourceWarning, match="never closed"):
        del s


async def _entered(scope: Any) -> None:
    async with scope:
        pass


async def _drained(pipe: Pipeline[Any]) -> None:
    async with pipe.open() as items:
        async for _ in items:
            pass


# Every way into a scheduler, with a small tensor, a large one, and a task that has not ended.
ENTRIES: dict[str, Callable[[asc.Scheduler, asc.Tensor, asc.Tensor, Any], Any]] = {
    "put": lambda s, x, large, task: s.put([1.0]),
    "put, large": lambda s, x, large, task: s.put(BLOCK),
    "put_nowait": lambda s, x, large, task: s.put_nowait([1.0]),
    "submit": lambda s, x, large, task: s.submit(int),
    "submit_nowait": lambda s, x, large, task: s.submit_nowait(int),
    "call": lambda s, x, large, task: s.call(int),
    "operator": lambda s, x, large, task: x + 1,
    "operator, large": lambda s, x, large, task: large + 1,
    "function": lambda s, x, large, task: asc.exp(x),
    "function, no operand": lambda s, x, large, task: asc.zeros(3, scheduler=s),
    "index": lambda s, x, large, task: x[0],
    "assignment": lambda s, x, large, task: large.__setitem__(0, 1.0),
    "to": lambda s, x, large, task: x.to("cpu"),
    "backward": lambda s, x, large, task: x.backward(),
    "await": lambda s, x, large, task: task,
    "gather": lambda s, x, large, task: asc.gather(x, task),
    "cancel": lambda s, x, large, task: task.cancel(),
    "barrier": lambda s, x, large, task: s.barrier(),
    "scope": lambda s, x, large, task: _entered(s.scope()),
    "window": lambda s, x, large, task: _entered(s.window(1)),
    "capture": lambda s, x, large, task: s.capture(lambda x: x + 1, x),
    "pipeline": lambda s, x, large, task: _drained(s.pipeline([[1.0]]).to_device()),
    "batcher": lambda s, x, large, task: asc.Batcher(lambda x: x + 1, scheduler=s)(np.ones(3)),
    "stepper": lambda s, x, large, task: _entered(asc.Stepper(list, scheduler=s, reserve=10).join("member")),
    "statistics": lambda s, x, large, task: s.statistics(),
    "load": lambda s, x, large, task: s.load(),
    "aclose": lambda s, x, large, task: s.aclose(),
}


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("closed", [True, False], ids=["closed loop", "another loop"])
@pytest.mark.parametrize("beside", [True, False], ids=["beside another scheduler", "alone"])
@pytest.mark.parametrize("loop", LOOPS)
def test_a_scheduler_refuses_another_loop_and_says_so(
    gate: threading.Event, entry: str, loop: str, closed: bool, beside: bool
) -> None:
    async def leave_open() -> tuple[asc.Scheduler, asc.Tensor, asc.Tensor, Any]:
        s = asc.Scheduler("cpu")
        await s.__aenter__()
        x = await s.put(np.ones(3))
        x.requires_grad = True
        return s, x, await s.put(BLOCK), s.submit_nowait(held, gate)

    async def enter() -> None:
        error, text = (
            (asc.SchedulerClosed, "event loop is closed") if closed else (RuntimeError, "another one runs now")
        )
        async with asc.Scheduler("cpu") if beside else contextlib.nullcontext():
            with pytest.raises(error, match=text):
                found = ENTRIES[entry](*left)
                if hasattr(found, "__await__"):
                    await found
        assert (await left[1]).tolist() == [1, 1, 1]  # what is there is readable
        assert (await left[2].numpy()).tobytes() == BLOCK.tobytes()

    with contextlib.closing(LOOPS[loop]()) as its, contextlib.closing(LOOPS[loop]()) as other:
        left = its.run_until_complete(leave_open())
        if closed:
            its.close()
        try:
            other.run_until_complete(enter())
        finally:
            gate.set()
            if closed:
                runtime_of(left[0]).close()
            else:
                its.run_until_complete(left[0].aclose())


async def test_between_two_runs_of_its_loop_a_scheduler_takes_work() -> None:
    """As at an interactive prompt, which runs the loop for some of its lines alone."""
    loop = asyncio.new_event_loop()

    def prompt() -> None:
        s = asc.Scheduler("cpu")
        loop.run_until_complete(s.__aenter__())
        x = loop.run_until_complete(s.put(np.ones(3)))
        y = x + 1
        task = s.submit_nowait(int)
        assert s.statistics().tasks_submitted == 3
        assert loop.run_until_complete(_result(y)).tolist() == [2, 2, 2]
        assert loop.run_until_complete(_result(task)) == 0
        loop.run_until_complete(s.aclose())
        loop.close()

    await asyncio.to_thread(prompt)


async def _result(handle: Any) -> Any:
    return await handle


def test_an_unclosed_scheduler_warns_and_ends_its_threads() -> None:
    async def leave_open() -> None:
        s = asc.Scheduler("cpu", streams=2)
        await s.__aenter__()
        await (await s.put(BLOCK) + 1)

    gc.collect()
    before = set(threading.enumerate())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asyncio.run(leave_open())
        gc.collect()
    assert [w.category for w in caught] == [ResourceWarning]
    assert "never closed" in str(caught[0].message)
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
        assert not thread.is_alive()


FORK = """
import asyncio, os, signal, sys, threading
import numpy as np
import asyncsched as asc

async def main(how):
    gate = threading.Event()
    async with asc.Scheduler("cpu", streams=2) as s:
        x, task = await s.put(np.ones((300, 300))), s.submit_nowait(gate.wait, 60)
        await x
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            if how == "operator": x + 1
            if how == "await": await task
            if how == "numpy": await x.numpy()
            if how == "statistics": s.statistics()
            if how == "close": await s.aclose()
            if how == "raise": raise KeyError
        else:
            gate.set()
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            await task
            assert (await (x + 1))[0, 0] == 2

async def told(how):
    parent = os.getpid()
    try:
        await main(how)
    except BaseException as error:
        if os.getpid() == parent:
            raise
        # Not through the loop's own end, which in a child closes what the parent still uses.
        os._exit(44 if isinstance(error, KeyError) else 42 if "fork" in str(error) else 43)

asyncio.run(told(sys.argv[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("how", ["operator", "await", "numpy", "statistics", "close", "raise", "leave"])
def test_a_fork_gets_an_error_and_does_not_hang(how: str) -> None:
    code = 44 if how == "raise" else 42
    done = subprocess.run([sys.executable, "-c", FORK, how], capture_output=True, text=True, timeout=110, check=False)
    assert (done.stdout, done.returncode) == (f"{code}\n", 0), done.stderr
