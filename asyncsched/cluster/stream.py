"""A worker as a stream: each task is sent to Dask, and its end waited for, by a coroutine of its own.

Theory of operation. A task goes to Dask as soon as what it reads has gone there, not when that is done: Dask brings
results from worker to worker, and runs what is next without asking here. So a chain is sent ahead, up to the bounds,
and the way to the scheduler and back is waited for once. Three kinds of task wait here for the *end* of what they read:

- those of a commit, which decides by whether all of that is there (`_core.commit`);
- those that read another device's value, which has to be copied here first;
- views, which are no task of Dask's at all, and end when their base does.

How many of a worker's tasks Dask knows of is bounded (`most`): the rest of those that are launched wait here. They take
their place after what they read was sent, so whoever has one never waits for somebody without.

A task of Dask's takes its scheduler and its worker a millisecond, and the next one milliseconds more if it reads that.
So several tasks of a stream, launched in one turn of the event loop, go as one call (and share a place) in two cases,
where nobody has to wait for it. (1) *A chain*: an operation whose result the next alone reads, which waits for nothing
else. That result never is anybody's. (2) *Small ones*: quick operations with little results, which wait for each other
alone: a call waits for no other to which something may be added, so none waits for itself. These stay together on the
worker until nobody holds one of them, and so long all are charged, as what the views of one array are. Where one fails,
which is rare with these, and where Dask fails a task for what was then done again, the others are called once more,
each alone. Functions are among these only where the user says so (`chunksize`): they may take long, wait for each
other, and be called twice then.

Dask runs what it is sent in this order, but a worker with several threads side by side. So the tasks of a stream do not
end in order, and the count of those that ended, for which other devices' streams wait, goes on with the oldest.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from .._core.failure import Failure
from .._core.model import Task, Value, failure_above, new_value
from .._core.refcounts import references
from ..devices import execution
from ..devices.contract import Point
from ..devices.counter import Counter
from ..errors import TaskCancelled
from ..ops.meta import meta
from ..ops.op import Op
from ..ops.program import ref
from ..runtime.threads import in_thread
from .card import OnCard
from .connection import Call, Connection
from .memory import DaskMemory, Remote, standing
from .work import Item, Step, Work, failed_at, hold, is_captured, view_of

SMALL, MOST_TOGETHER = 1024, 32  # bytes of a result, and results, that go as one; guesses
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
        chunksize: how many functions may go as one call.
    """

    def __init__(
        self,
        name: str,
        connection: Connection,
        memory: DaskMemory,
        durations: Durations,
        workers: Sequence[Any],
        most: int,
        chunksize: int = 1,
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
        self._chunksize = chunksize if chunksize > 1 else 0
        self._ended: set[int] = set()  # beyond the oldest that has not

    def launch(self, task: Task, waits: Sequence[Point]) -> int:
        self.launched += 1
        assert task.value is not None
        remote = task.value.block = Remote(next(self._turns))
        expected = self._durations.expected(task.name)
        self.expected += expected
        self._connection.launched()
        self._connection.keep(self._run(task, remote, waits, self.launched, expected))
        return self.launched

    async def _run(self, task: Task, remote: Remote, waits: Sequence[Point], number: int, expected: float) -> None:
        """Take a task from its launch to its end. What it raises is the task's failure."""
        task.refund = task.cost
        self._connection.begins(self, number)
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
        view = _view_made(task)
        for operand in _remote(task.inputs):
            await (operand.sent if view is None else operand.over).wait()
        if self._not_wanted(task):
            return
        if view is not None:
            assert task.value is not None
            remote.become(standing(task.inputs[0]), view)
            execution.finish(task, task.value, remote, 0)
            return
        for before in (self._before(task), None):
            async with self._slots if before is None else nullcontext():
                if self._not_wanted(task):
                    return
                call = await self._packed(task, remote, before)
                error = await self._called(task, remote, call)
            await _all_over(task.inputs)  # Dask fails it for what it reads: that is told first, though it may be late
            if self._not_wanted(task):
                return
            # What Dask itself raised, of a dead worker say, is no work's fault where there are several.
            mine, number = failed_at(error, call.key, -1 if call.small and call.last else call.last)
            if error is None or (mine and number == remote.number):
                break
            if mine and not remote.kept:  # it was there for the next alone, and that has failed
                error = None
                break
        if error is not None:
            raise error
        if remote.kept:
            await self._finish(task, remote, call)

    async def _called(self, task: Task, remote: Remote, call: Call) -> BaseException | None:
        """Wait for the call of a task. Returns why it failed, if it did."""
        remote.sent.set()
        self._connection.submitted(self, task.number)
        observer, sent = self._memory.observer, perf_counter()
        if observer is not None:
            observer.body_began(task)
        error = await self._connection.outcome(call)
        if task.cancelled:
            await self._connection.stopped()
        now = perf_counter()
        if observer is not None:
            observer.body_ended(task, sent, now)
        self._durations.took(task.name, (now - max(sent, self._ran_dry)) / (call.last + 1))
        self._ran_dry = now
        return error

    def _before(self, task: Task) -> Call | None:
        """The call of this turn that a task goes on with, if there is one."""
        call = _feeding(task)
        if call is None and (small := self._connection.small.get(self._alike(task))) is not None:
            alike = small.last < small.most - 1 and small.tasks[0].scope.account is task.scope.account
            call = small if alike and self._most(task, small) else None
        return call

    def _alike(self, task: Task) -> tuple[Any, bool]:
        """What a task must have in common with those of a call: an operation waits for no function."""
        return self, isinstance(task.call, Op)

    def _most(self, task: Task, call: Call | None) -> int:
        """How many tasks may go in a small call, this or a new one, that a task is in; 0 if it may not be in one."""
        most = MOST_TOGETHER if isinstance(task.call, Op) else self._chunksize
        return most if most and _small(task, call) else 0

    async def _packed(self, task: Task, remote: Remote, before: Call | None) -> Call:
        """Submit a task whose operands were submitted: as a call of its own, or as the next work of another."""
        gpu, operands = self._connection.gpu, [] if before is None else before.operands
        reads: list[int] = []
        views: list[tuple[Step | Item, ...]] = []
        depth = 1
        for value in task.inputs:
            found = await _operand(value)
            if isinstance(found, Remote):
                made = before is not None and found.call is before
                depth = max(depth, found.depth + (not made))
                reads.append(-1 - found.number if made else len(operands))
                views.append(() if made else found.views)
                operands += [] if made else [found.call]
            else:
                reads.append(len(operands))
                views.append(())
                operands.append(_for_card(found) if gpu else found)
        work = _work(task, tuple(reads), tuple(views), gpu)
        if before is None:
            call = self._connection.submit(task.name, remote.home, work, operands, task, self._most(task, None))
            if call.small:
                self._connection.small[self._alike(task)] = call
        else:
            call = before
            call.works.append(work)
            call.tasks = [*(call.tasks if call.small else ()), task]
            call.name, call.last = task.name, call.last + 1
        remote.call, remote.number, remote.depth = call, call.last, depth
        remote.views = (Item(call.last),) if call.small else ()
        return call

    @staticmethod
    def _not_wanted(task: Task) -> bool:
        """Whether it was cancelled, or what it reads failed, which is its failure then."""
        upstream = failure_above(task.inputs)
        if upstream is not None:
            execution.fail(task, upstream.passed_to(task.name, task.site))
        return upstream is not None or task.failure is not None

    async def _finish(self, task: Task, remote: Remote, call: Call) -> None:
        """Give the value what stands for it, and the task its refund."""
        value = task.value
        assert value is not None
        connection, nbytes = self._connection, value.nbytes
        if value.meta is None:  # as declared, or as its worker measured it
            nbytes = (task.options and task.options["unmeasured"]) or await connection.nbytes(call)
        elif not value.meta.known:
            shape, dtype, contiguous, nbytes = await connection.described(call)
            value.meta = meta(shape, dtype, contiguous)
        if task.failure is not None:  # cancelled meanwhile
            return
        remote.nbytes = nbytes
        if remote.depth >= DEEPEST:  # it is put anew, so that Dask forgets what it comes from
            found = view_of(await connection.gathered(call), remote.views)
            work = Work(hold, (ref(0),), {}, (0,), ((),), gpu=connection.gpu)
            call = connection.submit(task.name, remote.home, work, [found])
            if (error := await connection.outcome(call)) is not None:
                raise error
            remote.call, remote.number, remote.views, remote.depth = call, 0, (), 0
        execution.finish(task, value, remote, nbytes)
        if call.small:  # the others are there for as long as it is
            owner = call.owner = call.owner or new_value(value.account, value.device, None)
            value.base, value.charge = owner, 0
            owner.charge += nbytes
            owner.nbytes += nbytes

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


# -- what is sent -----------------------------------------------------------------------------------------------------


def _feeding(task: Task) -> Call | None:
    """The call of the value that a task waits for, if that is the only one, nobody else reads it, and Dask was not told
    of the call yet. No other stream would begin anything sooner."""
    inputs = task.inputs  # in no variables: references are counted
    waits = [i for i, value in enumerate(inputs) if not _there(value)]
    if not waits or any(inputs[i] is not inputs[waits[0]] for i in waits):
        return None
    place = waits[0]
    remote, producer, form = standing(inputs[place]), inputs[place].task, inputs[place].meta
    if producer is None or not isinstance(producer.call, Op) or producer.lane is not task.lane or not form.known:
        return None
    call = remote.call
    if call is None or call.sent.is_set() or call.small or call.tasks != [producer]:
        return None
    alone = references(inputs, place) == len(waits) + (inputs is not task.reads) + 1  # its own task has it, too
    return call if alone else None


def _small(task: Task, call: Call | None) -> bool:
    """Whether a task may be in a small call, this or a new one: it gives little, and waits for nothing but this call,
    and others to which nothing is added any more. An operation takes less than any way, does not fail for what it
    finds, and waits for no function."""
    op, value, plan = task.call, task.value, task.plan
    if isinstance(op, Op) and (not op.out or op.checks or is_captured(op) or not plan.small):
        return False
    if task.move is not None or value is None or value.meta is None or not value.meta.known or value.nbytes > SMALL:
        return False
    found = [standing(value) for value in task.inputs if not _there(value)]
    quick = isinstance(op, Op)
    return all(isinstance(one, Remote) and one.call is not None and _ends_soon(one.call, call, quick) for one in found)


def _ends_soon(read: Call, call: Call | None, quick: bool) -> bool:
    full = read.small and (read.sent.is_set() or read.last == read.most - 1)
    return read is call or (full and (read.quick or not quick))


def _there(value: Value) -> bool:
    """Whether a value may be read without waiting."""
    found = standing(value)
    return found.over.is_set() if isinstance(found, Remote) else value.device.remote or value.device.inline


def _work(task: Task, reads: tuple[int, ...], views: tuple[tuple[Step | Item, ...], ...], gpu: bool) -> Work:
    if not isinstance(task.call, Op):
        return Work(task.call, task.args, {}, reads, views, _form(task), gpu)
    args = task.args if task.args is None or not gpu else tuple([_for_card(a) for a in task.args])
    form = _form(task) if is_captured(task.call) else None
    return Work(task.call, args, task.options or {}, reads, views, form, gpu)


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
