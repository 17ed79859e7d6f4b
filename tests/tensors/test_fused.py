"""A captured step on the CPU: runs of elementwise operations, block by block, give the bits of eager NumPy."""

from __future__ import annotations

import asyncio
import gc
import random
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import asyncsched as asc
from asyncsched.ops.fused import Run
from asyncsched.ops.kernels import compiled
from asyncsched.ops.kernels.blocks import PLACES
from asyncsched.ops.table import TABLE
from tests.ledger import address_of
from tests.waiting import held, until

pytestmark = pytest.mark.one_loop

SHAPE = (300, 257)  # several blocks, the last of them not full, and pooled
UNARY = ("abs", "negative", "square", "sqrt", "exp", "tanh", "log1p", "floor", "sign", "reciprocal", "isfinite")
BINARY = ("add", "subtract", "multiply", "maximum", "minimum", "divide", "less", "equal", "copysign", "logical_or")
EAGER = {"abs": np.absolute}


def arrays(seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    whole = rng.standard_normal(SHAPE)
    whole[0, :4] = np.nan, np.inf, -0.0, 1e-40
    shapes = {"row": SHAPE[1:], "long row": (1, SHAPE[1]), "column": (SHAPE[0], 1), "number": ()}
    small = [rng.standard_normal(shape).astype("f4") for shape in shapes.values()]
    return [whole.astype("f4"), whole, np.nan_to_num(whole * 9, posinf=7).astype("i4"), whole > 0, *small]


def random_work(seed: int, *, most: int) -> Callable[..., dict[str, Any]]:
    """A random function of a namespace and tensors or arrays."""

    def work(xp: Any, call: Callable[[str, Any], Any], given: list[Any]) -> dict[str, Any]:
        rng = random.Random(seed)
        values = list(given)
        for _ in range(rng.randint(2, most)):
            operands = [rng.choice(values)]
            name = rng.choice(UNARY + 2 * BINARY)
            if name in BINARY:
                other = rng.choice([rng.choice(values), rng.choice(values), 2, 0.5, -1.25, np.float32(3), True])
                operands.insert(rng.randint(0, 1), other)
            values.append(call(name, operands))
            if rng.random() < 0.1:
                values.append(xp.sum(values[-1], axis=-1, keepdims=True))
        return {"last": values[-1], "some": rng.sample(values[len(given) :], 2)}

    return work


def skipping(function: Callable[..., Any], operands: Any) -> Any:
    """What NumPy makes of it; the first operand where it makes nothing, as of negative booleans."""
    try:
        return function(*operands)
    except TypeError:
        return operands[0]


@pytest.mark.parametrize("seed", range(40))
async def test_random_steps_give_the_bits_of_eager_numpy(seed: int) -> None:
    given, work = arrays(seed), random_work(seed, most=14)
    with np.errstate(all="ignore"):
        expected = work(np, lambda name, xs: skipping(EAGER.get(name, getattr(np, name, None)), xs), given)
    async with asc.Scheduler("cpu", max_bytes="64 MiB") as s:
        tensors = [await s.put(array) for array in given]
        graph = await s.capture(
            lambda *xs: work(asc, lambda name, xs: skipping(getattr(asc, name), xs), list(xs)), *tensors
        )
        for _ in range(2):
            found = graph(*tensors)
            for t, want in zip([found["last"], *found["some"]], [expected["last"], *expected["some"]], strict=True):
                got = await t
                assert got.dtype == want.dtype
                assert got.tobytes() == np.ascontiguousarray(want).tobytes()
            del t, found


def gelu(xp: Any, x: Any) -> Any:
    return 0.5 * x * (1 + xp.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    """The runs that were done."""
    found: list[Run] = []
    apply = Run.apply

    def noted(self: Run, *args: Any) -> bool:
        done = apply(self, *args)
        if done:
            found.append(self)
        return done

    monkeypatch.setattr(Run, "apply", noted)
    return found


async def test_a_chain_is_one_run_in_two_registers_and_its_result(s: asc.Scheduler, runs: list[Run]) -> None:
    x = np.random.default_rng(0).standard_normal(SHAPE).astype("f4")
    t = await s.put(x)
    graph = await s.capture(lambda t: gelu(asc, t), t)
    runs.clear()  # it was replayed once
    assert (await graph(t)).tobytes() == gelu(np, x).tobytes()
    (run,) = runs
    assert len(run.registers) == 1
    assert len(run.reads) == len(run.writes) == 1


async def test_relu_is_in_runs_too(s: asc.Scheduler, runs: list[Run]) -> None:
    x = np.random.default_rng(0).standard_normal(SHAPE).astype("f4")
    x[0, :5] = -0.0, np.nan, -np.inf, np.inf, 1e-45
    t, row = await s.put(x), await s.put(x[0])
    graph = await s.capture(lambda t, row: asc.nn.relu(t * 2 + row) * 3, t, row)
    runs.clear()
    assert (await graph(t, row)).tobytes() == (np.maximum(x * 2 + x[0], 0) * np.float32(3)).tobytes()
    assert len(runs) == 1


async def test_a_result_lies_in_a_recycled_buffer(s: asc.Scheduler) -> None:
    t = await s.put(np.ones(SHAPE, "f4"))
    graph = await s.capture(lambda t: t * 2 + 1, t)
    pool = s.devices[0].memory.pool
    places = set()
    for _ in range(8):
        y = graph(t)
        await s.barrier()
        places.add(address_of(y))
        del y
    assert len(places) <= 2
    assert pool.live <= 3 * t.nbytes


async def test_intermediates_of_a_step_go_back_to_the_pool(s: asc.Scheduler) -> None:
    def work(t: Any) -> Any:
        return (((t * 2 + 1) @ t).mT @ t * 2 - 1).sum(axis=0)

    x = np.random.default_rng(0).standard_normal((200, 200)).astype("f4")
    t = await s.put(x)
    with asc.exact():  # on some processors a product has other bits in parts, or on several threads of its BLAS
        expected = await work(t)
        await s.barrier()
        before = s.devices[0].memory.pool.live
        graph = await s.capture(work, t)
    assert_allclose(expected, work(x), rtol=1e-4, atol=1e-2)
    for _ in range(3):
        assert np.array_equal(await graph(t), expected)
    gc.collect()
    s.devices[0].memory.pool.take(1)
    assert s.devices[0].memory.pool.live <= before + 64


async def test_an_argument_in_another_layout_goes_step_by_step(s: asc.Scheduler, runs: list[Run]) -> None:
    x = np.random.default_rng(0).standard_normal((250, 250))
    t = await s.put(x)
    graph = await s.capture(lambda t: gelu(asc, t), t)
    runs.clear()
    assert np.array_equal(await graph(t.mT), gelu(np, x.T))
    assert runs == []


async def test_more_values_alive_than_there_is_scratch_for(s: asc.Scheduler, runs: list[Run]) -> None:
    def fan(xp: Any, x: Any) -> Any:
        parts = [xp.tanh(x * i) for i in range(1, 3 * PLACES)]
        total = parts[0]
        for part in parts[1:]:
            total = total * part + 1
        return total

    x = np.random.default_rng(0).standard_normal(SHAPE).astype("f4")
    t = await s.put(x)
    graph = await s.capture(lambda t: fan(asc, t), t)
    assert (await graph(t)).tobytes() == fan(np, x).tobytes()
    assert len(runs[0].registers) > PLACES


async def test_an_error_in_a_run_names_its_line(s: asc.Scheduler) -> None:
    t = await s.put(np.full(SHAPE, -2))
    graph = await s.capture(lambda t: 2 + 2**t, -t)
    with pytest.raises(ValueError, match="Integers to negative integer powers") as caught:
        await graph(t)
    assert any("captured operation 'pow', written at" in note for note in caught.value.__notes__)
    assert (await t)[0, 0] == -2


async def test_an_error_outside_a_run_names_its_line(s: asc.Scheduler) -> None:
    x, places = await s.put(np.ones((30, 20))), await s.put(np.arange(3))

    def rows(x: asc.Tensor, places: asc.Tensor) -> asc.Tensor:
        y = x + 1
        return asc.take(y, places, axis=0) * 2

    graph = await s.capture(rows, x, places)
    assert np.array_equal(await graph(x, places).numpy(), np.full((3, 20), 4.0))
    with pytest.raises(IndexError) as raised:
        await graph(x, places + 28)
    assert any("captured operation 'take'" in note and "in rows" in note for note in raised.value.__notes__)


async def test_one_result_twice_and_an_argument(s: asc.Scheduler) -> None:
    t = await s.put(np.ones(SHAPE, "f4"))

    def work(t: Any) -> Any:
        y = t * 2 + 1
        return y, y, t

    a, b, c = (await s.capture(work, t))(t)
    assert (await a == 3).all()
    assert (await b == 3).all()
    assert (await c == 1).all()


# -- loops, where numba is installed ----------------------------------------------------------------------------------


class Later:
    """In the place of `compiled.later`: what is to be compiled, and a loop that gives ones."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []

    def __call__(self, *given: Any) -> list[Any]:
        self.asked.append(given)

        def loop(count: int, *arrays: np.ndarray) -> None:
            assert all(array.size in (1, count) for array in arrays)
            arrays[-1][...] = 1

        return [loop]


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Later:
    found = Later()
    monkeypatch.setattr(compiled, "later", found)
    return found


async def test_a_run_becomes_a_loop_where_there_is_a_compiler(s: asc.Scheduler, later: Later) -> None:
    t = await s.put(np.ones(SHAPE, "f4"))
    graph = await s.capture(lambda t: gelu(asc, t), t)
    assert (await graph(t) == 1).all()
    source, constants, dimensions, results = later.asked[0]
    assert "tanh(" in source
    assert np.float32(0.044715) in constants.values()
    assert (dimensions, results) == ([1], 1)


async def test_captured_inside_exact_it_does_not(s: asc.Scheduler, later: Later) -> None:
    x = np.linspace(-3, 3, 30_000, dtype="f4")
    t = await s.put(x)
    with asc.exact():
        graph = await s.capture(lambda t: gelu(asc, t), t)
    assert (await graph(t)).tobytes() == gelu(np, x).tobytes()
    assert later.asked == []


NOT_LOOPS: dict[str, tuple[Callable[[Any], Any], str, tuple[int, ...]]] = {
    "another dtype": (lambda t: t * 2 + 1, "f8", SHAPE),
    "a comparison": (lambda t: (t * 2 > 1) * t, "f4", SHAPE),
    "a row": (lambda t: t * 2 + t[0], "f4", SHAPE),
    "a function that is not listed": (lambda t: asc.log1p(t) + 1, "f4", SHAPE),
    "few elements": (lambda t: t * 2 + 1, "f4", (50, 50)),
    "one operation": (lambda t: t * 2, "f4", SHAPE),
}


@pytest.mark.parametrize("name", NOT_LOOPS)
async def test_runs_that_are_not_compiled(s: asc.Scheduler, later: Later, name: str) -> None:
    work, dtype, shape = NOT_LOOPS[name]
    t = await s.put(np.full(shape, 3, dtype))
    graph = await s.capture(work, t)
    assert np.array_equal(await graph(t), await work(t))
    assert later.asked == []


class Compiler:
    """In the place of the module that numba compiles: compiles nothing while the gate is closed."""

    def __init__(self, gate: threading.Event) -> None:
        self.gate = gate
        self.LOOPS: dict[str, Any] = {}
        self.sources: list[str] = []
        self.threads: set[threading.Thread] = set()

    def compiled_run(self, source: str, *_: Any) -> Any:
        self.sources.append(source)
        self.threads.add(threading.current_thread())
        held(self.gate)
        return lambda count, *arrays: arrays[-1].fill(len(self.sources))


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch, gate: threading.Event) -> Compiler:
    """As in a fresh process where numba is installed."""
    compiled.finish()  # what an earlier test began: numba looks for the module that stands in for its own here
    found = Compiler(gate)
    monkeypatch.setattr(compiled, "_installed", lambda: True)
    monkeypatch.setattr(compiled, "_runs", WeakValueDictionary(), raising=False)
    monkeypatch.setattr(compiled, "_kept", deque(maxlen=2), raising=False)
    monkeypatch.setitem(sys.modules, "asyncsched.ops.kernels.loops", found)
    return found


async def test_captures_share_one_compiler_and_equal_captures_share_loops(s: asc.Scheduler, compiler: Compiler) -> None:
    t = await s.put(np.ones(SHAPE, "f4"))
    graphs = [await s.capture(lambda t: gelu(asc, t), t) for _ in range(20)]
    await until(lambda: len(compiler.sources) == 1)
    graphs += [await s.capture(lambda t, i=i: t * i + 1, t) for i in (2.0, 0.0, -0.0)]
    assert [thread.name for thread in threading.enumerate()].count("asyncsched compiler") == 1
    compiler.gate.set()
    await asyncio.to_thread(compiled.finish)
    assert len(compiler.sources) == 4
    assert len(compiler.threads) == 1
    for graph, number in zip((*graphs[:2], *graphs[-3:]), (4, 4, 4, 4, 4), strict=True):
        assert (await graph(t) == number).all()
    await s.capture(lambda t: t * -0.0 + 1, t)
    assert len(compiler.sources) == 4


async def test_a_dropped_run_is_not_compiled_and_kept_loops_are_bounded(s: asc.Scheduler, compiler: Compiler) -> None:
    def alive() -> int:
        gc.collect()
        return sum(type(found) is compiled.Loops for found in gc.get_objects())

    t, before = await s.put(np.ones(SHAPE, "f4")), alive()
    graph = await s.capture(lambda t: t * 2 + 1, t)
    await until(lambda: len(compiler.sources) == 1)
    for _ in range(5):
        await s.capture(lambda t: gelu(asc, t), t)
    compiler.gate.set()
    await asyncio.to_thread(compiled.finish)
    assert len(compiler.sources) == 1
    del graph
    for i in range(3, 7):
        await s.capture(lambda t, i=i: t * i + 1, t)
        await asyncio.to_thread(compiled.finish)
    assert alive() <= before + 2


async def test_where_no_thread_can_start_it_is_captured_all_the_same(
    s: asc.Scheduler, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    t = await s.put(np.ones(SHAPE, "f4"))

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as none:
        none.setattr(threading.Thread, "start", start)
        graph = await s.capture(lambda t: t * 2 + 1, t)
    assert (await graph(t) == 3).all()
    compiler.gate.set()
    again = await s.capture(lambda t: t * 2 + 1, t)
    await asyncio.to_thread(compiled.finish)
    assert (await again(t) == 1).all()


LOOPS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "arithmetic": lambda xp, x, y: ((x * 2 + y) * x - 0.25) / (xp.square(y) + 1),
    "a number": lambda xp, x, y: -(x / y[3, 5]) * y + xp.sqrt(abs(x)),
    "two results": lambda xp, x, y: (x * 2 + 1, xp.reciprocal(x * 2 + 1) - y),
    "tanh": lambda xp, x, y: xp.tanh(x * 1.0),
    "exp": lambda xp, x, y: xp.exp(x * 1.0),
    "exp, far out": lambda xp, x, y: xp.exp(x * 100.0),
}


@pytest.mark.parametrize("name", LOOPS)
async def test_compiled_loops_are_within_their_bounds(s: asc.Scheduler, name: str) -> None:
    pytest.importorskip("numba")
    x, y = [np.random.default_rng(seed).standard_normal(SHAPE).astype("f4") for seed in range(2)]
    x[0, :9] = np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -1e-6, 88.5, -87.0
    work, (t, u) = LOOPS[name], [await s.put(a) for a in (x, y)]
    graph = await s.capture(lambda t, u: work(asc, t, u), t, u)
    await asyncio.to_thread(compiled.finish)
    with np.errstate(all="ignore"):
        expected = work(np, x, y)
    found = graph(t, u)
    operation = TABLE.get(name.partition(",")[0])
    bound = operation.scalar_code.bound if operation is not None and operation.scalar_code else None
    for tensor, want in zip(*[one if isinstance(one, tuple) else (one,) for one in (found, expected)], strict=True):
        got = await tensor
        if bound is None:
            assert_array_equal(got, want)
            continue
        ordinary = np.isfinite(want)
        assert_array_equal(got[~ordinary], want[~ordinary])
        got, want = got[ordinary], want[ordinary]
        assert (np.abs(got - want) <= bound.relative * np.abs(want) + bound.absolute).all()
