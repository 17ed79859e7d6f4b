"""The stages that work on the event loop: coroutine functions, `unbatch`, `take` where the source cannot count for it,
and `shuffle`.

Theory of operation of `unbatch` and `take`. A position has the numbers of the source's items. These do not tell which
parts of one item were received, nor how many items a filter let through. So both stages number what they give, as
places in a group, and the position keeps for each group which places were received (`Part`). A resumed stage goes by
that: it leaves out the parts that were received, or gives so many items less.

Behind a filter, a shuffle or an `unbatch` nobody knows how many items of the source a `take` needs. So it tells the
source when it has enough. Items that were read by then come to it all the same, and count as received.

Theory of operation of the shuffle. It holds the first `size` items that it has not given, in the order in which they
came, and gives one of them. The choice is a function of the seed and of the held items (the number of the newest, and
how many they are), and of nothing else. So the order of all items to come follows from *which* items were given. A
pipeline knows that anyway (`Position`). A resumed epoch, whose source leaves out the given items, thus goes on in the
order of an unbroken one: nothing is saved for it, and nothing is computed again. At each step either the newest item is
another, or, at the end, the items are fewer. So each step draws another number.

Alternatives. A choice by how many items were given needs that count in the position, since a filter may stand before
it. Most shuffles of this kind put the next item in the place of the one that was given. That saves moving some pointers
(1 us for 10,000 items), but then an item's place depends on all steps before, and a position would have to hold the
places. Behind a second shuffle the received items are not the first that this one gave, so its held items cannot be
told from them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable, Coroutine, Mapping
from contextvars import ContextVar, copy_context
from hashlib import blake2b
from typing import Any, TypeAlias

import anyio

from ..._arguments import TABLE_TO_ROWS, is_table
from ...runtime.threads import ended
from .functions import CallingStage, Function, listed
from .marks import PLAIN, marked
from .position import EPOCH, Part, Position, brief, last_of, newest_of
from .stages import DROPPED, Numbered, Stage

Variables: TypeAlias = list[tuple[ContextVar[Any], Any]]
_UNSET = object()
_NONE = Position()


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
            self._leave([call])
            del call
            if cancellations() or _changed(variables):
                return True
        return False


def _state() -> tuple[Variables, Callable[[], int]]:
    """The context variables of this task with their values, and the method that counts its cancellations."""
    task = asyncio.current_task()
    assert task is not None
    return list(copy_context().items()), task.cancelling


def _changed(variables: Variables) -> bool:
    """Whether this task's context has changed. Compares by identity: two contexts compare their values by `==`, which
    arrays do not answer by yes or no."""
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
    """A function that returns the item, or `DROPPED` if `function` returns a false value."""

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
    """A function that calls `function` again if that raises, as long as anybody wants the result."""

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


class UnbatchStage(Stage):
    """Gives the parts of each item, on the event loop."""

    async def run(self) -> None:
        out = self.out
        part_of: Any = None
        try:
            while await self.ready():
                origin, item = self.source.take()
                try:
                    count, part_of = parts_of(item)
                except BaseException as error:
                    self.fail(origin, error, brief(item))
                    return
                del item
                key = last_of(origin)
                received, has_room = self.skip.parts.get(key, _NONE), True
                for place in range(count):
                    if received.has(place):
                        continue
                    if not has_room and not out.try_reserve():
                        await out.reserve()
                    if self.error is not None:
                        return
                    try:
                        out.put(Part(origin, key, range(place, place + 1), count), marked(part_of(place), self.name))
                    except BaseException as error:  # of a class of the user's, or a file that is read by rows
                        self.fail(origin, error)
                        return
                    has_room = False
                part_of = None  # so that it holds no item while it waits for the next
                if has_room:
                    out.put(origin, DROPPED)
        finally:
            part_of = None  # a cancellation keeps this frame, until the garbage collector comes


class TakeStage(Stage):
    """Gives the first `most` items of an epoch, or of a whole block if it stands behind the `repeat`."""

    def __init__(self, most: int, number: int, *args: Any) -> None:
        super().__init__(*args)
        self._most = most
        self._number = number  # of the stage, from 1
        self._epoch = 0  # the number of the epoch in the block, from 1
        self.of_block: bool = True  # whether it counts the items of all epochs together: it stands behind the `repeat`
        self.enough: Callable[[], None] = lambda: None  # makes the source read no more

    async def run(self) -> None:
        out, source = self.out, self.source
        self._epoch += 1
        key = -self._number if self.of_block else self._epoch * EPOCH - self._number
        received = self.skip.parts.get(key, _NONE)
        place, left = 0, self._most - received.count
        while left > 0 and await self.ready():
            ((origin, item),) = source.take_some(1)
            while received.has(place):
                place += 1
            out.put(Part(origin, key, range(place, place + 1), 0), item)
            del item  # so that it holds nothing while it waits
            place, left = place + 1, left - 1
        if left > 0:
            return
        self.enough()
        if self.of_block:  # else the stages are used again, and an error of theirs counts
            out.end()
        while await source.arrived():
            out.drop(source.take_some(1)[0][0])
        if self.of_block:
            source.error = None  # of an item that nobody asked for


def parts_of(item: Any) -> tuple[int, Callable[[int], Any]]:
    """How many items were batched in this one, and a function that gives them: what `collate` undoes.

    >>> count, part_of = parts_of({"x": [1, 2], "y": ["a", "b"]})
    >>> [part_of(place) for place in range(count)]
    [{'x': 1, 'y': 'a'}, {'x': 2, 'y': 'b'}]
    """
    if isinstance(item, Mapping):
        count, values_of = _in_step([*item.values()])
        return count, lambda place: dict(zip(item, values_of(place), strict=True))
    if isinstance(item, tuple):
        count, values_of = _in_step(item)
        named = hasattr(item, "_fields")
        return count, lambda place: type(item)(*values_of(place)) if named else tuple(values_of(place))
    if is_table(item):
        raise TypeError(f"{type(item).__name__} is no batch of items, but a table: give its rows, {TABLE_TO_ROWS}")
    if isinstance(item, list) or getattr(item, "shape", None):
        return len(item), getattr(item, "iloc", item).__getitem__  # of pandas, whose columns are read by their labels
    raise TypeError(
        f"`.unbatch()` takes arrays, lists, and tuples and dicts of these, not {type(item).__name__}: with"
        " `.flat_map(fn)` a function gives the items"
    )


def _in_step(fields: Any) -> tuple[int, Callable[[int], list[Any]]]:
    """As `parts_of`, for several batches of equally many items: each place has a part of each."""
    found = [parts_of(field) for field in fields]
    counts = {count for count, _ in found}
    if len(counts) > 1:
        raise ValueError(f"all fields of an item must have equally many parts, not {sorted(counts)}")
    return max(counts, default=0), lambda place: [part_of(place) for _, part_of in found]


class ShuffleStage(Stage):
    """Gives one of `size` items, on the event loop."""

    def __init__(self, size: int, seed: int, *args: Any) -> None:
        super().__init__(*args)
        self.held = size
        self._seed = seed
        self._items: list[Numbered] = []

    async def run(self) -> None:
        items, out = self._items, self.out
        try:
            while True:
                if not out.try_reserve():
                    await out.reserve()
                if not await self._filled():
                    break
                behind, newest = newest_of(items[-1][0])
                out.put(*items.pop(choice(self._seed, self.epoch + behind, newest, len(items))))
        finally:
            items.clear()

    async def _filled(self) -> bool:
        """Whether there is an item to give: it holds `size` items, or no more come.

        After an error there is none, just as no batch is given then that is not full. A resumed epoch gives the items.
        """
        items, source = self._items, self.source
        while (lacking := self.held - len(items)) and (source.items or await source.arrived(lacking)):
            items += source.take_some(lacking)
        return bool(items) and (not lacking or source.error is None)


def choice(seed: int, epoch: int, newest: int, count: int) -> int:
    """A random number below `count`, the same for the same numbers on every machine.

    >>> [choice(0, 0, newest, 10) for newest in range(8)]
    [8, 9, 6, 6, 8, 6, 3, 5]
    """
    digest = blake2b(b"%d %d %d %d" % (seed, epoch, newest, count), digest_size=8).digest()
    return int.from_bytes(digest, "little") * count >> 64
