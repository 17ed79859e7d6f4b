"""Putting a host array: the task that copies it to a device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .._arguments import refuse_mask_or_unit
from .._core.callsite import call_site
from .._core.model import PENDING, CallPlan, Scope, Task, new_value
from ..devices.contract import Device
from ..errors import QueueFull
from ..ops.kernels.elementwise import native_copy
from ..ops.meta import meta
from ..ops.op import Op
from ..ops.table import TABLE
from ..runtime.runtime import INLINE_COPY, Runtime
from .arguments import dtype_of
from .handles import Handle
from .tensor import Tensor

_PLANS = CallPlan("put"), CallPlan("put", quick=True)  # the second for copies on the loop's thread
_CUDA = (2, 13)  # DLPack's kDLCUDA and kDLCUDAManaged


_PUT = Op("put", native_copy, TABLE["copy"].rule, out=True, doc="A host array, copied to the device.")


Source = tuple[Any, np.dtype[Any], Device]  # an array that a copy stream of the device can read, and a tensor's dtype


def importable(runtime: Runtime, source: Any, device: object) -> Source:
    """Check a source for `put`: returns its array and the target device. Waits for pending work on the array, here."""
    if isinstance(source, Handle):
        if source._value.account.runtime is not runtime:
            raise ValueError("the source belongs to another scheduler: `await` it, and put the array")
        raise TypeError("the source is in this scheduler already: for another device use `t.to(device)`")
    target = runtime.devices[0] if device is None else runtime.device(device)
    array = _importable(source, target)
    if array.dtype.hasobject:
        kind = type(source).__name__
        if hasattr(source, "astype"):  # an array, or a table
            raise TypeError(
                f"put: dtype object is not supported, which the {kind} has: use `.astype(float)`, or put the columns of"
                " numbers one by one"
            )
        raise TypeError(f"put takes an array of numbers, or an object that `np.asarray` turns into one, not {kind}")
    return array, dtype_of(array.dtype), target


def make_put(runtime: Runtime, core: Scope, source: Source, *, bounded: bool) -> tuple[Task, Tensor]:
    """Submit the copy of a host array to a device. Returns the task and the tensor."""
    array, dtype, target = source
    form = meta(array.shape, dtype, array.flags.c_contiguous)
    nbytes = target.memory.footprint(array.nbytes)
    value = new_value(core.account, target, form, nbytes, call_site(3))  # 3: above is `put`
    if not target.inline:
        value.holders = []  # as in `issue`
    small = nbytes <= INLINE_COPY and target.inline
    task = Task(core, _PLANS[small], value, _PUT, (), (array,), None, runtime.lanes[target].copy, nbytes)
    runtime.submit(task, bounded=bounded)
    return task, Tensor(value)


def put_nowait(runtime: Runtime, core: Scope, source: Any, device: object) -> Tensor:
    """Put a host array if there is room for it now; a pending host array would be unbounded memory.

    Raises:
        QueueFull: if there is no room.
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
        try:
            kind, _ = source.__dlpack_device__()
        except BufferError:  # JAX's array on several devices, which NumPy can collect
            kind = None
        if kind in _CUDA:
            return target.adopt(source)
        if not hasattr(source, "__array__"):
            return np.from_dlpack(source)
    if isinstance(source, Mapping):
        raise TypeError(f"put takes one array, not {type(source).__name__}: put each array in it by itself")
    try:
        array = np.asarray(source)
    except ValueError as error:  # rows of different lengths, or several arrays
        raise ValueError(f"put takes one array, so put each of several by itself: {error}") from None
    return array.view()  # the user may reshape the original meanwhile: the copy's shape stays
