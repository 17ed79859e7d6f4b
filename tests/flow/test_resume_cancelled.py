"""A training that is cancelled anywhere, and saved in `finally:`, goes on to the weights of an unbroken one."""

from __future__ import annotations

import asyncio
import types
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched import nn, optim
from asyncsched.flow.pipeline.pipeline import Pipeline

from .rig import same, same_in_thread

pytestmark = pytest.mark.one_loop
EPOCHS, BATCHES, SIZE = 2, 6, 4
Bytes = list[bytes]


@types.coroutine
def cancelled_at(number: int, work: Coroutine[Any, Any, None]) -> Generator[Any, Any, None]:
    """Run a coroutine, and cancel its asyncio task where it waits for the nth time."""
    error, waits = None, 0
    while True:
        try:
            waited = work.throw(error) if error is not None else work.send(None)
        except StopIteration:
            return
        error = None
        if waits == number:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        waits += 1
        try:
            yield waited
        except BaseException as raised:
            error = raised


@dataclass
class Training:
    """A model, its optimiser, its data, and what is saved when it ends."""

    pipe: Pipeline[Any]
    depth: int
    every: int = 1  # a step of the optimiser for so many batches
    epochs: int = EPOCHS  # times that the pipeline is opened
    scoped: bool = False  # whether a scope is around an epoch
    inside: bool = False  # whether `finally:` is in the pipeline's block
    puts: bool = False  # whether the loop puts its batches itself
    asks: bool = False  # whether it awaits each loss: before the step, and behind it
    saved: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.model = nn.Linear(3, 1, rng=0, dtype="f8")
        self.optimizer = optim.Adam(self.model.parameters(), lr=0.1)

    async def run(self, s: asc.Scheduler) -> None:
        try:
            await self._epochs(s)
        finally:
            self._save()

    async def _epochs(self, s: asc.Scheduler) -> None:
        window = s.window(self.depth)
        for _ in range(self.pipe.state_dict()["epoch"] * self.epochs // EPOCHS, self.epochs):
            async with s.scope() if self.scoped else nullcontext(), self.pipe.open() as batches:
                try:
                    async for batch in batches:
                        x = await s.put(batch) if self.puts else batch
                        async with window:
                            await self._batch(x)
                finally:
                    if self.inside:
                        self._save()

    async def _batch(self, x: asc.Tensor) -> None:
        self.seen = getattr(self, "seen", 0) + 1
        loss = ((self.model(x) - x[:, :1]) ** 2).mean()
        loss.backward()
        if self.asks:
            await loss.item()
        if self.seen % self.every == 0:
            self.optimizer.step()
            self.optimizer.zero_grad()
        if self.asks:
            await loss.item()

    def _save(self) -> None:
        if not self.saved:
            state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
            self.saved = [{**state, "data": self.pipe.state_dict()}]

    def load(self, state: Any) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.pipe.load_state_dict(state["data"])

    async def weights(self) -> Bytes:
        return [(await one.numpy()).tobytes() for one in self.model.state_dict().values()]


async def finish(s: asc.Scheduler, make: Callable[[], Training], number: int) -> Bytes | None:
    """Cancel a training where it waits for the nth time, and resume it. None if it ends before."""
    first = make()
    task = asyncio.ensure_future(cancelled_at(number, first.run(s)))  # type: ignore[arg-type]
    await asyncio.wait([task])
    if not task.cancelled():
        await task
        return None
    second = make()
    second.load(first.saved[0])
    await second.run(s)
    return await second.weights()


ROWS = np.random.default_rng(0).standard_normal((BATCHES * SIZE, 3))


async def rows() -> AsyncIterator[Any]:
    for row in ROWS:
        await asyncio.sleep(0)
        yield row


PIPES: dict[str, Callable[[asc.Scheduler], Pipeline[Any]]] = {
    "in memory": lambda s: s.pipeline(ROWS).batch(SIZE).to_device(depth=2),
    "a thread": lambda s: s.pipeline(lambda _: iter(list(ROWS))).map(same_in_thread).batch(SIZE).to_device(),
    "async": lambda s: s.pipeline(lambda _: rows()).map(same).batch(SIZE).to_device(depth=1),
    "shuffled": lambda s: s.pipeline(ROWS).shuffle(7, seed=0).batch(SIZE).to_device(depth=2),
    "filtered": lambda s: s.pipeline(ROWS).filter(lambda row: row[1] > -1).batch(SIZE).to_device(depth=2),
}


@pytest.mark.parametrize("kind", PIPES)
@pytest.mark.parametrize("depth", [1, 2])
async def test_no_batch_is_lost_or_repeated(s: asc.Scheduler, kind: str, depth: int) -> None:
    await compare(s, lambda: Training(PIPES[kind](s), depth))


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("depth", [1, 2])
async def test_nor_where_the_loop_puts_its_batches_and_awaits_its_losses(
    s: asc.Scheduler, depth: int, inside: bool
) -> None:
    await compare(s, lambda: Training(s.pipeline(ROWS).batch(SIZE), depth, inside=inside, puts=True, asks=True))


@pytest.mark.parametrize("inside", [False, True])
async def test_nor_where_gradients_are_accumulated(s: asc.Scheduler, inside: bool) -> None:
    await compare(s, lambda: Training(PIPES["in memory"](s), 2, every=3, inside=inside, asks=True))


async def test_nor_where_a_scope_cancels_the_steps_that_wait(s: asc.Scheduler) -> None:
    await compare(s, lambda: Training(PIPES["in memory"](s), 6, scoped=True))


async def test_nor_in_the_middle_of_several_epochs_in_one(s: asc.Scheduler) -> None:
    await compare(s, lambda: Training(s.pipeline(ROWS).repeat(EPOCHS).batch(SIZE).to_device(), 2, epochs=1))


async def compare(s: asc.Scheduler, make: Callable[[], Training]) -> None:
    whole, number = make(), 0
    await whole.run(s)
    expected = await whole.weights()
    while (found := await finish(s, make, number)) is not None:
        assert found == expected, f"cancelled at wait {number}"
        number += 1
    assert number > EPOCHS * BATCHES
