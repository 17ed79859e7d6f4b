"""JAX's jitted functions as tasks: they take and give arrays, and a task is over when it is computed."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, Mock

import numpy as np
import pytest

import asyncsched as asc
from tests.waiting import held, turns

pytestmark = pytest.mark.one_loop
ROWS = np.arange(12, dtype=np.float32).reshape(3, 4)


async def test_a_jitted_function_takes_and_gives_arrays(s: asc.Scheduler, jax: Any) -> None:
    @jax.jit
    def step(state: Any, x: Any) -> Any:
        return {"w": state["w"] - x.sum(axis=0), "steps": state["steps"] + 1, "key": jax.random.key(0)}, (x * x).sum()

    x = await s.put(ROWS)
    state = {"w": np.zeros(4, np.float32), "steps": np.int32(0)}
    task = await s.submit(step, state, x)
    found, loss = await task
    assert type(found["w"]) is np.ndarray
    assert np.array_equal(found["w"], -ROWS.sum(axis=0))
    assert found["steps"] == 1
    assert float(loss) == (ROWS * ROWS).sum()
    assert isinstance(found["key"], jax.Array)  # which no array of numbers can be
    assert s.statistics().bytes_retained == ROWS.nbytes + found["w"].nbytes + 4 + 4
    again = await s.submit(lambda both: both[0]["w"], task)
    assert np.array_equal(await again, found["w"])


async def test_arrays_on_a_card_reach_a_jitted_function(s: asc.Scheduler, jax: Any) -> None:
    """As CuPy's, which JAX refuses as they are."""

    class OnCard:
        __cuda_array_interface__: dict[str, Any] = {}  # noqa: RUF012
        __dlpack__, __dlpack_device__ = ROWS.__dlpack__, ROWS.__dlpack_device__

    double = jax.jit(lambda rows: [row * 2 for row in rows])
    assert np.array_equal(await asc.Batcher(double)(OnCard()), ROWS * 2)
    assert np.array_equal(await s.call(double, [OnCard()]), [ROWS * 2])


async def test_what_is_given_is_not_changed_by_who_has_the_result(s: asc.Scheduler, jax: Any) -> None:
    x = await s.put(ROWS)
    for same in (jax.jit(lambda x: x), jax.jit(lambda x: x).lower(ROWS).compile()):
        found = await s.call(same, x)
        assert np.array_equal(found, ROWS)
        with pytest.raises(ValueError, match="read-only"):
            found += 1


async def test_a_task_is_over_when_jax_has_computed_it(s: asc.Scheduler, jax: Any, gate: threading.Event) -> None:
    """The loop goes on meanwhile, whoever called the jitted function."""
    form = jax.ShapeDtypeStruct((), np.float32)
    slow = jax.jit(lambda x: jax.pure_callback(lambda x: held(gate, np.float32(7)), form, x))
    await s.call(jax.jit(lambda x: x), 0.0)
    for function in (slow, lambda x: slow(x)):
        gate.clear()
        task = await s.submit(function, 1.0)
        await turns()
        assert not task.done()
        gate.set()
        assert float(await task) == 7


async def test_results_that_jax_cannot_walk_are_waited_for(s: asc.Scheduler, jax: Any, gate: threading.Event) -> None:
    """A function's result may be anything, also where JAX is imported: a list in itself, keys of two types."""
    form = jax.ShapeDtypeStruct((), np.float32)
    slow = jax.jit(lambda x: jax.pure_callback(lambda x: held(gate, np.float32(7)), form, x))
    around: list[Any] = []
    around.append(around)
    for result in ({"a": around}, {"a": 1, 2: 3}):
        gate.clear()
        task = await s.submit(lambda x, result=result: {**result, "slow": slow(x)}, 1.0)
        await turns()
        assert not task.done()
        gate.set()
        found = await task
        assert found.items() >= result.items()
        assert float(found["slow"]) == 7


async def test_a_mock_is_no_guest(s: asc.Scheduler, monkeypatch: pytest.MonkeyPatch, jax: Any) -> None:
    """It has all the attributes of a jitted function, or of PyTorch."""
    monkeypatch.setitem(sys.modules, "torch", MagicMock())
    result = ["as it is"]
    assert await s.call(Mock(return_value=result)) is result
    assert await s.call(partial(Mock(return_value=result))) is result


async def test_parts_of_a_result_cost_nothing_each(s: asc.Scheduler, monkeypatch: pytest.MonkeyPatch, jax: Any) -> None:
    asked: list[type] = []

    class Kind(type):
        def __subclasscheck__(cls, kind: type) -> bool:
            asked.append(kind)
            return False

    monkeypatch.setattr(jax, "Array", Kind("Array", (), {}))
    assert len(await s.call(lambda: [float(number) for number in range(1000)])) == 1000
    assert asked == [float]


async def test_a_jitted_function_with_keywords_gives_arrays(s: asc.Scheduler, jax: Any) -> None:
    first = partial(jax.jit(lambda x, count: x[:count], static_argnames="count"), count=2)
    double = jax.tree_util.Partial(jax.jit(lambda x, by: x * by), by=2)
    for function, expected in [(first, ROWS[:2]), (double, ROWS * 2)]:
        found = await s.call(function, await s.put(ROWS))
        assert type(found) is np.ndarray
        assert np.array_equal(found, expected)


async def test_a_jitted_method_gives_arrays(s: asc.Scheduler, jax: Any) -> None:
    class Model:
        @partial(jax.jit, static_argnums=0)
        def double(self, x: Any) -> Any:
            return x * 2

    found = await s.call(Model().double, ROWS)
    assert type(found) is np.ndarray
    assert np.array_equal(found, ROWS * 2)
    assert s.statistics().bytes_retained == found.nbytes


async def test_arrays_of_all_dtypes_pass_from_task_to_task(s: asc.Scheduler, jax: Any) -> None:
    for dtype in ("bfloat16", "float8_e5m2", "int4"):
        task = await s.submit(jax.jit(lambda x, dtype=dtype: x.astype(dtype)), ROWS)
        found = await s.call(lambda x: x, task)
        assert found.dtype.name == dtype
        assert np.array_equal(found.astype(np.float32), (await task).astype(np.float32))
        assert not found.flags.writeable


async def test_an_array_on_several_devices_is_put(s: asc.Scheduler) -> None:
    class Sharded:  # as JAX's, of which there are several devices only from the start of a process
        def __dlpack_device__(self) -> Any:
            raise BufferError("__dlpack__ only supported for unsharded arrays.")

        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            return ROWS

    assert np.array_equal(await (await s.put(Sharded())), ROWS)


async def test_it_trains_as_a_chain_of_tasks(s: asc.Scheduler, may_block: None, jax: Any) -> None:
    """A step that fails leaves the state before it, which is a value of its own. The expected one is compiled here."""

    @jax.jit
    def step(w: Any, x: Any) -> Any:
        loss, gradient = jax.value_and_grad(lambda w: ((x @ w - 1) ** 2).mean())(w)
        return w - 0.001 * gradient, loss

    expected = np.zeros(4, np.float32)
    x = await s.put(ROWS)
    state: Any = await s.submit(lambda: expected, nbytes=expected.nbytes)
    losses, window = [], s.window(2)
    for _ in range(5):
        async with window:
            done = await s.submit(step, state, x, resource="training")
            state = await s.submit(lambda both: both[0], done)
            losses.append(await s.submit(lambda both: both[1], done))
        expected = np.asarray(step(expected, ROWS)[0])
    with pytest.raises(TypeError):
        await s.call(step, state, np.zeros((3, 5), np.float32))
    assert np.array_equal(await state, expected)
    found = [float(loss) for loss in await asc.gather(*losses)]
    assert found == sorted(found, reverse=True)


class _Jitted:
    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *args: Any) -> Any:
        return self.function(*args)


@pytest.mark.parametrize("how", ["jitted", "called", "imported"])
async def test_jax_is_waited_for_on_the_streams_thread(
    s: asc.Scheduler, monkeypatch: pytest.MonkeyPatch, gate: threading.Event, how: str
) -> None:
    """Also if the task is the first that imports it. Without JAX: something in its place."""
    waited: list[int] = []

    def block_until_ready(result: Any) -> Any:
        waited.append(threading.get_ident())
        return held(gate, result)

    fake: Any = ModuleType("jax")
    fake.block_until_ready, fake.Array = block_until_ready, SimpleNamespace
    fake.stages = SimpleNamespace(Wrapped=_Jitted, Compiled=_Jitted)
    fake.tree = SimpleNamespace(map=lambda change, result: change(result), leaves=lambda result: [result])
    result: Any = 5 if how == "jitted" else SimpleNamespace()

    def function() -> Any:
        if how == "imported":
            monkeypatch.setitem(sys.modules, "jax", fake)
        return result

    monkeypatch.delitem(sys.modules, "jax", raising=False)
    if how != "imported":
        monkeypatch.setitem(sys.modules, "jax", fake)
    task = await s.submit(_Jitted(function) if how == "jitted" else function)
    await turns()
    assert not task.done()
    gate.set()
    assert await task is result
    assert len(waited) == 1
    assert waited[0] != threading.get_ident()
