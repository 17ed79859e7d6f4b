"""What libraries keep: workspaces, plans and modules, which a graph may use after their end; and their own memory."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from asyncsched.devices.cuda.graph import handle_of

ILLEGAL_ADDRESS = "IllegalAddress"
KERNEL = 'extern "C" __global__ void add(double* x) { x[0] += 1; }'


@pytest.fixture
def x(cuda):
    import cupy

    x = cupy.ones(64, np.complex128)
    cupy.cuda.Stream.null.synchronize()
    return x


def plan_of(x):
    """A transform in place, and a list that holds its plan."""
    from cupy.cuda import cufft

    held = [cufft.Plan1d(x.size, cufft.CUFFT_Z2Z, 1)]
    return lambda: held[0].fft(x, x, cufft.CUFFT_FORWARD), held


def module_of(x):
    """A kernel's launch, and a list that holds its module."""
    from cupy.cuda import compiler

    held = [compiler._compile_module_with_cache(KERNEL)]
    return lambda: held[0].get_function("add")((1,), (1,), (x,)), held


@pytest.mark.parametrize("made", [plan_of, module_of])
def test_a_graph_fails_the_device_after_the_end_of_what_it_runs(cuda, streams, x, made):
    stream = streams()
    run, held = made(x)
    with stream:
        stream.begin_capture()
        run()
        graph = stream.end_capture()
        graph.launch()
        stream.synchronize()
        held.clear()
        graph.launch()
    with pytest.raises(cuda.CUDARuntimeError, match=ILLEGAL_ADDRESS):
        stream.synchronize()


@pytest.mark.parametrize("made", [plan_of, module_of])
def test_ending_it_waits_for_what_was_launched(streams, x, made):
    stream = streams()
    run, held = made(x)
    with stream:
        for _ in range(20):
            run()
        held.clear()
    stream.synchronize()


def test_a_transform_needs_the_work_area_of_its_plan(cuda, streams, x):
    import cupy

    areas = []

    def malloc(nbytes):
        areas.append(cuda.malloc(nbytes))
        return cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(areas[0], nbytes, None), 0)

    with cupy.cuda.using_allocator(malloc):
        run, held = plan_of(x)
    stream = streams()
    with stream:
        run()
        stream.synchronize()
        assert held[0].work_area.mem.size >= x.nbytes
        cuda.free(areas[0])
        run()
    with pytest.raises(cuda.CUDARuntimeError, match=ILLEGAL_ADDRESS):
        stream.synchronize()


def test_a_decomposition_needs_its_workspace(cuda, streams):
    import cupy
    from cupy_backends.cuda.libs import cublas, cusolver

    stream = streams()
    with stream:
        a, info = cupy.eye(4), cupy.zeros(1, np.int32)
        handle = cupy.cuda.device.get_cusolver_handle()
        size = cusolver.dpotrf_bufferSize(handle, cublas.CUBLAS_FILL_MODE_UPPER, 4, a.data.ptr, 4)
        start = cuda.malloc(8 * size)
        arguments = handle, cublas.CUBLAS_FILL_MODE_UPPER, 4, a.data.ptr, 4, start, size, info.data.ptr
        cusolver.dpotrf(*arguments)
        stream.synchronize()
        cuda.free(start)
        cusolver.dpotrf(*arguments)
    with pytest.raises(cuda.CUDARuntimeError, match=ILLEGAL_ADDRESS):
        stream.synchronize()


@pytest.mark.parametrize("ended", [False, True])
def test_a_captured_product_needs_its_workspace(cuda, streams, runtime, ended):
    import cupy

    area, stream = cuda.malloc(1 << 20), streams()
    workspace = cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(area, 1 << 20, None), 0)
    with stream:
        x = cupy.ones((8, 8))
        y = x @ x
        with handle_of(cupy, 0).in_place(stream, workspace):
            stream.begin_capture()
            cupy.matmul(x, x, out=y)
            graph = stream.end_capture()
        runtime.reset()
        graph.launch()
        stream.synchronize()
        assert (y == 8).all()
        assert not runtime.calls()["cuBLAS, a product"]
        if ended:
            cuda.free(area)
        graph.launch()
    if not ended:
        stream.synchronize()
        return
    with pytest.raises(cuda.CUDARuntimeError, match=ILLEGAL_ADDRESS):
        stream.synchronize()


def test_sorting_takes_temporary_memory_by_cupys_allocator(cuda):
    import cupy

    x, taken = cupy.arange(1000.0), []

    def malloc(nbytes):
        taken.append(nbytes)
        return cupy.get_default_memory_pool().malloc(nbytes)

    with cupy.cuda.using_allocator(malloc):
        found = cupy.argsort(x)
    assert found.tolist() == list(range(1000))
    assert sum(taken) >= 2 * found.nbytes


FULL = """
import cupy
from cupy.cuda import compiler, cufft, runtime
from cupy_backends.cuda.libs import cublas, cusolver

taken, size = [], runtime.memGetInfo()[0]
while size >= 4096:
    try:
        taken.append(runtime.malloc(size))
    except runtime.CUDARuntimeError:
        size //= 2
for call in (
    cublas.create,
    cusolver.create,
    lambda: cufft.Plan1d(8, cufft.CUFFT_Z2Z, 1),
    lambda: compiler._compile_module_with_cache('extern "C" __global__ void f() { }'),
):
    try:
        call()
    except Exception as error:
        print(str(error).split(":")[0])
"""


def test_libraries_have_memory_of_their_own_on_the_device():
    environment = os.environ | {"HOSTCUDA_MEMORY_MB": "64"}
    run = subprocess.run([sys.executable, "-c", FULL], env=environment, capture_output=True, text=True, check=False)
    assert run.stdout.split() == [
        "CUBLAS_STATUS_ALLOC_FAILED",
        "CUSOLVER_STATUS_ALLOC_FAILED",
        "CUFFT_ALLOC_FAILED",
        "cudaErrorMemoryAllocation",
    ], run.stderr


CLOSED = """
import numpy as np
import asyncsched as asc

async def main():
    async with asc.Scheduler("cuda", streams=1) as s:
        for n in range(20):
            await asc.fft.fft(await s.put(np.ones(10 + n))).numpy()

asc.run(main)
"""


def test_a_process_may_end_while_plans_are_dropped():
    """CuPy empties all caches when the interpreter ends, whatever their threads do."""
    run = subprocess.run([sys.executable, "-c", CLOSED], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")


OPENED = """
import sys
import asyncsched as asc

async def main():
    async with asc.Scheduler("cuda"):
        print("cupyx" in sys.modules)

asc.run(main)
"""


def test_no_two_streams_import_parts_of_cupy_that_import_each_other():
    """Each would wait for the other, and Python would give one of them an unfinished module."""
    run = subprocess.run([sys.executable, "-c", OPENED], capture_output=True, text=True, check=False)
    assert run.stdout.strip() == "True", run.stderr
