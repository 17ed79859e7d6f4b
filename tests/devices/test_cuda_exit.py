"""A fork, and the end of the process, while a CUDA device has work: each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

FORK = """
import asyncio, os, signal, threading, warnings
import numpy as np
import asyncsched as asc
from tests.fake_cupy import fake_cupy

# From Python 3.12 on: a child may hang, which is what is tested here.
warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)

async def assign(x):
    x[0] = 1

async def fresh():
    async with asc.Scheduler("cpu") as s:
        assert (await (await s.put(np.ones(3)) + 1))[0] == 2

async def main(fake):
    async with asc.Scheduler("cuda", max_ops=8) as s:
        x = await s.put(np.ones((300, 300)))
        total, graph, window = x.sum(), await s.capture(lambda a: a + 1, x), s.window(1)
        await s.barrier()
        with fake.pause():
            y = x
            for _ in range(20):
                y = y + 1
            while sum(stream.issued.count for stream in s.devices[0].streams) < 8:
                await asyncio.sleep(0)
            uses = {
                "operator": lambda: x + 1, "part": lambda: assign(x), "to": lambda: x.to("cuda"),
                "await": lambda: y, "done": lambda: x, "gather": lambda: asc.gather(y, x), "cancel": y.cancel,
                "numpy": x.numpy, "item": total.item, "asarray": lambda: np.asarray(y), "float": lambda: float(total),
                "put": lambda: s.put(np.ones(3)), "put_nowait": lambda: s.put_nowait(np.ones(3)),
                "submit": lambda: s.submit(int), "submit_nowait": lambda: s.submit_nowait(int),
                "call": lambda: s.call(int), "capture": lambda: s.capture(np.sin, x), "replay": lambda: graph(x),
                "scope": s.scope().__aenter__, "window": window.__aenter__, "barrier": s.barrier,
                "statistics": s.statistics, "load": s.load, "close": s.aclose,
                "another": lambda: asyncio.run(fresh()),
            }
            for name, use in uses.items():
                child = os.fork()
                if child == 0:
                    signal.alarm(60)
                    await ended(use)
                print(name, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        assert (await y.numpy()).max() == 21

async def ended(use):
    try:
        used = use()
        if hasattr(used, "__await__"):
            await used
    except BaseException as error:
        os._exit(42 if isinstance(error, asc.SchedulerClosed) and "does not survive a fork" in str(error) else 43)
    os._exit(0)

with fake_cupy() as fake:
    asyncio.run(main(fake))
"""

EXIT = """
import asyncio, sys, threading
import numpy as np
import asyncsched as asc
from tests.fake_cupy import install

async def main(how):
    global kept
    s = asc.Scheduler("cuda", max_ops=16)
    await s.__aenter__()
    x = await s.put(np.ones((300, 300)))
    graph = await s.capture(lambda a: a * a, x)
    await s.barrier()
    fake.paused = True  # for ever
    before = sum(stream.issued.count for stream in s.devices[0].streams)
    waiting = [asyncio.ensure_future((graph(x) + i).numpy()) for i in range(20)]
    await asyncio.sleep(0)  # now they wait
    s.submit_nowait(threading.Event().wait)
    while sum(stream.issued.count for stream in s.devices[0].streams) < before + 8:
        await asyncio.sleep(0)
    if how == "kept":
        kept = s, x, graph, waiting
    if how == "exit":
        sys.exit(3)

async def inside():
    async with asc.Scheduler("cuda") as s:
        x = await s.put(np.ones((300, 300)))
        for _ in range(100):
            x = x + 1
        sys.exit(3)

fake, how = install(), sys.argv[1]
asyncio.run(inside() if how == "inside" else main(how))
"""


def process(program: str, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, *args]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_after_a_fork_every_use_is_refused_and_none_hangs() -> None:
    done = process(FORK)
    codes = {name: int(code) for name, code in map(str.split, done.stdout.splitlines())}
    assert codes.pop("another", None) == 0, done.stderr  # a scheduler of the child's own
    assert len(codes) == 24
    assert {name: code for name, code in codes.items() if code != 42} == {}
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("how", "code"), [("dropped", 0), ("kept", 0), ("exit", 3), ("inside", 3)])
def test_the_process_ends_with_work_pending(how: str, code: int) -> None:
    """With no hang and no noise, whether the scheduler is left open or closed by what ends the process."""
    done = process(EXIT, how)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")
