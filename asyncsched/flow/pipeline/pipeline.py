"""From a source to the device, stage by stage, each ahead of the next by no more than it has room for."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Mapping
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Protocol, SupportsIndex, TypeVar, overload

from ..._arguments import (
    check_int,
    check_pickles,
    check_plain,
    is_async_generator_function,
    is_coroutine_function,
    is_generator_function,
    parse_bytes,
)  # fmt: skip
from ..._instead import PIPELINE, naming_arguments, no_attribute
from ...runtime.runtime import Runtime
from ...tensors.handles import Handle
from .device_stage import DeviceStage
from .epoch import NOT_OPENED, Items, PipelineStatistics
from .functions import BatchStage, Called, ThreadStage
from .loop_stages import LoopStage, ShuffleStage, TakeStage, UnbatchStage
from .order import Shard, by_index, check_order, check_rows, is_iterable, is_iterator, unzipped, zipped
from .plan import BUFFER, Plan, StagePlan, unknown_after
from .position import Position, Progress
from .processes import ProcessStage

T = TypeVar("T")
U = TypeVar("U")
T_co = TypeVar("T_co", covariant=True)


class Indexed(Protocol[T_co]):
    """A source with a length and items by index, as PyTorch's datasets have."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> T_co: ...


Indices = Indexed[SupportsIndex] | Iterable[SupportsIndex]
Order = Indices | Callable[[int], Indices]
Readable = Iterable[T] | AsyncIterable[T] | Indexed[T]
Source = Readable[T] | Callable[[int], Readable[T]]
Skip = type[Exception] | tuple[type[Exception], ...]

_ONCE = (
    "the source is an iterator, which can be read once: pass an iterable that can be read again, or a function of the"
    " epoch's number that makes one"
)
ROWS = 1024  # parts of an item that may wait: they are there before it is unbatched


class Pipeline(Generic[T]):
    """Reads, maps, batches and moves items ahead of a consumer. Made by `s.pipeline(source)`.

    Each method gives a new pipeline with one stage more. `async with pipe.open() as items` runs one epoch. An exception
    of the source or a function is raised where the consumer takes items, after the items before it. Its note has the
    stage, the item's number, and the item, if that is a name or a number. Then the epoch is over.

    >>> import asyncio, asyncsched as asc
    >>> async def main():
    ...     async with asc.Scheduler("cpu") as s:
    ...         pipe = s.pipeline(range(6)).map(lambda i: i / 2, workers=2).batch(3).to_device()
    ...         async with pipe.open() as batches:
    ...             async for batch in batches:
    ...                 print(await (batch * 10).numpy())
    >>> asyncio.run(main())
    [ 0.  5. 10.]
    [15. 20. 25.]
    """

    def __init__(self, runtime: Runtime, plan: Plan) -> None:
        self._runtime = runtime
        self._plan = plan
        self._last: Items[T] | None = None  # the epoch that is open, or was the last

    @cached_property
    def _progress(self) -> Progress:
        return Progress(self._plan.epochs, self._runtime.optimizers)

    def __repr__(self) -> str:
        of = [getattr(source, "__name__", type(source).__name__) for source in unzipped([self._plan.source])]
        return f"Pipeline({', '.join([', zip '.join(of), *self._plan.labels()])})"

    def __len__(self) -> int:
        """How many items an epoch gives, from its beginning.

        Raises TypeError if that is not known: after a filter, and if the source has no length (a generator) or is a
        function of the epoch. `len(items)`, of the iterator that `open()` gives, is how many are still to come.
        """
        return self._plan.length(self._plan.readable(self._progress.next().epoch), Position())

    def __bool__(self) -> bool:
        return True  # or it would ask for a length, which may be unknown

    if not TYPE_CHECKING:  # with these, type checkers would find any name, and take this for iterable

        def __aiter__(self) -> NoReturn:
            raise TypeError(
                "read a pipeline in a block, at the end of which its threads end: `async with pipe.open() as items:`,"
                " and in it `async for item in items:`"
            )

        __iter__ = __aenter__ = __aexit__ = __aiter__

        def __getattr__(self, name: str) -> Any:
            raise no_attribute("'Pipeline' object", name, PIPELINE, type(self))

    @overload
    def map(
        self, fn: Callable[[T], Awaitable[U]], *, workers: int = 1, ordered: bool = True, buffer: int | str = BUFFER,
        retry: int = 0, skip: Skip = (),
    ) -> Pipeline[U]: ...  # fmt: skip
    @overload
    def map(
        self, fn: Callable[[T], U], *, workers: int = 1, ordered: bool = True, processes: bool = False,
        buffer: int | str = BUFFER, retry: int = 0, skip: Skip = (),
    ) -> Pipeline[U]: ...  # fmt: skip
    @naming_arguments
    def map(
        self, fn: Callable[[Any], Any], *, workers: int = 1, ordered: bool = True, processes: bool = False,
        buffer: int | str = BUFFER, retry: int = 0, skip: Skip = (),
    ) -> Pipeline[Any]:  # fmt: skip
        """Apply a function to each item. None is an item like any other.

        A coroutine function runs on the event loop, a plain one in threads, or in processes that each epoch starts (the
        "spawn" method) and ends. On Linux these threads and processes yield to the streams: they are nicer by 5 than
        the loop's thread.

        Args:
            fn: takes an item, returns an item. In processes, both it and the items must be picklable. It gives a new
                array each time, since results wait for the next stage: `buffer.copy()`, if it fills one buffer. An
                array of NumPy that is found to have been written to while it waited raises RuntimeError.
            workers: how many items are worked on at once.
            ordered: whether results keep the order of the items. If not, they come in the order in which they are done.
            processes: run a plain function in processes. Each imports the main module, so start the program below
                `if __name__ == "__main__":` there. Otherwise each process runs it again.
            buffer: how many finished items may wait for the next stage, besides those that are worked on. The
                scheduler's limit on bytes does not hold for them. If they are large, give a size, as "64 MiB": then
                as many may wait or be worked on as fit in it by the largest so far, on either side of `fn`. It is one
                at least, and `workers` and 16 at most. Bytes are those of arrays and whatever has `nbytes`, of text and
                bytes, also in tuples, lists and dicts.
            retry: how often `fn` is called again, at once, for an item for which it raises an Exception. A `fn` that
                asks a service is to wait by itself.
            skip: classes of exceptions, as `OSError` or `(OSError, ValueError)`: an item for which `fn` raises one,
                also when it was called again, is left out. The first is logged as a warning; `statistics()` counts all
                of them, and has the last 16 with their errors. With `BrokenProcessPool` a process that dies costs one
                item.

        Raises:
            TypeError: for a generator function: `.flat_map(fn)` gives what its generators yield.
        """
        return self._stage(_calls("map", fn, workers, ordered, processes, buffer, retry, skip))

    @naming_arguments
    def filter(
        self, fn: Callable[[T], Awaitable[object] | object], *, workers: int = 1, ordered: bool = True,
        processes: bool = False, buffer: int | str = BUFFER,
    ) -> Pipeline[T]:  # fmt: skip
        """Leave out the items for which `fn` returns a false value. None is no function here.

        `fn` runs as that of `map`, with the same options. An item that is left out counts as received with the next
        item that is kept. So a resumed pipeline asks `fn` again about the items behind the last one that was received.

        >>> import asyncio, asyncsched as asc
        >>> async def main():
        ...     async with asc.Scheduler("cpu") as s:
        ...         async with s.pipeline(range(10)).filter(lambda i: i % 3 == 0).open() as items:
        ...             print([item async for item in items])
        >>> asyncio.run(main())
        [0, 3, 6, 9]
        """
        return self._stage(_calls("filter", fn, workers, ordered, processes, buffer))

    @overload
    def batch(self, size: int, *, collate: Callable[[list[T]], U], drop_last: bool = False) -> Pipeline[U]: ...
    @overload
    def batch(self, size: int, *, collate: None = None, drop_last: bool = False) -> Pipeline[Any]: ...
    @naming_arguments
    def batch(self, size: int, *, collate: Callable[[list[T]], Any] | None = None, drop_last: bool = False) -> Any:
        """Make one item of `size` items, in a thread. One batch is made while another waits.

        Args:
            size: items per batch.
            collate: makes a batch of a list of items. By default arrays, numbers and PyTorch's tensors are stacked
                along a new first axis, each field of tuples and mappings by itself; anything else stays a list. Those
                of a large batch are copied into it as they come, which takes less memory.
            drop_last: leave out a last batch that is not full.
        """
        check_int("size", size)
        if is_coroutine_function(collate):
            raise TypeError("collate must be a plain function: add a `.map` for a coroutine function")
        check_plain("collate=", collate)

        def length(items: int) -> int:
            return items // size if drop_last else -(-items // size)

        make = partial(BatchStage, collate, size, drop_last)
        return self._stage(StagePlan(f"batch {size}", 2, make, length, size.__mul__))

    @naming_arguments
    def shard(self, index: int, count: int, *, drop_last: bool = False) -> Pipeline[T]:
        """Read only every `count`-th item, from `index` on: the share of one of `count` processes.

        Each item is in one share, if all processes have the same order: give `order=` the same seed. It has to be the
        first stage, so that items are read by index in one process only. Items are numbered within the share. A share
        may be shared again: that of a machine by its processes.

        tf.data has the same, with `count` first. PyTorch's DistributedSampler repeats items until all shares are equal;
        here shares differ by one item at most if `count` does not divide the number of items.

        Args:
            index: of this share, from 0.
            count: how many shares there are.
            drop_last: leave out the last items, fewer than `count`, so that all shares are equal: as for processes that
                wait for each other at each step.

        >>> import asyncio, asyncsched as asc
        >>> async def main():
        ...     async with asc.Scheduler("cpu") as s:
        ...         for index in range(2):
        ...             async with s.pipeline(range(7)).shard(index, 2).open() as items:
        ...                 print([item async for item in items])
        >>> asyncio.run(main())
        [0, 2, 4, 6]
        [1, 3, 5]
        """
        check_int("count", count)
        check_int("index", index, 0)
        if index >= count:
            raise ValueError(f"index is that of one of {count} shares, from 0 to {count - 1}, not {index}")
        if self._plan.stages or self._plan.takes or self._plan.epochs != 1:
            raise ValueError("`.shard` comes first, right behind the source: `s.pipeline(source).shard(index, count)`")
        return self._with(shards=(*self._plan.shards, Shard(index, count, drop_last)))

    @naming_arguments
    def take(self, n: int) -> Pipeline[T]:
        """Give only the first `n` items of each epoch, or all if there are fewer: to try a program on a few of them.

        Nothing behind these is read: the source ends with the last item that they need, and is closed then. So it is no
        stage of its own in `statistics()`. `pipe.batch(32).take(10)` reads 320 items, `pipe.take(10).batch(32)` ten.
        Behind workers with `ordered=False` they are those of the first `n` items of the source, in any order. 0 gives
        no items.

        Behind a `.filter`, a `.shuffle`, an `.unbatch` or a `.map` with `skip=` it is a stage, since nobody knows how
        many items it needs. Some that were read ahead are dropped then. Behind a `.repeat` it gives `n` items of all
        epochs together. A resumed pipeline gives as many as lack, whatever stands before.

        tf.data and `itertools.islice` have the same. PyTorch's `Subset` takes indices: here `order=` does.

        >>> import asyncio, asyncsched as asc
        >>> async def main():
        ...     async with asc.Scheduler("cpu") as s:
        ...         pipe = s.pipeline(range(1000)).map(lambda i: i * i).take(4)
        ...         print(len(pipe))
        ...         async with pipe.open() as items:
        ...             print([item async for item in items])
        >>> asyncio.run(main())
        4
        [0, 1, 4, 9]
        """
        check_int("n", n, 0)
        plan, most = self._plan, n
        for stage in reversed(plan.stages):
            if stage.needs is None:
                break
            most = stage.needs(most)
        else:
            if plan.epochs == 1:
                return self._with(most=min(plan.most, most), takes=(*plan.takes, (len(plan.stages), n)))
        make = partial(TakeStage, n, len(plan.stages) + 1)
        return self._stage(_dropping(StagePlan(f"take {n}", BUFFER, make)))

    @naming_arguments
    def unbatch(self) -> Pipeline[Any]:
        """Give the parts of each item one by one: the rows of an array, the items of a list.

        It undoes `batch`. Of a tuple or a mapping of arrays and lists it gives tuples or dicts with a part of each.
        Rows are views of their array, so this copies nothing. An item without parts gives nothing. A pipeline goes on
        in the middle of an item where it was left: it reads that item again, and leaves out the parts that were
        received.

        An item costs a few microseconds in each stage, however small it is. So work on whole blocks in `.map`, and
        unbatch behind that: `s.pipeline(files).map(read).unbatch().shuffle(1000, seed=0).batch(64)`. tf.data and
        torchdata have the same.

        >>> import asyncio, asyncsched as asc
        >>> async def main():
        ...     async with asc.Scheduler("cpu") as s:
        ...         async with s.pipeline([[1, 2, 3], [], [4, 5]]).unbatch().batch(2).open() as batches:
        ...             print([batch.tolist() async for batch in batches])
        >>> asyncio.run(main())
        [[1, 2], [3, 4], [5]]

        Raises:
            ValueError: for a second one in a pipeline, behind which it could not be resumed; where items are taken, for
                fields that differ in length.
            TypeError: where items are taken, for an item that has no parts, such as a number or a table.
        """
        if any(stage.unbatches for stage in self._plan.stages):
            raise ValueError("a pipeline is unbatched once: let a function give the smallest parts, by `.flat_map(fn)`")
        return self._stage(_dropping(StagePlan("unbatch", ROWS, UnbatchStage, unbatches=True)))

    @overload
    def flat_map(
        self, fn: Callable[[T], Awaitable[Iterable[U]] | AsyncIterable[U]], *, workers: int = 1, ordered: bool = True,
        buffer: int | str = BUFFER, retry: int = 0, skip: Skip = (),
    ) -> Pipeline[U]: ...  # fmt: skip
    @overload
    def flat_map(
        self, fn: Callable[[T], Iterable[U]], *, workers: int = 1, ordered: bool = True, processes: bool = False,
        buffer: int | str = BUFFER, retry: int = 0, skip: Skip = (),
    ) -> Pipeline[U]: ...  # fmt: skip
    @naming_arguments
    def flat_map(
        self, fn: Callable[[Any], Any], *, workers: int = 1, ordered: bool = True, processes: bool = False,
        buffer: int | str = BUFFER, retry: int = 0, skip: Skip = (),
    ) -> Pipeline[Any]:  # fmt: skip
        """Give all items that `fn` makes of each item: those of the iterable that it returns, or a generator's.

        It is `.map(fn, ...).unbatch()`, where `fn` may be a generator function, also an async one. All items of one
        call are made before the first of them is given: let each call read a part of a large file.

        >>> import asyncio, asyncsched as asc
        >>> async def main():
        ...     async with asc.Scheduler("cpu") as s:
        ...         async with s.pipeline(["two words", "three"]).flat_map(str.split).open() as words:
        ...             print([word async for word in words])
        >>> asyncio.run(main())
        ['two', 'words', 'three']

        Raises:
            ValueError: for a second one in a pipeline, or one beside an `.unbatch`.
        """
        plan = _calls("flat_map", fn, workers, ordered, processes, buffer, retry, skip)
        return self._stage(plan).unbatch()

    @naming_arguments
    def zip(self, *others: Source[Any], strict: bool = False) -> Pipeline[Any]:
        """Read other sources in step, and give a tuple of an item of each. It comes first, right behind the source.

        It ends with the shortest source. Sources that are all read by index stay so: `order=` is then of their items,
        and so are shares. A source may be a function of the epoch. Map what comes of them by one function: `lambda
        both: (decode(both[0]), both[1])`.

        >>> import asyncio, asyncsched as asc
        >>> async def main():
        ...     async with asc.Scheduler("cpu") as s:
        ...         async with s.pipeline([1, 2, 3]).zip("abc").open() as items:
        ...             print([item async for item in items])
        >>> asyncio.run(main())
        [(1, 'a'), (2, 'b'), (3, 'c')]

        Args:
            others: sources, as `s.pipeline` takes them.
            strict: raise ValueError where one ends before the others.

        Raises:
            ValueError: behind another stage.
            TypeError: for what is no source, such as a pipeline; beside `order=`, for what is not read by index.
        """
        if self._plan.stages or self._plan.shards or self._plan.takes or self._plan.epochs != 1:
            raise ValueError("`.zip` comes first, right behind the source: `s.pipeline(source).zip(other)`")
        order = self._plan.order
        sources = [make_pipeline(self._runtime, other, None, order)._plan.source for other in others]
        return self._with(source=zipped([self._plan.source, *sources], strict))

    @naming_arguments
    def repeat(self, epochs: int | None = None) -> Pipeline[T]:
        """Read the source `epochs` times in one `open()`, or for ever, as tf.data and grain do.

        Stages before it see each epoch end: a `.shuffle` gives all items that it holds, a `.batch` its last items.
        Stages behind it see one long epoch: a batch may have items of two. Each epoch has a number of its own. Sources,
        orders and shuffles get it, and `state_dict()` counts it. The next `open()` goes on with the next number. Stages
        before it begin an epoch when the last one has ended. Processes would start anew, so put `.repeat` in front of
        them.

        >>> import asyncio, asyncsched as asc
        >>> async def main():
        ...     async with asc.Scheduler("cpu") as s:
        ...         async with s.pipeline(range(3)).repeat(2).batch(2).open() as batches:
        ...             print([batch.tolist() async for batch in batches])
        >>> asyncio.run(main())
        [[0, 1], [2, 0], [1, 2]]

        Raises:
            ValueError: for a second one in a pipeline: write `repeat(6)` for `repeat(2)` and `repeat(3)`.
            TypeError: if the source is an iterator, which can be read once.
        """
        check_int("epochs", epochs, none="no end")
        if self._plan.epochs != 1:
            raise ValueError("a pipeline is repeated once: `repeat(6)` for what two and three epochs would be")
        if is_iterator(self._plan.source):
            raise TypeError(_ONCE)
        return self._with(epochs=epochs, repeated=len(self._plan.stages))

    @naming_arguments
    def shuffle(self, buffer_size: int, *, seed: int) -> Pipeline[T]:
        """Give the items in a random order: each time one of the `buffer_size` items that are held, until none is left.

        An item may come at most `buffer_size - 1` places early, but any number of them late. For a source in memory, or
        one that is read by index, `s.pipeline(source, order=)` shuffles all items and holds none. Each epoch has its
        own order, which depends only on the seed and the epoch's number. A resumed epoch goes on in this order as if it
        had not been interrupted. With a stage of `ordered=False` before or behind it, each item still comes once. After
        an error of a stage before it, the held items do not come; a resumed epoch gives them.

        tf.data and torchdata have the same. Here a seed must be given, and each epoch has another order.

        >>> import asyncio, asyncsched as asc
        >>> async def main():
        ...     async with asc.Scheduler("cpu") as s:
        ...         pipe = s.pipeline(range(8)).shuffle(4, seed=0)
        ...         for _ in range(2):
        ...             async with pipe.open() as items:
        ...                 print([item async for item in items])
        >>> asyncio.run(main())
        [2, 4, 3, 5, 1, 0, 6, 7]
        [3, 2, 5, 1, 0, 6, 4, 7]

        Args:
            buffer_size: how many items are held, besides those that may wait for the next stage. Put it before
                `.to_device`: items on the device take bytes of the scheduler.
            seed: another seed gives another order.

        Raises:
            ValueError: for a second one in a pipeline, behind which it could not be resumed.
        """
        check_int("buffer_size", buffer_size)
        check_int("seed", seed, 0)
        if any(stage.shuffles for stage in self._plan.stages):
            raise ValueError("a pipeline can be resumed behind one shuffle alone: give that a larger buffer_size")
        make = partial(ShuffleStage, buffer_size, seed)
        return self._stage(StagePlan(f"shuffle {buffer_size}", BUFFER, make, needs=None, shuffles=True))

    @naming_arguments
    def to_device(self, *, depth: int = 2, device: object = None) -> Pipeline[Any]:
        """Put arrays on the device ahead of the consumer, as `s.put` does, also those in tuples, lists and dicts.

        Arrays of other libraries are put, too: what PyTorch's DataLoader gives becomes tensors, and so does a table of
        numbers. A table with text in it raises TypeError, as `s.put` does: leave that out in a `.map` before.

        The scheduler's limit on bytes holds. A batch is put when there is room for all of it, in the scope that is
        ambient where the pipeline is opened. If the scheduler is stuck and others wait for bytes, the batches ahead go
        back to the host. The next 16 batches are then put only when they are asked for.

        Args:
            depth: how many batches may be ahead of the consumer; the host keeps its arrays of those, too.
            device: the device to put them on; default the scheduler's first one.

        While it iterates, the consumer needs room for a batch besides the tensors that it still holds: `del` the last
        batch if there is none.
        """
        check_int("depth", depth)
        return self._stage(StagePlan("to_device", depth, partial(DeviceStage, self._runtime, device)))

    def open(self) -> Items[T]:
        """Run one epoch: `async with pipe.open() as items`, then `async for item in items`.

        The first epoch goes on from the position of `load_state_dict`. Each later one begins anew, also if the one
        before was left early. `len(items)`, where it is known, is how many are still to come: `async for item in
        tqdm(items)`, with `from tqdm.asyncio import tqdm`, shows a bar with that total.

        Raises, where the block is entered:
            RuntimeError: if an epoch is open already, or the source is an iterator that was read before.
            SchedulerClosed: if the scheduler is not open.
        """
        return Items(self._plan, self._progress, self._begin, self._runtime)

    def statistics(self) -> PipelineStatistics:
        """A snapshot of the present epoch, or the last."""
        return NOT_OPENED if self._last is None else self._last.statistics()

    def state_dict(self) -> dict[str, Any]:
        """The position, for `load_state_dict`: the epoch's number, and which items of the source count.

        Items read ahead do not count: a pipeline that resumes reads them again. It skips items that count without
        mapping them. The source must give the same items again.

        In a loop that steps an optimiser of the package, items count up to the last step that moved, or will move, the
        parameters: saved together with these, no item is lost and none comes twice, wherever the loop was cancelled. So
        take one item at a time, and step in the coroutine that takes them. In any other loop an item counts when it is
        received, unless an exception or a cancellation has cut the loop short since. The end of an epoch counts for all
        of its items.

        `state["epoch"]` is the number of the epoch, so a run of 10 goes on by `for _ in range(state["epoch"], 10)`. In
        the block of an epoch that holds also when its last item was received: an epoch that is resumed from there gives
        no items.
        """
        return self._progress.state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from this position with the next `open()`.

        Raises:
            ValueError: if `state` is not what `state_dict()` gave.
            RuntimeError: while an epoch is open.
        """
        self._progress.load(state)

    def _stage(self, stage: StagePlan) -> Pipeline[Any]:
        return self._with(stages=(*self._plan.stages, stage))

    def _with(self, **changed: Any) -> Pipeline[Any]:
        return Pipeline(self._runtime, self._plan._replace(**changed))

    def _begin(self, items: Items[T]) -> None:
        """Begin an epoch, or raise if none may begin now."""
        self._runtime.check()
        self._progress.must_rest()
        if self._last is not None and is_iterator(self._plan.source):
            raise RuntimeError(_ONCE)
        self._last = items


def _calls(
    verb: str, fn: Any, workers: int, ordered: bool, processes: bool, buffer: int | str, retry: int = 0, skip: Skip = ()
) -> StagePlan:
    """A stage that calls a function for each item."""
    items, most_bytes = _bounds(buffer, 0)
    check_int("workers", workers)
    check_int("retry", retry, 0)
    skips = skip if isinstance(skip, tuple) else (skip,)
    for kind_of in skips:
        if not (isinstance(kind_of, type) and issubclass(kind_of, Exception)):
            raise TypeError(f"skip= takes classes of exceptions, as `skip=(OSError, ValueError)`, not {kind_of!r}")
    if not callable(fn):
        raise TypeError(f"{verb} takes a function of one item, not {type(fn).__name__}")
    name = getattr(fn, "__name__", type(fn).__name__)
    generates_later = is_async_generator_function(fn)
    if verb == "map" and (generates_later or is_generator_function(fn)):
        raise TypeError(
            f"map takes a function that returns one item, and {name} is a generator function: `.flat_map` gives all"
            " items that it yields"
        )
    kind: type[LoopStage | ThreadStage] = ProcessStage if processes else ThreadStage
    if is_coroutine_function(fn) or (verb == "flat_map" and generates_later):
        if processes:
            raise TypeError(f"{name} is a coroutine function, and runs on the event loop: leave out processes=True")
        kind = LoopStage
    elif verb == "filter":  # a generator is true, whatever it gives
        check_plain("the function of filter", fn)
    if processes:
        check_pickles(fn, name)

    make = partial(kind, Called(fn, verb, retry, skips), workers=workers, ordered=ordered)
    plan = StagePlan(f"{verb} {name}", workers + items, make, most_bytes=most_bytes)
    return _dropping(plan) if skips or verb == "filter" else plan


def _dropping(plan: StagePlan) -> StagePlan:
    """The plan of a stage that leaves items out: nobody knows how many it makes, or needs."""
    return plan._replace(length=partial(unknown_after, plan.label), needs=None)


def _bounds(buffer: int | str, least: int) -> tuple[int, int | None]:
    """How many items may wait, and how many bytes."""
    if isinstance(buffer, str):
        return BUFFER, parse_bytes(buffer, "buffer")
    check_int("buffer", buffer, least)
    return buffer, None


def make_pipeline(runtime: Runtime, source: Source[T], buffer: int | str | None, order: Order | None) -> Pipeline[T]:
    """A pipeline without stages. Raises TypeError if the source cannot be read, or not in that order."""
    bounds = None if buffer is None else _bounds(buffer, 1)
    single = getattr(source, "shape", None) == ()  # a NumPy number has `__getitem__`, too
    if isinstance(source, Pipeline | Handle) or single or (not is_iterable(source) and not callable(source)):
        joined = ": before any stage, sources are joined by `s.pipeline(a).zip(b)`" * isinstance(source, Pipeline)
        raise TypeError(
            "the source of a pipeline is an iterable, an async iterable, or a function of the epoch's number that"
            f" returns one, not {type(source).__name__}{joined}"
        )
    if not is_iterable(source):
        _check_takes_epoch("the source", source)
    else:
        check_rows(source, order)
    if order is not None:
        if is_iterable(source):
            by_index(source)
        check_order(order)
        if callable(order):
            _check_takes_epoch("the order", order)
    return Pipeline(runtime, Plan(source, bounds, order))


def _check_takes_epoch(what: str, function: Any) -> None:
    try:
        inspect.signature(function).bind(0)
    except ValueError:  # a built-in function: its signature is not known
        pass
    except TypeError as error:
        name = getattr(function, "__name__", type(function).__name__)
        raise TypeError(
            f"{what} of a pipeline is called with the epoch's number, which {name} does not take ({error}):"
            f" pass `lambda epoch: {name}()`"
        ) from None
