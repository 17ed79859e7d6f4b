"""A worker as a stream: a coroutine for each task sends it to Dask, and waits for its end.

Theory of operation. A task goes to Dask as soon as its inputs have gone there, not when they are done. Dask moves
results from worker to worker, and runs the next task without asking here. So a chain is sent ahead, up to the bounds,
and pays once for the way to Dask's scheduler and back. Three kinds of task wait here for the *end* of their inputs:

- those of a commit, which decides by whether all inputs are there (`Commit`);
- those that read another device's value, which has to be copied here first;
- views, which are no tasks of Dask, and end when their base does.

Dask has at most `most` tasks of a worker; other launched tasks wait here for a place. A task takes its place after its
inputs were sent, so a task with a place never waits for one without.

A task of Dask costs its scheduler and its worker a millisecond, and the next one some milliseconds more if it reads the
first. So several tasks of a stream that are launched in one turn of the event loop go as one call (and share a place)
in two cases, in which none of them has to wait because of that. (1) *A chain*: an operation whose result only the next
one reads, which waits for nothing else. Nobody else ever gets that result. (2) *Small ones*: quick operations with
small results, which wait only for each other. A call never waits for another one to which works may still be added, so
none waits for itself. Small results stay together on the worker until nobody holds any of them, and all are charged
until then, as the views of one array are. If one of them fails, which is rare, or Dask fails the whole task, the others
are called once more, each alone. Functions go together only if the user says so (`chunksize`), since they may take
long, may wait for each other, and would be called twice.

Dask runs tasks in the order in which they are sent, but a worker with several threads runs them side by side. So the
tasks of a stream do not end in order. The count of ended tasks, for which other devices' streams wait, counts up to the
oldest unfinished one.

In this process a `Remote` stands for an array on a worker. It is the array type of the device's memory (`DaskMemory`).
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

from .._core.audit import failure_above
from .._core.completions import Completions
from .._core.failure import Failure
from .._core.model import Lease, Task, Value, new_value
from .._core.ownership import sole
from ..devices import execution
from ..devices.contract import Counter, Point
from ..devices.memory import Memory
from ..errors import TaskCancelled
from ..ops.meta import Meta, meta
from ..ops.op import Op
from ..ops.program import ref
from ..runtime.threads import in_thread
from .connection import Call, Connection
from .work import Item, OnCard, Step, Work, failed_at, hold, is_captured, view_of

SMALL, MOST_TOGETHER = 1024, 32  # most bytes of a small result, and most results that go as one call; guesses
_SECONDS_PER_TASK = 1e-3  # a guess, until one of its name has ended
DEEPEST = 128  # with a chain of so many results behind it, a result is brought here and put anew


class DaskStream:
    """The tasks of one worker; or the copies in, which go to several workers in turn.

    Args:
        most: how many tasks Dask has at a time.
        chunksize: how many functions may go as one call.
    """

    def __init__(
        self, name: str, connection: Connection, memory: DaskMemory, workers: list[Any], most: int, chunksize: int = 1
    ) -> None:
        self.name = name
        self.worker: Any = workers[0]
        self.launched: int = 0
        self.finished: Counter = Counter()
        self.expected: float = 0.0  # seconds until it has done all launched tasks
        self._ran_dry = 0.0  # when its last task ended
        self._connection, self._memory, self._took = connection, memory, connection.took
        self._turns = itertools.cycle(workers)
        self._slots = asyncio.Semaphore(most)
        self._chunksize = chunksize if chunksize > 1 else 0
        self._ended: set[int] = set()  # ended tasks beyond the oldest unfinished one

    def launch(self, task: Task, waits: Sequence[Point]) -> int:
        self.launched += 1
        assert task.value is not None
        remote = task.value.block = Remote(next(self._turns))
        expected = self._took(task.name).mean or _SECONDS_PER_TASK
        self.expected += expected
        self._connection.launched()
        self._connection.keep(self._run(task, remote, waits, self.launched, expected))
        return self.launched

    async def _run(self, task: Task, remote: Remote, waits: Sequence[Point], number: int, expected: float) -> None:
        """Take a task from its launch to its end. An exception here is the task's failure."""
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
        for again in (False, True):
            before = None if again else self._before(task)
            async with self._slots if before is None else nullcontext():
                if self._not_wanted(task):
                    return
                call = await self._packed(task, remote, before, alone=again)
                error = await self._called(task, remote, call)
            await _all_over(task.inputs)  # Dask fails it for an input: that settles first
            if self._not_wanted(task):
                return
            # An error of Dask itself, about a dead worker say, belongs to no work if there are several.
            mine, number = failed_at(error, call.key, -1 if call.small and call.last else call.last)
            if error is None or (mine and number == remote.number):
                break
            if mine and not remote.kept:  # a later work failed: only that one reads the result, and it has the error
                error = None
                break
        if error is not None:  # not raised: a CancelledError means something else here, and a traceback holds the frame
            execution.fail(task, Failure.of(error, task.name, task.site))
        elif remote.kept:
            await self._finish(task, remote, call)

    async def _called(self, task: Task, remote: Remote, call: Call) -> BaseException | None:
        """Wait for the call of a task. Returns its error, if it failed."""
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
        self._took(task.name).add((now - max(sent, self._ran_dry)) / (call.last + 1))
        self._ran_dry = now
        return error

    def _before(self, task: Task) -> Call | None:
        """The call of this turn to which a task may be added, if there is one."""
        call = _feeding(task)
        if call is None and (small := self._connection.small.get(self._alike(task))) is not None:
            alike = small.last < small.most - 1 and small.tasks[0].scope.account is task.scope.account
            call = small if alike and self._most(task, small) else None
        return call

    def _alike(self, task: Task) -> tuple[Any, bool]:
        """The kind of tasks that may share a call: an operation must not wait for a function."""
        return self, isinstance(task.call, Op)

    def _most(self, task: Task, call: Call | None) -> int:
        """The most works of a small call that a task may be in; 0 if it may be in none."""
        most = MOST_TOGETHER if isinstance(task.call, Op) else self._chunksize
        return most if most and _small(task, call) else 0

    async def _packed(self, task: Task, remote: Remote, before: Call | None, *, alone: bool) -> Call:
        """Submit a task whose operands were submitted: as a new call, or as the next work of a call.

        `alone`: no other task may join the new call."""
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
            most = 0 if alone else self._most(task, None)
            call = self._connection.submit(task.name, remote.home, work, operands, task, most)
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
        """Whether it was cancelled, or an input failed, which is its failure then."""
        upstream = failure_above(task.inputs)
        if upstream is not None:
            execution.fail(task, upstream.passed_to(task.name, task.site))
        return upstream is not None or task.failure is not None

    async def _finish(self, task: Task, remote: Remote, call: Call) -> None:
        """Give the value its `Remote` or array, and the task its refund."""
        value = task.value
        assert value is not None
        connection, nbytes = self._connection, value.nbytes
        if value.meta is None:  # as declared, or as its worker measured it
            nbytes = (task.options and task.options["unmeasured"]) or await connection.nbytes(call)
        elif not value.meta.known:
            shape, dtype, contiguous, nbytes = await connection.described(call)
            remote.form = meta(tuple(shape), dtype, contiguous)
        if task.failure is not None:  # cancelled meanwhile
            return
        remote.nbytes = nbytes
        if remote.depth >= DEEPEST:  # it is put anew, so that Dask forgets its inputs
            found = view_of(await connection.gathered(call), remote.views)
            work = Work(hold, (ref(0),), {}, (0,), ((),), gpu=connection.gpu)
            call = connection.submit(task.name, remote.home, work, [found])
            if (error := await connection.outcome(call)) is not None:
                raise error
            remote.call, remote.number, remote.views, remote.depth = call, 0, (), 0
        execution.finish(task, value, remote, nbytes)
        if call.small:  # the others stay on the worker as long as it does
            owner = call.owner = call.owner or new_value(value.account, value.device, None)
            value.base, value.charge = Lease(owner), 0
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
    """The `Remote`s of those values whose tasks are not known to have ended."""
    return [value.block for value in values if isinstance(value.block, Remote)]


async def _all_over(values: Sequence[Value]) -> None:
    """Wait until the tasks of all of these have ended."""
    for remote in _remote(values):
        await remote.over.wait()


# -- calls ------------------------------------------------------------------------------------------------------------


def _feeding(task: Task) -> Call | None:
    """The call of the only value for which a task waits, if nobody else reads that value, and the call was not sent.

    The task may join that call: by itself it would begin no sooner.
    """
    inputs = task.inputs
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
    return call if sole(inputs[place], len(waits)) else None


def _small(task: Task, call: Call | None) -> bool:
    """Whether a task may be in a small call: in `call`, or in a new one if that is None.

    Its result must be small, and it must wait only for this call, or for calls to which no more works are added. An
    operation must take less time than the way there, must not fail by its data, and must not wait for a function.
    """
    op, value, plan = task.call, task.value, task.plan
    if isinstance(op, Op) and (not op.out or op.checks or is_captured(op) or not plan.quick):
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
    """Shape and dtype of its result, if known."""
    found = None if task.value is None else task.value.meta
    return None if found is None else (found.shape, found.dtype)


def _view_made(task: Task) -> Step | None:
    """The view that a task makes, if it is one of known shape of an array on a worker."""
    value, op = task.value, task.call
    if value is None or value.base is None or not value.meta.known or not isinstance(op, Op) or not op.view:
        return None
    known = len(task.inputs) == 1 and isinstance(standing(task.inputs[0]), Remote)
    return Step(op, task.args, task.options or {}) if known and task.move is None else None


async def _operand(value: Value) -> Any:
    """The `Remote` or array of a value. The value of another device is copied here first."""
    found = standing(value)
    if isinstance(found, Remote) or value.device.remote or value.device.inline:
        return found
    return await in_thread(partial(value.device.fetch, found), "copies out")


def _for_card(found: Any) -> Any:
    return OnCard(found) if isinstance(found, np.ndarray) else found


class Remote:
    """A result on a worker. It stays there as long as this is held, since this holds the future of Dask.

    A task's value has one from its launch on, as its `block`, so that others can be sent to Dask before the result is
    there. Once it is there, this is the value's `array`, too.

    Attributes:
        call: the call for Dask, once it is submitted.
        number: of the work in the call that makes this.
        views: the steps from Dask's result to this value, which may be a view of it.
        home: the worker where it is, or will be, as far as known: Dask may have moved it.
        nbytes: of Dask's result.
        depth: the length of the chain of results that Dask would compute again, if all were lost.
        form: with all lengths, once a result is there whose shape depends on data.
        sent: set when tasks that read it may be sent: `call` is there, or never will be.
        over: set when its task has ended.
    """

    __slots__ = ("call", "depth", "form", "home", "nbytes", "number", "over", "sent", "views")

    def __init__(self, home: Any) -> None:
        self.home: Any = home
        self.call: Call | None = None
        self.number: int = 0
        self.views: tuple[Step | Item, ...] = ()
        self.nbytes: int = 0
        self.depth: int = 0
        self.form: Meta | None = None
        self.sent: asyncio.Event = asyncio.Event()
        self.over: asyncio.Event = asyncio.Event()

    @property
    def kept(self) -> bool:
        """Whether it stays on the worker: if not, only the next work of its call reads it."""
        return self.call is None or self.call.small or self.number == self.call.last

    def become(self, other: Remote, step: Step) -> None:
        """Become a view of another result."""
        self.call, self.number, self.home = other.call, other.number, other.home
        self.nbytes, self.depth = other.nbytes, other.depth
        self.views = (*other.views, step)


def standing(value: Value) -> Any:
    """What stands for a value: of a cluster's, its `Remote`, also before it is done; else the array."""
    return value.block if value.array is None else value.array


class DaskMemory(Memory):
    """The memory of a cluster's workers. No array of it ever escapes, since arrays leave as copies."""

    xp: Any = np
    arrays: tuple[type, ...] = (Remote,)

    def __init__(self, completions: Completions, granule: int) -> None:
        super().__init__(completions)
        self.granule = granule

    def reclaim(self, value: Value) -> None:
        value.array = value.block = None  # safe on any thread: a dropped future tells Dask's client by its loop
