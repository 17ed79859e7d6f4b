"""The table of programs that get stuck, or seem to, each with its verdict: see `verdicts`."""

from __future__ import annotations

import asyncio
import functools
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from asyncsched.runtime import loop_work
from tests.conftest import LOOPS
from tests.waiting import cancelled

from .verdicts import PROGRAMS

ROOT = Path(__file__).parents[2]


@functools.cache
def told(loop: str, *names: str) -> dict[str, str]:
    """What each program was told on a loop. In a process of its own."""
    command = [sys.executable, "-m", "tests.runtime.verdicts", loop, *names]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=280, check=True)
    return dict(line.split()[:2] for line in done.stdout.splitlines())


@pytest.mark.timeout(300)
@pytest.mark.parametrize("loop", LOOPS)
def test_programs_end_as_they_should(loop: str) -> None:
    assert told(loop, *PROGRAMS) == {name: PROGRAMS[name][1] for name in PROGRAMS}


async def test_what_a_timer_leads_to_is_bound_also_if_not_all_of_it_was_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop, here = asyncio.get_running_loop(), threading.get_ident()
    waiting = asyncio.create_task(asyncio.Event().wait())
    await asyncio.sleep(0)
    timer = loop.call_later(3600, [[[int]]].clear)
    assert waiting not in loop_work.bound(loop, here)
    monkeypatch.setattr(loop_work, "_MOST", 2)
    assert waiting in loop_work.bound(loop, here)
    timer.cancel()
    await cancelled(waiting)


@pytest.mark.parametrize(
    ("whose", "name"), [(whose, name) for whose in loop_work.NAMES for name in loop_work.NAMES[whose]]
)
async def test_without_a_private_name_nothing_is_certain(
    whose: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    left = ["gone" if one == name else one for one in loop_work.NAMES[whose]]
    monkeypatch.setitem(loop_work.NAMES, whose, left)
    event = asyncio.Event()
    waiting = asyncio.create_task(event.wait())
    worker = await asyncio.to_thread(threading.current_thread)  # of the executor
    reader, writer = os.pipe()
    loop.add_reader(reader, int)
    timer = loop.call_later(3600, int)
    await asyncio.sleep(0)
    work = loop_work.work_of(loop)
    assert loop_work.may_happen(loop) is not None
    if whose == type(loop).__module__.split(".")[0]:
        assert work is None or work[2]
    elif whose == "executors":
        here = threading.get_ident()
        assert f"the thread {worker.name!r}" in dict(loop_work.foreign_threads(here))
    timer.cancel()
    loop.remove_reader(reader)
    os.close(reader)
    os.close(writer)
    event.set()
    await waiting
