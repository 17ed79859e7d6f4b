"""What a tensor tells, what it refuses, and which version a name means."""

from __future__ import annotations

import asyncio
import copy
import operator
import pickle
import threading
import time
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from tests.ledger import task_of
from tests.waiting import held, until

IMPLICIT: list[tuple[str, Callable[[asc.Tensor], Any], str]] = [
    ("bool", bool, "await t.item"),
    ("float", float, "await t.item"),
    ("int", int, "await t.item"),
    ("complex", complex, "await t.item"),
    ("index", operator.index, "await t.item"),
    ("format", lambda t: format(t, ".3f"), "await t.item"),
    ("tolist", lambda t: t.tolist(), r"\(await t\).tolist"),
    ("asarray", np.asarray, "await t"),
    ("ufunc", np.exp, "asyncsched.exp"),
    ("function", np.linalg.norm, "asyncsched.linalg.vector_norm"),
    ("dlpack", np.from_dlpack, "await t"),
]


@pytest.mark.parametrize("done", [True, False])
@pytest.mark.parametrize(("read", "cure"), [row[1:] for row in IMPLICIT], ids=[row[0] for row in IMPLICIT])
async def test_implicit_barriers_are_refused_on_the_loop(s: asc.Scheduler, read: Any, cure: str, done: bool) -> None:
    gate = threading.Event()
    t = s.submit_nowait(held, gate, np.int64(3), shape=(), dtype=np.int64)
    if done:
        gate.set()
        await t
    with pytest.raises(asc.ImplicitBarrierError, match=cure):
        read(t)
    gate.set()


@pytest.mark.parametrize("read", [row[1] for row in IMPLICIT], ids=[row[0] for row in IMPLICIT])
async def test_implicit_barriers_are_refused_in_a_task_body(read: Callable[[Any], Any]) -> None:
    async with asc.Scheduler("cpu", streams=2) as s:
        t = await s.put(3)
        with pytest.raises(asc.ImplicitBarrierError, match="pass the tensor as an argument"):
            await s.call(partial(read, t))


async def test_a_plain_thread_may_block(s: asc.Scheduler, gate: threading.Event) -> None:
    t = s.submit_nowait(held, gate, np.float64(3.5), shape=(), dtype=float)
    reading = asyncio.create_task(asyncio.to_thread(lambda: (float(t), f"{t:.2f}", t.tolist(), np.exp(t))))
    await asyncio.sleep(0)
    gate.set()
    assert await reading == (3.5, "3.50", 3.5, np.exp(3.5))


async def test_a_plain_thread_gets_the_failure(s: asc.Scheduler, gate: threading.Event) -> None:
    def fail() -> None:
        held(gate)
        raise LookupError("no value")

    t = s.submit_nowait(fail, shape=(), dtype=float)
    reading = asyncio.create_task(asyncio.to_thread(float, t))
    await asyncio.sleep(0)
    gate.set()
    with pytest.raises(LookupError, match="no value"):
        await reading


def test_a_thread_that_waits_when_the_loop_ends_gets_an_error() -> None:
    gate, outcome = threading.Event(), []

    def read(t: asc.Tensor) -> None:
        try:
            outcome.append(float(t))
        except asc.SchedulerClosed as error:
            outcome.append(str(error))

    async def main() -> tuple[asc.Scheduler, threading.Thread]:
        s = asc.Scheduler("cpu")
        await s.__aenter__()
        t = s.submit_nowait(held, gate, np.float64(1), shape=(), dtype=float)
        reader = threading.Thread(target=read, args=(t,))
        reader.start()
        await until(lambda: task_of(t).waiters)
        return s, reader

    s, reader = asyncio.run(main())
    reader.join(60)
    gate.set()
    assert len(outcome) == 1
    assert "event loop ended" in outcome[0]
    with pytest.warns(ResourceWarning, match="never closed"):
        del s


async def test_operators_from_another_thread_are_refused(s: asc.Scheduler) -> None:
    t = await s.put(3)
    with pytest.raises(RuntimeError, match="event loop may use it"):
        await asyncio.to_thread(lambda: t + 1)


async def test_repr_and_metadata_never_wait(s: asc.Scheduler, gate: threading.Event) -> None:
    t = s.submit_nowait(held, gate, np.ones((2, 3), np.float32), shape=(2, 3), dtype=np.float32, name="load")
    y = t @ t.T
    assert repr(t) == "Tensor(shape=(2, 3), dtype=float32, device=cpu, pending: load)"
    assert repr(y) == f"{y}" == "Tensor(shape=(2, 2), dtype=float32, device=cpu, pending: matmul)"
    assert (t.shape, t.dtype, t.ndim, t.size, t.nbytes, len(t)) == ((2, 3), np.float32, 2, 6, 24, 2)
    assert t.device is s.devices[0]
    assert not t.done()
    with pytest.raises(asyncio.InvalidStateError):
        t.result()
    gate.set()
    await y
    assert repr(y) == "Tensor(shape=(2, 2), dtype=float32, device=cpu, done)"
    assert t.result().shape == (2, 3)
    assert t.exception() is None


async def test_operands_that_are_refused_name_the_cure(s: asc.Scheduler) -> None:
    t = await s.put(np.ones((2, 3)))
    for wrong in (lambda: t + np.ones(3), lambda: np.ones(3) + t, lambda: asc.add(t, np.ones(3))):
        with pytest.raises(TypeError, match=r"await s\.put"):
            wrong()
    four = await s.put(np.ones(4))
    for misuse, error, text in (
        (lambda: t + "text", TypeError, None),
        (lambda: t + four, ValueError, "shape|broadcast"),
        (lambda: t @ t, ValueError, "matmul|core dimension|shape"),
        (lambda: t[5], IndexError, None),
        (lambda: t[0, 0, 0], IndexError, None),
        (lambda: t << 1, TypeError, None),
        (lambda: t.sum(axis=7), ValueError, "axis|axes"),
        (lambda: len(t.sum()), TypeError, None),
    ):
        with pytest.raises(error, match=text):
            misuse()
    with pytest.raises(ValueError, match="exactly one"):
        await t.item()


async def test_numpy_scalars_are_operands_on_both_sides(s: asc.Scheduler) -> None:
    a = np.arange(1, 5, dtype=np.float32)
    t = await s.put(a)
    for scalar in (np.float64(2), np.float32(2), np.int64(2), 2, 2.0, True):
        for op in (operator.add, operator.sub, operator.truediv, operator.pow, operator.lt, operator.floordiv):
            for found, expected in ((op(t, scalar), op(a, scalar)), (op(scalar, t), op(scalar, a))):
                array = await found
                assert array.dtype == expected.dtype, (op, scalar)
                assert array.tobytes() == expected.tobytes(), (op, scalar)


async def test_equality_is_elementwise_and_the_hash_is_identity(s: asc.Scheduler) -> None:
    x, y = await s.put([1, 2]), await s.put([1, 3])
    assert (await (x == y)).tolist() == [True, False]
    assert len({x, y, x}) == 2
    assert hash(x) != hash(y)


async def test_pickle_and_copies_are_refused(s: asc.Scheduler) -> None:
    for handle in (await s.put(1), await s.submit(int)):
        for duplicate in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match="await"):
                duplicate(handle)
    for duplicate in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match="await"):
            duplicate(asc.gather(handle))


async def test_numpys_error_state_is_for_functions_and_not_for_operators(s: asc.Scheduler) -> None:
    for n in (3, 40_000):  # on the loop's thread, and on a stream
        x = await s.put(np.zeros(n))
        with np.errstate(all="raise"):
            assert np.isinf(await (1 / x)).all()
            assert np.isnan(await (x / x).sum())
            with pytest.raises(FloatingPointError):
                await s.call(lambda x: 1 / x, x)


async def test_a_tensor_awaited_is_read_only_and_its_copy_is_yours(s: asc.Scheduler) -> None:
    for t in (await s.put([1.0, 2.0]), await s.put([1.0]) + 1, await s.submit(np.ones, 3, shape=3, dtype=float)):
        assert not (await t).flags.writeable
        mine = await t.numpy()
        mine[:] = 7
        assert 7 not in await t


async def test_a_tensor_awaited_beside_a_task_that_will_read_it_is_read_only(s: asc.Scheduler) -> None:
    gate = threading.Event()
    x = await s.put(np.ones(9))
    s.submit_nowait(held, gate)
    s.submit_nowait(np.sum, x)  # not run yet
    assert not (await x).flags.writeable
    gate.set()


async def test_the_array_of_a_body_stays_writable_for_its_owner(s: asc.Scheduler) -> None:
    mine = np.ones(3)
    t = await s.submit(lambda: mine, shape=3, dtype=float)
    assert not (await t).flags.writeable
    assert mine.flags.writeable


async def test_assignment_to_a_part_moves_the_handle(s: asc.Scheduler, gate: threading.Event) -> None:
    x = s.submit_nowait(held, gate, np.zeros(4), shape=4, dtype=float)
    other_name, part, before = x, x[:2], x + 0
    x[0] = 5
    after = x + 0
    gate.set()
    assert (await x).tolist() == (await other_name).tolist() == (await after).tolist() == [5, 0, 0, 0]
    assert (await part).tolist() == [0, 0]
    assert (await before).tolist() == [0, 0, 0, 0]


async def test_a_list_is_an_index_as_with_numpy(s: asc.Scheduler) -> None:
    array = np.arange(12.0).reshape(3, 4)
    x = await s.put(array)
    keys: list[Any] = [
        [1, 1, 2], [[0, -1], [1, 0]], [], [True, False, True], (slice(None), [0, 3]), ([0, 2], [1, 1]), (..., [2], None)
    ]  # fmt: skip
    for key in keys:
        np.testing.assert_array_equal(await x[key], array[key])
        y, expected = x + 0, array.copy()
        y[key], expected[key] = 7, 7
        np.testing.assert_array_equal(await y, expected)
    for wrong in ([1.5], ["a"], [None]):
        with pytest.raises(IndexError, match="is no index: use integers"):
            x[wrong]


async def test_an_await_under_way_keeps_the_version_it_began_with(s: asc.Scheduler) -> None:
    first, second = threading.Event(), threading.Event()

    async def read(t: asc.Tensor) -> np.ndarray[Any, Any]:
        return await t

    async def gathered(t: asc.Tensor) -> np.ndarray[Any, Any]:
        return (await asc.gather(t))[0]

    x = s.submit_nowait(held, first, np.zeros(2), shape=2, dtype=float)
    readers = [asyncio.create_task(work) for work in (read(x), gathered(x), x.numpy())]
    await until(lambda: asc.observe.Probe(s).waits == 3)
    x[0] = s.submit_nowait(held, second, np.float64(5), shape=(), dtype=float)
    first.set()
    for reader in readers:
        assert (await reader).tolist() == [0, 0]
    second.set()
    assert (await x).tolist() == [5, 0]


async def test_augmented_assignment_rebinds_the_name_alone(s: asc.Scheduler) -> None:
    x = await s.put([1, 2])
    y = x
    x += 1
    assert x is not y
    assert (await x).tolist() == [2, 3]
    assert (await y).tolist() == [1, 2]


async def test_shapes_that_depend_on_data_are_none_until_done(s: asc.Scheduler, gate: threading.Event) -> None:
    x = s.submit_nowait(held, gate, np.array([[1, 0, 2], [0, 3, 0]]), shape=(2, 3), dtype=np.int64)
    picked = x[x > 0]
    found = asc.nonzero(x)
    assert picked.shape == found[0].shape == (None,)
    assert picked.size is None
    assert picked.nbytes == x.nbytes
    with pytest.raises(asc.ImplicitBarrierError, match="await"):
        len(picked)
    gate.set()
    assert (await picked).tolist() == [1, 2, 3]
    assert picked.shape == (3,)
    assert [(await f).tolist() for f in found] == [[0, 0, 1], [0, 2, 1]]


async def test_devices_do_not_mix() -> None:
    async with asc.Scheduler(["cpu", "cpu"]) as s:
        first, second = s.devices
        assert (first.name, second.name) == ("cpu:0", "cpu:1")
        x, y = await s.put(np.ones(30_000)), await s.put(np.ones(30_000), device="cpu:1")
        assert (x.device, y.device) == (first, second)
        with pytest.raises(ValueError, match=r"t\.to\(device\)"):
            x + y
        moved = x.to("cpu:1")
        assert moved.device is second
        assert x.to(first) is x
        assert (await (moved + y)).tolist() == [2.0] * 30_000
        with pytest.raises(ValueError, match="not among this scheduler's"):
            x.to("cpu:2")
        with pytest.raises(TypeError, match="to\\(device\\)"):
            await s.put(x)


async def test_schedulers_do_not_mix(s: asc.Scheduler) -> None:
    async with asc.Scheduler("cpu") as other:
        x, y = await s.put(1), await other.put(1)
        with pytest.raises(ValueError, match="different schedulers"):
            x + y
        for issue in (s.submit(int, y), s.put(y)):
            with pytest.raises(ValueError, match="another scheduler: `await` it"):
                await issue
        assert await asc.gather(x, y) == [1, 1]


async def test_polling_finds_the_end(s, gate):
    """Nobody waits for the task, so nothing but the asking takes in that it ended."""
    y = (await s.put(np.ones((300, 300)))) + 1
    await until(y.done)
    assert y.result()[0, 0] == 2
    task = await s.submit(held, gate, 5)
    assert not task.done()
    gate.set()
    await until(task.done)
    assert task.result() == 5


async def test_polling_on_another_thread_finds_the_end(s):
    y = (await s.put(np.ones((300, 300)))) + 1

    def poll() -> None:
        while not y.done():
            time.sleep(0)

    await asyncio.to_thread(poll)
    assert y.done()


@pytest.mark.parametrize("source", [np.ones(2), [1.0, 2.0], 3, None], ids=["array", "list", "number", "none"])
def test_a_tensor_is_not_made_by_its_class(source: Any) -> None:
    with pytest.raises(TypeError, match=r"await s\.put\(a\)"):
        asc.Tensor(source)


@pytest.mark.parametrize("name", ["count_nonzero", "mean", "var", "std", "sum", "max", "sqrt"])
@pytest.mark.parametrize("number", [2.0, 3, True, np.float32(0.5)], ids=repr)
async def test_a_number_is_reduced_as_in_numpy(s: asc.Scheduler, name: str, number: Any) -> None:
    expected = getattr(np, name)(number)
    found = await getattr(asc, name)(number)
    assert (found, found.dtype) == (expected, np.asarray(expected).dtype)


@pytest.mark.parametrize("view", [asc.real, asc.flip, lambda x: asc.expand_dims(x, axis=0)])
async def test_there_is_no_view_of_a_number(s: asc.Scheduler, view: Any) -> None:
    with pytest.raises(TypeError, match=r"takes a tensor, not a number: .asc.asarray.x.. makes one"):
        view(2.0)


async def test_a_number_of_a_users_class_counts_as_the_number(s: asc.Scheduler) -> None:
    class Length(float):
        pass

    x = await s.put(np.arange(3.0))
    x.requires_grad = True
    for number in (HTTPStatus.OK, Length(2.5)):
        assert (await (x + number)).tolist() == (np.arange(3.0) + number).tolist()
        assert (await asc.maximum(number, x)).tolist() == np.maximum(number, np.arange(3.0)).tolist()
        (number * x).sum().backward()
        assert (await x.grad).tolist() == [number] * 3
        x.grad = None
