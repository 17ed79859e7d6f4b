"""The view in the terminal: what it shows, at any size, and that the terminal is as it was afterwards."""

from __future__ import annotations

import asyncio
import io
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import asyncsched as asc

from ..waiting import fail, held, until

rich = pytest.importorskip("rich", reason="needs the package rich: asyncsched[live]")
from rich.console import Console  # noqa: E402

from asyncsched.observe.view import allot, draw  # noqa: E402

HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"


def terminal(width: int = 100, height: int = 30) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=width, height=height, _environ={})


def written(console: Console) -> str:
    return console.file.getvalue()  # type: ignore[attr-defined]


def plain(console: Console) -> str:
    return re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", written(console))


async def ended() -> None:
    await until(lambda: not any(thread.name == "asyncsched live" for thread in threading.enumerate()))


async def busy(s: asc.Scheduler, gate: threading.Event, look: Callable[[], Any]) -> Any:
    """What `look` finds while much is going on."""
    broken = s.submit_nowait(fail, name="bad")
    with pytest.raises(LookupError):
        await broken
    x = await s.put(np.ones((100, 100)))
    y = x @ x
    await y
    began = threading.Event()
    long = s.submit_nowait(lambda: began.set() or held(gate), name="long")
    async with s.scope(name="request", reserve="1 MiB"):
        await until(began.is_set)
        waiting = asyncio.ensure_future(asyncio.wait_for(long, None))
        await until(lambda: asc.observe.Probe(s).waits)
        found = look()
        gate.set()
        await waiting
    return found


async def test_the_picture_tells_all_of_it(gate: threading.Event) -> None:
    summary = asc.observe.Summary()
    async with asc.Scheduler("cpu", max_bytes="64 MiB", instruments=[summary]) as s:
        found = await busy(s, gate, summary.read)
    text = draw(found, None, 120, 40).plain
    for expected in (
        r"^asyncsched Scheduler\(cpu\)  \d",
        r"^slots .* 1 of 64 in flight, 0 pending$",
        r"^bytes .* retained \+ 1\.0 MiB reserved of 64\.0 MiB; peak",
        r"^cpu stream 0 .*% long for .*, test_live\.py:\d+ in busy$",
        r"^cpu copies .* idle$",
        r"^matmul .* 1 x ",
        r"^waiting \(1\)$",
        r"^1 x .* for long \(launched\), test_live\.py:\d+ in busy$",
        r"^request +0 tasks 0 B of the 1\.0 MiB it reserved$",
        r"^bad: LookupError, test_live\.py:\d+ in busy$",
    ):
        assert re.search(expected, text, re.MULTILINE), (expected, text)
    for width, height in ((20, 3), (33, 5), (60, 12), (80, 24), (300, 100)):
        lines = draw(found, found, width, height).plain.splitlines()
        assert len(lines) <= height
        assert max(map(len, lines)) <= width
        assert lines[0].startswith("asyncsched")
    assert "has not turned for 3.0 s" in draw(found, None, 100, 10, late=3.0).plain


def test_room_is_shared_in_turn() -> None:
    assert allot([5, 0, 9], 3) == [2, 0, 0]
    assert allot([5, 0, 9], 4) == [1, 0, 1]
    assert allot([5, 0, 9], 9) == [4, 0, 3]
    assert allot([1, 2, 1], 99) == [1, 2, 1]


@pytest.mark.parametrize("how", ["given", "with", "raises"])
async def test_the_terminal_is_as_it_was(how: str) -> None:
    console, before = terminal(), (sys.stdout, sys.stderr)
    live = asc.observe.Live(console=console)
    if how == "with":
        async with asc.Scheduler("cpu") as s:
            with live:
                await s.call(max, 1, 2)
    elif how == "given":
        async with asc.Scheduler("cpu", instruments=[live]) as s:
            await s.call(max, 1, 2)
    else:
        with pytest.raises(ZeroDivisionError):
            async with asc.Scheduler("cpu", instruments=[live]) as s:
                await s.call(max, 1, 2)
                _ = 1 // 0
    await ended()
    assert (sys.stdout, sys.stderr) == before
    text = written(console)
    assert 0 <= text.rindex(HIDE) < text.rindex(SHOW)
    assert re.search(r"^max .* 1 x ", plain(console), re.MULTILINE)  # the last picture stays


async def test_it_is_drawn_again_while_it_runs() -> None:
    console = terminal()
    async with asc.Scheduler("cpu", instruments=[asc.observe.Live(console=console, every=0.01)]) as s:
        await s.call(max, 1, 2)
        await until(lambda: plain(console).count("asyncsched Scheduler(cpu)") > 2)
    await ended()


async def test_where_there_is_no_terminal_the_last_picture_is_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with asc.Scheduler("cpu", max_bytes="1 MiB", instruments=[asc.observe.Live()]) as s:
        await s.call(max, 1, 2)
        assert capsys.readouterr() == ("", "")
    out, err = capsys.readouterr()
    assert out == ""
    assert re.match(r"asyncsched Scheduler\(cpu\)  .* s  .* tasks/s, ", err)
    assert re.search(r"^bytes .* of 1\.0 MiB; peak 0 B$", err, re.MULTILINE)
    assert re.search(r"^max .* 1 x ", err, re.MULTILINE)
    assert "\x1b" not in err


async def test_with_needs_an_open_scheduler() -> None:
    with pytest.raises(asc.SchedulerClosed, match="no scheduler is open"), asc.observe.Live(console=terminal()):
        pass
    async with asc.Scheduler("cpu") as s:
        with asc.observe.Live(s, console=terminal()):
            await s.aclose()  # which ends the view: the block has nothing left to remove
    await ended()


def test_without_rich_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "rich")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "asyncsched\[live\]"'):
        asc.observe.Live()


PROGRAM = """
import asyncio, os, signal, sys
import asyncsched as asc
async def main():
    s = await asc.open("cpu", instruments=[asc.observe.Live()])
    await s.call(max, 1, 2)
    print("said", flush=True)
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.Event().wait()
asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_ctrl_c_leaves_the_terminal_as_it_was() -> None:
    """Also where nobody closes the scheduler: the interpreter waits for the view's thread."""
    import pty

    try:
        ours, theirs = pty.openpty()
    except OSError:
        pytest.skip("a system without pseudo-terminals")
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "80", "LINES": "24"}
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        found = b""
        try:
            while part := os.read(ours, 4096):
                found += part
        except OSError:  # Linux says so when the other end is closed
            pass
        finally:
            os.close(ours)
    text = found.decode()
    assert process.returncode != 0
    assert "said" in text
    assert "KeyboardInterrupt" in text
    assert text.count(HIDE) == text.count(SHOW) == 1
    assert text.rindex(HIDE) < text.rindex(SHOW)
