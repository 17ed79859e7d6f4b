"""`warm_up`: what is slow once is over before it counts, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched.ops.kernels import compiled
from tests.fake_cupy import Fake, fake_cupy
from tests.waiting import turns, until

ROWS = np.ones((4, 8), np.float32)


@pytest.fixture
def finished(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Numba's compiler, which notes on which threads it is waited for."""
    threads: list[str] = []
    monkeypatch.setattr(compiled, "finish", lambda: threads.append(threading.current_thread().name))
    return threads


async def test_runs_once_with_arrays_that_are_put(s: asc.Scheduler, finished: list[str]) -> None:
    seen: list[Any] = []

    def step(x: asc.Tensor, y: asc.Tensor, scale: float) -> dict[str, asc.Tensor]:
        seen.append((x.shape, scale, list(finished)))
        return {"loss": (x @ y.T).sum() * scale}

    held = await s.put(ROWS)
    await s.warm_up(step, ROWS, held, 2.0)
    assert seen == [((4, 8), 2.0, [])]
    assert finished == ["asyncsched waits for numba"]
    assert s.statistics().bytes_retained == ROWS.nbytes


async def test_of_a_coroutine_function_and_of_what_it_only_submits(s: asc.Scheduler, finished: list[str]) -> None:
    ended = threading.Event()

    async def request(x: asc.Tensor) -> int:
        s.submit_nowait(ended.set)
        return int(await x.sum().item())

    async with s.scope() as scope:
        for one in (request, lambda x: request(x)):
            await scope.warm_up(one, ROWS)
            assert ended.is_set()
            ended.clear()
    await s.warm_up(lambda: None)
    assert s.statistics().bytes_retained == 0


@pytest.mark.parametrize("how", ["raises", "a task fails", "a task fails that nobody returns"])
async def test_what_fails_is_told(s: asc.Scheduler, finished: list[str], how: str) -> None:
    def step(x: asc.Tensor) -> Any:
        if how == "raises":
            return divmod(1, 0)
        task = s.submit_nowait(divmod, 1, 0, shape=(), dtype=float)
        return task + 1 if how == "a task fails" else x

    with pytest.raises(ZeroDivisionError if "nobody" not in how else ExceptionGroup):
        await s.warm_up(step, ROWS)
    assert finished == []
    assert s.statistics().bytes_retained == 0
    assert await s.call(int) == 0


async def test_cancelled_it_waits_for_what_runs_alone(s: asc.Scheduler, finished: list[str]) -> None:
    gate, begun = threading.Event(), threading.Event()

    def body() -> None:
        begun.set()
        gate.wait()

    def step() -> asc.Tensor:
        s.submit_nowait(body, resource="one")
        return s.submit_nowait(np.ones, 3, shape=3, dtype=float, resource="one")

    warming = asyncio.create_task(s.warm_up(step))
    await until(begun.is_set)
    warming.cancel()
    await turns()
    assert not warming.done()
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await warming
    assert finished == []
    assert s.statistics().tasks_in_flight == 0


async def test_cancelled_it_leaves_the_compiler_alone(s: asc.Scheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, waits = threading.Event(), threading.Event()
    monkeypatch.setattr(compiled, "finish", lambda: (waits.set(), gate.wait()))
    warming = asyncio.create_task(s.warm_up(lambda x: x + 1, ROWS))
    await until(waits.is_set)
    warming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await warming
    gate.set()


async def test_of_what_is_no_function(s: asc.Scheduler) -> None:
    with pytest.raises(TypeError, match="warm_up takes a function, and examples of its arguments, not 3"):
        await s.warm_up(3, ROWS)  # type: ignore[arg-type]
    with pytest.raises(AttributeError, match=r"`await s.warm_up\(fn, \*examples\)`"):
        s.warmup  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize("later", [False, True], ids=["generator", "async generator"])
async def test_a_generator_would_run_nothing(s: asc.Scheduler, later: bool) -> None:
    def tokens(x: asc.Tensor) -> Iterator[asc.Tensor]:
        yield x + 1

    async def tokens_later(x: asc.Tensor) -> AsyncIterator[asc.Tensor]:
        yield x + 1

    with pytest.raises(TypeError, match="gives a generator, of which nothing has run: warm up what reads it"):
        await s.warm_up(tokens_later if later else tokens, ROWS)
    await s.warm_up(lambda x: list(tokens(x)), ROWS)


async def test_of_a_closed_scheduler() -> None:
    async with asc.Scheduler("cpu") as s:
        pass
    with pytest.raises(asc.SchedulerClosed):
        await s.warm_up(lambda: None)


@pytest.fixture
def fake() -> Iterator[Fake]:
    with fake_cupy(1) as fake:
        yield fake
        assert fake.problems() == []


@pytest.mark.drops_at_once
@pytest.mark.parametrize("awaits", [False, True])
async def test_on_cuda_each_stream_has_had_its_turn_and_nothing_compiles_afterwards(
    fake: Fake, finished: list[str], awaits: bool
) -> None:
    def step(x: asc.Tensor) -> asc.Tensor:
        return asc.nn.functional.softmax(x @ x.T + 1)

    async def handler(x: asc.Tensor) -> None:
        await (await step(x).sum() + step(x)).numpy()

    async with asc.Scheduler("cuda", streams=2) as s:
        await s.warm_up(handler if awaits else step, ROWS)
        assert all(stream.issued.count for stream in s.devices[0].streams)  # type: ignore[attr-defined]
        compiles = fake.statistics["compiles"]
        assert compiles
        await step(await s.put(ROWS)).numpy()
        assert fake.statistics["compiles"] == compiles
        await s.barrier()
        assert s.statistics().bytes_retained == 0
    assert finished == []


async def test_numbas_loops_are_there_afterwards(s: asc.Scheduler) -> None:
    pytest.importorskip("numba", reason="needs numba, whose loops are compiled")
    await s.warm_up(asc.nn.functional.gelu, ROWS)
    assert compiled.compiled("gelu")
