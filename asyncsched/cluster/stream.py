"""A worker as a stream: each task is sent to Dask, and its end waited for, by a coroutine of its own.

Theory of operation. A task goes to Dask as soon as what it reads has gone there, not when that is done: Dask brings
results from worker to worker, and runs what is next without asking here. So a chain is sent ahead, up to the bounds,
and the way to the scheduler and back is waited for once. Three kinds of task wait here for the *end* of what they read:

- those of a commit, which decides by whether all of that is there (`_core.commit`);
- those that read another device's value, which has to be copied here first;
- views, which are no task of Dask's at all, and end when their base does.

How many of a worker's tasks Dask knows of is bounded (`most`): the rest of those that are launched wait here. They take
their place after what they read was sent, so whoever has one never waits for somebody without.

Dask runs what it is sent in this order, but a worker with several threads side by side. So the tasks of a stream do not
end in order, and the count of those that ended, for which other devices' streams wait, goes on with the oldest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from time import perf_counter
from typing import Any, Protocol

from .._core.failure import Failure
from .._core.model import Task, Value, failure_above
from ..devices import execution
from ..devices.contract import Point
from ..devices.counter import Counter
from ..errors import TaskCancelled
from ..ops.meta import meta
from ..runtime.threads import in_thread
from .connection import Connection
from .durations import Durations
from .memory import DaskMemory, Remote, standing
from .packing import packed, view_made
from .work import Work


class Sender(Protocol):
    """What a stream needs of its device."""

    connection: Connection
    memory: DaskMemory
    durations: Durations

    @property
    def gpu(self) -> bool: ...

    def next_worker(self) -> Any: ...

    def send(self, name: str, work: Work, operands: Sequence[Any], worker: Any) -> Any: ...

    async def renewed(self, name: str, remote: Remote) -> Any: ...


class DaskStream:
    """The tasks of one worker; or, of no worker, those that put arrays: each on the next worker."""

    def __init__(self, name: str, device: Sender, worker: Any, most: int) -> None:
        self.name = name
        self.worker = worker
        self.launched = 0
        self.finished = Counter()
        self.expected = 0.0  # seconds until it has done what was launched
        self._ran_dry = 0.0  # when its last task ended
        self._device = device
        self._slots = asyncio.Semaphore(most)
        self._ended: set[int] = set()  # beyond the oldest that has not

    def launch(self, task: Task, waits: Sequence[Point]) -> int:
        self.launched += 1
        assert task.value is not None
        remote = task.value.block = Remote(self._device.next_worker() if self.worker is None else self.worker)
        expected = self._device.durations.expected(task.name)
        self.expected += expected
        self._device.connection.keep(self._run(task, remote, waits, self.launched, expected))
        return self.launched

    async def _run(self, task: Task, remote: Remote, waits: Sequence[Point], number: int, expected: float) -> None:
        """Take a task from its launch to its end. What it raises is the task's failure."""
        task.refund = task.cost
        try:
            for stream, count in waits:
                if not isinstance(stream, DaskStream):
                    await in_thread(partial(stream.finished.reach, count), "waits for another device")
            if task.move is not None:
                await _all_over(task.inputs)
            if task.move is None or execution.moves(task, task.move, self._device.memory):
                await self._compute(task, remote)
        except asyncio.CancelledError:  # the loop ends
            execution.fail(task, Failure.of(TaskCancelled(f"{task.name}: its loop ended"), task.name, task.site))
        except BaseException as error:
            execution.fail(task, Failure.of(error, task.name, task.site))
        self.expected -= expected
        self._end(task, remote, number)

    async def _compute(self, task: Task, remote: Remote) -> None:
        view = view_made(task)
        await (_all_over if view is not None else _all_sent)(task.inputs)
        if self._not_wanted(task):
            return
        if view is not None:
            assert task.value is not None
            remote.become(standing(task.inputs[0]), view)
            execution.finish(task, task.value, remote, 0)
            return
        async with self._slots:
            if self._not_wanted(task):
                return
            remote.depth = 1 + max([_depth(value) for value in task.inputs], default=0)
            work, operands = await packed(task, self._device.gpu)
            remote.future = self._device.send(task.name, work, operands, remote.home)
            remote.sent.set()
            observer, sent = self._device.memory.observer, perf_counter()
            if observer is not None:
                observer.body_began(task)
            error = await self._device.connection.outcome(remote.future)
            if task.cancelled:
                await self._device.connection.stopped()
            now = perf_counter()
            if observer is not None:
                observer.body_ended(task, sent, now)
            self._device.durations.took(task.name, now - max(sent, self._ran_dry))
            self._ran_dry = now
        await _all_over(task.inputs)  # Dask fails a task for what it reads: that is told first, though it may be late
        if self._not_wanted(task):
            return
        if error is not None:
            raise error
        await self._finish(task, remote)

    @staticmethod
    def _not_wanted(task: Task) -> bool:
        """Whether it was cancelled, or what it reads failed, which is its failure then."""
        upstream = failure_above(task.inputs)
        if upstream is not None:
            execution.fail(task, upstream.passed_to(task.name, task.site))
        return upstream is not None or task.failure is not None

    async def _finish(self, task: Task, remote: Remote) -> None:
        """Give the value what stands for it, and the task its refund."""
        value = task.value
        assert value is not None
        nbytes: int = value.nbytes
        if value.meta is None and task.options and task.options["unmeasured"]:
            nbytes = task.options["unmeasured"]  # as declared
        elif value.meta is None or not value.meta.known:
            shape, dtype, contiguous, nbytes = await self._device.connection.described(remote.future)
            if value.meta is not None:
                value.meta = meta(shape, dtype, contiguous)
        if task.failure is not None:  # cancelled meanwhile
            return
        remote.nbytes = nbytes
        remote.future = await self._device.renewed(task.name, remote)
        execution.finish(task, value, remote, nbytes)

    def _end(self, task: Task, remote: Remote, number: int) -> None:
        """In the order of the contract: drop references, count, report."""
        remote.sent.set()
        remote.over.set()
        execution.release(task)
        self._ended.add(number)
        while self.finished.count + 1 in self._ended:
            self._ended.discard(self.finished.count + 1)
            self.finished.step()
        completions = self._device.memory.completions
        if completions.completed(task, self.finished.count == self.launched):
            completions.notify()


async def _all_sent(values: Sequence[Value]) -> None:
    """Wait until all of these were sent to Dask, or never will be."""
    for value in values:
        if isinstance(value.block, Remote):
            await value.block.sent.wait()


async def _all_over(values: Sequence[Value]) -> None:
    """Wait until the tasks of all of these have ended."""
    for value in values:
        if isinstance(value.block, Remote):
            await value.block.over.wait()


def _depth(value: Value) -> int:
    found = standing(value)
    return found.depth if isinstance(found, Remote) else 0
