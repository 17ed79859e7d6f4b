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
import itertools
from collections.abc import Sequence
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from .._core.failure import Failure
from .._core.model import Task, Value, failure_above
from ..devices import execution
from ..devices.contract import Point
from ..devices.counter import Counter
from ..errors import TaskCancelled
from ..ops.meta import meta
from ..ops.op import Op
from ..runtime.threads import in_thread
from .card import OnCard
from .connection import Connection
from .memory import DaskMemory, Remote, standing
from .work import Step, Work, hold, is_captured, perform

DEEPEST = 128  # results that one comes from, the longest way: then it is brought here and put anew
_SECONDS_PER_TASK = 1e-3  # a guess
_LATEST = 0.3  # the part of the last task of a name in what the next is expected to take
_NAMES = 4096


class Durations:
    """How long the tasks of one cluster take on their workers, by name."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    def expected(self, name: str) -> float:
        """Seconds that a task of this name takes on its worker."""
        return self._seconds.get(name, _SECONDS_PER_TASK)

    def took(self, name: str, seconds: float) -> None:
        """Note that a task of this name took so long, the way there and back included."""
        if len(self._seconds) >= _NAMES:
            self._seconds.clear()
        self._seconds[name] = seconds * _LATEST + self._seconds.get(name, seconds) * (1 - _LATEST)


class DaskStream:
    """The tasks of one worker; or of several, in turn: those that put arrays.

    Args:
        durations: of the tasks of the whole cluster.
        most: how many tasks Dask is told of at a time.
    """

    def __init__(
        self,
        name: str,
        connection: Connection,
        memory: DaskMemory,
        durations: Durations,
        workers: Sequence[Any],
        most: int,
    ) -> None:
        self.name = name
        self.worker: Any = workers[0]
        self.launched: int = 0
        self.finished: Counter = Counter()
        self.expected: float = 0.0  # seconds until it has done what was launched
        self._ran_dry = 0.0  # when its last task ended
        self._connection, self._memory, self._durations = connection, memory, durations
        self._turns = itertools.cycle(workers)
        self._slots = asyncio.Semaphore(most)
        self._ended: set[int] = set()  # beyond the oldest that has not

    def launch(self, task: Task, waits: Sequence[Point]) -> int:
        self.launched += 1
        assert task.value is not None
        remote = task.value.block = Remote(next(self._turns))
        expected = self._durations.expected(task.name)
        self.expected += expected
        self._connection.keep(self._run(task, remote, waits, self.launched, expected))
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
            if task.move is None or execution.moves(task, task.move, self._memory):
                await self._compute(task, remote)
        except asyncio.CancelledError:  # the loop ends
            execution.fail(task, Failure.of(TaskCancelled(f"{task.name}: its loop ended"), task.name, task.site))
        except BaseException as error:
            execution.fail(task, Failure.of(error, task.name, task.site))
        self.expected -= expected
        self._end(task, remote, number)

    async def _compute(self, task: Task, remote: Remote) -> None:
        connection, view = self._connection, _view_made(task)
        for operand in _remote(task.inputs):
            await (operand.sent if view is None else operand.over).wait()
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
            work, operands = await _packed(task, connection.gpu)
            remote.future = connection.submit(task.name, remote.home, perform, work, *operands)
            remote.sent.set()
            observer, sent = self._memory.observer, perf_counter()
            if observer is not None:
                observer.body_began(task)
            error = await connection.outcome(remote.future)
            if task.cancelled:
                await connection.stopped()
            now = perf_counter()
            if observer is not None:
                observer.body_ended(task, sent, now)
            self._durations.took(task.name, now - max(sent, self._ran_dry))
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
            shape, dtype, contiguous, nbytes = await self._connection.described(remote.future)
            if value.meta is not None:
                value.meta = meta(shape, dtype, contiguous)
        if task.failure is not None:  # cancelled meanwhile
            return
        remote.nbytes = nbytes
        if remote.depth >= DEEPEST:  # it is put anew, so that Dask forgets what it comes from
            found = await self._connection.gathered(remote.future)
            anew = self._connection.submit(task.name, remote.home, hold, found)
            if (error := await self._connection.outcome(anew)) is not None:
                raise error
            remote.future, remote.depth = anew, 0
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
        completions = self._memory.completions
        if completions.completed(task, self.finished.count == self.launched):
            completions.notify()


def _remote(values: Sequence[Value]) -> list[Remote]:
    """What stands for those of the cluster whose tasks are not known to have ended."""
    return [value.block for value in values if isinstance(value.block, Remote)]


async def _all_over(values: Sequence[Value]) -> None:
    """Wait until the tasks of all of these have ended."""
    for remote in _remote(values):
        await remote.over.wait()


def _depth(value: Value) -> int:
    found = standing(value)
    return found.depth if isinstance(found, Remote) else 0


# -- what is sent -----------------------------------------------------------------------------------------------------


async def _packed(task: Task, gpu: bool) -> tuple[Work, list[Any]]:
    """The work of a task whose operands were sent, and those: Dask's futures, and arrays that are here."""
    found = [await _operand(value) for value in task.inputs]
    views = tuple([one.views if isinstance(one, Remote) else () for one in found])
    operands = [one.future if isinstance(one, Remote) else _for_card(one) if gpu else one for one in found]
    if isinstance(task.call, Op):
        args = task.args if task.args is None or not gpu else tuple([_for_card(a) for a in task.args])
        form = _form(task) if is_captured(task.call) else None
        return Work(task.call, args, task.options or {}, views, form, gpu), operands
    return Work(task.call, task.args, {}, views, _form(task), gpu), operands


def _form(task: Task) -> Any:
    """Shape and dtype of what it is to give, if that is known."""
    found = None if task.value is None else task.value.meta
    return None if found is None else (found.shape, found.dtype)


def _view_made(task: Task) -> Step | None:
    """The view that a task makes, if it is a view of known shape of something on a worker."""
    value, op = task.value, task.call
    if value is None or value.base is None or not value.meta.known or not isinstance(op, Op) or not op.view:
        return None
    known = len(task.inputs) == 1 and isinstance(standing(task.inputs[0]), Remote)
    return Step(op, task.args, task.options or {}) if known and task.move is None else None


async def _operand(value: Value) -> Any:
    """What stands for a value; of another device's an array, which is copied here first."""
    found = standing(value)
    if isinstance(found, Remote) or value.device.remote or value.device.inline:
        return found
    return await in_thread(partial(value.device.fetch, found), "copies out")


def _for_card(found: Any) -> Any:
    return OnCard(found) if isinstance(found, np.ndarray) else found
