"""Dask's workers as streams: the same programs, the same results, the same bounds."""

from __future__ import annotations

import asyncio
import math
import sys
import threading
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched.cluster.connection import ResultLost
from asyncsched.cluster.device import DaskDevice
from asyncsched.ops.table import TABLE
from asyncsched.tensors.tensor import apply
from tests.test_guides import ROOT, blocks, run
from tests.waiting import turns, until

from .on_cards import future_of, replayed, train

A = np.arange(12.0).reshape(3, 4)


async def test_operations_are_computed_on_workers_and_brought_when_awaited(d):
    x = await d.put(A)
    y = x @ x.T + 1
    assert np.array_equal(await y, A @ A.T + 1)
    mine = await y.numpy()
    mine[0] = 0  # a copy that is ours
    assert await y.sum().item() == (A @ A.T + 1).sum()
    a, b, number, host = await asc.gather(y[0], x.mean(), x.sum().item(), y.numpy())
    assert np.array_equal(a, (A @ A.T + 1)[0])
    assert (b, number) == (A.mean(), A.sum())
    host[0] = 0
    assert np.array_equal(host[1:], (A @ A.T + 1)[1:])
    with pytest.raises(asyncio.InvalidStateError, match="await"):
        y.result()


async def test_a_result_that_cannot_come_here_is_no_error_of_others(d):
    x = await d.put(A)
    tasks = [d.submit_nowait(threading.Lock), *[d.submit_nowait(np.add, x, i) for i in range(3)]]
    await until(lambda: all(task.done() for task in tasks))
    locked, *sums = await asyncio.gather(*map(read, tasks), return_exceptions=True)
    assert type(locked) is TypeError
    assert [np.array_equal(found, A + i) for i, found in enumerate(sums)] == [True] * 3


@pytest.mark.parametrize("after", range(0, 12, 3))
async def test_a_reader_that_is_cancelled_is_no_loss_of_others(d, after):
    x = await d.put(A)
    tasks = [d.submit_nowait(np.add, x, i) for i in range(4)]
    await until(lambda: all(task.done() for task in tasks))
    readers = [asyncio.create_task(read(task)) for task in tasks]
    await turns(after)
    for reader in readers[:3]:
        reader.cancel()
    assert np.array_equal(await readers[3], A + 3)


async def read(task: asc.Task[Any]) -> Any:
    return await task


@dataclass(frozen=True)
class Refused(Exception):
    code: int


def refuse(code: int) -> None:
    raise Refused(code)


@pytest.mark.one_loop
async def test_an_exception_that_takes_no_attributes_is_told_as_it_is(d):
    with pytest.raises(Exception, match=r"Refused\(code=3\)"):  # Dask cannot unpickle it
        await d.call(refuse, 3)


@pytest.mark.one_loop
async def test_views_are_no_tasks_of_dasks_and_shapes_that_depend_on_data_come_back(d):
    x = await d.put(A)
    sent = []
    way = d.devices[0].connection
    submit, way.submit = way.submit, lambda name, *rest: sent.append(name) or submit(name, *rest)
    view = x[1:, ::2].T
    assert np.array_equal(await view, A[1:, ::2].T)
    assert np.array_equal(await (view * 2), A[1:, ::2].T * 2)
    assert sent == ["multiply"]
    found = asc.nonzero(x)[0]
    assert np.array_equal(await found, np.nonzero(A)[0])
    assert found.shape == (11,)
    x[0] = 7.0
    assert (await x)[0].tolist() == [7.0] * 4


@pytest.mark.one_loop
async def test_what_only_feeds_the_next_is_one_task_of_dasks(d):
    large = np.arange(800.0).reshape(40, 20) / 800
    x = await d.put(large)
    sent = []
    way = d.devices[0].connection
    submit, way.submit = way.submit, lambda name, *rest: sent.append(name) or submit(name, *rest)
    y = x
    for _ in range(10):
        y = asc.tanh(y) * 1.5
    y = asc.sum(y * y, axis=0)
    expected = large
    for _ in range(10):
        expected = np.tanh(expected) * 1.5
    assert np.array_equal(await y, (expected * expected).sum(axis=0))
    assert sent == ["tanh"]
    assert d.statistics().peak_tasks_in_flight == 22  # each counts
    held = x + 1
    both = (held * 2) @ (x * 3).T  # two that it waits for, and one that somebody else may read
    assert np.array_equal(await both, (large + 1) * 2 @ (large * 3).T)
    assert np.array_equal(await held, large + 1)
    assert sorted(sent) == ["add", "matmul", "multiply", "multiply", "tanh"]


@pytest.mark.one_loop
async def test_small_ones_go_together_and_are_charged_until_the_last_is_dropped(address):
    async with asc.Scheduler(DaskDevice(address, workers=1)) as s:
        x, client = await s.put(A), s.devices[0].connection.client
        found = [x + i for i in range(20)]
        found += [a * 2 for a in found]
        assert [a.tolist() for a in await asc.gather(*found)] == [
            *((A + i).tolist() for i in range(20)),
            *(((A + i) * 2).tolist() for i in range(20)),
        ]
        assert len(client.futures) == 3  # of 40
        assert s.statistics().bytes_retained == 41 * A.nbytes
        sums = [await a.sum().item() for a in found[:3]]
        assert sums == [(A + i).sum() for i in range(3)]
        del found[1:]
        await until(lambda: s.statistics().bytes_retained == 33 * A.nbytes)  # what lies there with the first
        assert np.array_equal(await found[0].T, A.T)
        del found[:]
        await until(lambda: s.statistics().bytes_retained == A.nbytes)
        await until(lambda: len(client.futures) == 1)


@pytest.mark.one_loop
async def test_a_small_one_that_waits_keeps_no_other_waiting(d, tmp_path):
    path, x = tmp_path / "go", await d.put(A)
    late = await d.submit(wait_for, str(path), 1.0, shape=(), dtype=float)
    later, others = late + 1, [x + i for i in range(2)]
    sums = later + others[0]
    assert np.array_equal(await (others[1] * 2), (A + 1) * 2)
    assert np.array_equal(await others[0], A)
    assert not later.done()
    await asyncio.to_thread(path.touch)
    assert np.array_equal(await sums, A + 2)


@pytest.mark.one_loop
async def test_one_that_fails_among_small_ones_does_so_alone(d, monkeypatch):
    def broken(xp: Any, a: Any, **_: Any) -> Any:
        raise LookupError("broken")

    def as_negative(op: Any, *args: Any) -> Any:
        return TABLE["negative"].rule(TABLE["negative"], *args)

    x = await d.put(A)
    bad = replace(TABLE["negative"], name="bad", kernel=broken, rule=as_negative)
    monkeypatch.setattr("asyncsched.cluster.stream.is_captured", lambda op: False)
    found = [x + i for i in range(4)]
    failed = apply(bad, (x,))
    found += [a * 2 for a in found]
    worse = failed + 1
    large = [asc.repeat(a, 400, axis=0) for a in found]  # which Dask was told of, too
    assert [a.tolist() for a in await asc.gather(*found[4:])] == [((A + i) * 2).tolist() for i in range(4)]
    assert np.array_equal(await large[7], np.repeat((A + 3) * 2, 400, axis=0))
    for task in (failed, worse):
        with pytest.raises(LookupError, match="broken"):
            await task


@pytest.mark.one_loop
@pytest.mark.parametrize("lost", [False, True])
async def test_functions_go_together_where_the_user_says_so(address, monkeypatch, lost):
    async with asc.Scheduler(DaskDevice(address, workers=1, chunksize=8)) as s:
        way = s.devices[0].connection
        submit, outcome, sent = way.submit, way.outcome, []
        monkeypatch.setattr(way, "submit", lambda name, *rest: sent.append(name) or submit(name, *rest))

        async def dasks_own(call: Any) -> BaseException | None:
            error = await outcome(call)
            return RuntimeError("a worker died") if lost and call.last else error

        monkeypatch.setattr(way, "outcome", dasks_own)
        roots = [s.submit_nowait(math.sqrt, float(i * i), shape=(), dtype=float) for i in range(-4, 4)]
        halves = [s.submit_nowait(np.multiply, root, 0.5, shape=(), dtype=float) for root in roots]
        later, large = roots[0] + 1, s.submit_nowait(np.zeros, 400, shape=(400,), dtype=float)
        unknown = s.submit_nowait(int, 3)
        assert [float(a) for a in await asc.gather(*roots)] == [abs(i) for i in range(-4, 4)]
        assert [float(a) for a in await asc.gather(*halves)] == [abs(i) / 2 for i in range(-4, 4)]
        assert (await later, (await large).size, await unknown) == (5, 400, 3)
        together = ["add", "int", "multiply", "sqrt", "zeros"]
        assert sorted(sent) == (sorted([*together, *["multiply", "sqrt"] * 8]) if lost else together)
        failing = [s.submit_nowait(math.sqrt, float(i), shape=(), dtype=float) for i in (4, -1, 9)]
        assert [float(a) for a in await asc.gather(failing[0], failing[2])] == [2, 3]
        with pytest.raises(ValueError, match="math domain error|nonnegative"):
            await failing[1]
        del roots, halves, later, large, failing
        await until(lambda: not s.statistics().bytes_retained)


@pytest.mark.one_loop
async def test_who_is_called_again_is_joined_by_nobody(address, monkeypatch):
    async with asc.Scheduler(DaskDevice(address, workers=1, chunksize=8)) as s:
        way, later = s.devices[0].connection, []
        outcome = way.outcome

        async def and_another_fails(call: Any) -> BaseException | None:
            error = await outcome(call)
            if call.last and len(later) < 3:
                later.append(s.submit_nowait(math.sqrt, -4.0, shape=(), dtype=float))
            return error

        monkeypatch.setattr(way, "outcome", and_another_fails)
        roots = [s.submit_nowait(math.sqrt, float(i), shape=(), dtype=float) for i in (4, -1, 9)]
        assert [float(a) for a in await asc.gather(roots[0], roots[2])] == [2, 3]
        for task in (roots[1], *later):
            with pytest.raises(ValueError, match="math domain error|nonnegative"):
                await task


class Lookalike(asyncio.CancelledError):
    pass


@pytest.mark.one_loop
@pytest.mark.parametrize("kind", [StopIteration, asyncio.CancelledError, Lookalike])
async def test_what_would_mean_something_else_to_a_coroutine_is_a_failure(d, kind):
    def broken(a):
        raise kind("it")

    x = await d.put(A)
    failed = d.submit_nowait(broken, x, shape=(), dtype=float)
    with pytest.raises(RuntimeError, match=f"the task raised {kind.__name__}, which cannot pass") as caught:
        await failed
    assert repr(caught.value.__cause__) == repr(kind("it"))
    del x, failed
    await until(lambda: not d.statistics().bytes_retained)


@pytest.mark.one_loop
async def test_a_step_that_fails_within_one_is_named(d):
    x = await d.put(np.zeros((2, 2)))
    y = asc.linalg.inv(x + 0) * 2 + 1
    with pytest.raises(np.linalg.LinAlgError, match="Singular") as caught:
        await y
    told = "\n".join(caught.value.__notes__)
    assert "raised by the task 'inv'" in told
    assert "reached through add <- multiply <- inv" in told
    assert "raised on the worker" in told
    await d.barrier()


@pytest.mark.one_loop
async def test_a_chain_that_is_cancelled_leaves_nothing(d):
    x = await d.put(A)
    for count in (0, 1, 5):
        y = (x + 1) * 2 - 3
        for _ in range(count):
            await asyncio.sleep(0)
        assert y.cancel()
        with pytest.raises(asc.TaskCancelled):
            await y
        await d.barrier()
    del y
    await until(lambda: d.statistics().bytes_retained == A.nbytes)
    await until(lambda: len(d.devices[0].connection.client.futures) == 1)


@pytest.mark.one_loop
async def test_what_cannot_be_sent_fails_alone(d):
    xs = [await d.put(A + i) for i in range(2)]
    lost = future_of(xs[1])
    await d.devices[0].connection.client.cancel([lost], force=True)
    await until(lost.cancelled)
    good = [x + 1 for x in xs[:1] for _ in range(3)]
    bad = d.submit_nowait(len, threading.Lock())
    worse = d.submit_nowait(str, bad)
    gone = d.submit_nowait(np.sum, xs[1])
    assert [(found == A + 1).all() for found in await asc.gather(*good)] == [True] * 3
    for task in (bad, worse):
        with pytest.raises(TypeError, match=r"len cannot be sent to a worker: TypeError: cannot pickle '_thread.lock'"):
            await task
    with pytest.raises(ResultLost):
        await gone


@pytest.mark.one_loop
async def test_a_batcher_is_told_how_its_function_gets_there(d):
    with pytest.raises(TypeError, match=r"sorted cannot be sent to a worker: .* a coroutine function that awaits"):
        await asc.Batcher(sorted, scheduler=d)(1)

    async def there(items):
        return await d.call(sorted, items)

    assert await asc.Batcher(there, scheduler=d)(1) == 1


@pytest.mark.one_loop
async def test_functions_run_there_and_what_they_raise_says_where(d):
    x = await d.put(A)
    assert await d.call(lambda a, b: {"sum": a.sum(), "b": b}, x, [1, 2]) == {"sum": 66.0, "b": [1, 2]}
    total = d.submit_nowait(np.sum, x, shape=(), dtype=float)
    assert await (total + 1).item() == 67

    def broken(a):
        raise LookupError("broken")

    failed = d.submit_nowait(broken, x, shape=(2,), dtype=float)
    with pytest.raises(LookupError) as caught:
        await (failed + 1)
    told = "\n".join(caught.value.__notes__)
    assert "on the worker" in told
    assert "tcp://" in told
    assert "broken' , submitted at".replace(" ,", ",") in told
    assert "reached through add <- " in told
    with pytest.raises(ValueError, match="read-only"):
        await d.call(lambda a: a.fill(0), x)
    with pytest.raises(RuntimeError, match=r"the task raised SystemExit\(2\), which would end its worker"):
        await d.call(sys.exit, 2)
    with pytest.raises(ValueError, match="declare what the function returns"):
        await d.submit_nowait(np.sum, x, shape=(3,), dtype=float)


@pytest.mark.one_loop
async def test_results_are_charged_as_long_as_they_are_held_and_bounds_hold(address):
    device = DaskDevice(address, most_per_worker=2)
    async with asc.Scheduler(device, max_ops=6, max_bytes=64_000) as s:
        xs = [await s.put(np.full(1000, i)) for i in range(4)]
        assert s.statistics().bytes_retained == 32_000
        found = [(x * 2).sum() for x in xs for _ in range(4)]
        assert [n.tolist() for n in await asc.gather(*found)] == [n * 2000 for n in range(4) for _ in range(4)]
        del found
        told = s.statistics()
        assert told.peak_bytes <= 64_000
        assert told.peak_tasks_in_flight <= 6
        t = await s.submit(lambda x: x[:100].tolist(), xs[0])  # of what nobody said how large it is
        await t
        assert s.statistics().bytes_retained > 32_000 + 8 * 100
        del xs, t
        await until(lambda: s.statistics().bytes_retained == 0)
    with pytest.raises(asc.TaskTooLarge):
        async with asc.Scheduler(DaskDevice(address), max_bytes=1000) as s:
            await s.put(np.ones(1000))


def wait_for(path: str, result: Any = None) -> Any:
    """A task's body that says that it began, and ends when it may."""
    Path(path + ".began").touch()
    for _ in range(3000):
        if Path(path).exists():
            return result
        time.sleep(0.01)
    raise TimeoutError


async def began(path: Path) -> None:
    while not await asyncio.to_thread(Path(f"{path}.began").exists):
        await asyncio.sleep(0.01)


@pytest.mark.one_loop
async def test_a_cancelled_task_keeps_its_slot_until_its_worker_is_free(d, tmp_path):
    path = tmp_path / "go"
    task = await d.submit(wait_for, str(path))
    after = d.submit_nowait(partial(print), task)
    await began(path)
    assert task.cancel()
    with pytest.raises(asc.TaskCancelled):
        await task
    with pytest.raises(asc.TaskCancelled):
        await after
    await asyncio.sleep(0.2)  # it may not end in this time: nothing says when a message was not sent
    assert d.statistics().tasks_in_flight >= 1
    await asyncio.to_thread(path.touch)
    await until(lambda: d.statistics().tasks_in_flight == 0)


@pytest.mark.one_loop
async def test_what_was_not_sent_never_is(address, tmp_path):
    path, other = tmp_path / "go", tmp_path / "other"
    async with asc.Scheduler(DaskDevice(address, workers=1, most_per_worker=1)) as s:
        first = await s.submit(wait_for, str(path))
        second = await s.submit(wait_for, str(other))
        await began(path)
        assert s.statistics().tasks_in_flight == 2
        second.cancel()
        await asyncio.to_thread(path.touch)
        await first
        await s.barrier()
    assert not await asyncio.to_thread(Path(f"{other}.began").exists)


@pytest.mark.one_loop
async def test_a_training_gives_the_bits_of_one_machine(d):
    with asc.exact():
        there = await train(d)
        async with asc.Scheduler("cpu") as s:
            here = await train(s)
    for a, b in zip(there, here, strict=True):
        assert np.array_equal(a, b)
    drawn = asc.random.default_rng(0, scheduler=d).normal(size=4)
    assert np.array_equal(await drawn, np.random.default_rng(0).normal(size=4))


@pytest.mark.one_loop
async def test_a_step_with_a_failed_gradient_is_skipped(d):
    w = await d.put(np.ones(3))
    w.requires_grad = True
    optimizer = asc.optim.SGD([w], lr=0.5)
    bad = d.submit_nowait(lambda: 1 / 0, shape=(3,), dtype=float)
    (w * bad).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    (w * 2).sum().backward()
    optimizer.step()
    assert (await w).tolist() == [0, 0, 0]
    with pytest.raises(ZeroDivisionError):
        await bad


@pytest.mark.one_loop
async def test_a_pipeline_feeds_it(d):
    async with d.scope(name="epoch") as scope:
        pipe = d.pipeline(range(12)).map(float, workers=2).batch(4).to_device(depth=2)
        async with pipe.open() as items:
            sums = [(await scope.call(np.sum, batch)).item() async for batch in items]
    assert sums == [6, 22, 38]


@pytest.mark.one_loop
async def test_a_captured_step_is_one_task_of_dasks(d):
    for found, expected in await replayed(d):
        assert np.array_equal(found, expected)


@pytest.mark.one_loop
@pytest.mark.parametrize("done", [False, True])
async def test_a_captured_step_takes_donated_arguments(d, done):
    def step(cache: asc.Tensor, row: asc.Tensor) -> tuple[asc.Tensor, asc.Tensor]:
        cache[1] = row
        return cache.sum(axis=0), cache

    cache, row = await d.put(A), await d.put(np.ones(4))
    kept, graph, expected = cache[1:], await d.capture(step, cache, row, donate=0), A.copy()
    for i in range(3):
        given = cache
        total, cache = graph(given, row * i)
        expected[1] = i
        if done:
            assert np.array_equal(await total, expected.sum(axis=0))
        with pytest.raises(RuntimeError, match="donated"):
            given + 1
    assert np.array_equal(await cache, expected)
    assert np.array_equal(await kept, A[1:])


@pytest.mark.one_loop
async def test_a_client_is_used_as_it_is_and_left_open(address):
    from distributed import Client

    async with Client(address, asynchronous=True) as client:
        async with asc.Scheduler(DaskDevice(client, workers=[0])) as s:
            y = await s.put(A) + 1
            assert len(s.devices[0].streams) == 1
        assert np.array_equal(await y, A + 1)  # after the scheduler closed, while the client is open
        del y
        await until(lambda: not client.futures)
        with pytest.raises(RuntimeError, match=r"no workers \['nobody'\]"):
            async with asc.Scheduler(DaskDevice(client, workers=["nobody"])):
                pass


@pytest.mark.one_loop
async def test_from_and_to_another_device(address):
    async with asc.Scheduler(["cpu", DaskDevice(address)]) as s:
        x = await s.put(A)
        y = (x.to("dask") * 2).to("cpu:0") + 1
        assert np.array_equal(await y, A * 2 + 1)


@pytest.mark.one_loop
async def test_what_comes_from_many_results_is_put_anew_and_those_are_forgotten(d, monkeypatch):
    monkeypatch.setattr("asyncsched.cluster.stream.DEEPEST", 4)
    x = await d.put(A)
    for _ in range(6):
        x = x + 1
        await d.barrier()
    assert np.array_equal(await x, A + 6)
    client = d.devices[0].connection.client

    async def known() -> int:
        return await client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks))

    while await known() > 4:  # what was put, and six sums, without that
        await asyncio.sleep(0.02)
    assert np.array_equal(await (x + 1), A + 7)


@pytest.mark.one_loop
async def test_the_error_says_what_is_gone(d):
    x = await d.put(A)
    y = x * 2
    await d.barrier()
    device = d.devices[0]
    await device.connection.client.cancel([future_of(y)], force=True)
    with pytest.raises(ResultLost, match="the result of 'multiply' is gone"):
        await y
    assert np.array_equal(await x, A)


@pytest.mark.one_loop
async def test_the_guide_says_how(address, may_block):
    (cell,) = [block for block in blocks(ROOT / "asyncsched/cluster/README.md") if "DaskDevice" in block.code]
    cell.code = cell.code.replace("tcp://scheduler:8786", address).replace("workers=4", "workers=2")
    names: dict[str, Any] = {"asc": asc}
    await run(cell, names)
    assert await names["main"](A[:, :3]) == (A[:, :3] @ A[:, :3] + 1).sum()


async def test_instruments_are_told_of_bodies_on_workers(address):
    class Bodies(asc.observe.Instrument):
        def __init__(self):
            self.seen = []

        def body_began(self, task):
            self.seen.append(("began", task.name))

        def body_ended(self, task, began, ended):
            assert began <= ended
            self.seen.append(("ended", task.name))

    bodies = Bodies()
    async with asc.Scheduler(asc.cluster.DaskDevice(address, workers=2), instruments=[bodies]) as s:
        await s.call(max, 1, 2)
    assert bodies.seen == [("began", "max"), ("ended", "max")]
