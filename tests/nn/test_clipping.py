"""Clipping the norm of all gradients."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import asyncsched as asc
from asyncsched import nn, optim
from tests.autograd.gate import Gate
from tests.autograd.test_tape import leaf

pytestmark = pytest.mark.one_loop
ARRAYS = [np.random.default_rng(i).standard_normal(shape) for i, shape in enumerate([(3, 4), (), (5,)])]


async def with_gradients(s: Any, dtype: str = "f8") -> list[asc.Tensor]:
    found = [await leaf(s, np.zeros(array.shape, dtype)) for array in ARRAYS]
    for tensor, array in zip(found, ARRAYS, strict=True):
        tensor.grad = await s.put(array.astype(dtype))
    return found


@pytest.mark.usefixtures("torch_may_block")
@pytest.mark.parametrize("norm_type", [2.0, 1, 3.5, math.inf])
@pytest.mark.parametrize("max_norm", [0.5, 1e6, 0, math.inf])
async def test_gradients_and_norm_are_those_of_pytorch(s, max_norm, norm_type):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    theirs = [torch.zeros(array.shape, dtype=torch.float64, requires_grad=True) for array in ARRAYS]
    for tensor, array in zip(theirs, ARRAYS, strict=True):
        tensor.grad = torch.tensor(array)
    norm = torch.nn.utils.clip_grad_norm_(theirs, max_norm, norm_type).item()
    ours = await with_gradients(s)
    found = nn.clip_grad_norm_(iter([*ours, ours[0], await leaf(s, np.zeros(2))]), max_norm, norm_type)
    assert_allclose(await found.item(), norm, rtol=1e-12)
    for mine, yours in zip(ours, theirs, strict=True):
        assert_allclose(await mine.grad, yours.grad.numpy(), rtol=1e-12, atol=0)


async def test_dtypes_stay_and_one_tensor_will_do(s):
    mixed = [*await with_gradients(s, "f2"), *await with_gradients(s, "f4")]
    nn.clip_grad_norm_(mixed, 0.5)
    assert [tensor.grad.dtype for tensor in mixed] == [np.float16] * 3 + [np.float32] * 3
    (one, *_) = await with_gradients(s)
    await nn.utils.clip_grad_norm_(one, 1.0)
    assert_allclose(np.linalg.norm(await one.grad), 1.0, rtol=1e-5)
    assert await nn.clip_grad_norm_(await leaf(s, np.zeros(2)), 1.0).item() == 0


@pytest.mark.parametrize("count", [6_000, 1_000_000])
async def test_half_precision_is_scaled_by_less_than_it_can_hold(s, count):
    one = await leaf(s, np.zeros(count, "f2"))
    one.grad = await s.put(np.full(count, 60_000, "f2"))
    assert_allclose(await nn.clip_grad_norm_(one, 1.0).item(), 60_000 * math.sqrt(count), rtol=1e-5)
    assert_allclose(np.linalg.norm((await one.grad).astype("f8")), 1.0, rtol=2e-3)


async def test_several_devices():
    async with asc.Scheduler(["cpu", "cpu"]) as s:
        a, b = await leaf(s, np.zeros(2)), asc.zeros(2, device="cpu:1")
        b.requires_grad = True
        a.grad, b.grad = await s.put(np.array([3.0, 0])), await s.put(np.array([0.0, 4]), device="cpu:1")
        assert await nn.clip_grad_norm_([a, b], 1.0).item() == 5
        assert_allclose([*await a.grad, *await b.grad], [0.6, 0, 0, 0.8], rtol=1e-5)


async def test_it_waits_for_nothing_and_a_failed_gradient_skips_the_step(s):
    ours = await with_gradients(s)
    gate = Gate(5)
    ours[2].grad = s.submit_nowait(gate, shape=(5,), dtype="f8")
    norm = nn.clip_grad_norm_(ours, 0.5)
    assert not norm.done()
    gate.open()
    assert_allclose(await norm.item(), np.sqrt(sum((a**2).sum() for a in ARRAYS[:2])))

    def broken() -> np.ndarray:
        raise ZeroDivisionError

    ours[2].grad = s.submit_nowait(broken, shape=(5,), dtype="f8")
    norm = nn.clip_grad_norm_(ours, 0.5)
    optim.SGD(ours, lr=1.0).step()
    with pytest.raises(ZeroDivisionError):
        await norm
    for tensor in ours:
        assert_array_equal(await tensor, np.zeros(tensor.shape))


async def test_what_makes_no_sense_is_refused_and_nothing_changes():
    async with asc.Scheduler("cpu", max_pending=6) as s:
        ours = await with_gradients(s)
        for message, call in (
            ("math.isfinite.await norm.item", lambda: nn.clip_grad_norm_(ours, 1.0, error_if_nonfinite=True)),
            ("no parameters", lambda: nn.clip_grad_norm_([], 1.0)),
            ("max_norm=-1 must not be negative", lambda: nn.clip_grad_norm_(ours, -1)),
            ("max_norm=nan must not", lambda: nn.clip_grad_norm_(ours, math.nan)),
        ):
            with pytest.raises(ValueError, match=message):
                call()
        gate = Gate(5)
        held = s.submit_nowait(gate, shape=(5,), dtype="f8")
        for tensor in ours:
            tensor.grad = tensor.grad + held.sum()
        before = s.statistics().tasks_submitted
        with pytest.raises(asc.QueueFull, match="clip_grad_norm_.. takes"):
            nn.clip_grad_norm_(ours, 1.0)
        assert s.statistics().tasks_submitted == before
        gate.open()


async def test_values_are_clipped_each_by_itself(s: asc.Scheduler) -> None:
    one, two, none = await leaf(s, np.zeros(3)), await leaf(s, np.zeros(2)), await leaf(s, np.zeros(2))
    factor, other = await s.put(np.array([3.0, -0.5, -4.0])), await s.put(np.array([0.25, 2.0]))
    ((one * factor).sum() + (two * other).sum()).backward()
    nn.clip_grad_value_(iter([one, two, none, one]), 1)
    assert (await one.grad).tolist() == [1, -0.5, -1]
    assert (await two.grad).tolist() == [0.25, 1]
    assert none.grad is None
    nn.clip_grad_value_(two, 0.5)
    assert (await two.grad).tolist() == [0.25, 0.5]
    nn.utils.clip_grad_value_(none, 1)
    with pytest.raises(ValueError, match="clip_value=-1 must not be negative"):
        nn.clip_grad_value_(one, -1)
    with pytest.raises(ValueError, match="clip_grad_value_: there are no parameters"):
        nn.clip_grad_value_([], 1)


async def test_a_gradient_that_failed_stays_failed_and_the_step_is_skipped(s: asc.Scheduler) -> None:
    w = await leaf(s, np.zeros(2))
    bad = await s.submit(raising, shape=(2,), dtype=float)
    (w * bad).sum().backward()
    nn.clip_grad_value_([w], 1)
    asc.optim.SGD([w], 0.1).step()
    assert (await w).tolist() == [0, 0]
    with pytest.raises(ExceptionGroup):
        await s.barrier()


def raising() -> None:
    raise LookupError("it")


async def test_an_average_follows_and_a_skipped_step_does_no_harm(s: asc.Scheduler) -> None:
    model = nn.Sequential(nn.Linear(2, 2, rng=0), nn.BatchNorm1d(2))
    average = nn.ExponentialAverage(model, 0.75)
    expected = {name: await x.numpy() for name, x in model.state_dict().items()}
    assert not average.module[0].training if hasattr(average.module[0], "training") else True
    x = await s.put(np.random.default_rng(0).normal(size=(8, 2)).astype(np.float32))
    optimizer = asc.optim.SGD(model.parameters(), 0.5)
    for step in range(3):
        loss = model(x).sum() if step != 1 else (model(x) * await s.submit(raising, shape=(2,), dtype="f4")).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average.update()
        for name, p in model.named_parameters():
            expected[name] = 0.75 * expected[name] + 0.25 * await p.numpy()
    with pytest.raises(ExceptionGroup):
        await s.barrier()
    for name, _ in model.named_parameters():
        assert_allclose(await average.module.state_dict()[name], expected[name], rtol=1e-6)
    for name in ("1.running_mean", "1.num_batches_tracked"):
        assert_allclose(await average.module.state_dict()[name], await model.state_dict()[name])
    again = nn.ExponentialAverage(model, 0.75)
    again.module.load_state_dict(average.module.state_dict())
    again.update()
    average.update()
    assert_allclose(await again.module[0].weight, await average.module[0].weight)
    for wrong in (1, -0.1):
        with pytest.raises(ValueError, match="must be from 0 to below 1"):
            nn.ExponentialAverage(model, wrong)
    with pytest.raises(AttributeError, match=r"ExponentialAverage\(module, 0.999\)"):
        asc.optim.swa_utils  # noqa: B018
