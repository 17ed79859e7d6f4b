"""Several GPUs and the host in one scheduler: copies between them, each in its own order."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from tests.fake_cupy import Fake, fake_cupy
from tests.waiting import until

from .conftest import CrossingDevice, assert_ledgers_zero, checked, ended

pytestmark = pytest.mark.one_loop

ARRAY = np.arange(40 * 30.0).reshape(40, 30)
NAMES = ["cuda:0", "cuda:2", "cpu:2"]


@pytest.fixture(params=[False, True], ids=["peers", "apart"])
def gpus(request: pytest.FixtureRequest) -> Iterator[Fake]:
    """Three GPUs, with and without access to each other's memory."""
    yield from checked(fake_cupy(5, devices=3, apart=request.param))


def views(x: asc.Tensor) -> dict[str, asc.Tensor]:
    return {
        "itself": x + 0,
        "turned": x.mT,
        "reversed": x[::-1, ::-1],
        "gaps": x[::2, 1:],
        "broadcast": asc.broadcast_to(x[:1], (5, 30)),
        "empty": x[:0],
    }


async def test_every_way_and_every_view(gpus: Fake) -> None:
    async with asc.Scheduler(["cuda:0", "cuda:2", "cpu"]) as s:
        expected = {name: await t.numpy() for name, t in views(await s.put(ARRAY, device="cpu:2")).items()}
        for source in NAMES:
            for name, view in views(await s.put(ARRAY, device=source)).items():
                for target in NAMES:
                    moved = view.to(target)
                    assert moved.device.name == target
                    assert (await (moved * 1).numpy()).tobytes() == expected[name].tobytes(), (source, target, name)
        del view, moved
    await ended()
    assert_ledgers_zero(s)


async def test_a_copy_waits_for_its_producer_on_the_other_device(gpus: Fake) -> None:
    async with asc.Scheduler([CrossingDevice(0, 2), CrossingDevice(2, 2), "cpu"], max_ops=None) as s:
        x = await s.put(ARRAY)
        await (x + 1)
        with gpus.pause():
            y = x
            for _ in range(5):
                y = y + 1
            moved = y.to("cuda:2") * 2
            host = y.to("cpu:2") * 3
            back = moved.to("cuda:0") + x
            del y
            await until(lambda: s.devices[0].streams[0].issued.count > 4)
            for _ in range(20):
                await asyncio.sleep(0)
        assert np.array_equal(await moved.numpy(), (ARRAY + 5) * 2)
        assert np.array_equal(await host.numpy(), (ARRAY + 5) * 3)
        assert np.array_equal(await back.numpy(), (ARRAY + 5) * 2 + ARRAY)
        with pytest.raises(ValueError, match="device"):
            x + moved
        del x, moved, host, back
    await ended()
    assert_ledgers_zero(s)


async def test_a_copy_through_the_host_waits_on_the_host(three: Fake) -> None:
    """It reads through a stream of its own, which knows nothing of the producer's."""
    async with asc.Scheduler(["cuda:0", "cuda:1"]) as s:
        x = await s.put(ARRAY)
        await s.barrier()
        copies = three.statistics["copies"]
        with three.pause():
            moved = (x + 1)[::2, 1:].to("cuda:1")  # with gaps it does not go straight across
            waited = [stream.finished for stream in s.devices[0].streams]
            await until(lambda: any(count.waiters for count in waited) or three.statistics["copies"] > copies)
        assert np.array_equal(await moved.numpy(), (ARRAY + 1)[::2, 1:])


async def test_ping_pong(gpus: Fake) -> None:
    async with asc.Scheduler(["cuda:0", "cuda:2"]) as s:
        x = await s.put(ARRAY)
        for _ in range(10):
            x = (x.to("cuda:2") + 1).to("cuda:0") * 1
        assert np.array_equal(await x.numpy(), ARRAY + 10)


async def test_peer_access_is_taken_among_the_schedulers_own_devices(gpus: Fake) -> None:
    """Once a copy needs it: access to a device makes a context there."""
    reached: list[Any] = [gpu.peers for gpu in gpus.gpus]
    async with asc.Scheduler(NAMES[:2]) as s:
        x = await s.put(ARRAY)
        assert reached == [set(), set(), set()]
        assert ((await x.to("cuda:2").numpy()) == ARRAY).all()
        assert reached == [set(), set(), set() if gpus.apart else {0}]


async def test_without_peer_access_a_copy_is_made_all_the_same(gpus: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    import cupy

    def refuse(peer: int) -> None:
        raise cupy.cuda.runtime.CUDARuntimeError(711)  # cudaErrorTooManyPeers

    monkeypatch.setattr(cupy.cuda.runtime, "deviceEnablePeerAccess", refuse)
    async with asc.Scheduler(NAMES[:2]) as s:
        assert ((await (await s.put(ARRAY)).to("cuda:2").numpy()) == ARRAY).all()


async def test_a_body_may_use_another_device(gpus: Fake) -> None:
    """What it makes there is no memory of the scheduler's."""
    import cupy

    def body() -> Any:
        with cupy.cuda.Device(1):
            there = cupy.empty(4, np.float32)
        here = cupy.empty(4, np.float32)
        return there.device.id, here.device.id

    async with asc.Scheduler(NAMES[:1]) as s:
        assert await s.call(body) == (1, 0)
