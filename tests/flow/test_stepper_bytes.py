"""Steppers: the bytes that members reserve, and those that they lack."""

from __future__ import annotations

import asyncio
import threading
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched.flow.batcher.stepper import Stepper
from tests.ledger import used
from tests.waiting import cancelled, outside, turns, until

from .stepping import Text, advance, read


async def test_a_member_joins_when_its_reserve_is_there_and_gives_it_back(limited: asc.Scheduler, step: Any) -> None:
    stepper: Stepper[Text, int] = Stepper(step, reserve=lambda text: 1000 * text.length)
    got = list[str]()

    async def one(name: str, length: int) -> None:
        async with stepper.join(Text(length)) as outputs:
            got.append(name)
            assert limited.statistics().bytes_reserved == 1000 * length
            assert [output async for output in outputs] == list(range(length))

    await asyncio.gather(*[one(name, length) for name, length in (("a", 9), ("b", 8), ("c", 7))])
    assert got == ["a", "b", "c"]
    await until(lambda: used(limited) == 0)  # a search may still hold something
    with pytest.raises(asc.TaskTooLarge, match="member of advance"):
        await one("d", 11)
    await until(lambda: used(limited) == 0)


async def test_who_joins_in_the_block_of_another_has_a_reserve_of_its_own(limited: asc.Scheduler) -> None:
    stepper: Stepper[Text, int] = Stepper(advance, reserve=2000, ahead=1, wait=0)
    async with limited.scope(reserve=5000), stepper.join(Text(2)) as one, stepper.join(Text(2)) as two:
        assert used(limited) == 5000
        with pytest.raises(asc.TaskTooLarge, match="2,000"):
            await limited.put(np.ones(251))
        with pytest.raises(asc.QueueFull):
            await read(stepper, Text(1))
        assert [output async for output in one] == [output async for output in two] == [0, 1]
    async with stepper.join(Text(2)), stepper.join(Text(2)):
        assert limited.statistics().bytes_reserved == 4000
    await until(lambda: used(limited) == 0)


class Pages(Text):
    """A text whose cache takes another 1,000 bytes with every fourth step."""

    @property
    def nbytes(self) -> int:
        return 1000 * (1 + self.step // 4)


@pytest.fixture
def pages(step: Any) -> Stepper[Pages, int]:
    return Stepper(step, ahead=1, reserve=lambda text: text.nbytes)


async def test_a_cache_grows_page_by_page(limited: asc.Scheduler, pages: Stepper[Pages, int]) -> None:
    text = Pages(20)
    async with pages.join(text) as outputs:
        async for output in outputs:
            assert limited.statistics().bytes_reserved >= 1000 * (1 + output // 4)
        assert limited.statistics().bytes_reserved == 5000
    await until(lambda: used(limited) == 0)


async def test_one_that_began_with_no_reserve_does_not_grow(limited: asc.Scheduler) -> None:
    stepper: Stepper[Text, int] = Stepper(advance, reserve=lambda text: 1000 if text.step else None)  # type: ignore[arg-type,return-value]
    got = list[int]()
    async with stepper.join(Text(3)) as outputs:
        with pytest.raises(ValueError, match="a member reserved nothing as it joined, and 1,000 bytes now: begin with"):
            async for output in outputs:
                got.append(output)
    assert got == [0]


async def test_who_waits_to_grow_holds_up_nobody_else(limited: asc.Scheduler, pages: Stepper[Pages, int]) -> None:
    async with limited.scope(reserve=7000):
        with outside():
            async with pages.join(Pages(3)) as outputs:
                waiting = asyncio.create_task(read(pages, text := Pages(12)))
                await until(lambda: text.step == 8 and pages.statistics().admitting == 1)
                assert [output async for output in outputs] == [0, 1, 2]
                assert not waiting.done()
                assert "1 in a step" not in repr(pages)
            assert await waiting == list(range(12))
    await until(lambda: used(limited) == 0)


async def write(stepper: Stepper[Pages, int], length: int, told: list[int]) -> list[int]:
    """A text that starts over, where it left off, when it is to give its pages back."""
    text, got = Pages(length), list[int]()
    while True:
        try:
            async with stepper.join(text) as outputs:
                async for output in outputs:
                    got.append(output)
                return got
        except asc.Preempted as error:
            told.append(length)
            assert error.reserve >= text.nbytes
            assert text.nbytes > 1000


async def test_where_all_wait_to_grow_the_youngest_gives_its_pages_back(
    limited: asc.Scheduler, pages: Stepper[Pages, int]
) -> None:
    told = list[int]()
    found = await asyncio.gather(*[write(pages, length, told) for length in (30, 31, 32, 33)])
    assert found == [list(range(length)) for length in (30, 31, 32, 33)]
    assert told
    assert 30 not in told[:1]
    await until(lambda: used(limited) == 0)


@pytest.mark.parametrize("later_by", range(6))
async def test_who_leaves_while_it_grows_leaves_nothing(
    limited: asc.Scheduler, pages: Stepper[Pages, int], later_by: int
) -> None:
    async with limited.scope(reserve=9000):
        with outside():
            task = asyncio.create_task(read(pages, text := Pages(12)))
            await until(lambda: text.step == 4)
            await turns(later_by)
            await cancelled(task)
        assert pages.statistics().admitting == pages.statistics().members == 0
    await until(lambda: used(limited) == 0)


async def test_more_than_there_can_be_is_told_to_its_member(limited: asc.Scheduler, pages: Stepper[Pages, int]) -> None:
    with pytest.raises(asc.TaskTooLarge, match="member of advance.*grown by 1,000 bytes"):
        await read(pages, Pages(99))
    await until(lambda: used(limited) == 0)


async def test_who_does_not_want_to_wait_long_for_its_reserve_is_told(limited: asc.Scheduler) -> None:
    stepper: Stepper[Text, int] = Stepper(advance, reserve=10_000, wait=0)
    async with stepper.join(Text(1)):
        with pytest.raises(asc.QueueFull):
            await read(stepper, Text(1))
    assert await read(stepper, Text(1)) == [0]
    with pytest.raises(ValueError, match="give `reserve=`"):
        Stepper(advance, wait=1.0)


async def test_who_waits_for_its_reserve_can_be_cancelled(limited: asc.Scheduler) -> None:
    stepper: Stepper[Text, int] = Stepper(advance, reserve=10_000, ahead=1)
    text = Text(3)
    async with stepper.join(Text(3)) as outputs:
        waiting = asyncio.create_task(read(stepper, text))
        await until(lambda: stepper.statistics().admitting == 1 and "reserve" in limited.explain())
        told = limited.explain()
        assert (__file__ in told, "contextlib" in told) == (True, False)  # the line that joins, not what it calls
        with pytest.raises(ValueError, match="has joined already"):
            await read(stepper, text)
        await cancelled(waiting)
        assert [output async for output in outputs] == [0, 1, 2]
    assert await read(stepper, text) == [0, 1, 2]
    await until(lambda: used(limited) == 0)


async def test_a_step_that_lacks_bytes_which_its_own_members_reserve_is_told(limited: asc.Scheduler) -> None:
    async def step(members: list[Any]) -> list[Any]:
        x = await limited.put(np.ones(100))
        return [await x.sum().item() for _ in members]

    stepper: Stepper[Any, float] = Stepper(step, reserve=5000)
    found = await asyncio.gather(*[read(stepper, [i]) for i in range(2)], return_exceptions=True)
    assert [type(one) for one in found] == [asc.MemoryDeadlockError] * 2
    await until(lambda: used(limited) == 0)


async def test_who_only_waits_for_a_step_is_told_first_and_makes_room(limited: asc.Scheduler) -> None:
    async def step(members: list[Any]) -> list[Any]:
        x = await limited.put(np.ones(300))
        return [asc.Last(await x.sum().item()) for _ in members]

    stepper: Stepper[Any, float] = Stepper(step, reserve=4000, max_cost=1)
    found = await asyncio.gather(*[read(stepper, [i]) for i in range(2)], return_exceptions=True)
    assert found[0] == [300.0]
    assert isinstance(found[1], asc.MemoryDeadlockError)
    assert "`Stepper(scheduler=scope)` for steps" in str(found[1])
    await until(lambda: used(limited) == 0)


async def test_steps_of_a_scope_use_its_reserve(limited: asc.Scheduler) -> None:
    async with limited.scope(reserve=4000) as own:

        async def step(members: list[Any]) -> list[Any]:
            x = await limited.put(np.ones(300))
            return [asc.Last(await x.sum().item()) for _ in members]

        stepper: Stepper[Any, float] = Stepper(step, scheduler=own)
        assert await read(stepper, "m") == [300.0]


@pytest.mark.parametrize("in_block", [True, False], ids=["in the block", "in a step"])
async def test_a_donated_cache_is_charged_where_it_was_made(limited: asc.Scheduler, in_block: bool) -> None:
    zeros = np.zeros((100, 4))

    def add(cache: asc.Tensor, row: asc.Tensor) -> tuple[asc.Tensor, asc.Tensor]:
        cache[0] = row
        return cache.sum(), cache

    added = await limited.capture(add, await limited.put(zeros), await limited.put(np.ones(4)), donate=0)

    async def step(members: list[dict[str, asc.Tensor]]) -> list[Any]:
        (member,) = members
        if not in_block:
            member["cache"] = await limited.put(zeros)
        total, member["cache"] = added(member["cache"], await limited.put(np.ones(4)))
        return [asc.Last(await total.item())]

    stepper: Stepper[dict[str, asc.Tensor], float] = Stepper(step, reserve=7000)
    member: dict[str, asc.Tensor] = {}
    with nullcontext() if in_block else pytest.raises(asc.MemoryDeadlockError):  # a step has 3,000 bytes, a cache 3,200
        async with stepper.join(member) as outputs:
            if in_block:
                member["cache"] = await limited.put(zeros)
            assert [output async for output in outputs] == [4.0]


async def test_caches_of_tensors_are_written_in_place(s: asc.Scheduler) -> None:
    """Each step writes a row of each member's cache, and gives the sum of the rows so far."""

    class Cache:
        n = 0

    caches = await s.put(np.zeros((2, 8, 4)))

    async def step(members: list[Cache]) -> Any:
        slots, rows = np.arange(len(members)), np.array([member.n for member in members])
        caches[await s.put(slots), await s.put(rows)] = await s.put((rows + 1.0)[:, None] * np.ones(4))
        for member in members:
            member.n += 1
        return await asc.sum(caches[: len(members)], axis=(1, 2)).numpy()

    stepper: Stepper[Cache, float] = Stepper(step, ahead=1)
    async with stepper.join(Cache()) as outputs:
        assert [await anext(outputs) for _ in range(4)] == [4, 12, 24, 40]


async def test_a_pytorch_module_is_a_step(s: asc.Scheduler, may_block: None) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")

    class Cumulative(torch.nn.Module):  # type: ignore[misc]
        """Each step reads the last numbers of its members, and gives them one more."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            torch.nn.init.constant_(self.layer.weight, 2.0)
            torch.nn.init.constant_(self.layer.bias, 1.0)
            self.threads = set[str]()

        def forward(self, rows: list[list[float]]) -> Any:
            self.threads.add(threading.current_thread().name)
            found = self.layer(torch.tensor([row[-1:] for row in rows]))[:, 0]
            assert not found.requires_grad
            for row, number in zip(rows, found.tolist(), strict=True):
                row.append(number)
            return found

    module = Cumulative()
    stepper: Stepper[list[float], float] = Stepper(module)
    async with stepper.join([0.0]) as one, stepper.join([1.0]) as two:
        assert [float(await anext(one)) for _ in range(3)] == [1, 3, 7]
        assert [float(await anext(two)) for _ in range(3)] == [3, 7, 15]
    assert threading.current_thread().name not in module.threads


async def test_one_made_before_any_scheduler_is_open_works_for_that_of_its_members() -> None:
    stepper: Stepper[Text, int] = Stepper(advance, reserve=1000)
    async with asc.Scheduler("cpu") as other, asc.Scheduler("cpu") as s:
        async with s.scope():
            assert await read(stepper, Text(2)) == [0, 1]
        assert other.statistics().tasks_completed == 0
        assert s.statistics().tasks_completed == 2
