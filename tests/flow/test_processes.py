"""Processes of a pipeline that cannot start: the cause is told, and no process stays behind."""

from __future__ import annotations

import errno
import multiprocessing
import subprocess
import sys
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import pytest

import asyncsched as asc

from . import in_processes
from .rig import drain

pytestmark = pytest.mark.one_loop

_IMPORTS = """
import asyncio, math, multiprocessing, sys
import asyncsched as asc

async def main():
    async with asc.Scheduler("cpu") as s:
        pipe = s.pipeline(range(9)).map(math.factorial, processes=True, workers=2)
"""
_UNGUARDED = f"""{_IMPORTS}
        async with pipe.open() as items:
            await anext(items)

asc.run(main)
"""
_DAEMONIC = f"""{_IMPORTS}
        try:
            async with pipe.open() as items:
                await anext(items)
        except AssertionError as error:
            print(error, len(multiprocessing.active_children()))

def run():
    asc.run(main)

if __name__ == "__main__":
    parent = multiprocessing.get_context("spawn").Process(target=run, daemon=True)
    parent.start()
    parent.join()
"""
_NEVER_STARTS = f"""{_IMPORTS}
        async with pipe.open() as items:
            waits = asyncio.ensure_future(anext(items))
            while len(multiprocessing.active_children()) < 2:
                await asyncio.sleep(0)
            waits.cancel()
        print(len(multiprocessing.active_children()))

if __name__ == "__main__":
    asc.run(main)
else:
    sys.stdin.read()
"""
_NO_DESCRIPTORS = f"""{_IMPORTS}
        # An import needs descriptors, too
        import multiprocessing.popen_spawn_posix, multiprocessing.resource_tracker, os, resource
        least = os.dup(0) + 1
        os.close(least - 1)
        for more in (0, 1, 3, 5, 8):
            resource.setrlimit(resource.RLIMIT_NOFILE, (least + more, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
            try:
                async with pipe.open() as items:
                    await anext(items)
            except OSError as error:
                assert error.errno == 24, error
                assert not multiprocessing.active_children()
        resource.setrlimit(resource.RLIMIT_NOFILE, (least + 100, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        async with pipe.open() as items:
            print(await anext(items))

if __name__ == "__main__":
    asc.run(main)
"""
_KILLED = f"""{_IMPORTS}
        async with s.pipeline([0]).map(endless, processes=True).open() as items:
            await anext(items)

def endless(item):
    import os, signal, time
    os.kill(os.getppid(), signal.SIGKILL)
    while True:
        time.sleep(0.001)

if __name__ == "__main__":
    asc.run(main)
"""


def program(folder: Path, code: str) -> str:
    """What a program prints, whose main module is a file that can be imported."""
    path = folder / "program.py"
    path.write_text(code)
    run = [sys.executable, str(path)]
    with subprocess.Popen(run, stdin=-1, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        try:
            return process.stdout.read()
        finally:
            process.kill()


def test_a_main_module_without_a_guard_is_told(tmp_path: Path) -> None:
    told = program(tmp_path, _UNGUARDED)
    assert "BrokenProcessPool: a process ended before it had started, with exit code 1" in told
    assert "below `if __name__ == '__main__':`" in told


def test_a_daemonic_process_may_start_none(tmp_path: Path) -> None:
    assert program(tmp_path, _DAEMONIC) == "daemonic processes are not allowed to have children 0\n"


def test_a_process_that_never_starts_is_ended_with_the_block(tmp_path: Path) -> None:
    assert program(tmp_path, _NEVER_STARTS) == "0\n"


@pytest.mark.skipif(sys.platform == "win32", reason="there is no limit on descriptors")
def test_no_descriptors_are_an_error_until_there_are_some(tmp_path: Path) -> None:
    printed = program(tmp_path, _NO_DESCRIPTORS)
    assert printed == "1\n", printed


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
def test_a_process_ends_with_a_program_that_was_killed_in_the_middle_of_a_function(tmp_path: Path) -> None:
    assert program(tmp_path, _KILLED) == ""  # read to its end: nobody else has this output open


@pytest.mark.parametrize("workers", [1, 3])
async def test_a_process_that_the_system_refuses_fails_its_item(
    s: asc.Scheduler, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts, start = [], SpawnProcess.start

    def start_one(process: Any) -> None:
        starts.append(process)
        if len(starts) >= workers:
            raise OSError(errno.EAGAIN, "no process is left")
        start(process)

    monkeypatch.setattr(SpawnProcess, "start", start_one)
    pipe = s.pipeline(range(99)).map(in_processes.same, processes=True, workers=workers)
    with pytest.raises(BlockingIOError) as caught:
        await drain(pipe)
    assert "raised where a process was to be started" in caught.value.__notes__
    assert not multiprocessing.active_children()
    monkeypatch.undo()
    assert await drain(s.pipeline(range(9)).map(in_processes.same, processes=True)) == [*range(9)]
