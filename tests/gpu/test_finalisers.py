"""What a finaliser in a dead cycle reads or keeps: its memory is nobody else's until it is truly out of reach.

The collector finalises all of a cycle before it clears any of it, in an order of its own. Here what tells of the
memory's end is older than the user's objects, so it would come first.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched.devices.cuda.janitor import Loan, keeper_of
from asyncsched.devices.cuda.pool import Block, PrivatePool, behind, untracked
from tests.cycles import Cycle
from tests.ledger import array_of, in_use
from tests.waiting import no_collector, until

from .conftest import Card, graphs_of, recorded

pytestmark = pytest.mark.one_loop
SHAPE = (64, 64)
SIZE = 64 * 64 * 4
TWO = np.full(SHAPE, 2.0, np.float32)


class Program:
    """One compute stream, so that what is freed is taken next; and what a user's finalisers do.

    Attributes:
        read: what they read.
        kept: what they keep.
    """

    def __init__(self, s: asc.Scheduler, x: asc.Tensor, stream: Any) -> None:
        self.s, self.x, self._stream = s, x, stream
        self._loop = asyncio.get_running_loop()
        self.read: list[np.ndarray[Any, Any]] = []
        self.kept: list[Any] = []

    @property
    def pool(self) -> PrivatePool:
        pool: PrivatePool = self.s.devices[0].memory.pool
        return pool

    def retained(self) -> int:
        """Blocks that are charged, that of `x` left out."""
        return self.s.statistics().bytes_retained // SIZE - 1

    def in_use(self) -> int:
        """Blocks that the pool has given out, that of `x` left out."""
        return in_use(self.pool) // SIZE - 1

    async def written_over(self) -> None:
        """Run what takes the memory that is free, if there is any."""
        for tensor in [self.x + 5 for _ in range(4)]:
            assert (await tensor.numpy()).max() == 5

    def on_host(self, thing: Any) -> np.ndarray[Any, Any]:
        """A copy of an array or a tensor, in a thread without a loop."""
        if isinstance(thing, asc.Tensor):
            return np.asarray(thing)
        with self._stream:
            found: np.ndarray[Any, Any] = thing.get()
        return found

    def look(self, thing: Any) -> None:
        """Read it after others have taken what memory they could."""
        asyncio.run_coroutine_threadsafe(self.written_over(), self._loop).result()
        self.read.append(self.on_host(thing))

    async def collect(self) -> None:
        """Have the collector run, and all of these finalisers, in another thread."""
        await asyncio.to_thread(gc.collect)

    async def gone(self) -> None:
        """All bytes are back, and all blocks."""
        await until(lambda: self.retained() == 0 and self.in_use() == 0)


@pytest.fixture
async def p(card: Card) -> AsyncIterator[Program]:
    stream = card.stream(non_blocking=True)
    async with asc.Scheduler("cuda", streams=1) as s:
        with no_collector():
            p = Program(s, await s.put(np.zeros(SHAPE, np.float32)), stream)
            yield p
            del p.x  # the fixture's value lives longer than the device
    card.forgive()


# -- what is in the cycle ---------------------------------------------------------------------------------------------


async def awaited(p: Program) -> Any:
    return await (p.x + 2)


async def view(p: Program) -> Any:
    return (await (p.x + 2))[::-1]


async def awaited_view(p: Program) -> Any:
    return await (p.x + 2)[::-1]


async def returned(p: Program) -> Any:
    return await p.s.call(lambda a: a + 2, p.x)


async def handed_on(p: Program) -> Any:
    """What a function returned, by a view of the scheduler's."""
    t = await p.s.submit(lambda a: a + 2, p.x, shape=SHAPE, dtype="float32")
    return await t


async def imported(p: Program) -> Any:
    import cupy

    return cupy.from_dlpack(await (p.x + 2))


async def tensor(p: Program) -> Any:
    t = p.x + 2
    await p.s.barrier()
    return t


async def tensor_of_a_function(p: Program) -> Any:
    t = await p.s.submit(lambda a: a + 2, p.x, shape=SHAPE, dtype="float32")
    await p.s.barrier()
    return t


ARRAYS = [awaited, view, awaited_view, returned, handed_on, imported]
TENSORS = [tensor, tensor_of_a_function]
Make = Callable[[Program], Awaitable[Any]]


def name(make: Any) -> str:
    return str(make.__name__)


@pytest.fixture(params=[*ARRAYS, *TENSORS], ids=name)
def make(request: pytest.FixtureRequest, card: Card) -> Make:
    if card.fake is not None and request.param is imported:
        pytest.skip("the fake has no real capsules")
    found: Make = request.param
    return found


# -- what is done with it ---------------------------------------------------------------------------------------------


async def test_what_a_finaliser_reads_is_right(p: Program, make: Make) -> None:
    Cycle(await make(p), p.look)
    await p.collect()
    assert p.read[0].tolist() == TWO.tolist()
    await p.gone()


async def test_what_a_finaliser_keeps_stays_right(p: Program, make: Make) -> None:
    Cycle(await make(p), p.kept.append)
    await p.collect()
    await p.written_over()
    assert (await asyncio.to_thread(p.on_host, p.kept[0])).tolist() == TWO.tolist()
    assert p.in_use() == 1
    p.kept.clear()
    await p.gone()


async def test_what_is_kept_by_one_finaliser_after_the_other_stays_right(p: Program, make: Make) -> None:
    """Nothing is finalised twice: what was told at the first time would not be told again."""
    Cycle(await make(p), p.kept.append)
    for _ in range(3):
        await p.collect()
        assert p.in_use() == 1
        Cycle(p.kept.pop(), p.kept.append)
    await p.collect()
    Cycle(p.kept.pop(), p.look)
    await p.collect()
    assert p.read[0].tolist() == TWO.tolist()
    await p.gone()


@pytest.mark.parametrize("make", [*ARRAYS[:-1], *TENSORS], ids=name)
async def test_the_bytes_stay_charged_while_a_finaliser_keeps_them(p: Program, make: Make) -> None:
    Cycle(await make(p), p.kept.append)
    for _ in range(3):
        await p.collect()
        await p.written_over()
        assert p.retained() == 1
        Cycle(p.kept.pop(), p.kept.append)
    await p.collect()
    p.kept.clear()
    await p.gone()


async def test_the_end_of_a_generator_reads_what_it_has(p: Program, make: Make) -> None:
    def generator(thing: Any, me: list[Any]) -> Iterator[None]:
        try:
            yield
        finally:
            p.look(thing)

    me: list[Any] = []
    me.append(generator(await make(p), me))
    next(me[0])
    del me
    await p.collect()
    assert p.read[0].tolist() == TWO.tolist()
    await p.gone()


async def test_an_async_generator_that_was_left_reads_what_it_has(p: Program, make: Make) -> None:
    """Its end runs on the loop, some time after the collector was done."""
    ended = asyncio.Event()

    async def generator(thing: Any, me: list[Any]) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await p.written_over()
            p.read.append(await asyncio.to_thread(p.on_host, thing))
            ended.set()

    async def leave() -> None:
        me: list[Any] = []
        me.append(generator(await make(p), me))
        async for _ in me[0]:
            break

    await leave()
    await p.collect()
    await p.written_over()
    await ended.wait()
    await p.collect()  # the task that ended it
    assert p.read[0].tolist() == TWO.tolist()
    await p.gone()


@pytest.mark.parametrize("told", [False, True])
async def test_work_on_what_a_finaliser_kept_is_waited_for(card: Card, p: Program, told: bool) -> None:
    """As on any other array, also where the stream was told before."""
    side = card.stream(non_blocking=True)
    array = await awaited(p)
    if told:
        asc.record_stream(array, side)
    Cycle(array, p.kept.append)
    del array
    await p.collect()

    def use() -> Any:
        with side:
            return p.kept[0] * 10

    with card.busy([side]):
        result = await asyncio.to_thread(use)
        if not told:
            asc.record_stream(p.kept[0], side)
        p.kept.clear()
        await p.written_over()
        assert p.retained() == 1

    def on_host() -> np.ndarray[Any, Any]:
        with side:
            found: np.ndarray[Any, Any] = result.get()
        return found

    assert (await asyncio.to_thread(on_host)).tolist() == (TWO * 10).tolist()
    await p.gone()


async def test_a_finaliser_may_run_a_captured_step(p: Program) -> None:
    """What its graph has on the device is still there, and goes once."""
    step = await p.s.capture(lambda a: asc.flip((a + 1) * 2, axis=0), p.x)
    assert (await step(p.x).numpy()).max() == 2
    assert all(recorded(p.s))
    loop = asyncio.get_running_loop()

    async def again(step: Any) -> None:
        p.read.append(await step(p.x).numpy())

    Cycle(step, lambda step: asyncio.run_coroutine_threadsafe(again(step), loop).result())
    del step
    await p.collect()
    assert p.read[0].tolist() == TWO.tolist()
    await p.collect()  # of what ran it
    await until(lambda: not graphs_of(p.s))
    await p.gone()


# -- why it holds -----------------------------------------------------------------------------------------------------


async def test_the_collector_knows_no_block_and_no_loan(p: Program) -> None:
    """If a NumPy or a CuPy to come shows it what they hold, it will end them early."""
    array, made = await awaited(p), await returned(p)
    inside = array_of(p.x)
    for keeper in (inside, array, made):
        thing = keeper_of(keeper)
        assert isinstance(thing, Block if keeper is inside else Loan)
        del thing
    reached, todo = set[int](), [inside, array, made]
    while todo:
        thing = todo.pop()
        if id(thing) not in reached and not isinstance(thing, type | type(np)):
            reached.add(id(thing))
            assert not isinstance(thing, Block | Loan)
            todo += gc.get_referents(thing)


def test_a_holder_is_not_tracked() -> None:
    ends: list[int] = []
    thing = Cycle(1, ends.append)
    thing.me = None  # type: ignore[assignment]
    box = [untracked(thing)]
    box.append(box)
    assert behind(box[0]) is thing
    assert not gc.is_tracked(box[0])
    assert gc.get_referents(box[0]) == []
    assert [behind(other) for other in (None, 1, np.zeros(()), np.empty(1, object), thing)] == [None] * 5
    del thing
    seen: list[Any] = []
    Cycle(box, lambda box: seen.extend([behind(box[0]), list(ends)]))
    del box
    gc.collect()
    assert seen[1] == []  # the collector had not ended it when the finaliser ran
    assert ends == []
    seen.clear()
    assert ends == [1]
