"""A process that asked for it explains itself on SIGUSR1, also while its event loop is blocked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

import asyncsched as asc
from asyncsched.__main__ import main
from asyncsched.observe.blocked import ask

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="no SIGUSR1 here")
linux = pytest.mark.skipif(sys.platform != "linux", reason="who listens is seen in /proc")

# It does as it is told by lines of its input: reads one on the loop's thread, or on another.
PROGRAM = """
import asyncio, logging, select, sys
import numpy as np
import asyncsched as asc
from asyncsched.observe import blocked

blocked._PATIENCE = 25.0  # of a loop that is not blocked, on a machine that is busy
logging.disable()  # of the stall, which is told there, too

async def main():
    async with asc.Scheduler("cpu", max_bytes=10_000) as s:
        kept = await s.put(np.ones(1000))
        waiting = asyncio.ensure_future(s.put(np.ones(500)))
        asc.observe.explain_on_signal()
        asc.observe.explain_on_signal()
        while not s.statistics().tasks_pending:
            await asyncio.sleep(0)
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        blocked._PATIENCE = 0.1
        print("blocks", flush=True)
        sys.stdin.readline()  # the line that blocks
        del kept
        await waiting
    print("closed", flush=True)
    while not select.select([sys.stdin], [], [], 0.1)[0]:
        pass  # a signal that comes just before a wait is handled after it

asyncio.run(main())
"""


@pytest.fixture(autouse=True)
def blockbuster():
    """Not here: nothing runs on a loop of this process."""


@contextmanager
def process(*code: str) -> Iterator[subprocess.Popen[str]]:
    there = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONUNBUFFERED": ""}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", *code], stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=there
    ) as started:
        try:
            yield started
        finally:
            started.kill()


def told(by: subprocess.Popen[str], last: str) -> str:
    """What it tells, up to the line with this in it."""
    assert by.stderr is not None
    found = ""
    for line in by.stderr:
        found += line
        if last in line:
            return found
    raise AssertionError(found)


@linux
def test_it_says_what_it_waits_for_and_where_it_is_blocked():
    with process(PROGRAM) as started:
        assert started.stdin is not None
        assert started.stdout is not None
        assert started.stdout.readline() == "ready\n"
        assert main(["explain", str(started.pid)]) == f"process {started.pid} prints it to its stderr"
        text = told(started, "would have been enough")
        assert text.startswith(
            f"asyncsched, process {started.pid}:\nScheduler(cpu; 1 pending, 0 in flight, 8,000 bytes)"
        )
        assert "which waits in Tasks.put: put #1" in text
        assert "held by coroutine main (variable 'kept')" in text

        started.stdin.write("\n")
        started.stdin.flush()
        assert started.stdout.readline() == "blocks\n"
        main(["explain", str(started.pid)])
        text = told(started, "and nothing in flight will free any")
        assert "its event loop is blocked" in text
        line = PROGRAM[: PROGRAM.index("  # the line that blocks")].count("\n") + 1
        assert f'File "<string>", line {line}, in main\n' in text
        assert "Scheduler(cpu; 1 pending, 0 in flight, 8,000 bytes)" in text

        started.stdin.write("\n")
        started.stdin.flush()
        assert started.stdout.readline() == "closed\n"
        os.kill(started.pid, signal.SIGUSR1)
        assert "no scheduler is open\n" in told(started, "no scheduler is open")
        assert started.poll() is None


@linux
def test_it_ends_no_process_whose_threads_come_and_go():
    code = """
import threading
import asyncsched
asyncsched.observe.explain_on_signal()

def deep(n):
    return n and deep(n - 1)

def come_and_go():
    while True:
        threads = [threading.Thread(target=deep, args=(20,)) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

threading.Thread(target=come_and_go, daemon=True).start()
print(flush=True)
input()
"""
    with process(code) as started:
        assert started.stdout is not None
        started.stdout.readline()
        for _ in range(10):
            for _ in range(100):
                ask(started.pid)
            told(started, "no scheduler is open")
        assert started.poll() is None


@linux
def test_it_answers_during_a_call_into_c_which_no_signal_interrupts():
    code = """
import asyncio, hashlib
import asyncsched as asc

async def main():
    async with asc.Scheduler("cpu"):
        asc.observe.explain_on_signal()
        print(flush=True)
        hashlib.pbkdf2_hmac("sha256", b"", b"", 2_000_000_000)

asyncio.run(main())
"""
    with process(code) as started:
        assert started.stdout is not None
        started.stdout.readline()
        main(["explain", str(started.pid)])
        assert 'File "<string>", line 9, in main' in told(started, "Scheduler(cpu; ")


@linux
def test_a_process_ends_though_nobody_reads_what_it_prints():
    code = """
import asyncio, sys, threading
import asyncsched as asc

async def main():
    async with asc.Scheduler("cpu") as s:
        gate = threading.Event()
        task = s.submit_nowait(gate.wait)
        waiting = asyncio.create_task(asyncio.wait_for(task, None), name="x" * 1_000_000)  # more than a pipe takes
        await asyncio.sleep(0)
        asc.observe.explain_on_signal()
        print(flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        gate.set()
        await waiting

asyncio.run(main())
"""
    with process(code) as started:
        assert started.stdin is not None
        assert started.stdout is not None
        assert started.stderr is not None
        started.stdout.readline()
        ask(started.pid)
        started.stderr.read(1)  # so it is about to print the rest
        started.stdin.write("\n")
        started.stdin.flush()
        assert started.wait(60) == 0


@linux
def test_it_goes_on_to_listen_if_it_could_not_print():
    code = """
import io, sys, threading
import asyncsched

class Broken(io.TextIOBase):
    def write(self, text):
        threading.Timer(0, written.set).start()
        raise BrokenPipeError

written = threading.Event()
sys.stderr = Broken()
asyncsched.observe.explain_on_signal()
print(flush=True)
written.wait()
sys.stderr = None
print(flush=True)
sys.stdin.readline()
sys.stderr = sys.__stderr__
print(flush=True)
sys.stdin.readline()
"""
    with process(code) as started:
        assert started.stdin is not None
        assert started.stdout is not None
        for _ in range(2):
            started.stdout.readline()
            ask(started.pid)
        started.stdin.write("\n")
        started.stdin.flush()
        assert started.stdout.readline() == "\n"  # nothing goes to stdout instead
        ask(started.pid)
        told(started, "no scheduler is open")


def test_it_is_for_the_main_thread_as_handlers_of_signals_are():
    with ThreadPoolExecutor(1) as pool, pytest.raises(RuntimeError, match="only the main thread may: call it there"):
        pool.submit(asc.observe.explain_on_signal).result()


@linux
def test_who_does_not_listen_is_not_sent_the_signal_which_would_end_it():
    with process("print(flush=True); input()") as started:
        assert started.stdout is not None
        started.stdout.readline()
        with pytest.raises(SystemExit, match="does not listen: call `asyncsched.observe.explain_on_signal"):
            main(["explain", str(started.pid)])
        assert started.poll() is None
    with pytest.raises(SystemExit, match=f"there is no process {started.pid}"):
        main(["explain", str(started.pid)])


@linux
def test_the_child_of_a_fork_has_not_asked():
    code = """
import os, asyncsched
asyncsched.observe.explain_on_signal()
child = os.fork()
if not child:
    input()
print(child, flush=True)
os.wait()
"""
    with process(code) as started:
        assert started.stdout is not None
        child = int(started.stdout.readline())
        with pytest.raises(SystemExit, match="does not listen"):
            main(["explain", str(child)])
        os.kill(child, signal.SIGKILL)


def test_other_arguments_are_refused(capsys):
    for given in (["explain"], ["explain", "me"], ["sketch", "3"]):
        with pytest.raises(SystemExit):
            main(given)
        assert "usage: python -m asyncsched" in capsys.readouterr().err
