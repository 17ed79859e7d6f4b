"""The stage that awaits a coroutine function on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable, Coroutine
from contextvars import ContextVar, copy_context
from typing import Any, TypeAlias

import anyio

from ...runtime.threads import ended
from .functions import CallingStage, Function, listed
from .marks import PLAIN, marked
from .position import brief
from .stages import DROPPED, Stage

Variables: TypeAlias = list[tuple[ContextVar[Any], Any]]
_UNSET = object()


class LoopStage(CallingStage):
    """A coroutine function, awaited by as many tasks as there are workers.

    If a call changes the context of its asyncio task, or its count of cancellations, the next item must not see that:
    then the worker goes on in a new task. A task for each item would cost more than most items do.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        function, verb, retry, _ = self.called
        if verb == "filter":
            function = _keeps_later(function)
        elif verb == "flat_map":
            function = _listed_later(function, self.name)
        self.function: Function = _tries_later(function, retry, self) if retry else function

    async def run(self) -> None:
        work = self._work_in_order if self.ordered and self.workers > 1 else self._work
        try:
            async with anyio.create_task_group() as group:
                for _ in range(self.workers):
                    group.start_soon(run_apart, self, work)
        finally:
            self._entered.clear()  # what nobody took, where the stage was left

    async def _work(self) -> bool:
        """One worker of a stage without order. It is the most frequent path, so `ready` is written out here."""
        source, out, function = self.source, self.out, self.function
        variables, cancellations = _state()
        items = source.items
        while self.error is None:
            if out.room > 0:
                out.room -= 1
            else:
                await out.reserve()
            if not items and not await source.arrived():
                out.unreserve()
                break
            origin, item = source.take()
            try:
                item = await function(item)
                out.put(origin, item if type(item) in PLAIN else marked(item, self.name))
            except BaseException as error:
                if not self.leaves_out(origin, error, brief(item)):
                    self.fail(origin, error, brief(item))
                    break
                out.put(origin, DROPPED)
            del item  # while it waits, a worker holds nothing
            if cancellations() or _changed(variables):
                return True
        return False

    async def _work_in_order(self) -> bool:
        variables, cancellations = _state()
        while await self.ready():
            (call,) = self._enter([self.source.take()])
            try:
                call.item = marked(await self.function(call.item), self.name)
            except BaseException as error:
                call.item, call.error = brief(call.item), error
            self._leave(call)
            self._pass_on_in_order()
            del call
            if cancellations() or _changed(variables):
                return True
        return False


def _state() -> tuple[Variables, Callable[[], int]]:
    """The context variables of this task, and the method that counts its cancellations."""
    task = asyncio.current_task()
    assert task is not None
    return list(copy_context().items()), task.cancelling


def _changed(variables: Variables) -> bool:
    """Whether this task's context has changed. Two contexts would ask their values whether they are equal, which arrays
    cannot say."""
    context = copy_context()
    if len(context) != len(variables):
        return True
    for variable, value in variables:  # noqa: SIM110  # a generator takes twice the time
        if context.get(variable, _UNSET) is not value:
            return True
    return False


async def run_apart(stage: Stage, work: Callable[[], Coroutine[Any, Any, bool]]) -> None:
    """Run a function that awaits a user's coroutines. While it returns True, run it again in a new asyncio task.

    If this is cancelled, cancel it once and wait for it, as asyncio does. A cancelled scope of anyio would cancel
    it again at each `await`, even in a `finally`. A source that is being closed is not cancelled any more.
    """
    go_on = True
    while go_on:
        task = asyncio.create_task(work())
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            stage.fail((), error)  # in case a user's coroutine goes on all the same
            stage.abandoned = True
            if not stage.closing:
                task.cancel()
            await ended(task)
            raise
        if task.cancelled():  # by somebody else
            stage.fail((), asyncio.CancelledError())
            return
        if (raised := task.exception()) is not None:  # told before the other workers are cancelled for it
            stage.fail((), raised)
        go_on = task.result()


def _keeps_later(function: Function) -> Function:
    """A function that gives the item, or `DROPPED` if `function` returns false."""

    async def kept(item: Any) -> Any:
        return item if await function(item) else DROPPED

    return kept


def _listed_later(function: Function, stage: str) -> Function:
    """A function that lists what `function` gives: a coroutine, or an async generator."""

    async def given(item: Any) -> list[Any]:
        found = function(item)
        if isinstance(found, AsyncIterable):
            return [marked(part, stage) async for part in found]
        return listed(await found, stage)

    return given


def _tries_later(function: Function, retry: int, stage: Stage) -> Function:
    """A function that is called again where it raises, while anybody wants its result."""

    async def tried(item: Any) -> Any:
        left = retry
        while True:
            try:
                return await function(item)
            except Exception:
                if not left or stage.abandoned:
                    raise
                left -= 1

    return tried
