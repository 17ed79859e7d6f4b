"""Other libraries' arrays and functions, NVTX ranges, closing, and machines without CUDA."""

from __future__ import annotations

import asyncio
import sys
import weakref
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched.devices import guests
from asyncsched.devices.cuda.graph import CUDAGraph
from tests.fake_cupy import Fake, fake_cupy
from tests.waiting import until

from .conftest import BLOCK, CrossingDevice, Exported, assert_ledgers_zero, ended, opened

pytestmark = pytest.mark.one_loop


def test_another_librarys_stream_is_waited_for() -> None:
    with fake_cupy(1) as fake:
        import cupy

        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            array = cupy.full((32, 32), 3, dtype=cupy.float32)

        async def main() -> Any:
            async with opened(2) as s:
                with fake.pause():
                    with stream:
                        array.fill(7)
                    late = s.put_nowait(Exported(array, stream))
                return await late.numpy()

        assert asyncio.run(main()).max() == 7
        assert fake.races == []


async def test_an_array_of_another_device_is_refused_with_the_cure(three: Fake) -> None:
    class Elsewhere:
        def __dlpack_device__(self) -> tuple[int, int]:
            return 2, 2

    async with opened(1) as s:
        with pytest.raises(ValueError, match="cuda:2: `put` it there with device="):
            await s.put(Elsewhere())
    async with asc.Scheduler("cpu") as s:
        with pytest.raises(TypeError, match="list it in Scheduler"):
            await s.put(Elsewhere())


async def test_results_leave_by_dlpack(fake: Fake) -> None:
    import cupy

    async with opened(1) as s:
        array = await ((await s.put(BLOCK)) + 1)
        assert cupy.from_dlpack(array).data.ptr == array.data.ptr
        del array


async def test_a_pytorch_module_is_a_task(s: asc.Scheduler, torch: Any) -> None:
    layer = torch.nn.Linear(32, 4)
    y = await s.submit(layer, await s.put(BLOCK), shape=(32, 4), dtype="float32")
    expected = layer(torch.from_numpy(BLOCK)).detach().numpy()
    assert np.allclose(await y, expected, atol=1e-6)


async def test_pytorch_works_on_the_tasks_stream(fake: Fake, torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    entered: list[Any] = []

    @contextmanager
    def on(stream: Any) -> Any:
        entered.append(stream)
        yield

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "ExternalStream", lambda ptr, device: (ptr, device))
    monkeypatch.setattr(torch.cuda, "stream", on)
    async with opened(1) as s:
        x = await s.put(BLOCK)
        assert (await (await s.submit(lambda a: a + 1, x, shape=x.shape, dtype=x.dtype)).numpy()).max() == 2
        assert entered == [(s.devices[0].streams[0].cuda.ptr, 0)]
    assert guests.call(len, [[1, 2]]) == 2


@pytest.fixture
def theirs(jax: Any) -> dict[str, Any]:
    """JAX's arrays, all on the CPU."""
    array = jax.device_put(np.arange(12, dtype=np.float32).reshape(3, 4), jax.devices("cpu")[0])
    return {
        "rows": array,
        "turned": array.T,
        "number": array[1, 2],
        "none": array[:0],
        "bfloat16": array.astype("bfloat16"),
    }


@pytest.mark.parametrize("device", ["cpu", "cuda"])
async def test_an_array_of_jax_is_put(fake: Fake, theirs: dict[str, Any], device: str) -> None:
    async with asc.Scheduler(device) as s:
        with pytest.raises(TypeError, match="bfloat16 is not supported"):
            await s.put(theirs.pop("bfloat16"))
        for array in theirs.values():
            expected = np.array(array)
            x = await s.put(array)
            array.delete()  # what was put is a copy
            assert (x.shape, x.dtype) == (expected.shape, expected.dtype)
            assert (await x.numpy()).tobytes() == expected.tobytes()
            assert (await (x + 1).numpy()).tobytes() == (expected + 1).tobytes()


async def test_leaving_waits_for_what_is_in_flight(fake: Fake) -> None:
    with fake.pause():
        s = asc.Scheduler(CrossingDevice(0, 2))
        await s.__aenter__()
    x = await s.put(BLOCK)
    chain = x
    for _ in range(100):
        chain = chain + 1
    await s.aclose()
    assert chain.done()
    assert (await chain.numpy()).max() == 101  # readable after the close
    with pytest.raises(asc.SchedulerClosed):
        await s.__aenter__()
    del x, chain
    await ended()
    assert_ledgers_zero(s)


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_graph_dropped_in_mid_replay(fake: Fake, moment: str) -> None:
    """It owns buffers that its kernels write to; freeing them waits for the device, so not on the loop."""
    async with opened(2) as s:
        x = await s.put(BLOCK)
        graph = await s.capture(lambda a: (a * 32) + 1, x)
        with fake.pause():
            results = [graph(x) for _ in range(3)]
            if moment == "before":
                del graph
        for result in results:
            assert (await result.numpy()).max() == 33
        graph = None
        del results, result, x
    await ended()
    assert_ledgers_zero(s)


async def test_the_memory_of_a_refused_recording_is_freed_once_its_stream_is_past_it(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first run is under way. Whether CUDA waits for that when it frees memory is nothing to rely on."""
    own = list[weakref.ref[Any]]()

    def refuse(_: CUDAGraph, __: Any, ___: Any, recorded: Any) -> bool:
        own.append(weakref.ref(recorded.own[0]))
        return False

    monkeypatch.setattr(CUDAGraph, "_captured", refuse)
    monkeypatch.setattr(CUDAGraph, "_handle", lambda *_: None)
    async with opened(1) as s:
        x = await s.put(BLOCK)
        device: Any = s.devices[0]
        with fake.hold(device.streams[0].cuda):
            capturing = asyncio.create_task(s.capture(lambda a: (a * 32) + 1, x))
            await until(lambda: own and (own[0]() is None or device._janitor._pause))  # it has looked
            assert own[0]() is not None
        assert (await (await capturing)(x).numpy()).max() == 33
        await until(lambda: own[0]() is None)
        del capturing, x
    await ended()
    assert_ledgers_zero(s)


async def test_schedulers_at_once_and_one_after_the_other(fake: Fake) -> None:
    for _ in range(2):
        async with opened(2) as one, opened(2) as two:
            a, b = await one.put(BLOCK), await two.put(BLOCK * 2)
            assert [(await (t + 1).numpy()).max() for t in (a, b)] == [2, 3]
            with pytest.raises(ValueError, match="scheduler"):
                a + b
            del a, b


async def test_without_cupy_the_cure_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(RuntimeError, match=r'pip install "asyncsched\[cuda12\]"'):
        async with asc.Scheduler("cuda"):
            pass


@pytest.mark.parametrize(
    ("devices", "name", "told"),
    [(0, "cuda", "no NVIDIA driver found|CuPy finds no device"), (1, "cuda:1", "CUDA finds 1 devices")],
)
async def test_without_a_device_it_says_so(devices: int, name: str, told: str) -> None:
    with fake_cupy(devices=devices):
        with pytest.raises(RuntimeError, match=told):
            async with asc.Scheduler(name):
                pass
        async with asc.Scheduler("auto") as s:
            assert s.devices[0].kind == ("cuda" if devices else "cpu")
