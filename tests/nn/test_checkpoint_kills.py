"""What is left when a save is killed, and what several saves at once leave of each other."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading

import pytest
from anyio import to_thread

import asyncsched as asc
from tests.waiting import until

pytestmark = pytest.mark.one_loop

pytest.importorskip("safetensors", reason="safetensors is not installed")


# Each is killed at another moment: with half of the new file written, before it reached the disk, before it took the
# old one's place, and after.
MOMENTS = {
    "while writing": """
import safetensors.numpy
def half(arrays, name, metadata):
    with open(name, "wb") as file:
        file.write(b"half of it")
    os._exit(9)
safetensors.numpy.save_file = half
""",
    "before it is on the disk": "os.fsync = lambda *_: os._exit(9)",
    "before it is replaced": "os.replace = lambda *_: os._exit(9)",
    "after": """
replace = os.replace
def killed(*args):
    replace(*args)
    os._exit(9)
os.replace = killed
""",
}
PROGRAM = """
import asyncio, os, sys
import asyncsched as asc
{moment}
async def main():
    async with asc.Scheduler("cpu"):
        await asc.save(sys.argv[1], {{"value": asc.full(1000, 2.0), "version": 2}})
asyncio.run(main())
"""


@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_kill_leaves_the_old_file_or_the_new_one_whole(s, path, moment):
    await asc.save(path, {"value": asc.full(1000, 1.0), "version": 1})
    program = PROGRAM.format(moment=MOMENTS[moment])
    killed = await to_thread.run_sync(
        lambda: subprocess.run([sys.executable, "-c", program, path], capture_output=True)
    )
    assert killed.returncode == 9, killed.stderr
    assert len(await to_thread.run_sync(os.listdir, path.parent)) == 2, "something is left"
    state = await asc.load(path)
    assert state["version"] == (2 if moment == "after" else 1)
    assert set((await state["value"]).tolist()) == {float(state["version"])}
    await asc.save(path, {"version": 3})
    assert await asc.load(path) == {"version": 3}
    assert await to_thread.run_sync(os.listdir, path.parent) == [path.name]


def hold_the_first(monkeypatch) -> tuple[threading.Event, threading.Event]:
    """Hold the first save that has written its file, and has not replaced the old one yet. Returns the events that tell
    of it, and that let it go on."""
    reached, go_on = threading.Event(), threading.Event()
    fsync = os.fsync

    def held(descriptor):
        if not reached.is_set():
            reached.set()
            assert go_on.wait(60)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", held)
    return reached, go_on


async def test_what_another_save_still_writes_is_left_alone(s, path, monkeypatch):
    """Also what belongs to a file of another name, and what is no temporary file."""
    reached, go_on = hold_the_first(monkeypatch)
    others = [f".{path.name}.old.tmp", f".a{path.name}.0123456789abcdef.tmp", f".{path.name}.b.0123456789abcdef.tmp"]
    for name in others:
        await to_thread.run_sync(path.with_name(name).touch)
    left = path.with_name(f".{path.name}.0123456789abcdef.tmp")
    await to_thread.run_sync(left.mkdir)
    before = path.with_name(f".{path.name}.fedcba9876543210.tmp")  # as versions before left it
    await to_thread.run_sync(before.touch)
    first = asyncio.ensure_future(asc.save(path, {"version": 1}))
    await to_thread.run_sync(reached.wait)
    assert not await to_thread.run_sync(left.exists)
    assert not await to_thread.run_sync(before.exists)
    await asc.save(path, {"version": 2})
    go_on.set()
    await first
    assert await asc.load(path) == {"version": 2}
    assert set(await to_thread.run_sync(os.listdir, path.parent)) == {path.name, *others}


async def test_a_save_that_was_cancelled_does_not_replace_a_later_one(s, path, monkeypatch):
    reached, go_on = hold_the_first(monkeypatch)
    first = asyncio.ensure_future(asc.save(path, {"version": 1}))
    await to_thread.run_sync(reached.wait)
    first.cancel()
    await asyncio.wait([first])
    await asc.save(path, {"version": 2})
    go_on.set()
    await until(lambda: not any(thread.name.endswith(path.name) for thread in threading.enumerate()))
    assert await asc.load(path) == {"version": 2}


async def test_where_there_are_no_locks_a_save_is_made_and_nothing_removed(s, path, monkeypatch):
    import fcntl

    def no_locks(*_):
        raise OSError(37, "No locks available")

    left = path.with_name(f".{path.name}.0123456789abcdef.tmp")
    await to_thread.run_sync(left.mkdir)
    monkeypatch.setattr(fcntl, "flock", no_locks)
    await asc.save(path, {"version": 1})
    assert await asc.load(path) == {"version": 1}
    assert set(await to_thread.run_sync(os.listdir, path.parent)) == {path.name, left.name}
