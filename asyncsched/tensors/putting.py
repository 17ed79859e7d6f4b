"""Putting a host array: the task of its copy to a device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .._core.callsite import call_site
from .._core.model import PENDING, CallPlan, Scope, Task, new_value
from ..devices.contract import Device
from ..devices.memory import refuse_mask_or_unit
from ..errors import QueueFull
from ..ops.kernels.elementwise import copy
from ..ops.meta import meta
from ..ops.op import Op
from ..ops.table import TABLE
from ..runtime.runtime import INLINE_COPY, Runtime
from .arguments import dtype_of
from .handles import Handle
from .tensor import Tensor

_PLANS = CallPlan("put"), CallPlan("put", small=True)  # the second where the copy is made on the loop's thread
_CUDA = (2, 13)  # DLPack's kDLCUDA and kDLCUDAManaged


def _native_copy(xp: Any, x: Any, *, out: Any = None) -> Any:
    """A copy in the layout of `x`, and in this machine's order of bytes."""
    if out is None and not x.dtype.isnative:
        return x.astype(x.dtype.newbyteorder("="))
    return copy(xp, x, out=out)


_PUT = Op("put", _native_copy, TABLE["copy"].rule, out=True, doc="A host array, copied to the device.")


Source = tuple[Any, Device]  # an array that a copy stream of the device can read


def importable(runtime: Runtime, source: Any, device: object) -> Source:
    """What is to be put, and where to. What it is pending on is asked here and now."""
    if isinstance(source, Handle):
        if source._value.account.runtime is not runtime:
            raise ValueError("this belongs to another scheduler: `await` it, and put the array")
        raise TypeError("this is the scheduler's already: for another device use `t.to(device)`")
    target = runtime.device(device)
    array = _importable(source, target)
    if not isinstance(source, np.ndarray) and array.dtype.hasobject:
        kind = type(source).__name__
        raise TypeError(f"put takes an array of numbers, or what `np.asarray` makes one of, not {kind}")
    dtype_of(array.dtype)  # raises for what no tensor has
    return array, target


def make_put(runtime: Runtime, core: Scope, source: Source, *, bounded: bool) -> tuple[Task, Tensor]:
    """A host array on its way to a device."""
    array, target = source
    form = meta(array.shape, dtype_of(array.dtype), array.flags.c_contiguous)
    nbytes = target.memory.footprint(array.nbytes)
    value = new_value(core.account, target, form, nbytes, call_site())
    small = nbytes <= INLINE_COPY and target.inline
    task = Task(core, _PLANS[small], value, _PUT, (), (array,), None, runtime.lanes[target].copy, nbytes)
    runtime.submit(task, bounded=bounded)
    return task, Tensor(value)


def put_nowait(runtime: Runtime, core: Scope, source: Any, device: object) -> Tensor:
    """The same, if there is room for it now: a pending host array would be unbounded memory.

    Raises:
        QueueFull: if there is not.
    """
    task, tensor = make_put(runtime, core, importable(runtime, source, device), bounded=True)
    if task.state == PENDING:
        runtime.cancel(task, "put_nowait, since there was no room")
        raise QueueFull("no room for this array now: `await s.put(array)` waits for it")
    return tensor


def _importable(source: Any, target: Device) -> Any:
    """The source as an array that a copy stream of `target` can read."""
    if type(source) is not np.ndarray:
        refuse_mask_or_unit(source)
    if not isinstance(source, np.ndarray) and hasattr(source, "__dlpack_device__"):
        kind, _ = source.__dlpack_device__()
        if kind in _CUDA:
            return target.adopt(source)
        if not hasattr(source, "__array__"):
            return np.from_dlpack(source)
    if isinstance(source, Mapping):
        raise TypeError(f"put takes one array, not {type(source).__name__}: put each that is in it by itself")
    try:
        array = np.asarray(source)
    except ValueError as error:  # rows of different lengths, or several arrays
        raise ValueError(f"put takes one array, so put each of several by itself: {error}") from None
    return array.view()  # whatever shape the user's own gets meanwhile, what is told is that of the copy
