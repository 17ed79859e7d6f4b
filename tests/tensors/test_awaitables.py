"""`t.item()` and `t.numpy()` are awaited, alone or by `asc.gather`; taken for the value, they say so."""

from __future__ import annotations

import asyncio
import gc
import inspect
import math
import statistics
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from tests.waiting import cancelled, fail, held, turns

MISTAKES: tuple[Callable[[Any], Any], ...] = (
    lambda n: 0.0 + n,
    lambda n: n + 1,
    lambda n: n / 2,
    lambda n: 2**n,
    lambda n: divmod(n, 2),
    lambda n: -n,
    lambda n: abs(n),
    lambda n: n < 1,
    lambda n: n <= 1,
    lambda n: n == 1.5,
    lambda n: n != np.float32(1),
    lambda n: not n,
    float,
    int,
    complex,
    round,
    math.floor,
    "{:.3f}".format,
    "{}".format,
    np.float32,
    lambda n: [10, 20][n],
    lambda n: np.float64(1) + n,
    lambda n: np.mean([n]),
    lambda n: statistics.fmean([n]),
    lambda n: sum([n]),
    lambda n: max(0, n),
)

OF_ARRAYS: tuple[Callable[[Any], Any], ...] = (
    *MISTAKES[:11],
    lambda h: h[0],
    lambda h: h.__setitem__(0, 1.0),
    lambda h: h @ h,
    lambda h: np.ones(1) @ h,
    lambda h: np.ones(1) == h,
    lambda h: h == np.ones(1),
    len,
    list,
    np.asarray,
    np.exp,
    np.mean,
    lambda h: [] if h else [1],
)


@pytest.mark.parametrize("mistake", MISTAKES)
async def test_taken_for_the_number_it_names_the_cure(s, mistake):
    x = await s.put(np.array([1.5]))
    with pytest.raises(asc.ImplicitBarrierError, match="use `await t.item"):
        mistake(x.item())
    gc.collect()  # a warning of a coroutine that was never awaited would fail this test


@pytest.mark.parametrize("mistake", OF_ARRAYS)
async def test_taken_for_the_array_it_names_the_cure(s, mistake):
    x = await s.put(np.array([1.5]))
    with pytest.raises(asc.ImplicitBarrierError, match=r"t.numpy\(\) is an array to come: use `await t.numpy\(\)`"):
        mistake(x.numpy())
    gc.collect()


async def test_passing_one_as_a_tensor_names_the_cure(s):
    x = await s.put(np.array([1.5]))
    for use in (
        lambda: x + x.numpy(),
        lambda: x.item() * x,
        lambda: asc.exp(x.numpy()),
        lambda: s.put_nowait(x.item()),
    ):
        with pytest.raises(asc.ImplicitBarrierError, match="use `await t."):
            use()
    with pytest.raises(asc.ImplicitBarrierError, match=r"use `await t.numpy\(\)`"):
        await s.put(x.numpy())


async def test_an_attribute_of_the_value_is_looked_up_after_the_wait(s):
    x = await s.put(np.array([1.5]))
    number, array = x.item(), x.numpy()
    with pytest.raises(AttributeError, match=r"t.item\(\) has no attribute 'real': use `\(await t.item\(\)\).real`$"):
        number.real  # noqa: B018
    with pytest.raises(AttributeError, match=r"t.numpy\(\) has no attribute 'mean': use `\(await t.numpy\(\)\).mean`$"):
        array.mean()
    assert (await number, (await array).mean()) == (1.5, 1.5)


async def test_it_is_a_coroutine_otherwise(s):
    x = await s.put(np.array([1.5]))
    array = x.numpy()
    assert repr(array) == "<t.numpy(), an array to come: use `await t.numpy()`>"
    task = asyncio.create_task(array)
    assert "coro=<t.numpy() running at" in repr(task)
    assert inspect.getcoroutinestate(array) == inspect.CORO_CREATED
    assert (await task).tolist() == [1.5]
    number = x.item()
    assert asyncio.iscoroutine(number)
    assert repr(number) == "<t.item(), a number to come: use `await t.item()`>"
    assert number != "a"
    assert {number: 1}[number] == 1
    assert await number == 1.5
    assert await asyncio.create_task(x.item()) == 1.5
    assert await asyncio.gather(x.item(), x.item()) == [1.5, 1.5]
    assert await asyncio.wait_for(x.item(), 10) == 1.5
    async with asyncio.TaskGroup() as group:
        task = group.create_task(x.item())
    assert task.result() == 1.5


async def test_one_that_is_never_awaited_warns(s):
    x = await s.put(np.array([1.5]))
    for name, coming in (("item", [x.item()]), ("numpy", [x.numpy()])):
        with pytest.warns(RuntimeWarning, match=rf"coroutine 't.{name}' was never awaited"):
            coming.clear()


async def test_it_is_the_value_of_the_moment_it_was_asked_for(s):
    x = await s.put(np.array([1.5]))
    number, array = x.item(), x.numpy()
    x[0] = 2.0
    assert (await number, await array, await x.item()) == (1.5, [1.5], 2.0)


async def test_one_that_was_awaited_and_is_kept_keeps_no_bytes(s):
    x = await s.put(np.ones(100_000))
    asked, waited, gathered, task = x.numpy(), x.numpy(), x.numpy(), asyncio.create_task(x.numpy())
    asked.close()
    await waited
    await asc.gather(gathered)
    await task
    del x
    await s.barrier()
    assert s.statistics().bytes_retained == 0
    assert (asked, waited, gathered, task) is not None


async def test_several_elements_are_refused_at_the_line(s):
    x = await s.put(np.ones(3))
    with pytest.raises(ValueError, match="exactly one element"):
        x.item()


async def test_cancelled_while_it_waits(s, gate):
    x = s.submit_nowait(gate.wait, shape=(), dtype=bool)
    task = asyncio.create_task(x.item())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    gate.set()
    assert await x.item() is True


# -- asc.gather ------------------------------------------------------------------------------------------------------


async def test_gather_takes_numbers_arrays_tensors_and_tasks_mixed(s):
    x = await s.put(np.arange(4.0))
    task = await s.submit(divmod, 7, 2)
    number, array, tensor, result, again = await asc.gather(x.sum().item(), x.numpy(), x + 1, task, x.sum().item())
    assert (number, type(number), result, again) == (6.0, float, (3, 1), 6.0)
    array[0] = 9.0  # yours
    assert (array.tolist(), (await x).tolist()) == ([9.0, 1.0, 2.0, 3.0], [0.0, 1.0, 2.0, 3.0])
    assert (tensor.tolist(), tensor.flags.writeable) == ([1.0, 2.0, 3.0, 4.0], False)
    assert await asc.gather(*[(x * n).sum().item() for n in range(50)]) == [6.0 * n for n in range(50)]


async def test_gather_copies_large_arrays_on_the_copy_stream(s):
    x = await s.put(np.arange(200_000.0))
    several = await asc.gather(*[(x * n).numpy() for n in range(3)], x.sum().item())
    for n in range(3):
        np.testing.assert_array_equal(several[n], np.arange(200_000.0) * n)
    assert several[3] == np.arange(200_000.0).sum()


async def test_gather_passes_through_the_loop(s):
    y, others = await s.put(np.array([1.5])), list[int]()
    asyncio.get_running_loop().call_soon(others.append, 1)
    assert await asc.gather(y.item(), y.item()) == [1.5, 1.5]
    assert others == [1]


async def test_gather_of_numbers_raises_the_first_failure_at_once(gate):
    async with asc.Scheduler("cpu", streams=2) as s:
        slow = s.submit_nowait(held, gate, 7, shape=(), dtype=int)
        broken = s.submit_nowait(fail, shape=(), dtype=int)
        with pytest.raises(LookupError):
            await asc.gather(slow.item(), broken.item(), slow.numpy())
        assert not slow.done()
        gate.set()
        assert await slow.item() == 7
    gc.collect()  # none is told to be never awaited


async def test_gather_of_an_item_that_turns_out_to_have_several_elements_fails(s, gate):
    x = s.submit_nowait(held, gate, np.arange(4.0), shape=4, dtype=float)  # so it is not known yet how many there are
    many = asc.nonzero(x)[0]
    numbers = asc.gather(x.sum().item(), many.item(), x.max().item())
    gate.set()
    with pytest.raises(ValueError, match="size 1"):
        await numbers
    gc.collect()


async def test_cancelling_a_gather_leaves_the_tasks_alone(s, gate):
    x = s.submit_nowait(held, gate, np.int64(7), shape=(), dtype=int)
    task = asyncio.ensure_future(asc.gather(x.item(), x.numpy(), x))
    await turns()
    await cancelled(task)
    gate.set()
    assert await x.item() == 7
    gc.collect()


async def test_a_gather_that_raises_at_once_leaves_no_warning(s):
    x = await s.put(np.array([1.5]))
    used = x.item()
    await used

    async def fetch() -> None:
        raise AssertionError("never awaited")

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for wrong, error, told in (
            (fetch(), TypeError, "use asyncio.gather for coroutines"),
            (1.5, TypeError, "not float"),
            (used, RuntimeError, r"t.item\(\) was awaited already"),
        ):
            with pytest.raises(error, match=told):
                asc.gather(x.item(), x, x.numpy(), wrong, x.item())
        gc.collect()


async def test_a_gather_that_raises_at_once_leaves_running_tasks_alone(s, gate):
    x = s.submit_nowait(held, gate, np.int64(7), shape=(), dtype=int)
    number = x.item()
    running = asyncio.create_task(number)
    await turns()
    with pytest.raises(RuntimeError, match="was awaited already"):
        asc.gather(number)
    gate.set()
    assert await running == 7


async def test_a_number_is_gathered_once(s):
    x = await s.put(np.array([1.5]))
    number = x.item()
    together = asc.gather(number, x)
    with pytest.raises(RuntimeError, match="was awaited already"):
        asc.gather(number)
    with pytest.raises(RuntimeError, match="cannot reuse already awaited coroutine"):
        await number
    assert await together == [1.5, [1.5]]
    assert await together == [1.5, [1.5]]  # which may be awaited again, as of handles


async def test_one_that_is_given_twice_comes_twice(s):
    """As of `asyncio.gather`."""
    x = await s.put(np.arange(3.0))
    total, array = x.sum().item(), x.numpy()
    first, number, again, second, tensor, same = await asc.gather(array, total, total, array, x, x)
    assert (first.tolist(), number, again, second.tolist()) == ([0.0, 1.0, 2.0], 3.0, 3.0, [0.0, 1.0, 2.0])
    np.testing.assert_array_equal(tensor, same)
    with pytest.raises(RuntimeError, match="was awaited already"):
        asc.gather(total, total)
    gc.collect()


async def test_numbers_of_several_schedulers(gate):
    async with asc.Scheduler("cpu") as s, asc.Scheduler("cpu") as other:
        x, y = (each.submit_nowait(held, gate, np.int64(7), shape=(), dtype=int) for each in (s, other))
        task = asyncio.ensure_future(asc.gather(x.item(), y.item()))
        await turns()
        gate.set()
        assert await task == [7, 7]


async def test_a_failed_gather_of_numbers_holds_no_tensor(s):
    x = await s.put(np.ones(1000))
    broken = s.submit_nowait(lambda _: fail(), x, shape=(), dtype=float)
    kept = None
    try:
        await asc.gather(x.sum().item(), broken.item(), x.numpy())
    except LookupError as error:
        kept = error
    del x, broken
    await s.barrier()
    assert kept is not None
    assert s.statistics().bytes_retained == 0
