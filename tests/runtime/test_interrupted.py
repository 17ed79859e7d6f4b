"""Ctrl-C: a thread that blocks for ever keeps no program from ending.

The first one cancels the program's coroutine, which leaves its blocks, and waits there for what runs. The second one
ends the loop, and the threads with the process. (One that comes before the first could cancel anything, the loop being
busy, ends the loop as well; but what is left then waits for what runs, and takes a third.)
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from itertools import cycle

import anyio
import pytest

from asyncsched.runtime.threads import in_thread, pass_interrupt
from tests.waiting import turns

PROGRAM = """
import asyncio, threading
import asyncsched as asc
from asyncsched.devices.cpu import CPUDevice

def block(*args):
    print("blocked", flush=True)
    threading.Event().wait()

class Unprepared(CPUDevice):
    prepare = block

def source():
    yield block()

async def consume(pipe):
    async with pipe.open() as items:
        async for _ in items:
            pass

async def work():
    async with asc.Scheduler(Unprepared() if "{what}" == "opening" else "cpu") as s:
        {line}

async def main():
    task = asyncio.current_task()
    asyncio.get_running_loop().create_task(tell(task))
    await work()

async def tell(task):
    while not task.cancelling():
        await asyncio.sleep(0.001)
    for _ in range(20):  # until it has come so far as to wait for what runs
        await asyncio.sleep(0)
    print("leaving", flush=True)
    while True:  # an interrupt while a task is freed would be lost in its callbacks, and one that comes just before the
        await asyncio.sleep(0.05)  # loop sleeps is noticed when it wakes (both CPython's)

{run}(main())
"""

LINES = {
    "opening": "pass",
    "a source": "await consume(s.pipeline(source()))",
    "a source's function": "await consume(s.pipeline(block))",
    "a stage": "await consume(s.pipeline([1]).map(block, workers=2))",
    "a body": "await s.call(block)",
    "a scope": "async with s.scope() as scope: scope.submit_nowait(block)",
}


@pytest.mark.parametrize(
    ("what", "run"),
    [*zip(LINES, cycle(["asyncio.run", "asc.run"]), strict=False), ("a body", "asc.run"), ("a scope", "asyncio.run")],
)
def test_a_second_interrupt_ends_the_wait(what: str, run: str) -> None:
    code = PROGRAM.format(what=what, line=LINES[what], run=run)
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None
    try:
        for said in ("blocked", "leaving"):
            assert child.stdout.readline().strip() == said
            child.send_signal(signal.SIGINT)
        _, errors = child.communicate(timeout=60)
    finally:
        child.kill()
        child.communicate()
    assert child.returncode == -signal.SIGINT
    assert errors.splitlines()[-1] == "KeyboardInterrupt"
    assert "asyncsched" not in "".join(line for line in errors.splitlines() if "Exception in thread" in line)


def test_raised_in_the_body_of_a_task_group_it_does_not_wait_for_the_threads(gate: threading.Event) -> None:
    async def main() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(in_thread, gate.wait, "blocks")
            await turns(3)
            pass_interrupt(KeyboardInterrupt())

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    assert not gate.is_set()
