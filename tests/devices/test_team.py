"""Large rows in parts: for idle streams, with the bits of the whole."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from threadpoolctl import threadpool_limits

import asyncsched as asc
import asyncsched.nn.functional as F  # noqa: N812
from asyncsched.devices.cpu import Shared, Team
from asyncsched.ops import cut, parallel
from asyncsched.ops.op import Op, resolve
from asyncsched.ops.table import TABLE
from asyncsched.tensors.functions._common import op
from tests.waiting import held

Function = Callable[..., Any]

RNG = np.random.default_rng(7)
X, Y = RNG.standard_normal((2, 700, 900), dtype=np.float32)
ROW, COLUMN = X[:1], X[:, :1]
WEIGHT = RNG.standard_normal(900, dtype=np.float32)


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The threads that run parts."""
    seen: set[str] = set()

    def run(part: Function) -> BaseException | None:
        seen.add(threading.current_thread().name)
        return original(part)

    import asyncsched.devices.cpu as module

    original = module._error_of
    monkeypatch.setattr(module, "_error_of", run)
    return seen


CASES: list[tuple[str, Function, tuple[Any, ...]]] = [
    ("add", lambda x, y: x + y, (X, Y)),
    ("of a row", lambda x, y: x * y, (X, ROW)),
    ("of a column", lambda x, y: y - x, (X, COLUMN)),
    ("of fewer axes", lambda x, y: asc.atan2(x, y), (X, WEIGHT)),
    ("outer", lambda x, y: x + y, (X[0], COLUMN)),
    ("one row", lambda x: asc.exp(x), (X.reshape(1, -1),)),
    ("less", lambda x, y: asc.less(x, y), (X, Y)),
    ("where", lambda x, y: asc.where(x > 0, x, y), (X, Y)),
    ("astype", lambda x: asc.astype(asc.exp(x), np.float64), (X,)),
    ("clip", lambda x: asc.clip(x, -0.5, 0.5), (X,)),
]


@pytest.mark.one_loop
@pytest.mark.parametrize(("function", "arrays"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
@pytest.mark.parametrize("streams", [2, 3, 8])
async def test_parts_have_the_bits_of_the_whole(
    monkeypatch: pytest.MonkeyPatch, function: Function, arrays: tuple[Any, ...], streams: int
) -> None:
    monkeypatch.setattr(parallel, "PART_SECONDS", 1e-6)
    found = []
    for count in (1, streams):
        async with asc.Scheduler("cpu", streams=count) as s:
            tensors = [await s.put(array) for array in arrays]
            found.append((await function(*tensors)).tobytes())
    assert found[0] == found[1]


def _of_two_axes(x: Any, w: Any) -> Any:
    return F.layer_norm(asc.reshape(x, (7, 100, *w.shape)), w.shape, w, w)


def _apart(x: asc.Tensor) -> asc.Tensor:
    return asc.permute_dims(asc.reshape(x, (700, 30, 30)), (2, 0, 1))


LAYERS: list[tuple[str, Function]] = [
    ("gelu", lambda x, w: F.gelu(x)),
    ("softmax", lambda x, w: F.softmax(x, -1)),
    ("layer_norm", lambda x, w: F.layer_norm(x, w.shape, w, w)),
    ("layer_norm of two axes", lambda x, w: _of_two_axes(x, asc.reshape(w, (30, 30)))),
    ("linear", lambda x, w: F.linear(x, x, x[:, 0])),
    ("linear of more axes", lambda x, w: F.linear(asc.reshape(x, (7, 100, 900)), x[:200], w[:200])),
    ("matmul", lambda x, w: x @ asc.matrix_transpose(x)),
    ("a tall product", lambda x, w: asc.matrix_transpose(x) @ x[:, :70]),
    ("a product with a vector", lambda x, w: x @ w),
    ("matmul of several", lambda x, w: asc.reshape(x, (7, 100, 900)) @ asc.matrix_transpose(x)),
    ("several with one", lambda x, w: x[:100] @ asc.reshape(x, (7, 900, 100))),
    ("dot", lambda x, w: asc.dot(x[::2], asc.matrix_transpose(x))),
    ("dot of two dtypes", lambda x, w: asc.dot(x[::-1], asc.astype(asc.matrix_transpose(x), "f8"))),
    ("dot of more axes", lambda x, w: asc.dot(asc.reshape(x, (7, 100, 900)), w)),
    ("tensordot", lambda x, w: asc.tensordot(asc.reshape(x, (7, 100, 30, 30)), _apart(x), axes=((2, 3), (2, 0)))),
]


@pytest.mark.one_loop
@pytest.mark.parametrize("function", [case[1] for case in LAYERS], ids=[case[0] for case in LAYERS])
async def test_layers_in_parts(monkeypatch: pytest.MonkeyPatch, function: Function) -> None:
    monkeypatch.setattr(parallel, "PART_SECONDS", 1e-6)
    found = []
    for count in (1, 2, 2, 5):
        async with asc.Scheduler("cpu", streams=count) as s:
            x, w = await s.put(X), await s.put(WEIGHT)
            found.append(await function(x, w).numpy())
    assert_allclose(found[1], found[0], rtol=2e-5, atol=2e-4)
    assert_allclose(found[3], found[0], rtol=2e-5, atol=2e-4)
    assert found[1].tobytes() == found[2].tobytes()  # by shape and number alone, and never by timing


@pytest.mark.one_loop
async def test_exact_products_stay_whole(parts: list[int]) -> None:
    async with asc.Scheduler("cpu", streams=2) as s:
        x = await s.put(X)
        y = asc.matrix_transpose(x)
        with asc.exact():
            found = await asc.gather(x @ y, F.linear(x, x), asc.dot(x, y), asc.tensordot(x, y, axes=1))
        assert not parts
        cut = await asc.gather(x @ y, F.linear(x, x), asc.dot(x, y), asc.tensordot(x, y, axes=1))
        await op("linear_weight_grad", x, x)  # the plan is known by now
    assert parts == [2, 2, 2, 2, 2]
    for whole, in_parts in zip(found, cut, strict=False):
        bound = TABLE["matmul"].bound
        assert bound is not None
        assert_allclose(in_parts, whole, bound.relative, bound.absolute * np.abs(X).max())


@pytest.mark.usefixtures("of_eight")
@pytest.mark.parametrize(
    ("name", "shapes"), [("matmul", ((640, 700), (700, 2048))), ("linear", ((2100, 900), (300, 900)))]
)
def test_products_are_cut_along_the_longer_side_at_multiples_of_64(name: str, shapes: Any) -> None:
    args = [np.ones(shape, np.float32) for shape in shapes]
    out = np.empty((len(args[0]), args[1].shape[name == "matmul"]), np.float32)
    long = int(out.shape[1] > out.shape[0])
    lengths = [part.shape[long] for _, part in cut.parts(*_op(name), args, out)]
    assert len(lengths) == 8
    assert sum(lengths) == max(out.shape)
    assert not any(length % 64 for length in lengths[:-1])


@pytest.mark.usefixtures("of_eight")
@pytest.mark.parametrize(
    ("name", "shapes"),
    [("matmul", ((700, 300), (300, 1000))), ("linear", ((1000, 300), (700, 300), (700,))),
     ("linear_weight_grad", ((300, 700), (300, 1000)))],
)  # fmt: skip
def test_a_product_that_takes_long_is_cut_along_both_sides(
    monkeypatch: pytest.MonkeyPatch, name: str, shapes: Any
) -> None:
    monkeypatch.setattr(cut, "_LONG_SECONDS", 1e-5)
    monkeypatch.setattr(cut, "_SIDE", 200)
    monkeypatch.setattr(parallel, "PART_SECONDS", 1e-6)
    operation, kernel = _op(name)
    args = [RNG.standard_normal(shape) for shape in shapes]
    whole = kernel(*args)
    out = np.full_like(whole, np.nan)
    found = cut.parts(operation, kernel, args, out)
    assert len(found) == 8 * 3  # as many as there are threads along the one, 700 // 200 along the other
    assert sum(where.size for _, where in found) == out.size
    for some, where in found:
        kernel(*some, out=where)
    assert_allclose(out, whole, rtol=1e-11, atol=1e-11)


@pytest.mark.usefixtures("of_eight")
def test_no_part_of_a_large_product_takes_seconds() -> None:
    """A function that comes to a stream which helps waits for one of them."""
    out = np.empty((8192, 8192), np.float32)
    (factors, where), *rest = cut.parts(*_op("matmul"), [np.empty_like(out)] * 2, out)
    assert len(rest) == 63
    assert where.shape == (1024, 1024)
    assert [one.shape for one in factors] == [(1024, 8192), (8192, 1024)]


@pytest.mark.usefixtures("of_eight")
@pytest.mark.parametrize(
    ("shapes", "count"),
    [
        (((2, 3, 700, 300), (2, 3, 300, 600)), 30),  # each of 2.5 ms, cut so that parts take half a millisecond
        (((2, 700, 300), (300, 900)), 14),
        (((1, 40, 300, 300), (40, 300, 300)), 16),  # 22 ms: two parts for each thread
        (((2, 1, 400, 300), (1, 3, 300, 400)), 6),
        (((1, 1, 700, 900), (1, 900, 800)), 8),
        (((3, 1, 700, 900), (1, 900, 800)), 24),
        (((4, 5, 700, 3000), (3000,)), 8),
        (((3000,), (3, 5, 3000, 700)), 6),
    ],
)
def test_products_of_several_are_cut_along_all_axes(shapes: tuple[tuple[int, ...], ...], count: int) -> None:
    operation, kernel = _op("matmul")
    args = [RNG.standard_normal(shape, np.float32) for shape in shapes]
    whole = np.matmul(*args)
    out = np.full_like(whole, np.nan)
    found = cut.parts(operation, kernel, args, out)
    for some, where in found:
        kernel(*some, out=where)
    assert_allclose(out, whole, rtol=1e-4, atol=1e-3)
    assert len(found) == count


@pytest.mark.usefixtures("of_eight")
@pytest.mark.parametrize("dtype", [np.int32, np.float16])
def test_what_no_blas_multiplies_has_short_parts(dtype: Any) -> None:
    out = np.empty((1024, 800), dtype)
    found = cut.parts(*_op("matmul"), (np.empty((1024, 800), dtype), np.empty((800, 800), dtype)), out)
    assert [where.shape for _, where in found] == [(1, 800)] * 1024  # of 1.3 ms each, by estimate


@pytest.mark.usefixtures("of_eight")
def test_many_products_are_cut_into_parts_of_a_millisecond() -> None:
    x = np.empty((4000, 100, 100), np.float32)
    lengths = [len(where) for _, where in cut.parts(*_op("matmul"), (x, x), x)]
    assert sum(lengths) == 4000
    assert max(lengths) <= 60  # of 0.02 ms each


@pytest.mark.one_loop
async def test_gradients_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "PART_SECONDS", 1e-6)
    found = []
    for count in (1, 3):
        async with asc.Scheduler("cpu", streams=count) as s:
            x, w = await s.put(X.astype(np.float64)), await s.put(Y.astype(np.float64))
            images, kernel = asc.reshape(x, (7, 1, 100, 900)), asc.reshape(w[0, :18], (2, 1, 3, 3))
            for leaf in (w, kernel):
                leaf.requires_grad = True
            y = F.gelu(F.linear(x, w)).sum() + F.conv2d(images, kernel).sum()
            y.backward()
            found.append([await leaf.grad.numpy() for leaf in (w, kernel)])
    for whole, parts in zip(*found, strict=True):
        assert_allclose(parts, whole, rtol=1e-10, atol=1e-10)


async def test_an_idle_stream_helps_and_a_busy_one_does_not(threads: set[str], gate: threading.Event) -> None:
    x = np.ones((4000, 4000), np.float32)
    async with asc.Scheduler("cpu", streams=2, max_bytes=None) as s:
        t = await s.put(x)
        while len(threads) < 2:  # it may come too late, once
            await asc.exp(t)
        threads.clear()
        s.submit_nowait(held, gate)
        assert (await asc.exp(t))[0, 0] == np.exp(np.float32(1))
        assert len(threads) == 1
        gate.set()


def _together(gate: threading.Event, both: threading.Barrier, begun: threading.Event) -> None:
    """Parts that end only if two threads run them at once."""

    def part() -> None:
        begun.set()
        both.wait(60)

    assert gate.wait(60)
    parallel.run([part, part])


@pytest.mark.one_loop
async def test_a_stream_that_waits_for_another_helps_it(gate: threading.Event) -> None:
    both, begun, other = threading.Barrier(2), threading.Event(), threading.Event()
    async with asc.Scheduler("cpu", streams=2) as s:
        shared = s.submit_nowait(_together, gate, both, begun)
        before = s.submit_nowait(held, other)
        after = s.submit_nowait(lambda *_: 1, before, shared)  # behind `before`, on the other stream
        other.set()
        await before
        gate.set()
        assert await after == 1


@pytest.mark.one_loop
async def test_a_stream_that_has_ended_its_task_helps(gate: threading.Event) -> None:
    both, begun = threading.Barrier(2), threading.Event()
    async with asc.Scheduler("cpu", streams=2) as s:
        shared = s.submit_nowait(_together, gate, both, begun)
        busy = s.submit_nowait(begun.wait, 60)  # until the first part is under way
        gate.set()
        await asc.gather(shared, busy)


@pytest.mark.one_loop
async def test_who_helps_goes_back_to_its_own_tasks_after_one_part(gate: threading.Event) -> None:
    begun, seen, ran = threading.Event(), threading.Event(), list[int]()

    def share() -> None:
        own = threading.get_ident()

        def part() -> None:
            if threading.get_ident() == own:
                assert seen.wait(60)
            else:
                begun.set()
                assert gate.wait(60)

        parallel.run([part, part, lambda: ran.append(1)])

    def look() -> bool:
        seen.set()
        return not ran

    async with asc.Scheduler("cpu", streams=2) as s:
        shared = s.submit_nowait(share)
        await asyncio.to_thread(begun.wait, 60)  # the other stream has begun a part
        own = s.submit_nowait(look)
        gate.set()
        assert await own
        await shared
        assert ran == [1]


@pytest.mark.usefixtures("of_eight")
def test_long_rows_are_cut_into_short_parts() -> None:
    x = np.empty((8192, 8192), np.float32)
    found = cut.parts(*_op("exp"), (x,), x)
    longest = max(parallel.seconds_of(part.size, part.itemsize, TABLE["exp"].element_seconds) for _, part in found)
    assert longest < 1.2 * parallel.LONGEST_SECONDS
    assert len(found) % 8 == 0


@pytest.mark.one_loop
@pytest.mark.parametrize("name", ["relu", "softmax"])
async def test_who_helps_with_a_row_of_many_passes_goes_back_to_its_own_tasks(
    monkeypatch: pytest.MonkeyPatch, gate: threading.Event, name: str
) -> None:
    """Of a row so large that threads have more than a part each."""
    begun, seen, owner, by = threading.Event(), threading.Event(), set[int](), list[int]()

    def part(x: Any, out: Any, **options: Any) -> Any:
        thread = threading.get_ident()
        by.append(thread)
        if thread in owner:
            assert seen.wait(60)
        else:
            begun.set()
            assert gate.wait(60)
        return out

    def run(operation: Op, *args: Any) -> Any:
        owner.add(threading.get_ident())
        return original(operation, *args)

    def look() -> list[int]:
        found = list(by)
        seen.set()
        return found

    original = cut.run
    monkeypatch.setattr(cut, "run", run)
    monkeypatch.setitem(TABLE[name].kernels, np, part)
    async with asc.Scheduler("cpu", streams=2) as s:
        x = await s.put(np.zeros((8192, 1024), np.float32))
        y = F.relu(x) if name == "relu" else F.softmax(x, -1)
        await asyncio.to_thread(begun.wait, 60)  # the other stream has begun a part
        looked = s.submit_nowait(look)
        gate.set()
        begun_then = await looked
        await y
    assert sum(thread not in owner for thread in begun_then) == 1
    assert len(by) > 2 >= len(begun_then)


@pytest.fixture
def no_collections() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collections")
async def test_what_parts_raise_is_the_tasks_error_and_leaves_nothing_to_the_garbage_collector(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On both streams: so there are errors of two threads, and one is not raised."""
    monkeypatch.setattr(parallel, "PART_SECONDS", 1e-6)
    both, operands = threading.Barrier(2), list[Any]()

    def broken(x: Any, out: Any) -> None:
        operands.append(weakref.ref(x))
        both.wait(60)
        raise ValueError("broken")

    monkeypatch.setitem(TABLE["relu"].kernels, np, broken)  # a row that is cut also where it is no universal function
    async with asc.Scheduler("cpu", streams=2) as s:
        x = await s.put(X)
        y = F.relu(x)
        with pytest.raises(ValueError, match="broken"):
            await y
        del x, y
        await s.barrier()
        assert s.statistics().bytes_retained == 0
        assert [operand() is None for operand in operands] == [True, True]


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Into how many parts work was cut, where it was."""
    seen: list[int] = []
    original = parallel.run

    def run(found: Any) -> None:
        if len(found) > 1:
            seen.append(len(found))
        original(found)

    monkeypatch.setattr(parallel, "run", run)
    monkeypatch.setattr(parallel, "PART_SECONDS", 1e-6)
    return seen


def _chain(x: Any, operation: Any) -> Any:
    """A captured run with a row, a number that fills a tile, and two results."""
    y = asc.maximum(asc.tanh(x * operation + 2) * 0.5, 0.1)
    return y, y * x


def _normalised(x: Any) -> Any:
    y = asc.exp(x - 1.0)
    return y / (y + 2.0)


@pytest.mark.one_loop
@pytest.mark.parametrize(("function", "arrays"), [(_chain, (X, ROW)), (_normalised, (X,))])
@pytest.mark.parametrize("streams", [2, 5])
async def test_a_captured_run_in_parts_has_the_bits_of_the_whole(
    parts: list[int], function: Function, arrays: tuple[Any, ...], streams: int
) -> None:
    found = []
    for count in (1, streams):
        async with asc.Scheduler("cpu", streams=count) as s:
            tensors = [await s.put(array) for array in arrays]
            graph = await s.capture(function, *tensors)
            with asc.exact():
                results = graph(*tensors)
            results = results if isinstance(results, tuple) else (results,)
            found.append([array.tobytes() for array in await asc.gather(*results)])
        assert set(parts) == ({count} if count > 1 else set())
    assert found[0] == found[1]


@pytest.mark.one_loop
async def test_a_long_captured_run_has_several_parts_for_each_stream(
    parts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel, "LONGEST_SECONDS", 1e-4)
    x, found = RNG.standard_normal((2000, 1000), np.float32), []
    for count in (1, 2):
        async with asc.Scheduler("cpu", streams=count) as s:
            tensor = await s.put(x)
            with asc.exact():
                graph = await s.capture(_normalised, tensor)
                found.append((await graph(tensor)).tobytes())
    assert parts
    assert min(parts) >= 4
    assert found[0] == found[1]


@pytest.mark.one_loop
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("heads", [(10,), (2, 5), (2, 1, 5)])
async def test_attention_by_heads_on_several_streams(parts: list[int], heads: tuple[int, ...], masked: bool) -> None:
    q, k, v = RNG.standard_normal((3, *heads, 150, 16))
    mask = np.tril(np.ones((150, 150), bool))
    found = []
    for count in (1, 3):
        async with asc.Scheduler("cpu", streams=count) as s:
            leaves = [await s.put(array) for array in (q, k, v)]
            for leaf in leaves:
                leaf.requires_grad = True
            attended = F.scaled_dot_product_attention(*leaves, attn_mask=await s.put(mask) if masked else None)
            (attended * attended).sum().backward()
            found.append([await attended.numpy(), *[await leaf.grad.numpy() for leaf in leaves]])
        assert bool(parts) == (count > 1)
    for whole, some in zip(*found, strict=True):
        assert_allclose(some, whole, rtol=1e-11, atol=1e-13)


@pytest.fixture
def one_blas_thread() -> Iterator[None]:
    with threadpool_limits(1, user_api="blas"):
        yield


@pytest.mark.one_loop
@pytest.mark.usefixtures("one_blas_thread")
async def test_convolution_and_pooling_have_the_same_bits_on_any_number_of_streams(parts: list[int]) -> None:
    images, kernel, bias = [RNG.standard_normal(n, np.float32) for n in ((9, 8, 26, 26), (16, 8, 3, 3), (16,))]
    found = []
    for count in (1, 2, 5):
        async with asc.Scheduler("cpu", streams=count) as s:
            leaves = [await s.put(array) for array in (images, kernel, bias)]
            for leaf in leaves:
                leaf.requires_grad = True
            pooled = F.max_pool2d(F.conv2d(*leaves, padding=1), 2)
            (pooled * pooled).sum().backward()
            found.append([(await t).tobytes() for t in (pooled, *[leaf.grad for leaf in leaves[:2]])])
        assert bool(parts) == (count > 1)
    assert found[0] == found[1] == found[2]


@pytest.mark.one_loop
@pytest.mark.parametrize(("shape", "cut"), [((2, 4, 24, 12), False), ((32, 4, 24, 12), True), ((2, 4, 256, 12), True)])
async def test_attention_is_cut_where_its_groups_of_heads_are_long(
    parts: list[int], shape: tuple[int, ...], cut: bool
) -> None:
    async with asc.Scheduler("cpu", streams=2) as s:
        q, k, v = [await s.put(RNG.standard_normal(shape)) for _ in range(3)]
        await F.scaled_dot_product_attention(q, k, v)
    assert bool(parts) == cut


@pytest.mark.parametrize(("parts_of", "cut"), [(3.9, False), (4.1, True)])
def test_what_is_short_stays_whole(monkeypatch: pytest.MonkeyPatch, parts_of: float, cut: bool) -> None:
    monkeypatch.setattr(parallel.here, "threads", 2)
    assert parallel.number(parts_of * parallel.PART_SECONDS) == 1 + cut


def test_a_helper_that_comes_late_finds_nothing_and_holds_nothing() -> None:
    class Idle:
        def __init__(self) -> None:
            self.woken: list[Shared] = []

        def idle(self) -> bool:
            return True

        def wake(self, shared: Shared) -> None:
            self.woken.append(shared)

    late, ran = Idle(), []
    team = Team(2)
    team.streams = [late]
    team.run([lambda i=i: ran.append(i) for i in range(3)])
    assert ran == [0, 1, 2]
    (shared,) = late.woken
    assert not shared.parts
    assert team.open() is None
    shared.help()


class _Circle:
    """Garbage at once, and found by a collection: then another row is opened, as on another thread."""

    def __init__(self, team: Team) -> None:
        self._me, self._team = self, team

    def __del__(self) -> None:
        self._team.parts.append(Shared(()))


def test_a_row_is_looked_for_while_a_finaliser_lets_another_thread_open_one() -> None:
    """Wherever a collection may begin: CPython 3.11 makes them where it makes objects."""
    team, thresholds = Team(2), gc.get_threshold()
    try:
        for fewest in range(1, 40):
            team.parts.extend(Shared(()) for _ in range(17))  # of short tuples CPython keeps some to be used again
            gc.collect()
            gc.disable()
            _Circle(team)
            gc.set_threshold(fewest)
            gc.enable()
            assert team.open() is None
            gc.set_threshold(*thresholds)
            team.parts.clear()
    finally:
        gc.set_threshold(*thresholds)
        gc.enable()


def _op(name: str) -> tuple[Op, Any]:
    return TABLE[name], resolve(TABLE[name], np)


@pytest.fixture
def of_eight(monkeypatch: pytest.MonkeyPatch) -> None:
    """This thread shares its work with seven more."""
    monkeypatch.setattr(parallel.here, "threads", 8)


@pytest.mark.usefixtures("of_eight")
def test_small_rows_and_those_along_the_only_axis_stay_whole() -> None:
    small, long = np.ones(100, np.float32), np.ones((1, 10**7), np.float32)
    assert not cut.parts(*_op("add"), (small, 1.0), small)
    assert not cut.parts(*_op("softmax"), (long,), long)
    assert not cut.parts(*_op("sum"), (long,), long)
    found = cut.parts(*_op("add"), (long, 1.0), long)
    assert len(found) == 8
    assert all(out.flags.c_contiguous and out.shape == args[0].shape for args, out in found)
    assert sum(out.size for _, out in found) == 10**7


@pytest.mark.usefixtures("of_eight")
def test_where_the_first_axis_has_few_places_the_next_is_cut_too() -> None:
    x = np.ones((1, 3, 2, 10**6), np.float32)
    found = cut.parts(*_op("add"), (x, x[0]), x)
    assert [out.shape for _, out in found] == [(1, 1, 1, 500_000)] * 12
    assert all(one.shape[-1] == 500_000 and one.size == 500_000 for args, _ in found for one in args)
    assert len({out.ctypes.data for _, out in found}) == 12


@pytest.mark.usefixtures("of_eight")
@pytest.mark.parametrize("shape", [(1001, 600), (1, 37, 9, 600)])
def test_rows_are_cut_where_they_have_the_bits_of_the_whole(monkeypatch: pytest.MonkeyPatch, shape: Any) -> None:
    monkeypatch.setattr(parallel, "PART_SECONDS", 1e-6)
    x, w = np.resize(X, shape), WEIGHT[:600]
    for name, args, options in (
        ("layer_norm", (x, w, w), {"eps": 1e-5}),
        ("softmax", (x,), {}),
        ("softmax", (x,), {"log": True}),
    ):
        operation, kernel = _op(name)
        whole, out = kernel(*args, **options), np.empty_like(x)
        found = cut.parts(operation, kernel, args, out)
        assert len(found) > 1
        assert all(where.size // 600 % 16 == 0 for _, where in found[:-1])
        for some, where in found:
            kernel(*some, out=where, **options)
        assert out.tobytes() == whole.tobytes()


def test_alone_nothing_is_cut() -> None:
    x, square = np.ones((3, 10**7), np.float32), np.empty((8192, 8192), np.float32)
    assert not cut.parts(*_op("add"), (x, x), x)
    assert not cut.parts(*_op("matmul"), (square, square), square)


@pytest.mark.one_loop
async def test_the_products_of_a_captured_step_are_cut_too_and_their_bits_do_not_depend_on_what_else_runs(
    gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared: list[int] = []
    run = Team.run
    monkeypatch.setattr(Team, "run", lambda team, parts: shared.append(len(parts)) or run(team, parts))
    x = np.random.default_rng(0).standard_normal((700, 700)).astype(np.float32)
    async with asc.Scheduler("cpu", streams=2) as s:
        a = await s.put(x)
        graph = await s.capture(lambda a: a @ a + a @ a.T, a)
        alone = await graph(a).numpy()
        assert shared == [2, 2, *shared[2:]]
        busy = s.submit_nowait(held, gate)
        beside = await graph(a).numpy()
        gate.set()
        await busy
    assert np.array_equal(alone, beside)
