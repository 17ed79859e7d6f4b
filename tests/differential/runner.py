"""Runs a random program on a scheduler and compares everything it gives with eager NumPy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import anyio.to_thread
import numpy as np

import asyncsched as asc

from .programs import OPS, Array, Boom, Program, Step


class Run:
    """One run. Cancellation is decided while running, so what it reaches is tracked here."""

    def __init__(self, program: Program, s: asc.Scheduler, *, serial: bool = False) -> None:
        self.program = program
        self.s = s
        self.serial = serial
        self.handles: dict[int, Any] = {}
        self.gone: set[int] = set()  # cancelled, or reads something that was
        self.readers: dict[int, list[int]] = {}
        self.kept: list[tuple[Array, Array]] = []

    async def all(self) -> None:
        """Run every step, then await and compare what is left."""
        if self.program.scopes == 1:
            for step in self.program.steps:
                await self.step(self.s, step)
        else:
            await self._in_scopes()
        for number in sorted(self.handles):
            await self.check(number, self.handles.pop(number))
        for array, copy in self.kept:
            assert (await _on_host(array)).tobytes() == copy.tobytes(), "an awaited array changed"
        self.kept.clear()

    async def _in_scopes(self) -> None:
        """Each scope's steps are taken by a coroutine of its own, in the order of the program."""
        turns = [asyncio.Event() for _ in self.program.steps] + [asyncio.Event()]
        turns[0].set()

        async def worker(mine: int) -> None:
            async with self.s.scope(name=f"scope {mine}") as scope:
                for i, step in enumerate(self.program.steps):
                    if step.scope == mine:
                        await turns[i].wait()
                        try:
                            await self.step(scope, step)
                        finally:
                            turns[i + 1].set()

        results = await asyncio.gather(*[worker(i) for i in range(self.program.scopes)], return_exceptions=True)
        for error in results:
            if error is not None:
                _only_booms(error)

    async def step(self, target: Any, step: Step) -> None:
        """Take one step."""
        out, handles = step.out, self.handles
        if step.kind == "put":
            handles[out] = await target.put(step.extra)
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
        if self.serial and step.kind not in ("drop", "cancel"):
            try:
                await self.s.barrier()
            except BaseExceptionGroup as group:
                _only_booms(group)

    async def _issue(self, target: Any, step: Step) -> Any:
        operands = [self.handles[i] for i in step.reads]
        if step.kind == "op":
            return OPS[step.extra][2](*operands)
        if step.kind == "assign":
            moved = self.handles.pop(step.reads[0])
            operands.clear()
            moved[..., :1] = 7
            return moved
        (x,) = operands
        if step.kind == "fail":
            return await target.submit(_boom, x, shape=(2, 2), dtype="float32", name="boom")
        return await target.submit(_reverse, [x], shape=x.shape, dtype=x.dtype)

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
        if keep:
            self.kept.append((array, host.copy()))


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


def _reverse(arrays: list[Array]) -> Array:
    (array,) = arrays
    assert not (isinstance(array, np.ndarray) and array.flags.writeable)
    return (array[::-1] if array.ndim else array).copy(order="K")


def _only_booms(error: BaseException) -> None:
    if isinstance(error, BaseExceptionGroup):
        for member in error.exceptions:
            _only_booms(member)
    elif not isinstance(error, Boom):
        raise error


async def run(program: Program, make: Callable[[], asc.Scheduler], *, serial: bool = False) -> asc.Statistics:
    """Run a program on a new scheduler; check both bounds, and that the ledgers read zero after it."""
    s = make()
    try:
        async with s:
            this = Run(program, s, serial=serial)
            await this.all()
            del this
            try:
                await s.barrier()
            except BaseExceptionGroup as group:
                _only_booms(group)
            statistics = s.statistics()
    except BaseExceptionGroup as group:
        _only_booms(group)
    engine = s._runtime.engine
    engine.validate()
    # Without the collector: what was raised is gone with its handles.
    assert engine.account.used == 0, f"{engine.account.used} bytes are still charged"
    assert statistics.tasks_pending == statistics.tasks_in_flight == 0
    assert statistics.max_bytes is None or statistics.peak_bytes <= statistics.max_bytes
    assert statistics.max_ops is None or statistics.peak_tasks_in_flight <= statistics.max_ops
    return statistics
