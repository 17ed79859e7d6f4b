"""Capturing a step: the same results as issuing it, in one task, on every device; and what cannot be captured."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

import asyncsched as asc
from asyncsched.autograd import grad
from asyncsched.devices.host import blas
from asyncsched.devices.memory import owner_of
from asyncsched.ops.cost_model import INLINE_SECONDS
from asyncsched.optim import SGD
from asyncsched.runtime.runtime import INLINE_BUDGET
from tests.fake_cupy import fake_cupy
from tests.ledger import lane_of, stands_still
from tests.waiting import held, until

pytestmark = pytest.mark.one_loop

A = np.random.default_rng(0).random((30, 20))
W = np.random.default_rng(1).random((20, 20))


@pytest.fixture
async def s(device: Any) -> AsyncIterator[asc.Scheduler]:
    async with asc.Scheduler(device) as scheduler:
        yield scheduler


@pytest.fixture
async def x(s: asc.Scheduler) -> asc.Tensor:
    return await s.put(A)


def step(x: asc.Tensor, w: asc.Tensor | float) -> dict[str, Any]:
    hidden = asc.maximum(x * w if isinstance(w, float) else x @ w, 0.5)
    return {"hidden": hidden, "sums": [hidden.sum(axis=0), hidden.mean()], "turned": (x.mT,)}


def expected(x: Any, w: Any) -> dict[str, Any]:
    hidden = np.maximum(x * w if isinstance(w, float) else x @ w, 0.5)
    return {"hidden": hidden, "sums": [hidden.sum(axis=0), hidden.mean()], "turned": (x.T,)}


@pytest.mark.parametrize("whole", [False, True], ids=["with a product", "all of it a graph on CUDA"])
async def test_a_replay_gives_the_results_of_issuing(device: Any, whole: bool) -> None:
    async with asc.Scheduler(device, max_bytes="16 MiB") as s:
        x, w = await s.put(A), await s.put(W)
        graph = await s.capture(lambda x: step(x, 0.5 if whole else w), x)
        outs = [(graph(await s.put(A * i)), expected(A * i, 0.5 if whole else W)) for i in range(4)]
        for out, want in outs:
            assert np.array_equal(await out["hidden"].numpy(), want["hidden"])
            assert np.array_equal(await out["sums"][0].numpy(), want["sums"][0])
            assert await out["sums"][1].item() == want["sums"][1]
            assert np.array_equal(await out["turned"][0].numpy(), want["turned"][0])


async def test_one_result_is_one_task(s: asc.Scheduler, x: asc.Tensor) -> None:
    graph = await s.capture(lambda x: (asc.exp(x) + 1).sum(axis=1) * 2, x)
    before = s.statistics().tasks_submitted
    y = graph(x)
    assert s.statistics().tasks_submitted == before + 1
    assert np.array_equal(await y.numpy(), (np.exp(A) + 1).sum(axis=1) * 2)


async def test_a_constant_is_read_as_it_was(s: asc.Scheduler) -> None:
    x, w = await s.put(A), await s.put(W)
    graph = await s.capture(lambda x: x @ w, x)
    w[...] = 0.0
    assert np.array_equal(await graph(x).numpy(), A @ W)


async def test_part_assignment_and_creation_are_recorded(s: asc.Scheduler, x: asc.Tensor) -> None:
    def body(x: asc.Tensor) -> asc.Tensor:
        y = x + asc.ones((1, 20), dtype=asc.float64)
        y[0] = 7.0
        return y

    graph = await s.capture(body, x)
    want = A + 1
    want[0] = 7
    assert np.array_equal(await graph(x).numpy(), want)
    assert np.array_equal(await x.numpy(), A)


async def test_a_result_without_axes_may_be_assigned_to(s: asc.Scheduler, x: asc.Tensor) -> None:
    def body(x: asc.Tensor) -> asc.Tensor:
        y = x.sum() + 1
        y[...] = 7.0
        return y

    graph = await s.capture(body, x)
    assert await graph(x).item() == 7


async def test_a_part_of_an_intermediate_does_not_keep_the_whole(s: asc.Scheduler, x: asc.Tensor) -> None:
    graph = await s.capture(lambda x: (x * 2).mT[:3, 0], x)
    found = await graph(x).numpy(), await graph(x)
    assert np.array_equal(found[0], A[0, :3] * 2)
    assert owner_of(found[1]).nbytes < A.nbytes


async def test_its_buffers_are_charged_until_it_is_dropped(device: Any, s: asc.Scheduler, x: asc.Tensor) -> None:
    held = s.statistics().bytes_retained
    graph = await s.capture(lambda x: (x * 2).sum(), x)
    owned = graph.owned
    await until(lambda: s.statistics().bytes_retained == held + owned)
    assert (owned > 0) == (device == "cuda")
    await graph(x)
    del graph
    await s.barrier()
    await until(lambda: s.statistics().bytes_retained == held)


async def test_a_graph_above_the_limit_is_too_large() -> None:
    with fake_cupy(1):
        async with asc.Scheduler("cuda", max_bytes="64 KiB") as s:
            x = await s.put(A)
            with pytest.raises(asc.TaskTooLarge):
                await s.capture(lambda x: asc.concat([x] * 20) + 1, x)
            assert s.statistics().bytes_retained == 30 * 20 * 8 + 320  # of x alone, in CuPy's granules
            del x


async def test_an_operation_that_cannot_be_captured_is_named(s: asc.Scheduler, x: asc.Tensor) -> None:
    with pytest.raises(asc.CaptureError, match="argwhere: the shape of its result depends on data"):
        await s.capture(asc.nonzero, x)
    with pytest.raises(asc.CaptureError, match="print cannot be captured"):
        await s.capture(lambda x: s.submit_nowait(print, x), x)
    with pytest.raises(asc.CaptureError, match="put cannot be captured"):
        await s.capture(lambda x: s.put_nowait(A), x)
    with pytest.raises(asc.CaptureError, match="returned no tensor"):
        await s.capture(lambda x: None, x)
    with pytest.raises(asc.ImplicitBarrierError):
        await s.capture(lambda x: float(x.sum()), x)
    assert np.array_equal(await (x + 1).numpy(), A + 1), "operations are issued again"


async def test_a_failing_function_leaves_the_scheduler_as_it_was(s: asc.Scheduler, x: asc.Tensor) -> None:
    with pytest.raises(ZeroDivisionError):
        await s.capture(lambda x: x + 1 / 0, x)
    assert np.array_equal(await (x + 1).numpy(), A + 1)


async def test_a_tensor_that_leaks_out_has_no_value(s: asc.Scheduler) -> None:
    leaked: list[asc.Tensor] = []

    def body(x: asc.Tensor) -> asc.Tensor:
        leaked.append(x + 1)
        return leaked[0]

    await s.capture(body, await s.put(A))
    with pytest.raises(asc.CaptureError, match="has no value"):
        await leaked[0]
    leaked.clear()


async def test_a_pass_and_a_step_of_an_optimiser_are_refused_and_change_nothing(s: asc.Scheduler) -> None:
    """They move handles, which would be without a value; gradients that are returned may be captured."""
    w = await s.put(W)
    w.requires_grad = True
    optimizer = SGD([w])
    w.grad = w * 0

    def trained(x: asc.Tensor) -> asc.Tensor:
        loss = (x @ w).sum()
        loss.backward()
        return loss

    def moved(x: asc.Tensor) -> asc.Tensor:
        optimizer.step()
        return x

    def gradient(x: asc.Tensor) -> asc.Tensor:
        return grad((x @ w).sum(), w)[0]

    x = await s.put(A)
    for fn, name in ((trained, "backward"), (moved, "step")):
        with pytest.raises(asc.CaptureError, match=rf"{name}\(\) cannot be captured"):
            await s.capture(fn, x)
    assert not (await w.grad.numpy()).any()
    graph = await s.capture(gradient, x)
    expected = A.T @ np.ones((30, 20))
    assert_allclose(await graph(x).numpy(), expected)
    assert (await w.numpy()).tobytes() == W.tobytes()


async def test_a_result_whose_gradient_would_be_lost_is_refused(s: asc.Scheduler) -> None:
    x, w = await s.put(A), await s.put(W)
    w.requires_grad = True

    def tracked_inside(x: asc.Tensor) -> asc.Tensor:
        x.requires_grad = True
        return x * 2

    def curved(x: asc.Tensor) -> asc.Tensor:
        return grad(((x @ w) ** 2).sum(), w, create_graph=True)[0]

    for fn in (lambda x: x @ w, lambda x: {"loss": [(x @ w).sum()]}, lambda x: [x * 2, w], tracked_inside, curved):
        with pytest.raises(asc.CaptureError, match=r"recorded, which a replay is not: .* lost. Use `t.detach\(\)`"):
            await s.capture(fn, x)
    assert not x.requires_grad
    detached = await s.capture(lambda x: (x @ w).detach(), x)
    with asc.no_grad():
        quiet = await s.capture(lambda x: x @ w, x)
    for graph in (detached, quiet):
        assert_allclose(await graph(x).numpy(), A @ W)


async def test_a_loss_may_be_returned_with_its_gradient(s: asc.Scheduler) -> None:
    """The pass dropped what was kept, so nothing more is lost."""
    x, w = await s.put(A), await s.put(W)
    w.requires_grad = True

    def step(x: asc.Tensor) -> tuple[asc.Tensor, asc.Tensor]:
        loss = (x @ w).sum()
        return loss, grad(loss, w)[0]

    loss, gradient = (await s.capture(step, x))(x)
    assert_allclose(await loss.item(), (A @ W).sum())
    assert_allclose(await gradient.numpy(), A.T @ np.ones((30, 20)))


async def test_an_argument_whose_gradient_would_be_lost_is_refused(s: asc.Scheduler, x: asc.Tensor) -> None:
    graph = await s.capture(lambda x: x * 2, x)
    x.requires_grad = True
    for tracked in (x, x + 1):
        with pytest.raises(asc.CaptureError, match=r"has requires_grad set, .* Use `t.detach\(\)`"):
            graph(tracked)
        with pytest.raises(asc.CaptureError, match="has requires_grad set"):
            await s.capture(lambda x: x * 2, tracked)
        assert not graph(tracked.detach()).requires_grad
        with asc.no_grad():
            assert not graph(tracked).requires_grad
            await s.capture(lambda x: x * 2, tracked)


async def test_a_part_of_a_tensor_from_outside_is_not_assigned_to(s: asc.Scheduler) -> None:
    x, cache = await s.put(A), await s.put(W)

    def put_in(x: asc.Tensor) -> asc.Tensor:
        cache[0] = x[0]
        return cache + 0

    def returned(x: asc.Tensor, cache: asc.Tensor) -> asc.Tensor:
        cache[0] = x[0]
        return cache

    with pytest.raises(asc.CaptureError, match="pass the tensor as an argument, and return it"):
        await s.capture(put_in, x)
    assert (await cache.numpy()).tobytes() == W.tobytes()
    graph = await s.capture(returned, x, cache)
    assert_allclose(await graph(x, cache).numpy(), np.concatenate([A[:1], W[1:]]))


async def test_wrong_arguments_are_refused_at_the_call(s: asc.Scheduler, x: asc.Tensor) -> None:
    graph = await s.capture(lambda x: x * 2, x)
    with pytest.raises(ValueError, match=r"takes \(.*\) float\d+, not \(.*\) float\d+: capture another for these$"):
        graph(x.mT)
    with pytest.raises(ValueError, match="takes"):
        graph(x, x)
    with pytest.raises(TypeError, match="takes tensors, not int"):
        graph(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="at least one tensor"):
        await s.capture(lambda: None)

    async def waits(x: asc.Tensor) -> asc.Tensor:
        return x

    class Waits:
        async def __call__(self, x: asc.Tensor) -> asc.Tensor:
            return x

    for fn in (waits, Waits()):
        with pytest.raises(TypeError, match="coroutine function"):
            await s.capture(fn, x)


async def test_captures_do_not_nest(s: asc.Scheduler, x: asc.Tensor) -> None:
    def body(x: asc.Tensor) -> asc.Tensor:
        coroutine = s.capture(lambda x: x, x)
        try:
            while True:
                coroutine.send(None)
        except StopIteration:
            raise AssertionError from None
        finally:
            coroutine.close()

    with pytest.raises(asc.CaptureError, match="do not nest"):
        await s.capture(body, x)


async def test_cuda_names_the_operation_that_it_cannot_record() -> None:
    """A kernel that waits for the device works when run, and breaks a capture."""
    from asyncsched.ops.kernels.elementwise import copy_rule
    from asyncsched.ops.op import Op
    from asyncsched.tensors.tensor import apply

    def waits(xp: Any, x: Any) -> Any:
        return x + float(x.sum().item())

    op = Op("needs_the_host", waits, copy_rule)
    with fake_cupy(1):
        async with asc.Scheduler("cuda") as s:
            x = await s.put(A)
            with pytest.raises(asc.CaptureError, match=r"needs_the_host.*test_capture"):
                await s.capture(lambda x: apply(op, (x,)), x)
            assert np.array_equal(await (x + 1).numpy(), A + 1)
            del x


async def test_the_same_answers_inside_a_scope_with_a_reserve(device: Any) -> None:
    async with asc.Scheduler(device, max_bytes="1 MiB") as s:
        async with s.scope(reserve="512 KiB") as scope:
            x = await scope.put(A)
            graph = await scope.capture(lambda x: x * 3 - x, x)
            y = graph(x)
        assert np.array_equal(await y.numpy(), A * 3 - A)
        del graph, x, y
        await s.barrier()
        assert s.statistics().bytes_retained == 0


async def test_replays_on_the_host_are_spread_over_its_streams(gate: threading.Event) -> None:
    """They share nothing, so that one need not wait for the other."""
    async with asc.Scheduler("cpu", streams=2) as s:
        stands_still(s)
        t = await s.put(np.ones((300, 400)))
        graph = await s.capture(lambda t: t * 2 + 1, t)
        busy = [s.submit_nowait(held, gate) for _ in range(2)]
        replays = [graph(t) for _ in range(4)]
        assert len({lane_of(replay) for replay in replays}) == 2
        gate.set()
        await asc.gather(*busy)
        for replay in replays:
            assert (await replay == 3).all()


# -- where a replay runs ----------------------------------------------------------------------------------------------


@pytest.fixture
def takes(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What a replay takes from now on, in seconds by the clock."""
    seconds, now = [0.0], [0.0]

    def clock() -> float:
        now[0] += seconds[0]
        return now[0]

    monkeypatch.setattr("asyncsched.tensors.capture.perf_counter", clock)
    return seconds


async def busy_streams(s: asc.Scheduler, gate: threading.Event) -> list[Any]:
    return [s.submit_nowait(held, gate) for _ in s.devices[0].streams]


def assigned(x: asc.Tensor) -> asc.Tensor:
    x[0] = x[1] @ x
    return x


@pytest.mark.parametrize("donate", [(), (0,)], ids=["", "donated"])
async def test_one_that_is_quick_runs_on_the_loops_thread(takes: list[float], gate: Any, donate: Any) -> None:
    async with asc.Scheduler("cpu", streams=2) as s:
        graph = await s.capture(assigned, await s.put(W), donate=donate)
        await graph(await s.put(W))  # from now on it is known
        x, busy = await s.put(W), await busy_streams(s, gate)
        before = s.statistics().peak_bytes
        y = graph(x)
        assert y.done()
        assert s.statistics().peak_bytes <= before + W.nbytes
        want = W.copy()
        want[0] = W[1] @ W
        assert_allclose(await y, want)
        takes[0] = 1.0
        late = [graph(await s.put(W)) for _ in range(2)]  # nobody knows that the first takes long
        assert [one.done() for one in late] == [True, False]
        gate.set()
        await asc.gather(*busy, *late)
        assert not blas.computing or s.statistics().tasks_in_flight
        takes[0] = 0.0
        await graph(await s.put(W))  # one that was quick shows what it may take
        assert graph(await s.put(W)).done()


async def test_what_fails_there_fails_at_its_await(takes: list[float], gate: Any) -> None:
    async with asc.Scheduler("cpu") as s:
        x, at = await s.put(A), await s.put(np.array([1, 2]))
        graph = await s.capture(lambda x, at: asc.take(x, at, axis=0) * 2, x, at)
        busy = await busy_streams(s, gate)
        wrong = graph(x, await s.put(np.array([1, 99])))
        assert wrong.done()
        with pytest.raises(IndexError, match="99") as told:
            await wrong
        assert any("captured operation 'take'" in note for note in told.value.__notes__)
        assert np.array_equal(await graph(x, at), A[[1, 2]] * 2)
        gate.set()
        await asc.gather(*busy)


async def test_together_they_hold_the_loop_for_no_longer_than_others(takes: list[float], gate: Any) -> None:
    def many(x: asc.Tensor) -> asc.Tensor:
        for _ in range(30):
            x = x + 1
        return x

    async with asc.Scheduler("cpu") as s:
        takes[0] = INLINE_BUDGET * 0.3
        x, graph = await s.put(A), await s.capture(many, await s.put(A))
        busy, replays = await busy_streams(s, gate), [graph(x)]
        while replays[-1].done():
            replays.append(graph(x))
        assert len(replays) == 5
        gate.set()
        await asc.gather(*busy, *replays)
        assert graph(x).done()


async def test_a_long_one_goes_to_a_stream_whatever_it_is_made_of(takes: list[float], gate: Any) -> None:
    async with asc.Scheduler("cpu") as s:
        takes[0] = INLINE_SECONDS * 5
        x = await s.put(A)
        short = await s.capture(lambda x: (x + 1) * 2 - 1, x)
        longer = await s.capture(lambda x: (x + 1) * 2 - x * x + x, x)
        busy = await busy_streams(s, gate)
        one, other = short(x), longer(x)
        assert (one.done(), other.done()) == (False, True)  # of 3 operations, and of 5
        gate.set()
        await asc.gather(*busy, one)


KEYS: dict[str, Any] = {
    "a tensor": lambda t, m: t,
    "a number and a tensor": lambda t, m: (1, t),
    "a slice and a tensor": lambda t, m: (slice(1, 9, 2), t),
    "a tensor without axes": lambda t, m: (t[0], t),
    "tensors without axes": lambda t, m: (t[0], t[1]),
    "a strided tensor": lambda t, m: t[::-2],
    "two tensors": lambda t, m: (t, t),
    "a mask": lambda t, m: m,
    "an ellipsis and a tensor": lambda t, m: (..., t),
    "no tensor": lambda t, m: (slice(2, 5), 1),
    "numbers": lambda t, m: (2, 3),
    "an ellipsis": lambda t, m: (..., 3),
    "a new axis and a tensor": lambda t, m: (None, t),
}


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("donate", [(), (0,)], ids=["", "donated"])
async def test_assignments_of_every_kind_are_numpys(key: str, donate: Any) -> None:
    """Where several go to one place, the last in C order stays."""

    def assign(x: Any, t: Any, m: Any, v: Any) -> Any:
        at = KEYS[key](t, m)
        if key != "a mask":
            v = v[: len(t)] if key == "a tensor" else v[:2, : x.shape[1]] if key == "a strided tensor" else v[0, 0]
            x[at] = v
        else:
            x[at] = 3.0
        return x

    x, v = np.arange(144.0).reshape(12, 12), -np.arange(1.0, 145).reshape(12, 12)
    t, m = np.array([3, 1, 3, 7]), np.arange(144).reshape(12, 12) % 5 == 0
    async with asc.Scheduler("cpu") as s:
        given = [await s.put(a) for a in (x, t, m, v)]
        graph = await s.capture(assign, *given, donate=donate)
        for _ in range(3):
            assert np.array_equal(await graph(await s.put(x), *given[1:]), assign(x.copy(), t, m, v))
