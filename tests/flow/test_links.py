"""Links and those who wait at them: what wakes whom."""

from __future__ import annotations

import asyncio

from asyncsched.flow.pipeline.position import Position, numbers_of
from asyncsched.flow.pipeline.stages import DROPPED, MANY, Link, WaitQueue
from tests.waiting import turns


async def waiters_of(queue: WaitQueue, count: int) -> list[asyncio.Task[None]]:
    waiters = [asyncio.create_task(queue.wait()) for _ in range(count)]
    await turns(3)
    assert len(queue.waiters) == count
    return waiters


async def test_a_wake_up_wakes_one() -> None:
    queue = WaitQueue()
    waiters = await waiters_of(queue, 3)
    for awake in (1, 2, 3):
        queue.wake()
        await turns(3)
        assert [task.done() for task in waiters] == [True] * awake + [False] * (3 - awake)
        assert len(queue.waiters) == 3 - awake
    queue.wake()  # for nobody


async def test_a_cancelled_waiter_is_passed_over() -> None:
    queue = WaitQueue()
    first, second, third = await waiters_of(queue, 3)
    first.cancel()
    queue.wake()  # before it has run
    await turns(3)
    assert second.done()
    third.cancel()
    await turns(3)
    assert not queue.waiters
    assert queue.seconds(0.0) > 0


async def test_a_waiter_that_is_cancelled_when_it_was_woken_hands_it_on() -> None:
    queue = WaitQueue()
    first, second = await waiters_of(queue, 2)
    queue.wake()
    first.cancel()
    await turns(3)
    assert first.cancelled()
    assert second.done()
    assert not queue.waiters


async def test_all_are_woken() -> None:
    queue = WaitQueue()
    waiters = await waiters_of(queue, 3)
    queue.wake_all()
    await asyncio.gather(*waiters)
    before = queue.seconds(0.0)
    assert before > 0
    assert queue.seconds(1e9) == before


async def test_a_producer_wakes_when_half_is_free_or_the_consumer_waits() -> None:
    link = Link(4)
    for i in range(4):
        await link.reserve()
        link.put(i, i)
    producer = asyncio.create_task(link.reserve())
    await turns(3)
    link.take()
    await turns(3)
    assert not producer.done()
    link.take()
    await turns(3)
    assert producer.done()
    assert link.try_reserve()
    assert not link.try_reserve()
    link.unreserve()

    await link.reserve()
    producer = asyncio.create_task(link.reserve())
    await turns(3)
    assert [link.take(), link.take()] == [(2, 2), (3, 3)]
    consumer = asyncio.create_task(link.arrived())
    await turns(3)
    assert producer.done()
    link.put(4, 4)
    assert await consumer
    link.end()
    assert await link.arrived()  # what is there comes before the end
    link.take()
    assert not await link.arrived()
    link.close()


async def test_who_has_no_use_for_one_item_is_woken_for_half_a_row() -> None:
    link = Link(8)
    consumer = asyncio.create_task(link.arrived(6))
    await turns(3)
    for i in range(3):
        link.put(i, i)
    await turns(3)
    assert not consumer.done()
    assert link.wanted - len(link.items) == 1
    link.put(3, 3)
    assert await consumer
    for _ in range(3):
        link.take()
    assert link.wanted <= len(link.items)  # nobody waits: a single item is worth a turn
    consumer = asyncio.create_task(link.arrived(6))
    await turns(3)
    assert not consumer.done()
    link.end()
    assert await consumer
    link.take()
    assert not await link.arrived(6)
    link.close()


async def test_an_end_wakes_every_consumer() -> None:
    link = Link(1)
    waiting = [asyncio.create_task(link.arrived()) for _ in range(3)]
    await turns(3)
    link.end()
    assert await asyncio.gather(*waiting) == [False] * 3
    link.close()


async def test_a_failed_stage_lets_go_whoever_waits_for_room() -> None:
    link = Link(1)
    link.put_back([(i, i) for i in range(3)])
    waiting = [asyncio.create_task(link.reserve()) for _ in range(3)]
    await turns(3)
    link.lift_bound()
    await asyncio.gather(*waiting)
    link.close()


async def test_what_is_withdrawn_or_put_back_keeps_the_room_right() -> None:
    link, source = Link(3), Link(3)
    for i in range(3):
        await source.reserve()
        source.put(i, i)
    taken = [source.take(), source.take()]
    assert link.reserve_some(4) == 3
    link.put(*taken[0])
    link.withdraw()
    link.unreserve()
    assert not link.items
    assert link.count == 0
    assert link.reserve_some(4) == 2
    link.unreserve()
    await source.reserve()
    await source.reserve()
    source.put_back(taken)
    assert [origin for origin, _ in source.items] == [0, 1, 2]
    for free in (False, False, True):
        source.take()
        assert source.try_reserve() == free


async def test_what_is_put_back_wakes_who_waits_for_an_item() -> None:
    link = Link(1)
    waiting = asyncio.create_task(link.arrived())
    await turns(3)
    link.put_back([(0, "item")])
    assert await waiting
    assert link.take() == (0, "item")


def test_numbers_of_nested_batches() -> None:
    assert numbers_of(3) == [3]
    assert numbers_of(((1, 2), (3, (4,)))) == [1, 2, 3, 4]


async def test_what_is_dropped_out_of_order_is_kept_short() -> None:
    numbers = [start + (7 * i) % 50 for start in range(0, 20_000, 50) for i in range(50)]
    link, position = Link(4), Position()
    for number in numbers:
        assert link.try_reserve()
        link.put(number, DROPPED)
    assert link.try_reserve()
    link.put(20_000, "kept")
    origin, item = link.take()
    assert (numbers_of(origin), item) == ([20_000], "kept")
    assert len(origin.dropped) <= MANY + 50  # type: ignore[union-attr]
    position.receive(origin)
    assert (position.taken, position.ahead) == (20_001, set())
