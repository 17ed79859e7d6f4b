"""Runs random programs whose finalisers do everything, under one kind of pressure each; by hand as many as one likes.

    python -m tests.differential.finalisers --programs 2000            # of all kinds, on 1, 2, 4 streams and both loops
    python -m tests.differential.finalisers --kind collector --seed 17 --streams 2 --loop uvloop        # one, again

A program ends right, or with a `SchedulerClosed` that names the cause: an interrupt, a MemoryError, a RecursionError in
the middle of the bookkeeping. Values equal NumPy's, nothing hangs, and in the end nothing is charged.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import faulthandler
import gc
import importlib.util
import os
import random
import sys
import threading
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import FrameType
from typing import Any

from threadpoolctl import threadpool_limits

import asyncsched as asc
from tests.ledger import engine_of, live

from .finaliser_programs import Deliberate, Leave, Pressure, Program, Wrong, where

STREAMS = (1, 2, 4)
LOOPS = ("asyncio", "uvloop") if importlib.util.find_spec("uvloop") is not None else ("asyncio",)
ENDS_SOON = 30  # seconds for one program, which takes a tenth of one: it hangs
LATE = 1000  # looks, some milliseconds apart, at what streams are about to let go of
PACKAGE = os.path.dirname(asc.__file__)


class Collector(Pressure):
    """Python's collector runs at every allocation or two, and others act when it begins and when it ends."""

    def __init__(self, rng: random.Random) -> None:
        self._rng, self._program = rng, None
        self._before = gc.get_threshold()

    def arm(self, program: Program) -> None:
        self._program = program
        gc.callbacks.append(self._look)
        gc.set_threshold(1, 1, 1)

    def disarm(self) -> None:
        gc.set_threshold(*self._before)
        if self._look in gc.callbacks:
            gc.callbacks.remove(self._look)

    def _look(self, phase: str, info: dict[str, int]) -> None:
        if self._rng.random() < 0.01:
            self._program.act_of(self._rng)([])


class Recursion(Pressure):
    """Some calls are made where few frames are left."""

    errors = (RecursionError,)
    cause = "RecursionError"

    def __init__(self, rng: random.Random) -> None:
        self._rng, self._usual, self._on = rng, sys.getrecursionlimit(), False

    def arm(self, program: Program) -> None:
        self._on = True

    def disarm(self) -> None:
        self._on = False

    @contextmanager
    def tight(self) -> Iterator[None]:
        if not self._on or self._rng.random() < 0.7:
            yield
            return
        room = self._rng.randrange(1, 60)
        for limit in range(_depth() + room, self._usual):
            try:
                sys.setrecursionlimit(limit)
                break
            except RecursionError:  # functions in C count, too
                continue
        try:
            yield
        finally:
            sys.setrecursionlimit(self._usual)

    @contextmanager
    def relaxed(self) -> Iterator[None]:
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(self._usual)
        try:
            yield
        finally:
            for again in range(limit, self._usual):
                try:
                    sys.setrecursionlimit(again)
                    break
                except RecursionError:
                    continue


def _depth() -> int:
    frame, depth = sys._getframe(), 0
    while frame is not None:
        frame, depth = frame.f_back, depth + 1
    return depth


class Allocations(Pressure):
    """Some calls are made where one allocation of Python's fails, or some. By hand alone: NumPy crashes by it, too."""

    errors = (MemoryError,)
    spared = ("npscalar",)  # a NumPy number and an object with `__array_ufunc__`: a segmentation fault
    cause = "MemoryError"

    def __init__(self, rng: random.Random) -> None:
        self._rng, self._on = rng, False
        import _testcapi  # CPython's own tests use it

        self._fail, self._allow = _testcapi.set_nomemory, _testcapi.remove_mem_hooks

    def arm(self, program: Program) -> None:
        self._on = True

    def disarm(self) -> None:
        self._on = False
        self._allow()

    @contextmanager
    def tight(self) -> Iterator[None]:
        if not self._on or self._rng.random() < 0.7:
            yield
            return
        first, few = int(2 ** (self._rng.random() * 8)), self._rng.choice([1, 1, 4, 30])
        self._fail(first, first + few)
        try:
            yield
        finally:
            self._allow()

    @contextmanager
    def relaxed(self) -> Iterator[None]:
        self._allow()
        yield


class AddressSpace(Pressure):
    """Calls are made where the process gets little more memory, or none. On Linux."""

    errors = (MemoryError,)
    cause = "MemoryError"
    shapes = ((190, 190),) * 6  # too large for what is free in the heap
    spared = ("matmul",)  # a BLAS that gets no memory for its buffers ends the process

    def __init__(self, rng: random.Random) -> None:
        import resource

        self._rng, self._on, self._resource = rng, False, resource
        sys.modules["numba"] = None  # type: ignore[assignment]  # not installed: LLVM ends a process without memory
        libc = ctypes.CDLL(None)
        for name, value in ((-3, 4096), (-2, 0), (-1, 0), (-8, 1)):  # mmap and top pad, trimming and arenas
            libc.mallopt(name, value)  # so that little is free that was taken before
        self._trim = libc.malloc_trim
        self._limits = (self._resource.RLIM_INFINITY, self._resource.getrlimit(self._resource.RLIMIT_AS)[1])

    def arm(self, program: Program) -> None:
        self._on = True

    def disarm(self) -> None:
        self._on = False
        self._resource.setrlimit(self._resource.RLIMIT_AS, self._limits)

    @contextmanager
    def tight(self) -> Iterator[None]:
        if not self._on:
            yield
            return
        self._trim(0)
        with open("/proc/self/statm") as file:
            now = int(file.read().split()[0]) * self._resource.getpagesize()
        more = self._rng.choice([0, 0, 2**14, 2**18])
        self._resource.setrlimit(self._resource.RLIMIT_AS, (now + more, self._limits[1]))
        try:
            yield
        finally:
            self._resource.setrlimit(self._resource.RLIMIT_AS, self._limits)

    waiting = tight

    @contextmanager
    def relaxed(self) -> Iterator[None]:
        limits = self._resource.getrlimit(self._resource.RLIMIT_AS)
        self._resource.setrlimit(self._resource.RLIMIT_AS, self._limits)
        try:
            yield
        finally:
            self._resource.setrlimit(self._resource.RLIMIT_AS, limits)


class AtLines(Pressure):
    """An exception comes before some lines of the package, on the loop's thread.

    But not where Python would lose it, in what the package itself does when something dies; nor where Python does not
    look for signals, and no handler covers the line: see `_is_uncovered`, and between two lines of `_resume`.
    """

    left_alone = ("__del__", "gone", "_remove", "_resume")

    def __init__(self, error: type[BaseException], rng: random.Random) -> None:
        self.errors, self.cause = (error,), error.__name__
        self._rng, self._left = rng, 0
        self.places: list[str] = []
        _blocks()  # now: to read files blocks
        self._each = self._enter, self._line  # kept: CPython goes on with them when it has let them go

    def arm(self, program: Program) -> None:
        self._left = int(2 ** (5 + self._rng.random() * 9))
        sys.settrace(self._each[0])

    def disarm(self) -> None:
        sys.settrace(None)

    def _enter(self, frame: FrameType, event: str, arg: Any) -> Any:
        return self._each[1] if frame.f_code.co_filename.startswith(PACKAGE) else None

    def _line(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line":
            self._left -= 1
            if self._left <= 0 and not self._is_left_alone(frame) and not _is_uncovered(frame):
                self.places.append(f"{frame.f_code.co_filename.removeprefix(PACKAGE)}:{frame.f_lineno}")
                raise self.errors[0]  # which ends tracing: one for each program
        return self._each[1]

    def _is_left_alone(self, frame: FrameType | None) -> bool:
        while frame is not None and frame.f_code.co_filename.startswith(PACKAGE):
            if frame.f_code.co_name in self.left_alone:
                return True
            frame = frame.f_back
        return False


@cache
def _blocks() -> dict[tuple[str, int], str]:
    """The lines of the package that begin a `with` block, or end one, and those of `try`."""
    return {
        (str(path), number): line.strip()
        for path in Path(PACKAGE).rglob("*.py")
        for number, line in enumerate(path.read_text().split("\n"), 1)
        if line.lstrip().startswith(("with ", "try:"))
    }


def _is_uncovered(frame: FrameType) -> bool:
    """Whether Python looks for no signals at a line, and no handler covers it: `try`, and a `with` that is left."""
    line = _blocks().get((frame.f_code.co_filename, frame.f_lineno), "")
    first = min(start for start, _, number in frame.f_code.co_lines() if number == frame.f_lineno)
    return line.startswith("try:") or (line.startswith("with ") and frame.f_lasti > first)


class Plain(Pressure):
    """None."""

    def __init__(self, rng: random.Random) -> None:
        pass

    def arm(self, program: Program) -> None:
        pass

    disarm = staticmethod(partial(lambda: None))


KINDS: dict[str, Callable[[random.Random], Any]] = {
    "plain": Plain, "collector": Collector, "recursion": Recursion, "address space": AddressSpace,
    "interrupt": partial(AtLines, KeyboardInterrupt), "memory": partial(AtLines, MemoryError),
    "allocations": Allocations,
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One program in its surroundings."""

    kind: str
    seed: int
    streams: int
    loop: str

    @property
    def again(self) -> str:
        """The line that runs it again."""
        return (
            f"python -m tests.differential.finalisers --kind {self.kind.replace(' ', '-')} --seed {self.seed}"
            f" --streams {self.streams} --loop {self.loop}"
        )


def run(case: Case) -> Program:
    """Run one program to its end on a loop of its own.

    Raises:
        Wrong: or whatever else it must not end by.
    """
    loop = _new_loop(case.loop)
    found: list[str] = []
    programs: list[Program] = []
    pressure = KINDS[case.kind](random.Random(repr(case)))
    loop.set_exception_handler(lambda _, context: _unhandled(pressure, found, context))
    hooks = sys.unraisablehook, threading.excepthook
    sys.unraisablehook = partial(_unraisable, pressure, found)
    threading.excepthook = lambda told: found.append(f"a thread died: {told.thread}: {where(told.exc_value)}")
    try:
        main = loop.create_task(_main(case, pressure, found, programs))
        waiting = loop.create_task(asyncio.wait({main}, timeout=ENDS_SOON))
        while not waiting.done():
            try:
                loop.run_until_complete(waiting)
            except KeyboardInterrupt:  # that came in a callback of the loop, which goes on
                if case.kind != "interrupt":
                    raise
        if not main.done():
            opened = main.get_coro().cr_frame.f_locals.get("s")
            raise Wrong("\n".join([f"it hangs: {opened!r}, {_cause(pressure)}", *found, _stacks(loop)]))
        try:
            program = main.result()
        except Exception as error:
            error.add_note(_cause(pressure))
            raise
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        pressure.disarm()
        for one in programs:
            one.over = True  # what is left of one that failed does nothing more
        sys.unraisablehook, threading.excepthook = hooks
    loop.close()
    if found:
        raise Wrong("\n".join(found))
    return program


def _cause(pressure: Any) -> str:
    return f"{pressure.cause} at {getattr(pressure, 'places', [])}"


async def _main(case: Case, pressure: Any, found: list[str], programs: list[Program]) -> Program:
    rng = random.Random(case.seed + 1)
    s = asc.Scheduler("cpu", streams=case.streams, max_ops=rng.choice((1, 2, 64, None)),
                      max_bytes=rng.choice((None, 2**28)))  # fmt: skip
    program = None
    try:
        async with s:
            program = Program(s, case.seed, pressure, closes=rng.random() < 0.2)
            programs.append(program)
            s.statistics()  # it imports: Python's own parts do not bear everything
            pressure.arm(program)
            try:
                await program.run(rng.randint(10, 80))
            finally:
                if rng.random() < 0.7:  # the others close under it, too
                    pressure.disarm()
            await program.let_go()
            await program.guarded(s.barrier)
    except (Exception, KeyboardInterrupt) as error:
        if program is None or not (isinstance(error, Leave) or program.allowed(error)):
            raise
    finally:
        pressure.disarm()
    await program.guarded(s.aclose)
    program.closing = True
    await program.look_at_all()
    await program.let_go()
    found += program.wrong
    await _nothing_is_left(s)
    return program


async def _nothing_is_left(s: asc.Scheduler) -> None:
    for look in range(LATE):
        now = s.statistics()
        charged = (now.tasks_pending, now.tasks_in_flight, now.bytes_in_flight, now.bytes_retained, now.bytes_reserved)
        if not any((*charged, *_inside(s))):
            most = now.max_ops
            if most is not None and now.peak_tasks_in_flight > most:
                raise Wrong(f"{now.peak_tasks_in_flight} tasks were in flight at a time, of {most} at most")
            return
        await asyncio.sleep(0.001 * (look > 3))
        if look % 100 == 19:
            gc.collect()
    raise Wrong(f"left: {charged} (pending, in flight, bytes in flight, retained, reserved), {_inside(s)} inside")


def _inside(s: asc.Scheduler) -> list[int]:
    """What statistics do not show: bytes below zero, and what the host pool holds to be in use. It all must be zero.

    The pool of a scheduler that closed itself, as it was interrupted, serves nobody any more.
    """
    charged = engine_of(s).ledger.account.used
    if repr(s).endswith("closed)"):
        return [charged]
    pools = [pool for device in s.devices if (pool := getattr(device.memory, "pool", None)) is not None]
    return [charged, *map(live, pools)]


def _new_loop(name: str) -> asyncio.AbstractEventLoop:
    if name == "uvloop":
        import uvloop

        return uvloop.new_event_loop()
    return asyncio.new_event_loop()


def _unhandled(pressure: Pressure, found: list[str], context: dict[str, Any]) -> None:
    error = context.get("exception")
    if not isinstance(error, pressure.errors):  # such may come in a callback of the scheduler's, which then closes
        found.append(f"nobody handled: {context['message']}: {where(error)}")


def _unraisable(pressure: Pressure, found: list[str], told: Any) -> None:
    if not isinstance(told.exc_value, (Deliberate, *pressure.errors)):
        found.append(f"raised in a finaliser, {told.err_msg or told.object!r}: {where(told.exc_value)}")


def _stacks(loop: asyncio.AbstractEventLoop) -> str:
    """Where every asyncio task and every thread is."""
    parts = []
    for task in asyncio.all_tasks(loop):
        at, lines = task.get_coro(), [f"{task.get_name()}"]
        while (frame := getattr(at, "cr_frame", getattr(at, "gi_frame", None))) is not None:
            lines.append(f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}")
            at = getattr(at, "cr_await", getattr(at, "gi_yieldfrom", None))
        parts.append("\n  ".join(lines))
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        lines = [f"{at.filename}:{at.lineno} in {at.name}" for at in traceback.extract_stack(frame)[-5:]]
        parts.append("\n  ".join([f"thread {names.get(ident)}", *lines]))
    return "\n".join(parts)


def cases(
    kind: str, seeds: Iterable[int], streams: Iterable[int] = STREAMS, loops: Iterable[str] = LOOPS
) -> list[Case]:
    """Each of these programs everywhere."""
    return [Case(kind, seed, n, loop) for seed in seeds for n in streams for loop in loops]


def run_all(those: Iterable[Case], told: Counter[str] | None = None) -> list[str]:
    """Run them in this process. Returns what those that failed say, each with the line to run it again.

    Args:
        told: counts what happened in them.
    """
    failed = []
    for case in those:
        try:
            program = run(case)
            if told is not None:
                told.update(program.excused, acts_of_finalisers=program.acts, compared=program.checked)
        except Exception as error:
            failed.append(f"{case.again}\n{''.join(traceback.format_exception(error))}")
    return failed


def main() -> None:
    """See the head of this file. In a child process each case is named before it begins, so that one that ends the
    process, or never ends, is known."""
    parser = argparse.ArgumentParser(prog="python -m tests.differential.finalisers")
    parser.add_argument("--kind", choices=[kind.replace(" ", "-") for kind in KINDS])
    parser.add_argument("--seed", type=int, help="one program")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--programs", type=int, default=100, help="of the kind; without one, of all together")
    parser.add_argument("--streams", type=int)
    parser.add_argument("--loop", choices=LOOPS)
    parser.add_argument("--in-turn", action="store_true", help="each program on one number of streams, not on each")
    parser.add_argument("--spare-tensors", action="store_true", help="what dies holds none: to look for other faults")
    given = parser.parse_args()
    faulthandler.enable()
    Program.deadly = not given.spare_tensors
    warnings.simplefilter("ignore", RuntimeWarning)  # NumPy's, of numbers; its `errstate` crashes under the collector
    kinds = [given.kind.replace("-", " ")] if given.kind else list(KINDS)[:-1]
    count = -(-given.programs // len(kinds))
    seeds = range(given.first, given.first + count) if given.seed is None else [given.seed]
    streams, loops = (given.streams,) if given.streams else STREAMS, (given.loop,) if given.loop else LOOPS
    bad, count, happened = 0, 0, Counter[str]()
    with threadpool_limits(1, user_api="blas"):
        for kind in kinds:
            for case in cases(kind, seeds, streams, loops):
                if given.in_turn and case.streams != STREAMS[case.seed % len(STREAMS)]:
                    continue
                print(f"now {case.again}", file=sys.stderr, flush=True)
                faulthandler.dump_traceback_later(3 * ENDS_SOON, exit=True)
                count += 1
                for told in run_all([case], happened):
                    bad += 1
                    print(f"FAILED {told}", flush=True)
                faulthandler.cancel_dump_traceback_later()
            print(f"{kind}: {dict(happened)}")
            happened.clear()
    print(f"{count} programs, {bad} failed")
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
