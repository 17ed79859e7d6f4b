"""Bells and links: what wakes whom."""

from __future__ import annotations

import asyncio

import pytest

from asyncsched.flow.pipeline.links import Bell, Link, flat
from tests.waiting import turns

pytestmark = pytest.mark.timeout(20)


async def test_a_ring_wakes_one_sleeper() -> None:
    bell = Bell()
    sleepers = [asyncio.create_task(bell.sleep()) for _ in range(3)]
    await turns(3)
    for awake in (1, 2, 3):
        bell.ring()
        await turns(3)
        assert sum(task.done() for task in sleepers) == awake
        assert bell.sleepers == 3 - awake
    bell.close()


async def test_a_cancelled_sleeper_is_not_rung_for() -> None:
    bell = Bell()
    first, second = asyncio.create_task(bell.sleep()), asyncio.create_task(bell.sleep())
    await turns(3)
    first.cancel()
    await turns(3)
    assert bell.sleepers == 1
    bell.ring_for_all()
    await second
    assert bell.seconds(0.0) > 0
    bell.close()


async def test_a_bell_nobody_heard_needs_no_closing() -> None:
    Bell().close()


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
    assert link.room == 1

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


async def test_an_end_wakes_every_consumer() -> None:
    link = Link(1)
    waiting = [asyncio.create_task(link.arrived()) for _ in range(3)]
    await turns(3)
    link.end()
    assert await asyncio.gather(*waiting) == [False] * 3
    link.close()


async def test_a_failed_stage_lets_go_whoever_waits_for_room() -> None:
    link = Link(1)
    link.room = -2
    waiting = [asyncio.create_task(link.reserve()) for _ in range(3)]
    await turns(3)
    link.release()
    await asyncio.gather(*waiting)
    link.close()


def test_numbers_of_nested_batches() -> None:
    assert flat(3) == [3]
    assert flat(((1, 2), (3, (4,)))) == [1, 2, 3, 4]
