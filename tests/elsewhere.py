"""A program on a system that is not Linux: `python -m tests.elsewhere macos`, or `windows`.

What the system lacks is taken away before the package is imported, in the processes that a pipeline starts, too. Of
Python's own modules those that need it on Linux are imported before.
"""

from __future__ import annotations

import asyncio
import faulthandler
import importlib
import io
import multiprocessing.pool
import multiprocessing.popen_spawn_posix  # noqa: F401
import os
import pkgutil
import platform
import re
import select
import selectors
import shutil
import signal
import sys
import sysconfig
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from tempfile import TemporaryDirectory
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn

import httpx
import numpy as np
import threadpoolctl

SYSTEM = sys.argv[1]

# What Python has on Linux and not there, by the stubs that type checkers read. (But for what the fake of CuPy calls.)
OF_LINUX = {
    os: "EFD_|eventfd|GRND_|getrandom|MFD_|memfd|O_(DIRECT|TMPFILE|PATH|NOATIME)$|P_PIDFD|pidfd|POSIX_FADV|posix_fa|"
    "RWF_|SCHED_(BATCH|IDLE|RESET)|sched_[gs]et(aff|par|sch)|SPLICE|splice|XATTR|.*xattr|copy_file_range|fdatasync|"
    "pipe2|[gs]etres|TFD_|timerfd|waitid",
    signal: "SIG(CLD|POLL|PWR|RT|STK)|pidfd|sigtimedwait|sigwaitinfo",
    select: "EPOLL|epoll|POLL(MSG|RDHUP)",
}
OF_UNIX = {
    os: "CLD_|EX_(?!OK)|F_(?!OK)|O_(?!RDONLY|WRONLY|RDWR|APPEND|CREAT|EXCL|TRUNC)|POSIX_|PRIO_|P_(ALL|PG?ID)|RTLD_|"
    "SCHED_|SEEK_[DH]|ST_|W[A-Z]|ch(own|root)|confstr|environb|f(ork|chdir|chmod|chown|pathconf|statvfs|walk)|"
    "get(_blocking|e?[gu]id|envb|group|loadavg|pg|priority|sid)|set(_bl|e?[gu]id|gr|p|re|sid)|"
    "initgroups|killpg|lchown|lockf|login|m(ajor|inor|akedev|kfifo|knod)|nice|openpty|pathconf|posix_s|p?(read|write)v|pread|pwrite|"
    "register_at_fork|sched_(?!yield)|sendfile|"
    "spawn[lv]p|statvfs|sync|sysconf|tc[gs]|ttyname|uname|wait[34]?$",
    signal: "ITIMER|Itimer|SIG(?!INT|TERM|ABRT|FPE|ILL|SEGV|_DFL|_IGN)|alarm|[gs]etitimer|pause|pthread|sig(int|p|w)",
    select: "POLL|poll|PIPE_BUF",
    faulthandler: "(un)?register",
}
OF_UNIX_ALONE = ("fcntl", "grp", "pwd", "resource", "termios", "psutil")  # the last was built for this system
FOLDERS = re.compile(r"/(proc(?!/self/maps)|sys|dev/shm)(/|$)")  # threadpoolctl finds libraries in the maps


def take_away(system: str) -> None:
    asyncio.new_event_loop().close()  # from Python 3.14 on the first one asks for the system
    os.process_cpu_count = os.cpu_count  # type: ignore  # as where nobody tells of affinity
    for module, names in [*OF_LINUX.items(), *(OF_UNIX.items() if system == "windows" else ())]:
        for name in filter(re.compile(names).match, dir(module)):
            delattr(module, name)
    selectors.DefaultSelector = {"macos": selectors.PollSelector, "windows": selectors.SelectSelector}[system]  # type: ignore
    platform.uname()  # asks the system, and keeps the answer
    sysconfig.get_config_vars()  # likewise
    threadpoolctl.sys = SimpleNamespace(**vars(sys))  # looks for libraries as on this system
    sys.platform = {"macos": "darwin", "windows": "win32"}[system]
    warnings.filterwarnings("error", category=EncodingWarning, module=r"asyncsched\.")  # the default is not UTF-8 there
    sys.addaudithook(without_folders)
    stat = os.stat
    os.stat = lambda path, *args, **options: without_folders("open", (path,)) or stat(path, *args, **options)  # type: ignore
    if system == "windows":
        like_windows()


def without_folders(event: str, args: tuple[Any, ...]) -> None:
    """An audit hook: files in which Linux tells of itself are not there."""
    if event == "open" and isinstance(args[0], str | os.PathLike) and FOLDERS.match(os.fsdecode(args[0])):
        raise FileNotFoundError(2, "not on this system", args[0])


def like_windows() -> None:
    absent: ModuleType | None = None
    sys.modules.update(dict.fromkeys(OF_UNIX_ALONE, absent))  # type: ignore[arg-type]
    shutil._use_fd_functions = False
    shutil._rmtree_impl = shutil._rmtree_unsafe  # type: ignore  # as Python 3.14 has chosen by then
    for clock in ("monotonic", "thread_time"):  # which go on 64 times a second
        setattr(time, clock, partial(coarse, getattr(time, clock)))
    for name in ("add_reader", "remove_reader", "add_writer", "remove_writer", "add_signal_handler"):
        setattr(asyncio.SelectorEventLoop, name, not_implemented)  # as the proactor loop's


def coarse(clock: Callable[[], float]) -> float:
    return clock() * 64 // 1 / 64


def not_implemented(*_: object) -> NoReturn:
    raise NotImplementedError


take_away(SYSTEM)
sys.modules["numba"] = None  # type: ignore[assignment]  # not installed: it makes files in the real system's way

import asyncsched as asc  # noqa: E402
from asyncsched import array_api as xp  # noqa: E402
from asyncsched.__main__ import main as command  # noqa: E402
from asyncsched.runtime.loops import Wakeup  # noqa: E402
from tests.fake_cupy import fake_cupy  # noqa: E402
from tests.ledger import engine_of  # noqa: E402

OPTIONAL = {"cupy", "dask", "distributed", "numba", "psutil", "pytest", "pytest_asyncio", "rich", "safetensors"}


def seen(item: int) -> tuple[int, str, bool]:
    """In a process of its own."""
    return item + 1, sys.platform, hasattr(os, "eventfd")


async def every_module(s: asc.Scheduler) -> None:
    for module in pkgutil.walk_packages(asc.__path__, "asyncsched."):
        if module.name != "asyncsched.__main__":
            try:
                importlib.import_module(module.name)
            except ModuleNotFoundError as error:
                assert error.name in OPTIONAL, error


async def operations_and_calls(s: asc.Scheduler) -> None:
    assert not isinstance(engine_of(s).completions.wake, Wakeup)
    x = await s.put(np.arange(6.0).reshape(2, 3))
    assert (await (x @ x.T + 1).sum().item()) == 87.0
    assert await s.call(sum, [1, 2]) == 3
    async with s.scope() as scope:
        tasks = [scope.submit_nowait(pow, 2, i) for i in range(20)]
        assert await asc.gather(*tasks) == [2**i for i in range(20)]
    task = s.submit_nowait(int)
    task.cancel()
    with suppress(asc.TaskCancelled):
        await task


async def memory_and_processors(s: asc.Scheduler) -> None:
    assert (s.statistics().max_bytes is None) == (SYSTEM == "windows")  # which does not tell how much there is
    async with asc.Scheduler("cpu", max_bytes=10_000, streams=os.cpu_count()) as small:
        kept = await small.put(np.ones(1000))
        waiting = asyncio.ensure_future(small.put(np.ones(500)))
        while not small.statistics().tasks_pending:
            await asyncio.sleep(0)
        del kept
        assert (await waiting).shape == (500,)
        held = [await small.put(np.ones(500))]
        try:
            held.append(await small.put(np.ones(1000)))
        except asc.MemoryDeadlockError:
            held.clear()
        assert not held
    assert "\n  cpu " in command([])


async def pipelines(s: asc.Scheduler) -> None:
    async with s.pipeline(range(4)).map(seen, workers=2, processes=True).open() as items:
        found = [item async for item in items]
    assert found == [(i + 1, sys.platform, False) for i in range(4)]
    async with s.pipeline(np.arange(8.0)).map(np.negative, workers=2).batch(4).to_device().open() as batches:
        assert [await batch.sum().item() async for batch in batches] == [-6.0, -22.0]


async def saved_and_loaded(s: asc.Scheduler) -> None:
    with TemporaryDirectory() as folder:
        path, left = f"{folder}/state", f"{folder}/.state.{16 * '0'}.tmp"
        os.mkdir(left)  # by a save that was killed
        for number in range(2):
            await asc.save(path, {"x": await s.put(np.full(9, number)), "epoch": number})
        found = await asc.load(path)
        assert (found["epoch"], await found["x"].sum().item()) == (1, 9)
        assert os.access(left, os.R_OK) == (
            SYSTEM == "windows"
        )  # where no lock tells whether somebody still writes there


async def served_and_drained(s: asc.Scheduler) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        answer = await scope["state"]["scheduler"].call(pow, 2, 10)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"%d" % answer})

    told = asyncio.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: told.set())
    serving = asc.serving.Serving(app, lambda: asc.Scheduler("cpu"))
    async with serving.open(), httpx.AsyncClient(transport=httpx.ASGITransport(serving)) as client:
        texts = [(await client.get(f"http://test{path}")).text for path in ("/", "/readyz", "/metrics")]
        assert (texts[0], texts[1].strip()) == ("1024", "ready")
        signal.raise_signal(signal.SIGTERM)
        await told.wait()
        assert (await client.get("http://test/readyz")).status_code == 503
    signal.signal(signal.SIGTERM, before)


async def traced_and_explained(s: asc.Scheduler) -> None:
    with TemporaryDirectory() as folder:
        async with asc.Trace(f"{folder}/run.json"):
            await (await s.put(np.ones(100)) + 1).sum().item()
        assert asc.observe.Recording.read(f"{folder}/run.json").tasks
    with suppress(SystemExit):
        command(["explain", str(os.getpid())])
        raise AssertionError("it cannot tell here whether the process listens")
    try:
        asc.observe.explain_on_signal()
    except RuntimeError as error:
        assert (SYSTEM, "which Windows does not have" in str(error)) == ("windows", True)  # noqa: PT017
        return
    flushed, sys.stderr = threading.Event(), io.StringIO()
    sys.stderr.flush = flushed.set  # type: ignore[method-assign]
    os.kill(os.getpid(), signal.SIGUSR1)
    assert await asyncio.to_thread(flushed.wait, 60)
    told, sys.stderr = sys.stderr.getvalue(), sys.__stderr__  # type: ignore[assignment]
    assert "Scheduler(cpu; " in told


async def a_stand_in_for_a_card(s: asc.Scheduler) -> None:
    with fake_cupy(1):
        async with asc.Scheduler("cuda:0") as card:
            x = await card.put(np.arange(6.0).reshape(2, 3))
            assert (await (x @ x.mT).sum().item()) == 83.0
            del x
    command([])


def blocking_arrays() -> None:
    assert float(xp.sum(xp.asarray([1.0, 2.0]))) == 3.0


PROGRAMS = (
    every_module,
    operations_and_calls,
    memory_and_processors,
    pipelines,
    saved_and_loaded,
    served_and_drained,
    traced_and_explained,
    a_stand_in_for_a_card,
)


async def run() -> None:
    for program in PROGRAMS:
        async with asc.Scheduler("cpu") as s:
            await program(s)
        print(program.__name__, flush=True)


if __name__ == "__main__":
    asyncio.run(run())
    blocking_arrays()
    print("blocking_arrays")
