"""Donated arguments: written in place in a captured step, and nothing that anybody else holds is ever changed."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from tests.waiting import held, settled, until

pytestmark = pytest.mark.one_loop

ROWS, WIDTH = 64, 512
CACHE = np.random.default_rng(0).random((ROWS, WIDTH))  # 256 KiB
NEW = np.random.default_rng(1).random((4, WIDTH))
PLACES = np.array([3, 60, 5, 7])
LIMIT = "400 KiB"  # of one cache, and not of two


@pytest.fixture
async def s(device: Any) -> AsyncIterator[asc.Scheduler]:
    async with asc.Scheduler(device, max_bytes=LIMIT) as scheduler:
        yield scheduler


def step(cache: asc.Tensor, places: asc.Tensor, new: asc.Tensor) -> tuple[asc.Tensor, asc.Tensor]:
    cache[places] = new
    return cache[:8].sum(axis=1), cache


def stepped(cache: Any, new: Any) -> Any:
    cache = cache.copy()
    cache[PLACES] = new
    return cache


async def arguments(s: asc.Scheduler) -> tuple[asc.Tensor, asc.Tensor, asc.Tensor]:
    return await s.put(CACHE), await s.put(PLACES), await s.put(NEW)


async def test_it_is_written_in_place_and_charged_once(s: asc.Scheduler) -> None:
    cache, places, new = await arguments(s)
    graph = await s.capture(step, cache, places, new, donate=(0,))
    expected = CACHE
    for i in range(1, 6):  # nothing is awaited in between
        sums, cache = graph(cache, places, new * i)
        expected = stepped(expected, NEW * i)
    assert np.array_equal(await sums.numpy(), expected[:8].sum(axis=1))
    await s.barrier()
    held = s.statistics().bytes_retained
    assert CACHE.nbytes <= held < 2 * CACHE.nbytes
    assert np.array_equal(await cache.numpy(), expected)
    del cache, sums, new, places, graph
    await until(lambda: not s.statistics().bytes_retained)


GONE: dict[str, Callable[[asc.Tensor], object]] = {
    "operator": lambda t: t + 1,
    "function": asc.exp,
    "method": lambda t: t.sum(),
    "shape": lambda t: t.shape,
    "index": lambda t: t[0],
    "assignment": lambda t: t.__setitem__(0, 1.0),
    "detach": lambda t: t.detach(),
    "done": lambda t: t.done(),
    "result": lambda t: t.result(),
    "cancel": lambda t: t.cancel(),
    "copy out": lambda t: t.numpy(),
    "operand": lambda t: asc.arange(WIDTH, dtype=asc.float64) + t,
}


async def test_using_a_donated_tensor_names_the_replay_that_took_it(s: asc.Scheduler) -> None:
    cache, places, new = await arguments(s)
    graph = await s.capture(step, cache, places, new, donate=0)
    sums, _ = graph(cache, places, new)
    for use in GONE.values():
        with pytest.raises(RuntimeError, match=r"was donated to step \(captured, \d+\) at .*test_donated.*: use what"):
            use(cache)
    for waits in (cache, s.call(np.sum, cache)):
        with pytest.raises(RuntimeError, match="donated"):
            await waits
    with pytest.raises(RuntimeError, match="donated"):
        graph(cache, places, new)
    assert repr(cache).startswith("Tensor(donated to step (captured, ")
    assert np.array_equal(await sums.numpy(), stepped(CACHE, NEW)[:8].sum(axis=1))


async def test_a_call_that_raises_takes_nothing(device: Any) -> None:
    async with asc.Scheduler(device, max_bytes=LIMIT, max_pending=1) as s:
        cache, places, new = await arguments(s)
        graph = await s.capture(step, cache, places, new, donate=(0,))
        with pytest.raises(ValueError, match="takes"):
            graph(cache, places, new[:2])
        gate = threading.Event()
        if device == "cpu":
            waiting = [s.submit_nowait(held, gate) for _ in range(s.statistics().max_ops or 0)]
            waiting.append(s.submit_nowait(held, gate))
            with pytest.raises(asc.QueueFull):
                graph(cache, places, new)
            gate.set()
            await asc.gather(*waiting)
        assert np.array_equal(await cache.numpy(), CACHE)
        sums, cache = graph(cache, places, new)
        assert np.array_equal(await sums.numpy(), stepped(CACHE, NEW)[:8].sum(axis=1))


HOLDERS: dict[str, Callable[[asc.Tensor], Any]] = {
    "handle": lambda t: t.detach(),
    "slice": lambda t: t[2:],
    "transpose": lambda t: t.mT,
    "task": lambda t: t * 1.0,
}


@pytest.mark.parametrize("holder", HOLDERS)
async def test_arrays_that_others_hold_stay_as_they_were(device: Any, holder: str) -> None:
    async with asc.Scheduler(device, max_bytes="2 MiB") as s:
        cache, places, new = await arguments(s)
        graph = await s.capture(step, cache, places, new, donate=(0,))
        kept = HOLDERS[holder](cache)
        expected = {"slice": CACHE[2:], "transpose": CACHE.T}.get(holder, CACHE)
        _, cache = graph(cache, places, new)
        assert np.array_equal(await cache.numpy(), stepped(CACHE, NEW))
        assert np.array_equal(await kept.numpy(), expected)


async def test_an_awaited_array_stays_as_it_was(s: asc.Scheduler) -> None:
    cache, places, new = await arguments(s)
    graph = await s.capture(step, cache, places, new, donate=(0,))
    array = await cache
    with pytest.raises(asc.TaskTooLarge):  # there is no room for the copy
        graph(cache, places, new)
    assert np.array_equal(await cache.numpy(), CACHE)
    del array


async def test_a_result_that_is_a_part_of_it_is_a_copy(device: Any) -> None:
    def part(cache: asc.Tensor, places: asc.Tensor, new: asc.Tensor) -> tuple[asc.Tensor, asc.Tensor]:
        cache[places] = new
        return cache, cache[:4]

    async with asc.Scheduler(device, max_bytes="2 MiB") as s:
        cache, places, new = await arguments(s)
        graph = await s.capture(part, cache, places, new, donate=(0,))
        cache, first = graph(cache, places, new)
        cache, second = graph(cache, places, new * 2)
        assert np.array_equal(await first.numpy(), stepped(CACHE, NEW)[:4])
        assert np.array_equal(await second.numpy(), stepped(CACHE, NEW * 2)[:4])


async def test_twice_in_one_call(device: Any) -> None:
    def two(a: asc.Tensor, b: asc.Tensor) -> tuple[asc.Tensor, asc.Tensor]:
        a[0] = 1.0
        b[1] = 2.0
        return a, b

    def read(a: asc.Tensor, b: asc.Tensor) -> tuple[asc.Tensor, asc.Tensor]:
        a[0] = b[1]
        return a, b.sum()

    async with asc.Scheduler(device, max_bytes="4 MiB") as s:
        cache = await s.put(CACHE)
        graph = await s.capture(two, cache, cache, donate=(0, 1))
        for other in (cache, cache.detach()):
            with pytest.raises(ValueError, match="donated twice in one call"):
                graph(cache, other)
        a, b = graph(cache, cache.copy())
        assert (await a.numpy())[0, 0] == 1
        assert (await b.numpy())[1, 0] == 2
        graph = await s.capture(read, a, a, donate=0)
        before = await a.numpy()
        a, total = graph(a, a)  # what is read is the version before
        assert await total.item() == before.sum()
        assert np.array_equal((await a.numpy())[0], before[1])


async def test_a_failed_run_takes_its_donated_arguments_with_it(s: asc.Scheduler) -> None:
    cache, places, new = await arguments(s)
    graph = await s.capture(step, cache, places, new, donate=(0,))
    sums, cache = graph(cache, places + ROWS, new)
    later = cache.sum()
    for tensor in (sums, cache, later):
        with pytest.raises(IndexError, match="out of bounds"):
            await tensor
    del sums, cache, later, new, places, graph, tensor
    gc.collect()
    await until(lambda: not s.statistics().bytes_retained)


async def test_a_run_whose_operand_fails_or_is_cancelled_never_begins(gate: threading.Event) -> None:
    async with asc.Scheduler("cpu", max_bytes=LIMIT) as s:
        cache, places, new = await arguments(s)
        graph = await s.capture(step, cache, places, new, donate=(0,))
        pending = await s.submit(held, gate, NEW, shape=NEW.shape, dtype=NEW.dtype)
        sums, cache = graph(cache, places, pending)
        assert pending.cancel()
        for tensor in (sums, cache):
            with pytest.raises(asc.TaskCancelled):
                await tensor
        gate.set()
        del cache, tensor
        await settled(sums)
        cache = await s.put(CACHE)  # its bytes are free again
        _, cache = graph(cache, places, new)
        assert np.array_equal(await cache.numpy(), stepped(CACHE, NEW))


async def test_cancelling_the_new_version_cancels_the_run(gate: threading.Event) -> None:
    async with asc.Scheduler("cpu", max_bytes=LIMIT) as s:
        cache, places, new = await arguments(s)
        graph = await s.capture(step, cache, places, new, donate=(0,))
        pending = await s.submit(held, gate, NEW, shape=NEW.shape, dtype=NEW.dtype)
        sums, cache = graph(cache, places, pending)
        assert cache.cancel()
        for tensor in (sums, cache):
            with pytest.raises(asc.TaskCancelled):
                await tensor
        gate.set()
        assert np.array_equal(await pending, NEW)


async def test_a_scope_that_fails_cancels_it_and_frees_its_bytes(gate: threading.Event) -> None:
    async with asc.Scheduler("cpu", max_bytes="1 MiB") as s:
        with pytest.raises(LookupError):
            async with s.scope(reserve="600 KiB") as scope:
                cache, places, new = await arguments(s)
                graph = await scope.capture(step, cache, places, new, donate=(0,))
                pending = await scope.submit(held, gate, NEW, shape=NEW.shape, dtype=NEW.dtype)
                _, cache = graph(cache, places, pending)
                asyncio.get_running_loop().call_soon(gate.set)
                raise LookupError
        with pytest.raises(asc.TaskCancelled):
            await cache
        del cache, places, new, pending, graph, scope
        gc.collect()
        await until(lambda: not s.statistics().bytes_retained)


async def test_its_charge_stays_with_the_scope_that_made_it() -> None:
    async with asc.Scheduler("cpu", max_bytes="1 MiB") as s:
        async with s.scope(reserve="400 KiB") as scope:
            cache, places, new = await arguments(s)
            graph = await s.capture(step, cache, places, new, donate=(0,))
            for _ in range(3):
                _, cache = graph(cache, places, new)
            await scope.barrier()
        assert CACHE.nbytes <= s.statistics().bytes_retained < 400 * 1024
        assert np.array_equal(await cache.numpy(), stepped(CACHE, NEW))


def kept_from_before(cache: asc.Tensor, places: asc.Tensor, new: asc.Tensor) -> tuple[asc.Tensor, asc.Tensor]:
    before = cache[0]
    cache[places] = new
    return before + 1, cache


def both_versions(cache: asc.Tensor, places: asc.Tensor, new: asc.Tensor) -> tuple[asc.Tensor, asc.Tensor]:
    before = cache[0]
    cache[places] = new
    return before, cache


def a_part_of_itself(cache: asc.Tensor, places: asc.Tensor, new: asc.Tensor) -> asc.Tensor:
    cache[1] = cache[0]
    return cache


def not_returned(cache: asc.Tensor, places: asc.Tensor, new: asc.Tensor) -> asc.Tensor:
    cache[places] = new
    return cache.sum()


def another(cache: asc.Tensor, places: asc.Tensor, new: asc.Tensor) -> asc.Tensor:
    return cache * 2


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (kept_from_before, r"assignment at .*test_donated.* is still needed, at .*test_donated.*. Read it before"),
        (both_versions, "still needed, at that line, or as a result"),
        (a_part_of_itself, "still needed, at that line"),
        (not_returned, "argument 0 is donated, but not_returned does not return its new version"),
        (another, "does not return its new version"),
    ],
)
async def test_an_update_that_cannot_be_in_place_is_refused_at_the_capture(body: Any, message: str) -> None:
    async with asc.Scheduler("cpu", max_bytes="2 MiB") as s:
        cache, places, new = await arguments(s)
        with pytest.raises(asc.CaptureError, match=message):
            await s.capture(body, cache, places, new, donate=(0,))
        assert np.array_equal(await cache.numpy(), CACHE)
        if body is not a_part_of_itself:  # without it is captured
            await s.capture(body, cache, places, new)


@pytest.mark.parametrize(
    ("donate", "error"),
    [
        (3, ValueError),
        ((0, 7), ValueError),
        (-1, ValueError),
        (("cache",), TypeError),
        ((0.0,), TypeError),
        (None, TypeError),
    ],
)
async def test_bad_places(donate: Any, error: type[Exception]) -> None:
    async with asc.Scheduler("cpu") as s:
        with pytest.raises(error, match="donate"):
            await s.capture(step, *await arguments(s), donate=donate)


async def test_a_step_that_donates_is_no_part_of_another() -> None:
    async with asc.Scheduler("cpu", max_bytes="2 MiB") as s:
        cache, places, new = await arguments(s)
        graph = await s.capture(step, cache, places, new, donate=(0,))
        with pytest.raises(asc.CaptureError, match="donated arguments, cannot be captured"):
            await s.capture(lambda cache: graph(cache, places, new), cache)
        assert np.array_equal(await cache.numpy(), CACHE)


async def test_a_buffer_of_the_steps_own_is_written_in_place_too() -> None:
    """Where nothing reads what was there before; else it is copied."""

    def filled(x: asc.Tensor) -> tuple[asc.Tensor, asc.Tensor]:
        y = x + 1
        for i in range(4):
            y[i] = 0.0
        z = y.detach()
        z[5] = 7.0
        return y.sum(), z.sum()

    async with asc.Scheduler("cpu", max_bytes="2 MiB") as s:
        x = await s.put(CACHE)
        graph = await s.capture(filled, x)
        y, z = graph(x)
        expected = CACHE + 1
        expected[:4] = 0
        assert await y.item() == expected.sum()
        expected[5] = 7
        assert await z.item() == expected.sum()
        assert np.array_equal(await x.numpy(), CACHE)


@pytest.mark.parametrize("seed", range(12))
async def test_random_steps_give_the_same_with_and_without_donation(device: Any, seed: int) -> None:
    """In whatever order caches are written and read, on streams that run ahead, with others that hold versions."""
    rng = np.random.default_rng(seed)
    plan = [tuple(rng.integers(0, 4, 3)) for _ in range(6)]

    def body(a: asc.Tensor, b: asc.Tensor, places: asc.Tensor, new: asc.Tensor) -> tuple[Any, ...]:
        caches, read = [a, b], new
        for which, kind, place in plan:
            cache = caches[which % 2]
            if kind == 0:
                cache[places] = read * 0.5
            elif kind == 1:
                cache[int(place)] = read[0]
            elif kind == 2:
                cache[1:5, :8] = read[:, :8] + float(place)
            else:
                read = read + cache[int(place) : int(place) + 4] * 0.25
        return read, b, a

    async with asc.Scheduler(device, max_bytes="6 MiB") as s:
        a, b = await s.put(CACHE), await s.put(CACHE[::-1].copy())
        places, new = await s.put(PLACES), await s.put(NEW)
        plain = await s.capture(body, a, b, places, new)
        graph = await s.capture(body, a, b, places, new, donate=(1, 0))
        c, d, others = a.copy(), b.copy(), []
        for i in range(5):
            expected, b, a = plain(a, b, places, new * i)
            found, d, c = graph(c, d, places, new * i)
            if rng.random() < 0.3:
                others.append((a[3:], c[3:]))
            if rng.random() < 0.3:
                others.append((expected, found))
        for mine, wanted in [(c, a), (d, b), *others]:
            assert np.array_equal(await mine.numpy(), await wanted.numpy())
