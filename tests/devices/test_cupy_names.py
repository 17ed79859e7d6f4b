"""Every call of CuPy that the package makes exists in the real one, with those arguments. Needs CuPy but no GPU."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncsched
from asyncsched.devices.cuda import expressions
from asyncsched.ops.meta import meta
from asyncsched.ops.op import plan
from asyncsched.ops.program import Step, ref
from asyncsched.ops.table import TABLE
from tests.declared import ARITIES, UFUNCS

ROOT = Path(asyncsched.__file__).parent
KERNELS = sorted(ROOT.glob("ops/kernels/*.py"))
# What the devices call, and with how many positional arguments or which keywords; as a signature or docstring says.
DEVICE_CALLS = {
    "cuda.Stream": "non_blocking",
    "cuda.Event": "block disable_timing",
    "cuda.MemoryPool.malloc": "size",
    "cuda.Memory": "size",
    "cuda.MemoryPointer": "mem offset",
    "cuda.UnownedMemory": "ptr size owner device_id",
    "cuda.using_allocator": "allocator",
    "cuda.alloc_pinned_memory": "size",
    "cuda.is_available": "",
    "cuda.Device": "device",
    "cuda.nvtx.RangeStart": "message color",
    "cuda.nvtx.RangeEnd": "range_id",
    "cuda.graph.Graph.launch": "stream",
    "cuda.get_current_stream": "",
    "cuda.get_elapsed_time": "start_event end_event",
    "cuda.Stream.wait_event": "event",
    "cuda.Stream.begin_capture": "mode",
    "cuda.Stream.end_capture": "",
    "cuda.Event.record": "stream",
    "cuda.Event.synchronize": "",
    "cuda.memory.OutOfMemoryError": "size total limit",
    "cuda.runtime.CUDARuntimeError": "status",
    "cuda.runtime.memcpyAsync": "dst src size kind stream",
    "cuda.runtime.memcpyPeerAsync": "dst dstDevice src srcDevice size stream",
    "cuda.runtime.eventQuery": "event",
    "cuda.runtime.eventSynchronize": "event",
    "cuda.runtime.eventRecord": "event stream",
    "cuda.runtime.streamIsCapturing": "stream",
    "cuda.runtime.deviceSynchronize": "",
    "cuda.runtime.getDeviceCount": "",
    "cuda.runtime.memGetInfo": "",
    "cuda.runtime.pointerGetAttributes": "ptr",
    "cuda.runtime.deviceCanAccessPeer": "device peerDevice",
    "cuda.runtime.deviceEnablePeerAccess": "peerDevice",
    "cuda.nvrtc.getVersion": "",
    "from_dlpack": "array",
    "copyto": "dst src",
    "ElementwiseKernel": "in_params out_params operation name preamble no_return",
    "RawKernel": "code name options",
    "cuda.function.Function.linear_launch": "size args",
}

# What operations that are no universal function are called with to see their expression: arrays, numbers, options.
EXPRESSIONS: dict[str, tuple[int, tuple[float, ...], dict[str, Any]]] = {
    **{name: (count, (), {}) for name, count in ARITIES.items() if name not in UFUNCS},
    "clip": (1, (0, 1.5), {}),
    "astype": (1, (), {"dtype": np.dtype(np.float32)}),
    "copy": (1, (), {}),
    "leaky_relu": (1, (), {"negative_slope": 0.1}),
    "softplus": (1, (), {"beta": 1.0, "threshold": 20.0}),
    "gelu": (1, (), {"approximate": "none"}),
    "gelu_backward": (2, (), {"approximate": "tanh"}),
    "choice_backward": (3, (), {}),
    "axpby": (2, (0.9, 0.1), {}),
    "axpby_squared": (2, (0.9, 0.1), {}),
    "rms_scaled": (2, (1e-8,), {}),
    "adam_step": (4, (1e-3, 1e-2, 0.9, 0.0, 1e-8), {}),
}
WITH_EXPRESSIONS = [*EXPRESSIONS, *[name for name in UFUNCS if name != "remainder"]]

# Called only where the namespace is NumPy, or has it.
FOR_NUMPY = {("vecdot", "axis", "out"), ("take", "axis", "out", "mode")}


@pytest.fixture(scope="module")
def cupy() -> Any:
    cupy = pytest.importorskip("cupy", reason="needs CuPy; a GPU is not needed")
    pytest.importorskip("cupy.cuda.nvtx")
    return cupy


def found(cupy: Any, path: str) -> Any:
    thing = cupy
    for name in path.split("."):
        thing = getattr(thing, name)
    return thing


def parameters(thing: Any) -> set[str]:
    """Names of parameters: from the signature, or from the first line that Cython writes into the docstring."""
    import inspect

    try:
        return set(inspect.signature(thing).parameters)
    except (TypeError, ValueError):
        line = (thing.__doc__ or "").split(")")[0]
        return set(re.findall(r"(\w+)(?:=[^,]*)?(?:,|$)", line.partition("(")[2]))


@pytest.mark.parametrize("path", DEVICE_CALLS)
def test_what_the_devices_call(cupy: Any, path: str) -> None:
    assert set(DEVICE_CALLS[path].split()) <= parameters(found(cupy, path))


def test_the_constants(cupy: Any) -> None:
    from asyncsched.devices.cuda import context, pool

    assert cupy.cuda.runtime.memcpyHostToDevice == 1
    assert cupy.cuda.runtime.memcpyDeviceToHost == 2
    assert cupy.cuda.runtime.memoryTypeHost == 1
    assert str(cupy.cuda.runtime.CUDARuntimeError(context._NOT_READY)).startswith("cudaErrorNotReady")
    assert pool.CARD_GRANULE == 512  # `ALLOCATION_UNIT_SIZE`, which only Cython sees
    assert str(cupy.cuda.runtime.CUDARuntimeError(pool._FULL)).startswith("cudaErrorMemoryAllocation")


@pytest.mark.parametrize("op", [op for op in TABLE.values() if isinstance(op.kernel, str)], ids=lambda op: op.name)
def test_rows_that_name_a_function(cupy: Any, op: Any) -> None:
    kernel = getattr(cupy, op.kernel)
    assert not op.out or isinstance(kernel, cupy.ufunc) or op.kernel == "matmul" or "out" in parameters(kernel)


@pytest.mark.parametrize("name", WITH_EXPRESSIONS)
def test_elementwise_rows_have_expressions(cupy: Any, name: str) -> None:
    """Those are not part of CuPy's public interface: where a version has them elsewhere, this tells."""
    op, kernel = TABLE[name], getattr(np, str(TABLE[name].kernel), None)
    form = meta((3,), np.dtype(np.int32 if name.startswith("bitwise") else np.float32))
    if isinstance(kernel, np.ufunc):
        arrays, more, options = kernel.nin, (), {}
        result = plan(op, (form,) * arrays, {}).meta
    else:
        (arrays, more, options), result = EXPRESSIONS[name], form
    step = Step(op, (*map(ref, range(arrays)), *more), options, result, 12, 0, "")
    assert expressions.expression(cupy, step, 9, lambda slot: form.dtype).lines


def calls(path: Path) -> list[tuple[str, list[str]]]:
    """Each function of `xp` in a file, with the keywords it is called with."""
    seen = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and re.fullmatch(r"xp[\w.]+", ast.unparse(node.func)):
            seen.append((ast.unparse(node.func)[3:], [k.arg for k in node.keywords if k.arg]))
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "xp":
            seen.append((node.attr, []))
    return seen


@pytest.mark.parametrize("path", KERNELS, ids=lambda path: path.stem)
def test_what_the_kernels_call(cupy: Any, path: Path) -> None:
    for name, keywords in calls(path):
        if (name, *keywords) in FOR_NUMPY or name == "vecdot":
            continue
        called = found(cupy, name)
        if isinstance(called, cupy.ufunc):
            assert set(keywords) <= {"out", "dtype", "casting"}, name
        elif keywords:
            known = parameters(called)
            assert set(keywords) <= known or "kwargs" in known, (name, keywords, known)
