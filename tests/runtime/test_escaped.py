"""Arrays that left the scheduler: charged, and not recycled, for as long as anything shows their memory."""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided, sliding_window_view

import asyncsched as asc
from tests.ledger import used
from tests.waiting import held, settled, turns, until

pytestmark = pytest.mark.one_loop

BLOCK = np.ones((200, 200))  # 320,000 bytes: from the pool
NB = BLOCK.nbytes


@pytest.mark.drops_at_once
@pytest.mark.parametrize("size", [10, 40_000])
@pytest.mark.parametrize("how", ["await", "gather", "result", "argument", "thread", "dlpack"])
async def test_an_escaped_array_is_intact_and_charged_until_it_and_its_views_die(
    s: asc.Scheduler, how: str, size: int
) -> None:
    x = await s.put(np.arange(float(size))) + 1
    kept: list[Any] = []
    if how == "await":
        kept.append(await x)
    elif how == "gather":
        kept += await asc.gather(x)
    elif how == "result":
        await x
        kept.append(x.result())
    elif how == "argument":
        await s.call(kept.append, x)
    elif how == "thread":
        await settled(x)
        kept.append(await asyncio.to_thread(np.asarray, x, copy=False))
    else:
        await settled(x)
        kept.append(await asyncio.to_thread(np.from_dlpack, x))
    expected = np.arange(float(size)) + 1
    del x
    await s.barrier()
    assert used(s) == expected.nbytes
    view = kept[0][3:5][::-1]
    again = memoryview(kept[0])
    kept.clear()
    await s.barrier()
    assert used(s) == expected.nbytes
    for _ in range(5):  # whoever takes the memory by mistake writes over it
        await (await s.put(np.zeros(size)) + 7)
    assert view.tolist() == [5, 4]
    assert np.asarray(again).tobytes() == expected.tobytes()
    again.release()
    del again
    assert used(s) == expected.nbytes
    del view
    await until(lambda: used(s) == 0)  # an executor's thread lets go of what it was given when it gets to it
    assert not s.devices[0].memory.escapes


async def test_a_view_that_escapes_keeps_its_whole_base_charged(s: asc.Scheduler) -> None:
    x = await s.put(BLOCK)
    row = await x[0]
    del x
    assert used(s) == NB
    await (await s.put(BLOCK * 5) + 1)
    assert row.sum() == 200
    del row
    assert used(s) == 0


@pytest.mark.drops_at_once
async def test_results_of_callables_are_charged_by_what_they_hold(s: asc.Scheduler) -> None:
    mine = BLOCK.copy()
    x = await s.put(BLOCK)
    cases: list[tuple[Callable[[Any], Any], int]] = [
        (lambda a: a, 0),
        (lambda a: a[::2].T, 0),
        (lambda a: [a, a[0], {"k": (a,)}], 0),
        (lambda a: a + 1, NB),
        (lambda a: (a + 1)[0], NB),  # its owner's bytes
        (lambda a: (mine, mine[0]), NB),
        (lambda a: 5, 0),
        (lambda a: None, 0),
        (lambda a: "text", 0),
    ]
    for body, more in cases:
        task = await s.submit(body, x)
        result = await task
        assert used(s) == NB + more
        if result is not None and body is cases[0][0]:
            assert np.shares_memory(result, await x)
        del task
        await s.barrier()
        del result
        await s.barrier()
        if more and body is cases[5][0]:  # an array that lives on elsewhere stays charged: nobody can tell
            assert used(s) == 2 * NB
            mine = BLOCK.copy()
        assert used(s) == NB
    del x
    await s.barrier()
    assert used(s) == 0


async def test_an_array_that_a_callable_returned_stays_its_owners(s: asc.Scheduler) -> None:
    mine, also = np.zeros(6), np.zeros(6)
    task = await s.submit(lambda: mine)
    declared = await s.submit(lambda: also, shape=(6,), dtype=float)
    given: list[Any] = []
    for handle in (task, declared):
        await s.call(given.append, handle)
    assert await task is mine
    seen = await declared
    for array in (*given, seen):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 5
    mine[0] = also[0] = 7
    assert [array[0] for array in (*given, seen)] == [7, 7, 7]


@pytest.mark.parametrize("large", [True, False])
async def test_an_awaited_array_is_found_as_a_holder_also_when_a_task_was_given_it_since(large: bool) -> None:
    async with asc.Scheduler("cpu", max_bytes=2 * NB if large else 160) as s:
        block = BLOCK if large else np.ones(10)
        x = await s.put(block)
        array = await x
        assert await s.call(np.sum, x, nbytes=0) == block.sum()
        del x
        other = await s.put(block)
        held_by = "in awaited arrays, created at .*: held by coroutine .*'array'"
        with pytest.raises(asc.MemoryDeadlockError, match=held_by):
            await s.put(block)
        del other, array


@pytest.mark.parametrize("size", [6, 40_000])
async def test_changing_an_awaited_array_changes_no_other_and_not_the_tensor(s: asc.Scheduler, size: int) -> None:
    x = await s.put(np.arange(float(size))) + 1
    first, second = await x, x.result()
    kept: list[Any] = []
    await s.call(kept.append, x)
    for array in (first, *kept):
        with pytest.raises(ValueError, match="WRITEABLE"):
            array.setflags(write=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of NumPy 2.5: it is still possible
            array.shape = (2, size // 2)
    assert not (await x).flags.writeable
    assert not second.flags.writeable
    assert x.shape == second.shape == (await x).shape == (await (x + 1)).shape == (size,)


@pytest.mark.parametrize("dtype", ["?", "i1", "u8", "q", "f2", ">f8", "g", "c8", "M8[s]", "U3", "O", "i4,f8"])
async def test_a_task_reads_the_result_of_another_without_a_copy(s: asc.Scheduler, dtype: str) -> None:
    whole = np.zeros((4, 6), dtype)
    for array in (
        whole,
        whole.T,
        whole[::-2, 1:],
        whole[0, :0],
        np.broadcast_to(whole[0], (3, 6)),
        whole[0, :1].reshape(()),
    ):
        given = await s.call(lambda a: a, await s.submit(lambda array=array: array))
        assert (given.shape, given.strides, given.dtype) == (array.shape, array.strides, array.dtype)
        assert not given.flags.writeable
        assert np.shares_memory(given, array) or not array.size


class Foreign:
    """Another library's array: eight bytes, shown a billion times."""

    def __init__(self) -> None:
        self._own = np.ones(1)
        self.__array_interface__ = {**self._own.__array_interface__, "shape": (1 << 30,), "strides": (0,)}


REPEATED = [
    lambda: as_strided(np.ones(1), (1 << 30,), (0,)),
    lambda: [as_strided(np.ones(1), (1 << 30,), (0,))[5:]],
    lambda: np.broadcast_to(np.ones(1), (1 << 30,)),
    lambda: np.asarray(Foreign()),
]


@pytest.mark.drops_at_once
@pytest.mark.parametrize("repeated", REPEATED)
async def test_memory_that_is_shown_many_times_is_charged_once(s: asc.Scheduler, repeated: Callable[[], Any]) -> None:
    task = await s.submit(repeated)
    kept = [await task]
    assert used(s) == 8
    del task
    assert used(s) == 8
    kept.clear()
    assert used(s) == 0


@pytest.mark.drops_at_once
async def test_a_window_onto_an_input_is_not_charged_beside_it(s: asc.Scheduler) -> None:
    x = await s.put(BLOCK)
    task = await s.submit(sliding_window_view, x, (3, 3))
    windows = await task
    del x, task
    assert used(s) == NB
    assert windows.sum() == windows.size
    del windows
    assert used(s) == 0


@pytest.mark.drops_at_once
async def test_a_result_that_is_the_input_keeps_it_alone(s: asc.Scheduler) -> None:
    x = await s.put(BLOCK)
    task = await s.submit(lambda a: a[5], x)
    row = await task
    del x, task
    assert used(s) == NB
    assert row.sum() == 200
    del row
    assert used(s) == 0


async def test_a_declared_cost_without_an_array_is_charged_until_the_handle_drops(s: asc.Scheduler) -> None:
    task = await s.submit(object, nbytes=12_345)
    await task
    assert used(s) == 12_345
    del task
    assert used(s) == 0


@pytest.mark.drops_at_once
async def test_workspace_is_given_back_at_the_end_and_the_rest_stays_with_the_handle(
    s: asc.Scheduler, gate: threading.Event
) -> None:
    x = await s.put(BLOCK)
    cases: list[tuple[Any, dict[str, Any], int, int]] = [  # what it returns; options; charged while it runs, and after
        (object(), {"nbytes": 1000, "workspace": 900}, 1000, 100),
        (object(), {"nbytes": "1 KiB", "workspace": "1 KiB"}, 1024, 0),
        (object(), {"workspace": 900}, NB + 900, 0),
        (BLOCK.copy(), {"nbytes": 2 * NB, "workspace": 10}, 2 * NB, NB),
        (BLOCK.copy(), {"workspace": 10, "shape": BLOCK.shape, "dtype": float}, NB + 10, NB),
        (BLOCK.copy(), {"workspace": 10, "nbytes": 99, "shape": BLOCK.shape, "dtype": float}, NB + 10, NB),
        (3.5, {"nbytes": 1000}, 1000, 0),
        (np.float32(3.5), {"nbytes": 1000}, 1000, 0),
        ("text", {"nbytes": 1000}, 1000, 0),
        (None, {"nbytes": 1000}, 1000, 0),
        ([3.5], {"nbytes": 1000}, 1000, 1000),
    ]
    for i in range(len(cases)):
        result, options, running, after = cases[i]
        cases[i] = (None, {}, 0, 0)
        gate.clear()
        task = s.submit_nowait(lambda a, made=result: held(gate, made), x, **options)
        assert used(s) == NB + running
        gate.set()
        await settled(task)
        assert used(s) == NB + after, options
        del task, result
        await s.barrier()
        assert used(s) == NB
    with pytest.raises(ValueError, match="workspace='2 KiB' is more than nbytes=1000"):
        s.submit_nowait(int, nbytes=1000, workspace="2 KiB")
    with pytest.raises(ValueError, match="workspace must be positive"):
        s.submit_nowait(int, workspace=-1)


async def test_results_that_nobody_estimated_stop_admission_above_the_limit(caplog: pytest.LogCaptureFixture) -> None:
    async with asc.Scheduler("cpu", max_ops=2, max_bytes=2 * NB + 10) as s:
        tasks = [s.submit_nowait(BLOCK.copy) for _ in range(8)]
        await until(lambda: used(s) > 2 * NB and not s.statistics().tasks_in_flight)
        await turns()
        assert used(s) <= 4 * NB  # two were in flight when the third passed the limit
        assert s.statistics().tasks_pending >= 4
        told = [record.getMessage() for record in caplog.records if "was charged" in record.getMessage()]
        (text,) = told
        assert f"ndarray.copy, submitted at {__file__}:" in text
        assert (
            f"was charged 0 bytes and made {NB:,}: {3 * NB:,} bytes are tracked, and the limit is {2 * NB + 10:,}"
            in text
        )
        await s.submit_nowait(int, nbytes=0)  # somebody said that it costs nothing
        while tasks:
            assert (await tasks.pop(0)).nbytes == NB
        assert s.statistics().peak_bytes <= 4 * NB
        assert len([record for record in caplog.records if "was charged" in record.getMessage()]) == 1


async def test_a_log_that_fails_lets_a_result_pass_that_nobody_estimated(failing_log: Any) -> None:
    async with asc.Scheduler("cpu", max_bytes=NB // 2) as s:
        assert (await s.call(BLOCK.copy)).nbytes == NB
        assert await s.call(max, 1, 2) == 2
    assert "was charged" in failing_log.texts[0]


@pytest.mark.parametrize("estimate", [0, 1, NB // 2, NB, 10 * NB])
async def test_wrong_estimates_are_corrected(s: asc.Scheduler, estimate: int) -> None:
    task = await s.submit(BLOCK.copy, nbytes=estimate)
    await task
    assert used(s) == NB
    del task
    await s.barrier()
    assert used(s) == 0
    assert s.statistics().peak_bytes == max(NB, estimate)
