"""What the library calls: nothing that blocks on the loop's thread; how often it goes to the device for memory."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

import asyncsched as asc
from asyncsched.devices.cuda.device import CUDADevice

pytestmark = pytest.mark.one_loop
# What each scheduler does on the loop's thread, once, when it opens: streams, and a guess at what blocks shortly.
AT_OPENING = {"cudaStreamCreate", "context of device 0", "context of device 1"}
# What does not wait for the device.
QUICK = {"cuLaunchKernel", "work enqueued", "cudaEventCreate", "cudaStreamDestroy"}


def test_calls_are_counted_by_the_thread_that_makes_them(cuda, runtime):
    before = runtime.calls()
    cuda.deviceSynchronize()
    thread = threading.Thread(target=cuda.deviceSynchronize)
    thread.start()
    thread.join()
    calls = runtime.calls()
    assert (before["cudaDeviceSynchronize"], calls["cudaDeviceSynchronize"]) == (0, 2)
    assert calls.loop["cudaDeviceSynchronize"] == calls.others["cudaDeviceSynchronize"] == 1


async def test_the_loop_makes_no_call_that_blocks(runtime):
    device = CUDADevice(0, 2)
    async with asc.Scheduler(device, max_bytes="8 MiB") as s:
        runtime.reset()
        x = await s.put(np.ones((128, 128), np.float32))
        for i in range(200):
            y = (x + i) * 2
            if i % 10 == 0:
                await y
            if i % 50 == 0:
                await (y @ y).sum().numpy()
        graph = await s.capture(lambda x: (asc.tanh(x) @ x).sum(axis=0), x)
        await graph(x)
        dropped = [x * i for i in range(20)]
        dropped[3].cancel()
        del dropped, graph, y
        await s.barrier()
        calls = runtime.calls()
        assert calls.others["cuLaunchKernel"]
        assert calls["cudaGraphLaunch"]
        assert not calls.loop.keys() - QUICK, calls.loop
    await asyncio.to_thread(gc.collect)  # what a closed scheduler leaves may free memory


async def test_closing_and_what_is_left_block_nothing(runtime):
    async with asc.Scheduler("cuda") as s:
        runtime.reset()
        x = await s.put(np.ones((64, 64), np.float32))
        y = await (x + 1)
    del x, y, s
    gc.collect()
    assert not runtime.calls().loop.keys() - QUICK


async def test_opening_blocks_no_longer_than_making_streams(runtime):
    runtime.reset()
    async with asc.Scheduler("cuda"):
        assert not runtime.calls().loop.keys() - QUICK - AT_OPENING


@pytest.mark.parametrize(("limit", "most"), [("64 MiB", 0.01), ("2 GiB", 0.01)])
async def test_memory_comes_from_the_pool(runtime, limit, most):
    """Once warm, at most so many times for each launch it goes to the device for memory, or gives it back."""
    async with asc.Scheduler("cuda", max_bytes=limit) as s:
        xs = [await s.put(np.ones((512, 512 + 64 * j), np.float32)) for j in range(5)]

        async def step() -> None:
            sums = [((x + k) * 2 - x).sum() for x in xs for k in range(8)]
            for each in sums:
                await each

        for _ in range(3):
            await step()
        await s.barrier()
        runtime.reset()
        for _ in range(10):
            await step()
        await s.barrier()
        calls = runtime.calls()
        share = (calls["cudaMalloc"] + calls["cudaFree"]) / calls["cuLaunchKernel"]
        assert share <= most


SECOND = """
import asyncio
import cupy
import numpy as np
import asyncsched as asc
from asyncsched.devices.cuda import CUDADevice
from tests.cuda_host.runtime import loaded

async def main():
    async with asc.Scheduler(CUDADevice(1)) as s:
        x = await s.put(np.ones((64, 64), np.float32))
        kept = await (x @ x + 1)
        y = await s.put(kept)
        for _ in range(5):
            await (y + 1).numpy()
        await asc.fft.fft(y)
        await s.call(lambda a: a * 2, x)
        await (await s.capture(lambda x: (x @ x).sum(axis=0), x))(x).numpy()
        del kept, x, y
    calls = loaded().calls()
    print(sorted(name for name in calls.loop + calls.others if "context" in name or "Peer" in name))
    print(cupy.cuda.runtime.getDevice(), await asyncio.to_thread(cupy.cuda.runtime.getDevice))

asc.run(main)
"""


@pytest.mark.parametrize("refuses", ["0", "46"], ids=["idle", "of another process alone"])
def test_who_uses_the_second_device_makes_no_context_on_the_first(refuses):
    """And nobody else's thread is left with another device."""
    environment = os.environ | {"HOSTCUDA_DEVICES": "3", "HOSTCUDA_REFUSES": refuses}
    command = [sys.executable, "-c", SECOND]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.stdout.splitlines() == ["['context of device 1']", "0 0"], run.stderr
