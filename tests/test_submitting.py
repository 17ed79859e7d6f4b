"""Putting arrays and submitting callables: what is taken, what is refused, and when it returns."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched._core.model import Account
from asyncsched.devices.contract import Job
from tests.ledger import engine_of
from tests.validate import validate
from tests.waiting import held, turns, until

BLOCK = np.ones((200, 200))
KEPT: dict[str, Any] = {}


async def test_put_copies(s: asc.Scheduler) -> None:
    source = np.arange(20_000.0)
    for array in (source, source[::2], source.reshape(100, 200).T, source[:3], source[0], [1, 2], 3.5):
        t = await s.put(array)
        expected = np.array(array)
        if isinstance(array, np.ndarray):
            array += 1
        assert (await t).tobytes() == expected.tobytes()
        assert t.shape == expected.shape


async def test_each_that_comes_in_looks_at_few_of_the_many_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    n, fits, looks = 500, Account.make_fit, []

    async def one(s: asc.Scheduler) -> None:
        x = await s.put(np.ones(10))
        await asyncio.sleep(0)
        del x

    monkeypatch.setattr(Account, "make_fit", lambda account, task: looks.append(task) or fits(account, task))
    async with asc.Scheduler("cpu", max_bytes=16 * 80) as s:
        await asyncio.gather(*[one(s) for _ in range(n)])
    assert len(looks) < 10 * n


async def test_an_array_that_is_given_another_shape_while_it_waits_is_put_as_it_was(gate: threading.Event) -> None:
    async with asc.Scheduler("cpu", max_ops=1) as s:
        await s.submit(held, gate)
        source = np.arange(6.0)
        waiting = asyncio.create_task(s.put(source))
        await until(lambda: s.statistics().tasks_pending)
        source.resize((2, 3), refcheck=False)
        gate.set()
        x = await waiting
        assert (await x).shape == (await (x + 1)).shape == x.shape == (6,)


@pytest.mark.parametrize(
    "issue",
    [
        lambda s, x: s.submit_nowait(lambda: np.full(3, None), shape=3, dtype=object),
        lambda s, x: s.submit_nowait(np.zeros, 3, shape=3, dtype=[("a", "O")]),
        lambda s, x: asc.astype(x, object),
        lambda s, x: asc.zeros(100_000, dtype=object),
    ],
    ids=["function", "fields", "astype", "zeros"],
)
async def test_a_tensor_has_no_python_objects(s: asc.Scheduler, issue: Callable[..., object]) -> None:
    """Its memory is recycled as bytes: the interpreter would crash."""
    x = await s.put(np.ones(100_000))
    with pytest.raises(TypeError, match="is not supported: a tensor has"):
        issue(s, x)
    assert (await s.call(np.full, 3, None)).dtype == object


@pytest.mark.parametrize("dtype", ["U3", "S", "M8[s]", [("a", "i4")], "V8"])
async def test_a_dtype_that_no_tensor_has_is_refused_where_it_is_declared(s: asc.Scheduler, dtype: Any) -> None:
    with pytest.raises(TypeError, match="is not supported: a tensor has bool, integers, floats or complex numbers$"):
        s.submit_nowait(np.zeros, 3, dtype, shape=3, dtype=dtype)
    with pytest.raises(TypeError, match="'flot' is no dtype"):
        s.submit_nowait(np.zeros, 3, shape=3, dtype="flot")
    assert s.statistics().tasks_submitted == 0


@pytest.mark.parametrize(("declared", "returned"), [("<i4", ">i4"), (">i4", "<i4"), (">i4", ">i4")])
async def test_a_result_in_the_other_order_of_bytes_is_in_this_machines(
    s: asc.Scheduler, declared: str, returned: str
) -> None:
    t = await s.submit(np.arange, 0, 3, 1, returned, shape=3, dtype=declared)
    assert t.dtype == (await t).dtype == np.int32
    assert (await t).dtype.isnative
    assert (await t).tolist() == [0, 1, 2]


async def test_put_refuses_other_dtypes(s: asc.Scheduler) -> None:
    for wrong in (np.array(["a"]), np.array([object()]), np.array(["2020-01-01"], "M8[D]")):
        with pytest.raises(TypeError, match="not supported"):
            await s.put(wrong)
    for no_array in (None, iter([1.0])):
        with pytest.raises(
            TypeError, match=f"an object that `np.asarray` turns into one, not {type(no_array).__name__}$"
        ):
            await s.put(no_array)
    with pytest.raises(TypeError, match="put takes one array, not dict: put each array in it by itself"):
        await s.put({1: 2})


@pytest.mark.parametrize("dtype", ["i4", "f8", "c16"])
@pytest.mark.parametrize("side", [2, 200])
async def test_put_of_the_other_order_of_bytes_gives_this_machines(s: asc.Scheduler, dtype: str, side: int) -> None:
    array = np.arange(side**2).reshape(side, side).astype(dtype)
    for source in (array, array.T, array[::-1, ::2], array[0, :1]):
        swapped = source.astype(source.dtype.newbyteorder())
        assert not swapped.dtype.isnative
        x = await s.put(swapped)
        assert x.dtype == dtype
        assert (await x).dtype.isnative
        assert (await x).tobytes() == source.tobytes()
        assert (await (x + 1)).tobytes() == (source + 1).tobytes()
        assert s.statistics().bytes_retained == source.nbytes
        del x
        await s.barrier()


async def test_bytes_are_swapped_on_the_copy_stream(s: asc.Scheduler, gate: threading.Event) -> None:
    source = np.zeros((200, 200), np.dtype("f8").newbyteorder())
    s.devices[0].offload(Job(lambda: held(gate)))
    x = s.put_nowait(source)
    source[:] = 7  # what nobody but a test does: the copy has not begun
    gate.set()
    assert (await x).min() == 7


async def test_put_nowait() -> None:
    async with asc.Scheduler("cpu", max_bytes=2 * BLOCK.nbytes) as s:
        t = s.put_nowait(BLOCK)
        assert (await t).sum() == BLOCK.sum()
        u = s.put_nowait(BLOCK)
        with pytest.raises(asc.QueueFull, match=r"await s\.put\(array\)"):
            s.put_nowait(BLOCK)
        await u
        assert s.statistics().tasks_pending == 0
        with pytest.raises(asc.TaskTooLarge, match="split"):
            s.put_nowait(np.ones((200, 601)))
    assert s.statistics().tasks_cancelled == 1


@pytest.mark.parametrize("what", ["put", "submit", "call", "scope"])
async def test_a_coroutine_closed_while_it_waits_withdraws_its_task(what: str, gate: threading.Event) -> None:
    async with asc.Scheduler("cpu", max_ops=1, max_bytes=2 * BLOCK.nbytes) as s:
        x = await s.put(BLOCK)
        s.submit_nowait(held, gate)
        waits: Coroutine[Any, Any, Any] = {
            "put": lambda: s.put(BLOCK),
            "submit": lambda: s.submit(int),
            "call": lambda: s.call(int),
            "scope": lambda: s.scope(reserve=2 * BLOCK.nbytes).__aenter__(),
        }[what]()
        while not engine_of(s).ledger.pending:
            waits.send(None)
        waits.close()
        assert not engine_of(s).ledger.pending
        validate(engine_of(s))
        gate.set()
        await s.barrier()
        assert (await x).sum() == BLOCK.sum()
        assert s.statistics().tasks_cancelled == (what != "scope")  # a claim is no task


async def test_a_coroutine_closed_while_it_awaits_a_call_cancels_it(s: asc.Scheduler, gate: threading.Event) -> None:
    call = s.call(held, gate)
    call.send(None)
    assert s.statistics().tasks_in_flight == 1
    call.close()
    gate.set()
    await s.barrier()
    assert s.statistics().tasks_cancelled == 1


async def test_submit_runs_a_callable_in_the_submitters_context(s: asc.Scheduler) -> None:
    import contextvars

    variable = contextvars.ContextVar("variable", default="unset")
    variable.set("set")
    t = await s.submit(lambda: (variable.get(), threading.current_thread().name))
    assert await t == ("set", "asyncsched cpu stream 0")
    assert t.done()
    assert t.result() == await t
    assert repr(t).startswith("Task(")


async def test_tensors_are_found_in_lists_tuples_and_dicts(s: asc.Scheduler) -> None:
    x = await s.put([1.0, 2.0])
    task = await s.submit(lambda: 5)
    found = await s.call(lambda a, b: (a, b), [x, (x + 1, task)], {"key": x * 2})
    assert found[0][0].tolist() == [1, 2]
    assert found[0][1][0].tolist() == [2, 3]
    assert found[0][1][1] == 5
    assert found[1]["key"].tolist() == [2, 4]
    assert not found[0][0].flags.writeable


def _in_itself(kind: str) -> Any:
    parts: Any = [{}, BLOCK.copy()]
    parts[0]["parent"] = parts
    for _ in range(10_000 if kind == "deep" else 0):
        parts = (parts, [1])
    return parts


@pytest.mark.parametrize("kind", ["in itself", "deep"])
async def test_recursive_and_deep_structures_are_passed_as_they_are(s: asc.Scheduler, kind: str) -> None:
    """Trees whose nodes know their parents, and lists of pairs."""
    tree, x = _in_itself(kind), await s.put(BLOCK)
    assert await s.call(lambda given, block: given, tree, x) is tree
    made = await s.call(_in_itself, kind)
    assert type(made) is type(tree)
    assert s.statistics().bytes_retained == 2 * BLOCK.nbytes  # of what it was given nothing is charged
    del made
    gc.collect()
    assert s.statistics().bytes_retained == BLOCK.nbytes


@pytest.mark.parametrize(
    ("fn", "charged"),
    [
        (np.ones_like, 1),
        (lambda x: KEPT.setdefault("result", np.ones_like(x)), 1),
        (lambda x: x, 0),
        (lambda x: x[1:], 0),
        (lambda x: x.base, 0),
        (lambda x: [x, np.ones_like(x)], 1),
        (lambda x: np.ones((2, *x.shape))[1], 2),
        (lambda x: np.broadcast_to(np.ones(x.shape[1:]), x.shape), 1 / 200),
    ],
    ids=["new", "kept", "an argument", "a part of it", "its owner", "in a list", "a part", "repeated"],
)
async def test_a_result_is_charged_unless_it_is_an_arguments_memory(
    s: asc.Scheduler, fn: Callable[[Any], Any], charged: float
) -> None:
    """Whether its function, its caller or nobody else holds it."""
    own = BLOCK.copy()
    try:
        result = await s.call(fn, own[:])
        assert s.statistics().bytes_retained == charged * BLOCK.nbytes
        del result
    finally:
        KEPT.clear()
    assert s.statistics().bytes_retained == 0


async def test_submit_refuses_anything_but_a_plain_callable(s: asc.Scheduler) -> None:
    async def coroutine() -> None: ...

    class Model:
        async def __call__(self) -> None: ...

    for fn in (coroutine, Model()):
        with pytest.raises(TypeError, match="coroutine function"):
            await s.submit(fn)
    with pytest.raises(TypeError, match="callable"):
        s.submit_nowait(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="go together"):
        await s.submit(int, shape=())
    with pytest.raises(ValueError, match="shape"):
        await s.submit(int, shape=(-1,), dtype=float)
    assert s.statistics().tasks_submitted == 0


async def test_coroutine_functions_are_recognised_without_deprecated_functions(
    s: asc.Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(asyncio, "iscoroutinefunction", raising=False)  # 3.14 warns of it, 3.16 will not have it
    assert await s.call(partial(int, "3")) == 3
    assert await asyncio.wrap_future(s.as_executor().submit(int, "4")) == 4
    x = await s.put(np.arange(3))
    graph = await s.capture(lambda x: x + 1, x)
    assert (await graph(x)).tolist() == [1, 2, 3]


async def test_a_declared_shape_is_held_to(s: asc.Scheduler) -> None:
    t = await s.submit(np.ones, 3, shape=4, dtype=float)
    with pytest.raises(ValueError, match="declare what the function returns"):
        await t
    t = await s.submit(lambda: None, shape=4, dtype=float)
    with pytest.raises(TypeError, match=r"returned NoneType: return the array, or .* without shape= and dtype="):
        await t


async def test_submit_waits_for_admission_and_not_for_the_end() -> None:
    gates = [threading.Event(), threading.Event()]
    async with asc.Scheduler("cpu", max_ops=1) as s:
        first = await s.submit(held, gates[0], 1)
        assert not first.done()
        second = asyncio.create_task(s.submit(held, gates[1], 2))
        await turns()
        assert not second.done()
        gates[0].set()
        task = await second
        assert not task.done()
        gates[1].set()
        assert await asc.gather(first, task) == [1, 2]
        assert s.statistics().admission_wait_seconds > 0


async def test_a_backlog_at_its_limit_names_the_cures(gate: threading.Event) -> None:
    async with asc.Scheduler("cpu", max_ops=1, max_pending=2) as s:
        x = await s.put(BLOCK)
        s.submit_nowait(held, gate)
        last = [s.submit_nowait(int), x + 1]
        for more in (lambda: x + 1, lambda: s.submit_nowait(int), lambda: s.put_nowait(BLOCK)):
            with pytest.raises(asc.QueueFull, match=r"s\.barrier\(\).*s\.window\(2\)"):
                more()
        waiting = [asyncio.create_task(s.put(BLOCK)), asyncio.create_task(s.submit(int))]  # those wait instead
        await asyncio.sleep(0)
        gate.set()
        for task in waiting:
            await (await task)
        assert (await last[1])[0, 0] == 2
        assert s.statistics().tasks_submitted == 6


@pytest.mark.parametrize("inline", [True, False])
async def test_a_hundred_thousand_tasks_without_an_await(inline: bool) -> None:
    async with asc.Scheduler("cpu", max_pending=None) as s:
        gate = threading.Event()
        x = await s.put([0.0, 1.0])
        first = None if inline else s.submit_nowait(held, gate)
        for _ in range(100_000):
            x = x + 1
        gate.set()
        assert (await x).tolist() == [100_000, 100_001]
        await first if first is not None else None
        del x
        assert s.statistics().bytes_retained == 0


async def test_tasks_that_nobody_awaits_run_at_one_slot() -> None:
    loop = asyncio.get_running_loop()
    async with asc.Scheduler("cpu", max_ops=1) as s:
        for _ in range(300):
            ended = loop.create_future()
            s.submit_nowait(int)
            s.submit_nowait(loop.call_soon_threadsafe, ended.set_result, None)
            await asyncio.wait_for(ended, 60)
