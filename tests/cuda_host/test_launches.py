"""How many launches an operation, a step of training and a captured step take on CuPy in host memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched import nn, optim
from asyncsched.devices.cuda import graph as module
from asyncsched.ops.kernels import windows
from asyncsched.ops.meta import meta
from asyncsched.ops.op import plan, resolve
from asyncsched.ops.table import TABLE
from asyncsched.tensors.tensor import apply
from tests.gpu.cases import CASES, Case, absent

pytestmark = pytest.mark.one_loop
ENQUEUED = "work enqueued"
STATED = sorted(name for name, op in TABLE.items() if op.launches is not None)
GROUPS = [pytest.param(STATED[i : i + 16], id=f"{STATED[i]}...") for i in range(0, len(STATED), 16)]
GRANULE, BLOCKS = 512, 8  # to a multiple of what, and how many blocks of memory are rounded up
# images, channels, height, width, out channels; kernel, stride, padding, dilation
CONVOLUTIONS = [
    ((32, 32, 32, 32, 32), (3, 3), (1, 1), (1, 1), (1, 1)),
    ((5, 3, 40, 30, 7), (5, 2), (2, 3), (3, 1), (1, 2)),
    ((2, 4, 200, 100, 6), (3, 3), (1, 1), (0, 0), (1, 1)),
]


def usual(case: Case) -> bool:
    """Whether the operands are contiguous, in single precision or of integers, and have elements."""
    arrays = [a for a in case.operands if isinstance(a, np.ndarray)]
    return all(a.flags.c_contiguous and a.size and a.dtype.char in "f?bBhHiIlLqQ" for a in arrays)


@pytest.mark.parametrize("names", GROUPS)
async def test_operations_take_the_launches_that_they_state(runtime, names):
    """No more; and, of those that are no universal function, as many for some operands."""
    wrong = []
    async with asc.Scheduler("cuda", streams=1) as s:
        for name in names:
            most, cases = 0, [case for case in CASES[name] if usual(case)]
            for case in cases[:3] + cases[-3:]:
                try:
                    most = max(most, await launches(s, runtime, name, case))
                except Exception as error:  # NumPy's own refusal, or what host memory lacks
                    assert absent(str(error)) or isinstance(error, TypeError | ValueError), (name, error)
            stated = TABLE[name].launches
            if most > stated or (most and not isinstance(TABLE[name].kernel, str) and most < stated):
                wrong.append((name, most, stated))
    assert not wrong


async def launches(s: asc.Scheduler, runtime: Any, name: str, case: Case) -> int:
    """Of an operation that ran before."""
    operands = tuple([await s.put(a) if isinstance(a, np.ndarray) else a for a in case.operands])
    await apply(TABLE[name], operands, case.options, scheduler=s)
    await s.barrier()
    runtime.reset()
    await apply(TABLE[name], operands, case.options, scheduler=s)
    await s.barrier()
    return int(runtime.calls().others[ENQUEUED])


def network() -> nn.Module:
    """Two convolutions and two linear layers: eight parameters."""
    images = [nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU()]
    rows = [nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16 * 49, 32), nn.ReLU(), nn.Linear(32, 10)]
    return nn.Sequential(*images, *rows)


@pytest.mark.parametrize(("kind", "most"), [(optim.AdamW, 120), (optim.SGD, 100)], ids=["AdamW", "SGD"])
async def test_a_step_of_training_takes_few(runtime, kind, most):
    rng = np.random.default_rng(0)
    async with asc.Scheduler("cuda", streams=1) as s:
        model = network()
        optimizer = kind(model.parameters(), lr=0.01)
        x = await s.put(rng.standard_normal((16, 1, 28, 28)).astype(np.float32))
        target = await s.put(rng.integers(0, 10, 16))

        for _ in range(4):
            runtime.reset()
            optimizer.zero_grad()
            nn.cross_entropy(model(x), target).backward()
            optimizer.step()
            await s.barrier()
        assert 0 < runtime.calls().others[ENQUEUED] < most
        del model, optimizer


async def test_a_captured_training_with_products_is_one_launch(runtime):
    rng = np.random.default_rng(0)
    async with asc.Scheduler("cuda", streams=1) as s:
        model = nn.Sequential(nn.Linear(20, 32), nn.GELU(), nn.Linear(32, 10))
        parameters, target = list(model.parameters()), await s.put(rng.integers(0, 10, 16))

        def step(x: asc.Tensor) -> Any:
            loss = nn.cross_entropy(model(x), target)
            return loss.detach(), asc.autograd.grad(loss, parameters)

        x = await s.put(rng.standard_normal((16, 20)).astype(np.float32))
        graph = await s.capture(step, x)
        calls = await replayed(s, runtime, graph, x)
        assert calls["cudaGraphLaunch"] == 1
        assert calls["cuBLAS, a product"] == 0


async def replayed(s: asc.Scheduler, runtime: Any, graph: asc.Graph, *tensors: asc.Tensor) -> Any:
    """What a second replay calls."""
    for _ in range(2):
        await s.barrier()
        runtime.reset()
        kept = graph(*tensors)
        await s.barrier()
    del kept
    return runtime.calls()


async def test_a_captured_step_of_few_kernels_is_no_graph_and_copies_nothing(runtime):
    async with asc.Scheduler("cuda", streams=1) as s:
        x = await s.put(np.ones((64, 64), np.float32))

        def chain(x: asc.Tensor) -> asc.Tensor:
            for _ in range(100):
                x = x + 1
            return x

        graph = await s.capture(chain, x)
        calls = await replayed(s, runtime, graph, x)
        assert (calls[ENQUEUED], calls["cudaGraphLaunch"]) == (1, 0)
        assert (await graph(x).numpy()).max() == 101


async def test_the_last_kernels_of_a_step_write_to_new_arrays_and_read_what_no_graph_copies(runtime, monkeypatch):
    copied, copy = list[int](), module._copied

    def counted(xp: Any, source: Any, target: Any = None) -> Any:
        copied.append(source.nbytes)
        return copy(xp, source, target)

    monkeypatch.setattr(module, "_copied", counted)
    async with asc.Scheduler("cuda", streams=1) as s:
        x, w, moment = [await s.put(np.full((64, 64), number, np.float32)) for number in (1, 2, 3)]

        def step(x: asc.Tensor, w: asc.Tensor, moment: asc.Tensor) -> tuple[asc.Tensor, ...]:
            moment = (x @ w) / 64 + moment * 0.5
            return w - moment, moment, x

        graph = await s.capture(step, x, w, moment)
        calls = await replayed(s, runtime, graph, x, w, moment)
        assert (calls["cuLaunchKernel"], calls["cudaGraphLaunch"], calls[ENQUEUED]) == (1, 1, 2 + 1 + 1 + 1)
        # The operands of the product are copied in, and the argument that comes back is copied out.
        assert copied == 3 * 3 * [x.nbytes]  # by `capture` and by two replays
        for w_then, m_then in ((2, 3), (5, 1)):
            w, moment = await s.put(np.full((64, 64), w_then, "f4")), await s.put(np.full((64, 64), m_then, "f4"))
            found = await asc.gather(*[one.max().item() for one in graph(x, w, moment)])
            m = m_then * 0.5 + w_then
            assert found == [w_then - m, m, 1]


@pytest.mark.parametrize("columns", [windows.CARD_COLUMNS, 10_000], ids=["whole", "in tiles"])
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_convolutions_take_no_more_memory_than_is_charged(runtime, monkeypatch, case, columns):
    import cupy

    (images, channels, height, width, outs), kernel, *more = case
    monkeypatch.setattr(windows, "CARD_COLUMNS", columns)
    x, weight = cupy.ones((images, channels, height, width), "f4"), cupy.ones((outs, channels, *kernel), "f4")
    options = dict(zip(("stride", "padding", "dilation"), more, strict=True))
    grad = cupy.ones((images, outs, *windows.Windows(kernel, *more).fit(x.shape)), "f4")
    for name, operands, shape in (
        ("conv2d", (x, weight, cupy.ones(outs, "f4")), {}),
        ("conv2d_input_grad", (grad, weight), {"shape": x.shape}),
        ("conv2d_weight_grad", (grad, x), {"shape": weight.shape}),
    ):
        op, given = TABLE[name], {**options, **shape}
        op.plans.clear()  # those of other tiles
        planned = plan(op, tuple([meta(a.shape, a.dtype) for a in operands]), given)
        op.plans.clear()
        most = peak(partial(resolve(op, cupy), *operands, **given))
        assert most <= planned.nbytes + planned.on_card + BLOCKS * GRANULE


def peak(call: Callable[[], Any]) -> int:
    """The most bytes that are in use at once, with the result."""
    import cupy

    pool, most = cupy.cuda.MemoryPool(), 0

    def malloc(nbytes: int) -> Any:
        nonlocal most
        found = pool.malloc(nbytes)
        most = max(most, pool.used_bytes())
        return found

    with cupy.cuda.using_allocator(malloc):
        result = call()
        del result
    return most
