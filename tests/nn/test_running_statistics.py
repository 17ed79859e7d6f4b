"""The running statistics of BatchNorm: buffers that a forward pass moves, whole or not at all."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import asyncsched as asc
from asyncsched import nn
from tests.fake_cupy import fake_cupy
from tests.test_steps import Injected, Injector, break_body, cancel
from tests.waiting import held

pytestmark = pytest.mark.one_loop
NAMES = ["running_mean", "running_var", "num_batches_tracked"]
BATCHES = 4


def batch(number: int) -> np.ndarray:
    return np.random.default_rng(number).normal(number, 1 + number, (6, 3))


async def kept(norm: nn.Module) -> dict[str, bytes]:
    return {name: (await buffer.numpy()).tobytes() for name, buffer in norm.named_buffers()}


async def after(numbers: Iterable[int], **options: Any) -> dict[str, bytes]:
    async with asc.Scheduler("cpu", streams=1) as s:
        norm = nn.BatchNorm1d(3, dtype="f8", **options)
        for number in numbers:
            await norm(await s.put(batch(number)))
        return await kept(norm)


def broken() -> np.ndarray:
    raise Injected


@pytest.mark.usefixtures("torch_may_block")
@pytest.mark.parametrize("momentum", [0.1, 0.3, None])
async def test_they_follow_pytorchs(s, momentum):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    theirs = torch.nn.BatchNorm1d(3, momentum=momentum, dtype=torch.float64)
    ours = nn.BatchNorm1d(3, momentum=momentum, dtype=np.float64)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    for number in range(BATCHES):
        expected = theirs(torch.tensor(batch(number))).detach()
        assert_allclose(await ours(await s.put(batch(number))), expected, rtol=1e-9)
        for name, value in theirs.state_dict().items():
            assert_allclose(await ours.state_dict()[name], value, rtol=1e-12)
    expected = theirs.eval()(torch.tensor(batch(9))).detach()
    assert_allclose(await ours.eval()(await s.put(batch(9))), expected, rtol=1e-9)
    fresh = nn.BatchNorm1d(3, dtype=np.float64)
    fresh.load_state_dict({name: await s.put(value.numpy()) for name, value in theirs.state_dict().items()})
    assert_allclose(await fresh.eval()(await s.put(batch(9))), expected, rtol=1e-9)
    alone = nn.BatchNorm1d(3, affine=False, track_running_stats=False, dtype=np.float64)
    assert alone.state_dict() == {}
    for module in (alone, alone.eval()):
        got = await module(await s.put(batch(1)))
        assert_allclose(got.mean(axis=0), np.zeros(3), atol=1e-12)
        assert_allclose(got.std(axis=0), np.ones(3), rtol=1e-4)


async def test_they_are_buffers_and_not_parameters(s):
    norm = nn.BatchNorm2d(3)
    assert [name for name, _ in norm.named_buffers()] == NAMES
    assert [name for name, _ in norm.named_parameters()] == ["weight", "bias"]
    assert (norm.num_batches_tracked.dtype, norm.running_var.dtype) == (np.int64, np.float32)
    for wrong, kind in (((2, 3), nn.BatchNorm2d), ((2, 3, 4, 4), nn.BatchNorm1d)):
        with pytest.raises(ValueError, match="must be .(images|examples), channels"):
            kind(3)(asc.ones(wrong, dtype=np.float32))


@pytest.mark.parametrize("options", [{}, {"momentum": None}])
async def test_a_failed_batch_is_left_out_and_later_ones_go_on(s, options):
    norm = nn.BatchNorm1d(3, dtype="f8", **options)
    values = [await s.put(batch(number)) for number in range(BATCHES)]
    values[1] = s.submit_nowait(broken, shape=(6, 3), dtype="f8")
    for value in values:  # nothing is awaited between
        norm(value)
    with pytest.raises(ExceptionGroup) as caught:
        await s.barrier()
    assert [type(error) for error in caught.value.exceptions] == [Injected]
    assert await kept(norm) == await after([0, 2, 3], **options)


async def test_a_cancelled_batch_is_left_out(s, gate):
    norm = nn.BatchNorm1d(3, dtype="f8")
    first = await s.put(batch(0))
    norm(first)
    late = s.submit_nowait(held, gate) and s.submit_nowait(lambda: batch(1), shape=(6, 3), dtype="f8")
    norm(late)
    norm(await s.put(batch(2)))
    late.cancel()
    gate.set()
    await s.barrier()
    found = await kept(norm)
    assert found in (await after([0, 2]), await after([0, 1, 2]))
    assert (await norm.num_batches_tracked.item() == 2) == (found == await after([0, 2]))


@pytest.mark.parametrize("which", ["cpu", "cuda"])
@pytest.mark.parametrize("hit", [break_body, cancel])
async def test_whatever_task_is_hit_a_batch_counts_whole_or_not(which, hit):
    whole, without = await after(range(BATCHES)), await after([0, 2, 3])
    nth, count = 0, 1
    with fake_cupy(seed=3, laziness=0.0) if which == "cuda" else contextlib.nullcontext() as fake:
        async with asc.Scheduler(which) as s:
            while nth < count:
                norm, injector = nn.BatchNorm1d(3, dtype="f8"), Injector(s, hit)
                injector.nth = nth
                values = [await s.put(batch(number)) for number in range(BATCHES)]
                for number, value in enumerate(values):
                    with injector.on() if number == 1 else contextlib.nullcontext():
                        norm(value)
                with contextlib.suppress(ExceptionGroup):
                    await s.barrier()
                count = max(count, len(injector.seen))
                assert await kept(norm) in (whole, without), nth
                nth += 1
            del norm, values, value, injector
        if fake is not None:
            gc.collect()
            assert fake.problems() == []
    assert count >= 8


async def test_without_room_in_the_backlog_nothing_moves(gate):
    async with asc.Scheduler("cpu", max_pending=12, streams=1) as s:
        norm = nn.BatchNorm1d(3, dtype="f8")
        before = await kept(norm)
        x = s.submit_nowait(held, gate, batch(0), shape=(6, 3), dtype="f8")
        with pytest.raises(asc.QueueFull):
            for _ in range(50):
                norm(x)
        gate.set()
        await s.barrier()
        moved = await norm.num_batches_tracked.item()
        assert await kept(norm) == (await after([0] * int(moved)) if moved else before)


async def test_their_buffers_are_written_over(s):
    norm, x = nn.BatchNorm1d(3, dtype="f8"), await s.put(batch(0))
    retained = []
    for _ in range(4):
        norm(x)
        await s.barrier()
        retained.append(s.statistics().bytes_retained)
    assert len(set(retained)) == 1


async def test_a_captured_step_takes_them_as_they_are(s):
    norm, x = nn.BatchNorm1d(3, dtype="f8"), await s.put(batch(0))
    norm(x)
    before = await kept(norm)
    with asc.no_grad():
        with pytest.raises(asc.CaptureError, match=r"running statistics cannot be captured: call `module.eval\(\)`"):
            await s.capture(norm, x)
        assert await kept(norm) == before
        graph = await s.capture(norm.eval(), x)
        assert_array_equal(await graph(x), await norm(x))


async def test_a_checkpoint_has_them(s, tmp_path):
    pytest.importorskip("safetensors", reason="safetensors is not installed")
    norm, other = nn.BatchNorm1d(3, dtype="f8"), nn.BatchNorm1d(3, dtype="f8")
    norm(await s.put(batch(0)))
    await asc.save(tmp_path / "state", norm.state_dict())
    other.load_state_dict(await asc.load(tmp_path / "state"))
    for one in (norm, other):
        one(await s.put(batch(1)))
    assert await kept(other) == await kept(norm) == await after([0, 1])
