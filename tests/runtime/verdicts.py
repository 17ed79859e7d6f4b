"""Programs that get stuck, or seem to: run in a process of its own, it prints what each was told, and after how long.

    python -m tests.runtime.verdicts asyncio|uvloop [NAME ...]

A program is told of a deadlock because nothing is left in its loop (CERTAIN), or because a search finds that everybody
waits though something is left (PROBABLE, here after `SOON` seconds and not ten); or it ends by itself (NEITHER).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import logging
import os
import signal
import socket
import sys
import threading
import time
import types
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio
import numpy as np

import asyncsched as asc
from asyncsched.runtime import stall

BLOCK = np.ones((100, 100))
NB = BLOCK.nbytes
LIMIT = 4 * NB
CERTAIN, PROBABLE, NEITHER = "certain", "probable", "neither"
SOON, LATER = 0.3, 1.0  # seconds: until a deadlock is probable here, and until what ends a program by itself
MOST = 20  # seconds for a program that hangs

Form = Callable[[asc.Scheduler], Coroutine[Any, Any, None]]
PROGRAMS: dict[str, tuple[Form, str]] = {}


def verdict(grade: str) -> Callable[[Form], Form]:
    def add(form: Form) -> Form:
        PROGRAMS[form.__name__] = form, grade
        return form

    return add


async def takes_all(s: asc.Scheduler) -> list[asc.Tensor]:
    return [await s.put(BLOCK) for _ in range(4)]


async def wants_a_third(s: asc.Scheduler, put: Callable[[], Awaitable[Any]] | None = None) -> None:
    """Hold two blocks of four, and want one more once the other two are held."""
    kept = [await s.put(BLOCK), await s.put(BLOCK)]
    while s.statistics().bytes_retained < LIMIT:
        await asyncio.sleep(0.001)
    try:
        await (s.put(BLOCK) if put is None else put())
    finally:
        kept.clear()


async def two_that_want(s: asc.Scheduler) -> None:
    await asyncio.gather(wants_a_third(s), wants_a_third(s))


async def ticks() -> None:
    while True:
        await asyncio.sleep(0.01)


# -- nothing is left in the loop -------------------------------------------------------------------------------------


@verdict(CERTAIN)
async def all_is_kept(s: asc.Scheduler) -> None:
    kept = await takes_all(s)
    await s.put(BLOCK)
    del kept


@verdict(CERTAIN)
async def two_want_more(s: asc.Scheduler) -> None:
    await two_that_want(s)


@verdict(CERTAIN)
async def views_of_awaited_arrays_are_kept(s: asc.Scheduler) -> None:
    kept = [(await tensor)[1:] for tensor in await takes_all(s)]
    await s.put(BLOCK)
    del kept


KEPT: list[Any] = []


@verdict(CERTAIN)
async def a_module_keeps_them(s: asc.Scheduler) -> None:
    KEPT.extend(await takes_all(s))
    try:
        await s.put(BLOCK)
    finally:
        KEPT.clear()


@verdict(CERTAIN)
async def the_holder_waits_for_an_event(s: asc.Scheduler) -> None:
    async def holds() -> None:
        kept = await takes_all(s)
        await asyncio.Event().wait()
        del kept

    task = asyncio.create_task(holds())
    while s.statistics().bytes_retained < LIMIT:
        await asyncio.sleep(0.001)
    await s.put(BLOCK)
    del task


@verdict(CERTAIN)
async def the_consumer_waits_for_an_empty_queue(s: asc.Scheduler) -> None:
    queue: asyncio.Queue[Any] = asyncio.Queue()

    async def produce() -> None:
        kept = [await s.put(BLOCK) for _ in range(9)]
        await queue.put(kept)

    async with asyncio.TaskGroup() as group:
        group.create_task(produce())
        group.create_task(queue.get())


@verdict(CERTAIN)
async def beside_an_idle_executor(s: asc.Scheduler) -> None:
    await asyncio.to_thread(int)
    await two_that_want(s)


@verdict(CERTAIN)
async def beside_idle_threads_of_a_pipeline(s: asc.Scheduler) -> None:
    async with s.pipeline(range(100)).map(abs).open() as items:
        async for _ in items:
            await two_that_want(s)


@verdict(CERTAIN)
async def the_dead_cycle_was_not_all(s: asc.Scheduler) -> None:
    """The collector frees the bytes of some, and the others are a deadlock."""
    cycle: list[Any] = [await s.put(BLOCK)]
    cycle.append(cycle)
    del cycle
    kept = [await s.put(BLOCK) for _ in range(4)]
    await s.put(BLOCK)
    del kept


@verdict(CERTAIN)
async def thousands_hold_and_want_more(s: asc.Scheduler) -> None:
    small = np.ones(20)

    async def work() -> None:
        mine = await s.put(small)
        await s.put(small)
        del mine

    tasks = [asyncio.create_task(work()) for _ in range(LIMIT // small.nbytes)]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


# -- something is left, and everybody waits --------------------------------------------------------------------------


@verdict(PROBABLE)
async def beside_a_ticking_task(s: asc.Scheduler) -> None:
    task = asyncio.create_task(ticks())
    try:
        await two_that_want(s)
    finally:
        task.cancel()


@verdict(PROBABLE)
async def beside_a_ticking_task_in_the_same_group(s: asc.Scheduler) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(ticks())
        group.create_task(wants_a_third(s))
        group.create_task(wants_a_third(s))


@verdict(PROBABLE)
async def in_a_group_whose_body_ticks(s: asc.Scheduler) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(wants_a_third(s))
        last = group.create_task(wants_a_third(s))
        done = asyncio.Event()
        last.add_done_callback(lambda _: done.set())
        del last
        while not done.is_set():
            await asyncio.sleep(0.01)


@verdict(PROBABLE)
async def gathered_with_a_ticking_task(s: asc.Scheduler) -> None:
    task = asyncio.create_task(ticks())
    try:
        await asyncio.gather(task, wants_a_third(s), wants_a_third(s))
    finally:
        task.cancel()


@verdict(PROBABLE)
async def beside_a_listening_socket(s: asc.Scheduler) -> None:
    async with await asyncio.start_server(lambda _, __: None, "127.0.0.1", 0):
        await two_that_want(s)


class Server:
    """As uvicorn's: it ticks, and knows all its requests, but by an object of another class."""

    def __init__(self) -> None:
        self.state = types.SimpleNamespace(tasks=set[asyncio.Task[None]]())

    async def run(self) -> None:
        await ticks()


@verdict(PROBABLE)
async def in_requests_of_a_server_that_ticks(s: asc.Scheduler) -> None:
    server = Server()
    ticking = asyncio.create_task(server.run())
    server.state.tasks |= {asyncio.create_task(wants_a_third(s)) for _ in range(2)}
    try:
        await asyncio.gather(*server.state.tasks)
    finally:
        ticking.cancel()


@verdict(PROBABLE)
async def in_handlers_of_a_server(s: asc.Scheduler) -> None:
    ends: list[str] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        try:
            await wants_a_third(s)
            writer.write(b"done\n")
        except asc.MemoryDeadlockError:
            writer.write(b"MemoryDeadlockError\n")
        writer.close()

    async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
        asked = [await asyncio.open_connection(*server.sockets[0].getsockname()) for _ in range(2)]
        for _, writer in asked:
            writer.write(b"go\n")
        for reader, writer in asked:
            ends.append((await reader.readline()).decode().strip())
            writer.close()
    if "MemoryDeadlockError" in ends:
        raise asc.MemoryDeadlockError("told to a client")


@verdict(PROBABLE)
async def beside_a_thread(s: asc.Scheduler) -> None:
    gate = threading.Event()
    thread = threading.Thread(target=gate.wait)
    thread.start()
    try:
        await two_that_want(s)
    finally:
        gate.set()


@verdict(PROBABLE)
async def beside_a_handler_of_the_loop(s: asc.Scheduler) -> None:
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, int)
    try:
        await two_that_want(s)
    finally:
        loop.remove_signal_handler(signal.SIGUSR1)


@verdict(PROBABLE)
async def beside_a_handler_of_the_program(s: asc.Scheduler) -> None:
    before = signal.signal(signal.SIGUSR2, lambda *_: None)
    try:
        await two_that_want(s)
    finally:
        signal.signal(signal.SIGUSR2, before)


@verdict(PROBABLE)
async def views_are_kept_beside_a_ticking_task(s: asc.Scheduler) -> None:
    task = asyncio.create_task(ticks())
    try:
        kept = [(await tensor)[1:] for tensor in await takes_all(s)]
        await s.put(BLOCK)
        del kept
    finally:
        task.cancel()


# -- somebody goes on ------------------------------------------------------------------------------------------------


def timed(name: str) -> Callable[[Callable[..., Awaitable[None]]], Any]:
    """Two hold what both want, each with a timer of its own: the first that ends lets the other go on."""

    def add(limited: Callable[..., Awaitable[None]]) -> Any:
        async def form(s: asc.Scheduler) -> None:
            async def one(seconds: float) -> str:
                try:
                    await limited(s, seconds)
                except (TimeoutError, asyncio.CancelledError, asc.DeadlineExceeded, ExceptionGroup):
                    return "late"
                return "done"

            assert sorted(await asyncio.gather(one(LATER), one(MOST))) == ["done", "late"]

        form.__name__ = name
        PROGRAMS[name] = form, NEITHER
        return limited

    return add


@timed("timeout")
async def timeout(s: asc.Scheduler, seconds: float) -> None:
    async with asyncio.timeout(seconds):
        await wants_a_third(s)


@timed("inner_timeout")
async def inner_timeout(s: asc.Scheduler, seconds: float) -> None:
    async def put() -> None:
        async with asyncio.timeout(seconds):
            await s.put(BLOCK)

    await wants_a_third(s, put)


@timed("wait_for")
async def wait_for(s: asc.Scheduler, seconds: float) -> None:
    await asyncio.wait_for(wants_a_third(s), seconds)


@timed("inner_wait_for")
async def inner_wait_for(s: asc.Scheduler, seconds: float) -> None:
    await wants_a_third(s, lambda: asyncio.wait_for(s.put(BLOCK), seconds))


@timed("fail_after")
async def fail_after(s: asc.Scheduler, seconds: float) -> None:
    with anyio.fail_after(seconds):
        await wants_a_third(s)


@timed("deadline")
async def deadline(s: asc.Scheduler, seconds: float) -> None:
    async with s.scope(deadline=seconds):
        await wants_a_third(s)


@timed("timeout_around_a_group")
async def timeout_around_a_group(s: asc.Scheduler, seconds: float) -> None:
    async with asyncio.timeout(seconds), asyncio.TaskGroup() as group:
        group.create_task(wants_a_third(s))


@timed("fail_after_around_a_group")
async def fail_after_around_a_group(s: asc.Scheduler, seconds: float) -> None:
    with anyio.fail_after(seconds):
        async with anyio.create_task_group() as group:
            group.start_soon(wants_a_third, s)


@timed("timeout_around_a_gather")
async def timeout_around_a_gather(s: asc.Scheduler, seconds: float) -> None:
    async with asyncio.timeout(seconds):
        await asyncio.gather(wants_a_third(s), asyncio.sleep(0))


@timed("timeout_beside_in_a_group")
async def timeout_beside_in_a_group(s: asc.Scheduler, seconds: float) -> None:
    """The timer ends another member, and the group then ends the holder."""

    async def late() -> None:
        async with asyncio.timeout(seconds):
            await asyncio.Event().wait()

    async with asyncio.TaskGroup() as group:
        other = group.create_task(late())
        await group.create_task(wants_a_third(s))
        other.cancel()


@timed("call_later_cancel")
async def call_later_cancel(s: asc.Scheduler, seconds: float) -> None:
    task = asyncio.ensure_future(wants_a_third(s))
    timer = asyncio.get_running_loop().call_later(seconds, task.cancel)
    try:
        await task
    finally:
        timer.cancel()


@timed("call_later_of_itself")
async def call_later_of_itself(s: asc.Scheduler, seconds: float) -> None:
    def put() -> Awaitable[Any]:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().call_at(time.monotonic() + seconds, functools.partial(task.cancel, "late"))
        return s.put(BLOCK)

    await wants_a_third(s, put)


class Limit:
    """As in async-timeout: an object whose method the timer calls."""

    def __init__(self, seconds: float) -> None:
        self.task = asyncio.current_task()
        asyncio.get_running_loop().call_later(seconds, self._late)

    def _late(self) -> None:
        assert self.task is not None
        self.task.cancel()


@timed("call_later_of_an_object")
async def call_later_of_an_object(s: asc.Scheduler, seconds: float) -> None:
    def put() -> Awaitable[Any]:
        Limit(seconds)
        return s.put(BLOCK)

    await wants_a_third(s, put)


@timed("call_later_of_a_lambda")
async def call_later_of_a_lambda(s: asc.Scheduler, seconds: float) -> None:
    def put() -> Awaitable[Any]:
        tasks = {"mine": asyncio.current_task()}
        asyncio.get_running_loop().call_later(seconds, lambda: tasks["mine"].cancel())  # type: ignore[union-attr]
        return s.put(BLOCK)

    await wants_a_third(s, put)


@timed("timer_thread")
async def timer_thread(s: asc.Scheduler, seconds: float) -> None:
    task = asyncio.ensure_future(wants_a_third(s))
    timer = threading.Timer(seconds, task.get_loop().call_soon_threadsafe, [task.cancel])
    timer.daemon = True
    timer.start()
    try:
        await task
    finally:
        timer.cancel()


@timed("sleeping_thread")
async def sleeping_thread(s: asc.Scheduler, seconds: float) -> None:
    def end(task: asyncio.Task[Any], loop: asyncio.AbstractEventLoop, over: threading.Event) -> None:
        if not over.wait(seconds):
            loop.call_soon_threadsafe(task.cancel)

    task, over = asyncio.ensure_future(wants_a_third(s)), threading.Event()
    threading.Thread(target=end, args=(task, task.get_loop(), over), daemon=True).start()
    try:
        await task
    finally:
        over.set()


@timed("watchdog")
async def watchdog(s: asc.Scheduler, seconds: float) -> None:
    async def watch(task: asyncio.Task[None]) -> None:
        await asyncio.sleep(seconds)
        task.cancel()

    task = asyncio.ensure_future(wants_a_third(s))
    dog = asyncio.create_task(watch(task))
    try:
        await task
    finally:
        dog.cancel()


class Watchdog:
    def __init__(self, task: asyncio.Task[Any], seconds: float) -> None:
        self.tasks = [task]
        self.until = asyncio.get_running_loop().time() + seconds

    async def run(self) -> None:
        while asyncio.get_running_loop().time() < self.until:
            await asyncio.sleep(0.01)
        for task in self.tasks:
            task.cancel()


@timed("watchdog_of_a_class")
async def watchdog_of_a_class(s: asc.Scheduler, seconds: float) -> None:
    task = asyncio.ensure_future(wants_a_third(s))
    dog = asyncio.create_task(Watchdog(task, seconds).run())
    try:
        await task
    finally:
        dog.cancel()


@timed("watchdog_waits_with_a_limit")
async def watchdog_waits_with_a_limit(s: asc.Scheduler, seconds: float) -> None:
    task = asyncio.ensure_future(wants_a_third(s))
    await asyncio.wait([task], timeout=seconds)
    if not task.done():
        task.cancel()
    await task


@verdict(NEITHER)
async def a_timer_clears_a_list(s: asc.Scheduler) -> None:
    kept = await takes_all(s)
    asyncio.get_running_loop().call_later(LATER, kept.clear)
    await s.put(BLOCK)


@verdict(NEITHER)
async def a_timer_sets_an_event(s: asc.Scheduler) -> None:
    event = asyncio.Event()

    async def holds() -> None:
        kept = await takes_all(s)
        await event.wait()
        del kept

    task = asyncio.create_task(holds())
    while s.statistics().bytes_retained < LIMIT:
        await asyncio.sleep(0.001)
    asyncio.get_running_loop().call_later(LATER, event.set)
    await s.put(BLOCK)
    await task


async def ticks_and(act: Callable[[], object]) -> None:
    until = time.monotonic() + LATER
    while time.monotonic() < until:
        await asyncio.sleep(0.01)
    act()


async def until_ticked(s: asc.Scheduler, wait: Callable[[], Awaitable[Any]], act: Callable[[], object]) -> None:
    """A coroutine holds all, and waits; another ticks for a while, and then acts."""

    async def holds() -> None:
        kept = await takes_all(s)
        await wait()
        del kept

    task = asyncio.create_task(holds())
    while s.statistics().bytes_retained < LIMIT:
        await asyncio.sleep(0.001)
    ticking = asyncio.create_task(ticks_and(act))
    await s.put(BLOCK)
    await asyncio.gather(task, ticking)


@verdict(NEITHER)
async def the_holder_wants_a_lock_of_a_ticking_task(s: asc.Scheduler) -> None:
    lock = asyncio.Lock()
    await lock.acquire()
    await until_ticked(s, lock.acquire, lock.release)


@verdict(NEITHER)
async def the_holder_is_known_by_a_weak_reference(s: asc.Scheduler) -> None:
    class Waiter:
        def __init__(self) -> None:
            self.woken = asyncio.Event()

    known = weakref.WeakValueDictionary[int, Waiter]()

    async def wait() -> None:
        me = known[0] = Waiter()
        await me.woken.wait()

    await until_ticked(s, wait, lambda: known[0].woken.set())


@verdict(NEITHER)
async def a_ticking_task_drives_a_generator_that_has_them(s: asc.Scheduler) -> None:
    def has(kept: list[Any]) -> Iterator[None]:
        yield
        kept.clear()
        yield

    generator = has(await takes_all(s))
    next(generator)
    ticking = asyncio.create_task(ticks_and(lambda: next(generator)))
    await s.put(BLOCK)
    await ticking


@verdict(NEITHER)
async def the_holder_awaits_a_thread(s: asc.Scheduler) -> None:
    kept = await takes_all(s)

    async def later() -> None:
        await asyncio.to_thread(time.sleep, LATER)
        kept.clear()

    task = asyncio.create_task(later())
    await s.put(BLOCK)
    await task


@verdict(NEITHER)
async def the_holder_awaits_a_function_in_c(s: asc.Scheduler) -> None:
    """A plain pipeline calls it directly in its thread."""
    kept = await takes_all(s)

    async def later() -> None:
        async with s.pipeline([LATER]).map(time.sleep).open() as items:
            async for _ in items:
                pass
        kept.clear()

    task = asyncio.create_task(later())
    await s.put(BLOCK)
    await task


@verdict(NEITHER)
async def a_slow_source_keeps_them(s: asc.Scheduler) -> None:
    def source(kept: list[Any]) -> Iterator[int]:
        yield 1
        time.sleep(LATER)
        kept.clear()
        yield 2

    async with s.pipeline(source(await takes_all(s))).open() as items:
        async for _ in items:
            await s.put(BLOCK)


@verdict(NEITHER)
async def the_holder_awaits_a_pool(s: asc.Scheduler) -> None:
    kept = await takes_all(s)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: (time.sleep(LATER), kept.clear()))
        await s.put(BLOCK)


@verdict(NEITHER)
async def a_thread_holds_them(s: asc.Scheduler) -> None:
    box = deque([await takes_all(s)])

    def hold() -> None:
        mine = box.popleft()
        time.sleep(LATER)
        mine.clear()

    thread = threading.Thread(target=hold)
    thread.start()
    await s.put(BLOCK)
    thread.join()


@verdict(NEITHER)
async def a_waiter_and_a_thread_hold_them(s: asc.Scheduler) -> None:
    kept = await takes_all(s)

    def hold(mine: list[Any]) -> None:
        time.sleep(LATER)
        mine.clear()

    thread = threading.Thread(target=hold, args=(kept,))
    thread.start()
    await s.put(BLOCK)
    thread.join()


@verdict(NEITHER)
async def the_holder_reads_a_socket(s: asc.Scheduler) -> None:
    here, there = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=here)

    async def holds() -> None:
        kept = await takes_all(s)
        await reader.read(1)
        del kept

    task = asyncio.create_task(holds())
    thread = threading.Timer(LATER, there.send, [b"x"])
    thread.start()
    while s.statistics().bytes_retained < LIMIT:
        await asyncio.sleep(0.001)
    await s.put(BLOCK)
    await task
    writer.close()
    there.close()
    thread.join()


@verdict(NEITHER)
async def a_slow_consumer(s: asc.Scheduler) -> None:
    queue: asyncio.Queue[Any] = asyncio.Queue()

    async def produce() -> None:
        for _ in range(6):
            await queue.put(await s.put(BLOCK))

    async def consume() -> None:
        for number in range(6):
            tensor = await queue.get()
            await asyncio.sleep(0.0 if number else LATER)
            del tensor

    await asyncio.gather(produce(), consume())


@verdict(NEITHER)
async def a_reserve_that_a_sleeper_keeps(s: asc.Scheduler) -> None:
    async def keeps() -> None:
        async with s.scope(reserve=LIMIT):
            await asyncio.sleep(LATER)

    task = asyncio.create_task(keeps())
    await asyncio.sleep(0)
    async with s.scope(reserve=NB):
        pass
    await task


@verdict(NEITHER)
async def another_program(s: asc.Scheduler) -> None:
    kept = await takes_all(s)

    async def later() -> None:
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", f"import time; time.sleep({LATER})")
        await process.wait()
        kept.clear()

    task = asyncio.create_task(later())
    await s.put(BLOCK)
    await task


@verdict(NEITHER)
async def a_handler_of_a_signal(s: asc.Scheduler) -> None:
    kept = await takes_all(s)
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, kept.clear)
    timer = threading.Timer(LATER, os.kill, [os.getpid(), signal.SIGUSR1])
    timer.start()
    try:
        await s.put(BLOCK)
    finally:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGUSR1)
        timer.join()


@verdict(NEITHER)
async def another_scheduler_computes(s: asc.Scheduler) -> None:
    kept = await takes_all(s)

    async def later() -> None:
        async with asc.Scheduler("cpu") as other:
            await other.call(time.sleep, LATER)
        kept.clear()

    task = asyncio.create_task(later())
    await s.put(BLOCK)
    await task


@verdict(NEITHER)
async def a_large_copy_out(s: asc.Scheduler) -> None:
    """Copies are no tasks in flight."""
    kept = await takes_all(s)

    async def later() -> None:
        async with asc.Scheduler("cpu") as other:
            x = await other.put(BLOCK)
            other.devices[0].fetch = lambda array: time.sleep(LATER)  # type: ignore[attr-defined,method-assign]
            with contextlib.suppress(Exception):
                from asyncsched.tensors import handles

                before, handles.copied_at_once = handles.copied_at_once, lambda value: False  # type: ignore[assignment]
                try:
                    await x.numpy()
                finally:
                    handles.copied_at_once = before
        kept.clear()

    task = asyncio.create_task(later())
    await s.put(BLOCK)
    await task


# -- the run ---------------------------------------------------------------------------------------------------------


class Hangs(BaseException):
    pass


def main(loop: str, names: list[str]) -> None:
    logging.getLogger("asyncsched").setLevel(logging.CRITICAL)
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    stall.PROBABLE = SOON
    factory: Any = asyncio.new_event_loop if loop == "asyncio" else __import__("uvloop").new_event_loop
    for name in names or PROGRAMS:
        began = time.monotonic()
        with asyncio.Runner(loop_factory=factory) as runner:
            told = runner.run(_told(PROGRAMS[name][0]))
        print(f"{name} {told} {time.monotonic() - began:.2f}", flush=True)
        gc.collect()


async def _told(form: Form) -> str:
    def late(_: int, __: types.FrameType | None) -> None:
        task.cancel()  # a signal comes when the loop sleeps

    found: list[bool] = []
    grade: list[str] = []
    may_happen = stall.may_happen

    def look(loop: asyncio.AbstractEventLoop) -> str | None:
        why = may_happen(loop)
        found.append(why is None)
        return why

    class Graded(asc.MemoryDeadlockError):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            grade.append(CERTAIN if found[-1] else PROBABLE)

    stall.may_happen, stall.MemoryDeadlockError = look, Graded  # type: ignore[misc]
    signal.signal(signal.SIGALRM, late)
    signal.alarm(MOST)
    try:
        async with asc.Scheduler("cpu", max_bytes=LIMIT) as s:
            task = asyncio.create_task(form(s))
            await asyncio.wait([task])
            error = asyncio.CancelledError() if task.cancelled() else task.exception()
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            if error is None:
                return NEITHER
            if not isinstance(error, asc.MemoryDeadlockError):
                return type(error).__name__
            return grade[0]
    finally:
        signal.alarm(0)
        stall.may_happen, stall.MemoryDeadlockError = may_happen, asc.MemoryDeadlockError  # type: ignore[misc]


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
