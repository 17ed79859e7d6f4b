"""Compute batches, one after another, for as long as there are items."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, NoReturn

from ..._arguments import counted, is_coroutine_function, label_of
from ..._blocks import current_task, set_variable
from ..._core.callsite import call_site
from ..._core.model import CallPlan, Task
from ...devices.guests import call as call_guest
from ...errors import TaskCancelled, passable
from ...runtime.context import Ambient, ambient, find, innermost
from ...runtime.holders import place_of
from ...runtime.life import Life
from ...runtime.rates import Rate
from ..scope import Scope, Submitter
from .members import one_each
from .queue import STEP, Entry, Parts, Queue, late

Answered = tuple[list[Entry], list[Any]]


@dataclass(eq=False, repr=False)
class Runners:
    """The runners of a batcher, or the one runner of a stepper: each is a coroutine that forms a batch, computes it,
    and forms the next. They belong to the event loop that uses them first; once that loop is closed, to the next."""

    _fn: Callable[[list[Any]], Any]
    _queue: Queue
    _most: int  # how many live at a time
    _isolate: bool
    _reserve: int | None
    _scheduler: Submitter | None
    batches: int = 0
    retries: int = 0
    answered: int = 0
    largest: int = 0
    rate: Rate = field(default_factory=Rate)
    _since: float = 0.0  # when the rate was last measured, or work began
    _loop: asyncio.AbstractEventLoop | None = None

    def __post_init__(self) -> None:
        self.name: str = label_of(self._fn)
        self._plan = CallPlan(self.name)
        self._site = call_site(3)  # of its making: no line of the program submits a batch
        self._is_async = is_coroutine_function(self._fn)
        self._context = contextvars.copy_context()
        self._context.run(_leave_scopes)
        self._words = self._queue.words
        # Whether one scope lasts for all batches of a runner. Then the next batch is put on a stream in the turn of the
        # loop that delivers the last one, and readers of members' outputs read meanwhile. A coroutine function needs a
        # scope for each batch: the scope waits for tasks that the function did not await, and reports them. So does a
        # batcher: its callers need the turn of the loop that it takes to enter a scope, to ask for the next batch.
        self._goes_on = self._words is STEP and not self._is_async
        self._begin_anew()

    def bind(self) -> asyncio.AbstractEventLoop:
        """The running event loop, to which the runners belong from now on.

        Raises:
            RuntimeError: if they belong to another loop that is open, or if the function that they call is the caller.
        """
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            if self._loop is not None:
                if not self._loop.is_closed():
                    raise RuntimeError(
                        f"{self.name} belongs to the event loop that used it first, until that is closed: make one for"
                        " each loop; or from a thread of a server, such as that of a `def` endpoint, call it on the"
                        " server's loop by `anyio.from_thread.run(predict, x)`"
                    )
                self._queue.empty()  # nobody waits for items that may be left
                self._queue.pace.running.clear()
                self._begin_anew()
            self._loop = loop
        if self._is_async and asyncio.current_task() in {batch.task for batch in self._batches} - {None}:
            raise RuntimeError(
                f"{self.name} waits for its own next {self._words.batch}, which waits for it: it would never end."
                " Call what computes the result directly"
            )
        return loop

    def _begin_anew(self) -> None:
        """Forget all that a closed event loop has left."""
        self.computing: int = 0
        self._parts = Parts()
        # The runners that will look at the queue again. (The loop has only weak references to them.)
        self._tasks: set[asyncio.Task[None]] = set()
        # Members that wait for bytes, each with the asyncio task that then puts it into the queue.
        self.growing: dict[Entry, asyncio.Task[None]] = {}
        # The batches that are computed. Weak references: a batch holds items, and a search for their holders would end
        # here.
        self._batches: weakref.WeakSet[Batch] = weakref.WeakSet()

    def wake(self, loop: asyncio.AbstractEventLoop) -> None:
        """An item has joined the queue."""
        if len(self._tasks) == self._most:
            return
        if not self._tasks:
            self._since = monotonic()
        run, context = self._run(), self._context.copy()
        if self._scheduler is None:
            context.run(_leave_scopes, innermost())
        try:
            # Without keywords, which a task factory may not take.
            task = context.run(loop.create_task, run)
        except BaseException:
            run.close()
            raise
        task.set_name(f"{self._words.batches} of {self.name}")
        if not task.done():  # an eager one may be
            self._tasks.add(task)
            task.add_done_callback(self._gone)

    async def _run(self) -> None:
        batch = Batch(None)
        try:
            while self._queue or self._parts:
                async with Lasting() as lasting:
                    while self._queue or self._parts:
                        batch = Batch(self._parts.take(others_wait=bool(self._queue)))
                        await self._compute(batch, lasting)
        except BaseException:
            self._give_up(batch)
            raise
        finally:
            # In the step that found the queue empty, so the next item starts a runner
            self._tasks -= {current_task()}

    def _gone(self, task: asyncio.Task[None]) -> None:
        if task in self._tasks:  # it never began
            self._tasks.discard(task)
            self._give_up(Batch(None))

    def _give_up(self, batch: Batch) -> None:
        """A runner was broken off, say since the loop is ending: nobody must wait for it."""
        self._form(batch)
        items, left = batch.items, self._parts.empty()
        self.computing -= len(left)
        self._ended(batch, items)
        for waiting in (*items, *self._queue.empty(), *left):
            waiting.give_up()

    async def _compute(self, batch: Batch, lasting: Lasting) -> None:
        batch.made = monotonic()
        try:
            self._batches.add(batch)
            if not self._goes_on:
                name = f"{self._words.batch} of {self.name}"
                share = max(1, len(self._queue))  # one for each item that waits, as if each came without a batcher
                async with self._around().scope(name=name, reserve=self._reserve, weight=share) as scope:
                    wanted, results = await self._computed(batch, scope)
            else:
                if lasting.scope is None:
                    shared = self._around().scope(name=f"{self._words.batches} of {self.name}")
                    shared._takes_turn = False
                    lasting.scope = await lasting.enter_async_context(shared)
                wanted, results = await self._computed(batch, lasting.scope)
        except BaseException as error:  # some libraries raise their own, and callers wait for the batch
            self._form(batch)
            if _ends_the_loop(error, batch):
                raise
            self._failed(batch, error)
        else:
            self._deliver(batch, wanted, results)

    def _around(self) -> Submitter:
        """The scope or scheduler in which batches open their scopes. Its runtime is told that this answers callers."""
        runtime = find(self._scheduler)
        runtime.answerers.add(self)
        return self._scheduler if isinstance(self._scheduler, Scope) else Submitter(runtime)

    async def _computed(self, batch: Batch, scope: Scope) -> Answered:
        """Form a batch and compute it. Returns the items that were still wanted then, and their results."""
        self._form(batch)
        observer = scope._runtime.ledger.observer
        if observer is not None:
            observer.batch_formed(scope._entered(), len(batch.items), [entry.context for entry in batch.items])
        return await self._call(scope, batch)

    def answered_by(self) -> dict[int, set[asyncio.Task[Any]]]:
        """For a search for holders: the callers' futures by identity, each with the tasks that may answer it: all
        runners."""
        runners = set[asyncio.Task[Any]](self._tasks)
        in_batches = [entry for batch in self._batches for entry in batch.items or batch.part or ()]
        found = dict.fromkeys([*self._queue, *self._parts, *in_batches], runners)
        found |= {entry: {task} for entry, task in self.growing.items()}
        return {id(future): tasks for entry, tasks in found.items() if (future := entry.future) is not None}

    def bound(self) -> set[int]:
        """For a search for holders: those futures whose callers keep what they hold until the future is set. These are
        members: a caller of a batcher may leave while its batch is computed."""
        return {id(entry.future) for batch in self._batches for entry in batch.items if self._words is STEP}

    def explained(self) -> list[str]:
        """For `explain`: each batch that is computed, for how many, since when, and where a coroutine function
        waits."""
        now, told = monotonic(), []
        for batch in list(self._batches):
            if batch.began:
                whose, waits = counted(len(batch.items), self._words.item), batch.task
                where = "" if waits is None or waits.done() else f", and waits {place_of(waits)}"
                told.append(f"a {self._words.batch} of {self.name} has {whose} since {now - batch.began:.3g} s{where}")
        return told

    def unwanted(self) -> list[Task]:
        """The tasks of batches that are computed though all callers have left."""
        now, scopes = monotonic(), dict[Scope, None]()
        for batch in list(self._batches):
            if batch.began and batch.scope is not None and not any(entry.wanted(now) for entry in batch.items):
                scopes[batch.scope] = None
        return [task for scope in scopes for task in scope._running()]

    def _form(self, batch: Batch) -> None:
        """Choose the items of a batch, unless that was done. Called as late as possible."""
        if batch.formed:
            return
        batch.formed, now = True, monotonic()
        if batch.part is None:
            batch.items = self._queue.form(now)
            waits = [now - entry.arrived for entry in batch.items]
            self._queue.waited += sum(waits)
            if waits and self._queue.on_batch is not None:
                self._queue.on_batch(waits)
            self.computing += len(batch.items)
            self.largest = max(self.largest, len(batch.items))
            batch.cost = sum([entry.cost for entry in batch.items])
            self._queue.pace.running[id(batch)] = batch.cost, now
        else:
            part, batch.part = batch.part, []
            batch.items = [waiting for waiting in part if waiting.wanted(now)]
            dropped = [waiting for waiting in part if not waiting.wanted(now)]
            self._queue.dropped += len(dropped)
            self.computing -= len(dropped)
            for waiting in dropped:
                waiting.settle(late(self._words))

    async def _call(self, scope: Scope, batch: Batch) -> Answered:
        if not batch.items:
            return [], []
        batch.began, batch.scope = monotonic(), scope
        if self._is_async:
            batch.begun = True
            # In an asyncio task of its own: the context and the count of cancellations that it leaves behind are that
            # task's.
            batch.task = task = asyncio.create_task(self._called([waiting.item for waiting in batch.items]))
            task.set_name(f"{self._words.batch} of {self.name}")
            try:
                returned, error = await task
                if error is not None:
                    raise error
            finally:
                batch.task = error = None
                del task  # its traceback holds this frame
            return batch.items, one_each(returned, len(batch.items), self.name, self._words)

        def compute() -> Answered:
            return self._on_stream(batch)

        return await scope._call_again(compute, self._plan, self._site)

    async def _called(self, items: list[Any]) -> tuple[Any, BaseException | None]:
        """The result of an async function, or the exception that it raised, returned: some exceptions of a task end the
        event loop."""
        try:
            return await self._fn(items), None
        except GeneratorExit as error:
            return None, passable(error, f"{self.name} raised")
        except BaseException as error:
            return None, error

    def _on_stream(self, batch: Batch) -> Answered:
        """Compute the items that are still wanted. Runs on a stream's thread."""
        now = monotonic()
        wanted = [waiting for waiting in batch.items if waiting.wanted(now)]
        batch.begun = True
        returned = call_guest(self._fn, ([waiting.item for waiting in wanted],)) if wanted else []
        # Here and not on the loop: JAX compiles a program that takes an array apart.
        return wanted, one_each(returned, len(wanted), self.name, self._words)

    def _deliver(self, batch: Batch, wanted: list[Entry], results: list[Any]) -> None:
        self.answered += len(wanted)
        if wanted and batch.part is None:
            self._queue.pace.add(batch.cost, (now := monotonic()) - batch.made, now)
        for waiting in set(batch.items).difference(wanted) if len(wanted) < len(batch.items) else ():
            self._queue.dropped += 1
            waiting.settle(late(self._words))
        for waiting, result in zip(wanted, results, strict=True):
            waiting.settle(result)
        self._ended(batch, batch.items)

    def _failed(self, batch: Batch, error: BaseException) -> None:
        if self._isolate and batch.begun and len(batch.items) > 1 and issubclass(type(error), Exception):
            self._parts.cut(batch.items)
            self._ended(batch, [])
            with contextlib.suppress(Exception):  # a task factory's: this runner goes on by itself
                self.wake(asyncio.get_running_loop())
            return
        if issubclass(type(error), asyncio.CancelledError):
            error = TaskCancelled(f"{self.name}, which computes {self._words.batches}, ended in a CancelledError")
        self.answered += len(batch.items)
        for waiting in batch.items:
            waiting.settle(error)
        self._ended(batch, batch.items)

    def _ended(self, batch: Batch, settled: list[Entry]) -> None:
        """A batch has been computed, or has failed. Some of its items may have to be computed again."""
        now, batch.began, batch.scope = monotonic(), 0.0, None
        if batch.items and batch.part is None:
            self.batches += 1
        elif batch.items:
            self.retries += 1
        if settled:
            self.computing -= len(settled)
            self.rate.add(len(settled), now - self._since)
        if settled or not batch.items:
            self._since = now
        self._queue.pace.running.pop(id(batch), None)
        if batch.items and self._queue:
            self._queue.shed(now)
        batch.items = []


class Lasting(contextlib.AsyncExitStack):
    """The scope that the batches of a runner share, once one has opened it."""

    scope: Scope | None = None


@dataclass(slots=True, eq=False, weakref_slot=True)
class Batch:
    """Items that are computed at once: those of the queue, or a part of a batch that failed."""

    part: list[Entry] | None  # the part, which is empty once it is formed; None for items of the queue
    # The items, from when it is formed until it ends. The only list of them, since callers' exceptions hold the frames
    # of a runner.
    items: list[Entry] = field(default_factory=list)
    formed: bool = False
    cost: float = 0.0  # of the items of the queue
    made: float = 0.0  # when its turn came, before it waited for its reserve
    begun: bool = False  # the function was called: an exception from then on may be its own
    began: float = 0.0  # when it was handed to the function, or to a stream; 0 before that, and once it has ended
    scope: Scope | None = None  # its own, or that of the batches of a runner, while it is computed
    task: asyncio.Task[Any] | None = None  # in which a coroutine function runs

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "callers wait for it in this process: give a coroutine function that awaits `s.call(fn, items)`, which runs"
            " `fn` on a worker"
        )


def _leave_scopes(caller: Ambient | None = None) -> None:
    """Make the scheduler's root scope the ambient one: a batcher outlives the scope in which it was made.

    A batcher that was made outside of any scheduler (say, before a server opened its own) uses its caller's.
    """
    here = innermost()
    if here is None and caller is not None and caller.runtime.life is Life.OPEN:
        here = caller
    if here is not None:
        set_variable(ambient, Ambient(here.runtime, here.runtime.engine.root, None))


def _ends_the_loop(error: BaseException, batch: Batch) -> bool:
    """Whether the runner was cancelled or closed, or Ctrl-C came while none of the user's code ran."""
    if issubclass(type(error), asyncio.CancelledError):
        runner = asyncio.current_task()
        return runner is not None and runner.cancelling() > 0
    ended = issubclass(type(error), KeyboardInterrupt | SystemExit) and not batch.begun
    return ended or issubclass(type(error), GeneratorExit)
