"""Runs a random program on a scheduler and compares everything it gives with eager NumPy."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
from collections.abc import Callable, Sequence
from typing import Any

import anyio
import anyio.to_thread
import numpy as np

import asyncsched as asc
from asyncsched._core.free_threading import FREE_THREADED
from tests.ledger import engine_of
from tests.validate import validate
from tests.waiting import until

from .holding import WAYS
from .programs import OPS, Array, Boom, Program, Step
from .users import NON_BLOCKING, Users

KEPT = 2  # things that a program keeps of what is over


class Run:
    """One run. Cancellation is decided while running, so what it reaches is tracked here.

    With `places`, names of devices, each step is taken on one of them, to which what it reads is copied. On CUDA users
    work with what they await and put, on streams of their own of these kinds.
    """

    def __init__(
        self,
        program: Program,
        s: asc.Scheduler,
        *,
        serial: bool = False,
        places: Sequence[str] = (),
        ways: Sequence[str] = NON_BLOCKING,
    ) -> None:
        self.program = program
        self.s = s
        self.serial = serial
        self.places = places
        self.rng = random.Random(len(program.steps))
        self.handles: dict[int, Any] = {}
        self.gone: set[int] = set()  # cancelled, or reads something that was
        self.readers: dict[int, list[int]] = {}
        self.kept: list[tuple[Array, Array]] = []
        on_cuda = not serial and all(device.kind == "cuda" for device in s.devices)
        self.users = Users(ways, self.rng) if on_cuda else None
        self.over: list[Any] = []  # exceptions and asyncio tasks that are kept, with the frames they hold

    async def all(self) -> None:
        """Run every step, then await and compare what is left."""
        if self.program.scopes == 1:
            for step in self.program.steps:
                await self.step(self.s, step)
        else:
            await self._in_scopes()
        self.over.clear()
        for number in sorted(self.handles):
            await self.check(number, self.handles.pop(number))
        for array, copy in self.kept:
            assert (await _on_host(array)).tobytes() == copy.tobytes(), "an awaited array changed"
        self.kept.clear()
        if self.users is not None:
            await self.users.check()

    async def _in_scopes(self) -> None:
        """Each scope's steps are taken by a coroutine of its own, in the order of the program."""
        turns = [asyncio.Event() for _ in self.program.steps] + [asyncio.Event()]
        turns[0].set()
        broken = False

        async def worker(mine: int) -> None:
            nonlocal broken
            async with self.s.scope(name=f"scope {mine}") as scope:
                for i, step in enumerate(self.program.steps):
                    if step.scope == mine:
                        await turns[i].wait()
                        if broken:
                            return
                        broken = True
                        try:
                            await self.step(scope, step)
                            broken = False
                        finally:
                            for turn in turns if broken else turns[i + 1 : i + 2]:
                                turn.set()

        results = await asyncio.gather(*[worker(i) for i in range(self.program.scopes)], return_exceptions=True)
        for error in results:
            if error is not None:
                _only_booms(error)

    async def step(self, target: Any, step: Step) -> None:
        """Take one step."""
        out, handles = step.out, self.handles
        if step.kind == "put":
            if self.users is None or self.places:
                handles[out] = await target.put(step.extra, device=self._place())
            else:
                handles[out] = await self.users.put(target.put, step.extra)
        elif "puts" in step.kind:
            await self._puts(target, step)
        elif step.kind.startswith("frame"):
            await self._frame_that_fails(target, step)
        elif step.kind == "cancel scope":
            await self._hurried(target, step)
        elif step.kind == "forget":
            self.over.clear()
        elif step.kind == "drop":
            handles.pop(step.reads[0], None)
        elif step.kind == "await":
            await self.check(step.reads[0], handles[step.reads[0]], keep=True)
        elif step.kind == "cancel":
            if handles[step.reads[0]].cancel():
                self._gone(step.reads[0])
        else:
            for read in step.reads:
                self.readers.setdefault(read, []).append(out)
            if self.gone.intersection(step.reads):
                self.gone.add(out)
            handles[out] = await self._issue(target, step)
        del self.over[:-KEPT]
        if self.serial and step.kind not in ("drop", "cancel"):
            try:
                await self.s.barrier()
            except BaseExceptionGroup as group:
                _only_booms(group)

    async def _issue(self, target: Any, step: Step) -> Any:
        operands = [self.handles[i] for i in step.reads]
        place = self._place()
        if place is not None and step.kind not in ("assign", "held"):
            operands = [operand.to(place) for operand in operands]
        if step.kind == "op":
            return OPS[step.extra][2](*operands)
        if step.kind == "assign":
            moved = self.handles.pop(step.reads[0])
            operands.clear()
            moved[..., :1] = 7
            return moved
        if step.kind == "held":
            operands.clear()
            made: list[Any] = []
            held = [self.handles.pop(step.reads[0])]
            self.handles[step.reads[0]] = WAYS[step.extra](held, lambda x: made.append(OPS["add1"][2](x)))
            return made.pop()
        (x,) = operands
        if step.kind == "fail":
            return await target.submit(_boom, x, shape=(2, 2), dtype="float32", name="boom")
        return await target.submit(reverse, [x], shape=x.shape, dtype=x.dtype)

    def _place(self) -> str | None:
        return self.rng.choice(self.places) if self.places else None

    async def _puts(self, target: Any, step: Step) -> None:
        sources, handles = step.extra, self.handles

        async def put(out: int) -> None:
            handles[out] = await target.put(sources[out])

        if step.kind == "gathered puts":
            handles.update(zip(sources, await asyncio.gather(*[target.put(a) for a in sources.values()]), strict=True))
        elif step.kind == "puts in tasks that are kept":
            tasks = {out: asyncio.create_task(target.put(array)) for out, array in sources.items()}
            for out, task in tasks.items():
                handles[out] = await task
            self.over.append(tasks)
        elif step.kind == "puts in a task group":
            async with asyncio.TaskGroup() as group:
                for out in sources:
                    group.create_task(put(out))
        else:
            async with anyio.create_task_group() as anyio_group:
                for out in sources:
                    anyio_group.start_soon(put, out)

    async def _frame_that_fails(self, target: Any, step: Step) -> None:
        """It holds a handle of the program's, and one of its own."""

        async def fail(handle: Any) -> None:
            mine = asc.maximum(handle, handle)  # as large as what it reads
            await (await target.submit(_boom, mine, shape=(2, 2), dtype="float32", name="boom"))

        (read,) = step.reads
        allowed = (Boom, asc.TaskCancelled) if read in self.gone else (Boom,)
        if "task" in step.kind:
            task = asyncio.create_task(fail(self.handles[read]))
            await asyncio.wait([task])
            assert isinstance(task.exception(), allowed)
            self.over.append(task)
            return
        try:
            await fail(self.handles[read])
        except allowed as error:
            if "kept" in step.kind:
                self.over.append(error)
        else:
            raise AssertionError(f"the frame that reads array {read} did not fail")

    async def _hurried(self, target: Any, step: Step) -> None:
        """Nobody has what comes of it, whether it is done or cancelled."""
        turns, array = step.extra

        async def wait(handle: Any) -> None:
            with contextlib.suppress(Boom, asc.TaskCancelled):
                await handle

        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:
                for read in step.reads:
                    group.start_soon(wait, self.handles[read])
                group.start_soon(target.put, array)
                group.start_soon(wait, asc.gather(*[self.handles[read] for read in step.reads]))
                for _ in range(turns):
                    await asyncio.sleep(0)
                scope.cancel()

    def _gone(self, number: int) -> None:
        todo = [number]
        while todo:
            number = todo.pop()
            if number not in self.gone:
                self.gone.add(number)
                todo += self.readers.get(number, ())

    async def check(self, number: int, handle: Any, *, keep: bool = False) -> None:
        """Await a handle and compare."""
        expected = self.program.expected[number]
        try:
            array = await handle
        except asc.TaskCancelled:
            assert number in self.gone, f"array {number} was cancelled by nobody"
            return
        except Boom:
            assert expected is None, f"array {number} failed"
            return
        assert number not in self.gone, f"array {number} should have been cancelled"
        assert expected is not None, f"array {number} did not fail"
        host = await _on_host(array)
        compare(host, array.strides, expected, number)
        if keep and (self.users is None or self.rng.random() < 0.5):
            self.kept.append((array, host.copy()))
        elif self.users is not None:
            held = [array]
            del array, handle
            await self.users.use(held, host)


def compare(array: Any, layout: tuple[int, ...], expected: Array, number: int) -> None:
    """Equal in type, layout and every byte."""
    assert array.dtype == expected.dtype, (number, array.dtype, expected.dtype)
    assert array.shape == expected.shape, (number, array.shape, expected.shape)
    assert array.tobytes() == expected.tobytes(), f"array {number} differs"
    if array.size > 1:
        strides = [(a, e) for a, e, n in zip(layout, expected.strides, array.shape, strict=True) if n > 1]
        assert all(a == e for a, e in strides), (number, layout, expected.strides)


async def _on_host(array: Any) -> Array:
    # In a list, from which the thread takes it: what is an argument there stays one for a moment after the result.
    return array if isinstance(array, np.ndarray) else await anyio.to_thread.run_sync(_copied, [array])


def _copied(arrays: list[Any]) -> Array:
    """An awaited array of a device is there already: it is read through a stream that waits for nothing."""
    import cupy

    array = arrays.pop()
    with cupy.cuda.Device(array.device.id), cupy.cuda.Stream(non_blocking=True) as stream:
        return array.get(stream=stream)  # type: ignore[no-any-return]


def _boom(array: Array) -> Array:
    raise Boom


def reverse(arrays: list[Array]) -> Array:
    (array,) = arrays
    assert not (isinstance(array, np.ndarray) and array.flags.writeable)
    return (array[::-1] if array.ndim else array).copy(order="K")


def _only_booms(error: BaseException) -> None:
    if isinstance(error, BaseExceptionGroup):
        for member in error.exceptions:
            _only_booms(member)
    elif not isinstance(error, Boom):
        raise error


async def run(
    program: Program,
    make: Callable[[], asc.Scheduler],
    *,
    serial: bool = False,
    places: Sequence[str] = (),
    ways: Sequence[str] = NON_BLOCKING,
) -> asc.Statistics:
    """Run a program on a new scheduler; check both bounds, and that the ledgers read zero after it."""
    s = make()
    try:
        async with s:
            this = Run(program, s, serial=serial, places=places, ways=ways)
            await this.all()
            del this
            if any(circle in step.kind for step in program.steps for circle in ("frame", "group", "scope")):
                gc.collect()  # of circles through frames: those that the program kept, and what asyncio and anyio keep
            try:
                await s.barrier()
            except BaseExceptionGroup as group:
                _only_booms(group)
            statistics = s.statistics()
    except BaseExceptionGroup as group:
        _only_booms(group)
    engine = engine_of(s)
    # On CUDA what was awaited is charged until its streams are past it. On a free-threaded build what a function
    # returned is charged until the stream that made it has looked up.
    if FREE_THREADED or any(device.kind == "cuda" for device in s.devices):
        await until(lambda: engine.drain() or not engine.ledger.account.used)
    validate(engine)
    # But for those circles without the collector: what was raised is gone with its handles.
    assert engine.ledger.account.used == 0, f"{engine.ledger.account.used} bytes are still charged"
    assert statistics.tasks_pending == statistics.tasks_in_flight == 0
    assert statistics.max_bytes is None or statistics.peak_bytes <= statistics.max_bytes
    assert statistics.max_ops is None or statistics.peak_tasks_in_flight <= statistics.max_ops
    return statistics
