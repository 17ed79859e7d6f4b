"""What callables take is learned from the calls before, by kind, and charged to those that follow."""

from __future__ import annotations

import asyncio
import logging
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched.devices import guests
from asyncsched.flow import learned
from tests.waiting import fail, turns

pytestmark = pytest.mark.one_loop
BIG = 600_000


def big() -> Any:
    return np.ones(BIG, np.uint8)


async def test_a_call_for_which_there_is_no_room_waits() -> None:
    async with asc.Scheduler("cpu", max_bytes=1_000_000) as s:
        cost = asc.LearnedCost(first=10)
        held = await s.call(big, nbytes=cost)
        waiting = asyncio.create_task(s.submit(big, nbytes=cost))
        await turns()
        assert s.load().tasks_pending == 1
        assert not waiting.done()
        del held
        assert len(await (await waiting)) == BIG
        assert s.statistics().peak_bytes == BIG


async def test_what_can_never_fit_is_refused() -> None:
    async with asc.Scheduler("cpu", max_bytes=500_000) as s:
        cost = asc.LearnedCost()
        await s.call(big, nbytes=cost)
        with pytest.raises(asc.TaskTooLarge, match="big needs 600,000 bytes"):
            await s.call(big, nbytes=cost)


async def test_the_first_is_charged_as_told() -> None:
    async with asc.Scheduler("cpu", max_bytes=10_000) as s:
        with pytest.raises(asc.TaskTooLarge, match="needs 20,000 bytes"):
            await s.call(big, nbytes=asc.LearnedCost(first=20_000))
        x = await s.put(np.ones(100))
        await s.call(np.sort, x, nbytes=asc.LearnedCost())  # as any callable: by its input
        assert s.statistics().peak_bytes == 1600


async def test_a_kind_is_a_name_and_the_forms_of_the_tensors(s: asc.Scheduler) -> None:
    cost = asc.LearnedCost()
    short, long = await s.put(np.arange(10.0)), await s.put(np.arange(1000.0))
    for x in (short, long, short):
        await s.call(np.sort, x, nbytes=cost)
        await s.call(np.sort, x, nbytes=cost, name="other")
    assert cost.known("sort") == ((80, 0, 2), (8000, 0, 1))
    assert cost.known("other") == cost.known("sort")
    assert repr(cost) == "LearnedCost(sort: 8,000 bytes, other: 8,000 bytes)"
    assert repr(asc.LearnedCost()) == "LearnedCost(nothing yet)"


async def test_the_most_of_a_few_is_what_counts_without_the_first(s: asc.Scheduler) -> None:
    cost = asc.LearnedCost()
    for size in (1000, 10, 30, 20, 5000):  # a fifth is not measured any more
        await s.call(np.zeros, size, np.uint8, nbytes=cost)
    assert cost.known("zeros") == ((30, 0, 4),)


async def test_a_call_that_fails_teaches_nothing(s: asc.Scheduler) -> None:
    cost = asc.LearnedCost()
    with pytest.raises(LookupError):
        await s.call(fail, nbytes=cost)
    assert cost.known("fail") == ()


async def test_no_more_kinds_are_kept_than_it_takes(s: asc.Scheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learned, "_REMEMBERED", 3)
    cost = asc.LearnedCost()
    for i in range(10):
        await s.call(big, nbytes=cost, name=f"call {i}")
    assert sum(len(cost.known(f"call {i}")) for i in range(10)) <= 3


async def test_the_workspace_is_learned_too(s: asc.Scheduler) -> None:
    with pytest.raises(ValueError, match="leave out workspace="):
        await s.call(big, nbytes=asc.LearnedCost(), workspace=10)
    with pytest.raises(ValueError, match="first='much' is no size"):
        asc.LearnedCost("much")


async def test_with_a_shape_and_a_dtype(s: asc.Scheduler) -> None:
    cost = asc.LearnedCost()
    for _ in range(2):
        x = await s.submit(big, shape=BIG, dtype=np.uint8, nbytes=cost)
        assert await (x[:3].sum()).item() == 3
    assert cost.known("big") == ((BIG, 0, 2),)


async def test_what_pytorch_allocates_is_seen(s: asc.Scheduler, torch: Any) -> None:
    moments: list[Any] = []

    def body() -> Any:
        if not moments:
            moments.append(torch.zeros(50_000))  # what later calls find there
        kept = torch.zeros(1000)
        scratch = torch.zeros(2000)
        view = scratch[10:].reshape(2, -1)  # which takes nothing
        view += 1  # nor this
        return kept + scratch[:1000] * 0

    cost = asc.LearnedCost()
    task = await s.submit(body, nbytes=cost, name="body")
    await task
    assert s.statistics().bytes_retained == 204_000  # also of the first: a tensor is no array
    task = await s.submit(body, nbytes=cost, name="body")
    await task
    assert cost.known("body") == ((20_000, 16_000, 2),)  # kept, scratch, and two of 1,000 at the end
    assert s.statistics().bytes_retained == 4000
    del task
    assert s.statistics().bytes_retained == 0


async def test_a_backward_pass_is_seen(s: asc.Scheduler, torch: Any) -> None:
    weight = torch.ones(1000, requires_grad=True)

    def forward() -> Any:
        return (weight * 2).exp().sum()

    def backward(loss: Any) -> Any:
        loss.backward()
        return loss.detach()

    cost = asc.LearnedCost()
    loss = await s.submit(forward, nbytes=cost, name="forward")
    done = await s.submit(backward, loss, nbytes=cost, name="backward")
    await done
    assert cost.known("forward")[0].nbytes >= 8000
    graph = cost.known("forward")[0].nbytes - cost.known("forward")[0].workspace
    assert 4000 <= graph < 8000  # what exp needs to be undone
    gradients = cost.known("backward")[0].nbytes - cost.known("backward")[0].workspace
    assert 4000 <= gradients < 8000
    assert s.statistics().bytes_retained == graph + gradients
    del loss
    assert s.statistics().bytes_retained == gradients


def test_what_was_there_and_goes_makes_room(torch: Any) -> None:
    there, made = [torch.ones(1000) for _ in range(4)], []
    with guests.counted(torch) as found:
        while there:
            made.append(there[-1] + 1)
            del there[-1]
    assert (found.peak, found.kept) == (4000, 16_000)


async def test_a_modules_result_is_counted_once(s: asc.Scheduler, torch: Any) -> None:
    x, cost = await s.put(np.ones((10, 100), np.float32)), asc.LearnedCost()
    await s.call(torch.nn.Linear(100, 50), x, nbytes=cost, name="linear")
    assert cost.known("linear") == ((2000, 0, 1),)


@pytest.mark.parametrize("name", guests._PRIVATE)
async def test_a_module_gives_the_same_where_pytorch_has_it_under_another_name(
    s: asc.Scheduler, torch: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setitem(guests._PRIVATE, name, "gone")
    x, cost, linear = await s.put(np.ones((10, 100), np.float32)), asc.LearnedCost(), torch.nn.Linear(100, 50)
    expected = linear(torch.ones(10, 100)).detach().numpy()
    assert np.allclose(await s.call(linear, x, nbytes=cost, name="linear"), expected, atol=1e-6)  # on fewer threads
    assert cost.known("linear") == ((2000, 0, 1),)


def test_on_cuda_the_allocator_tells() -> None:
    now, peaks = [100, 130], []
    cuda = SimpleNamespace(
        is_available=lambda: True,
        memory_allocated=lambda device: now.pop(0),
        max_memory_allocated=lambda device: 500,
        reset_peak_memory_stats=peaks.append,
    )
    with guests.counted_on(SimpleNamespace(cuda=cuda), 1) as found:
        pass
    assert (found.peak, found.kept, peaks) == (400, 30, [1])
    cuda.is_available = lambda: False
    with guests.counted_on(SimpleNamespace(cuda=cuda), 1) as found:
        pass
    assert (found.peak, found.kept) == (0, 0)


class Growing:
    """A function by which the process grows, as it does by a library's memory. The process is this object's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.resident, self.most, self.gate = 10**8, 2 * 10**9, threading.Event()
        monkeypatch.setattr(learned, "resident_memory", lambda: (self.resident, self.most))

    def keep(self, nbytes: int, returned: int = 100) -> Any:
        self.resident += nbytes
        return np.ones(returned, np.uint8)

    def drop(self, nbytes: int) -> Any:
        self.most = max(self.most, self.resident + nbytes)
        return np.ones(100, np.uint8)


async def test_memory_that_is_not_seen_is_told_of_once(
    s: asc.Scheduler, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    process, cost = Growing(monkeypatch), asc.LearnedCost()
    with caplog.at_level(logging.WARNING):
        await s.call(process.keep, 60_000_000, nbytes=cost, name="little")
        await s.call(process.keep, 400_000_000, 110_000_000, nbytes=cost, name="seen")
        await s.call(process.drop, 300_000_000, nbytes=cost, name="below the mark from before")
        assert caplog.text == ""
        for _ in range(3):
            await s.call(process.keep, 267_000_000, nbytes=cost, name="model")
        await s.call(process.drop, 10**10, nbytes=cost, name="scratch")
    texts = [record.getMessage() for record in caplog.records]
    assert len(texts) == 2
    assert texts[0].startswith("the process grew by 267,000,000 bytes in model, of which a LearnedCost saw 100: ")
    assert texts[1].startswith("the process grew by 10,000,000,000 bytes in scratch, ")


async def test_memory_that_may_be_another_tasks_is_told_of_by_none(
    s: asc.Scheduler, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    process, cost = Growing(monkeypatch), asc.LearnedCost()
    with caplog.at_level(logging.WARNING):
        other = await s.submit(process.gate.wait, 60)
        await s.call(process.keep, 10**9, nbytes=cost)
        process.gate.set()
        assert await other
    assert caplog.text == ""
