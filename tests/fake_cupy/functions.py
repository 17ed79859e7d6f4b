"""Every function of NumPy that CuPy has, run on a fake GPU.

A function is called twice. At once, on the host, on zeros in the shapes and strides of its arguments: this gives the
shape, dtype and strides of its results, which of them are views, and its errors. Later, on the GPU's thread, on the
bytes.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from .arguments import View, arrays_in, flat, like, opened, refuse_numpy, replace
from .blocks import Block
from .errors import PerformanceWarning
from .fake import caller, current, gpu_works
from .launching import enqueue
from .machine import Work
from .memory import MemoryPointer

# Functions whose result has a shape that depends on data: CuPy waits for the stream.
DATA_DEPENDENT = {"nonzero", "argwhere", "flatnonzero", "unique", "compress", "extract", "bincount", "getitem by mask"}
WRITES_FIRST = {"copyto", "put", "place", "putmask", "fill_diagonal", "setitem", "fill", "sort in place", "scatter_add"}
# Functions that call cuBLAS, except for integers.
CUBLAS = {"matmul", "dot", "vdot", "inner", "tensordot", "einsum"}
# Functions with a plan or a state that launches on two streams must not use at once.
SHARED_STATE = ("fft.", "random.")
# What gives an answer about shapes or dtypes, and so launches nothing.
ON_HOST = {"can_cast", "promote_types", "result_type", "min_scalar_type", "iscomplexobj", "ndim", "shape", "size"}
_COMPILE_YIELDS = 3


def function(name: str) -> Callable[..., Any]:
    """The function of this name in the namespace `cupy`: NumPy's. Where CuPy has none, CuPy itself is asked."""
    called: Any = np
    for part in name.split("."):
        called = getattr(called, part)
    kind = ufunc if isinstance(called, np.ufunc) and called.signature is None else _Function
    return kind(name, called)


class _Function:
    """A function of CuPy's."""

    def __init__(self, name: str, called: Callable[..., Any]) -> None:
        self.__name__ = self.__qualname__ = name
        self._called = called

    def __call__(self, *args: Any, **options: Any) -> Any:
        name, called = self.__name__, self._called
        refuse_numpy(args)
        refuse_numpy(options)
        if name == "take":
            options = {"mode": "wrap", **options}
        if name == "take_along_axis":
            called = _taken_along
        if name == "interp":
            called = _interpolated
        if name in ON_HOST:
            return called(*replace(args, lambda a: a.dummy()), **options)
        return dispatch(name, called, args, options)


class ufunc(_Function):
    """A universal function, but not a generalised one."""

    def at(self, a: Any, indices: Any, b: Any = None) -> None:
        """In place and unbuffered, as `numpy.ufunc.at`."""
        dispatch(f"{self.__name__}.at", wrapping(self._called.at), (a, indices) if b is None else (a, indices, b), {})

    def reduce(self, array: Any, axis: Any = 0, dtype: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        options = {"axis": axis, "dtype": dtype, "out": out, "keepdims": keepdims}
        return dispatch(f"{self.__name__}.reduce", self._called.reduce, (array,), options)


def _taken_along(array: Any, indices: Any, axis: int) -> Any:
    return np.take_along_axis(array, indices % array.shape[axis], axis)


def _interpolated(x: Any, xp: Any, fp: Any, left: Any, right: Any, period: Any) -> Any:
    """NumPy takes no arrays for the ends, if they are complex."""
    return np.interp(x, xp, fp, *[None if end is None else end[()] for end in (left, right)], period)


def wrapping(called: Callable[..., Any]) -> Callable[..., Any]:
    """Indexing, with integers that are out of range taken modulo the length, as CuPy does."""

    def indexed(array: Any, key: Any, *value: Any) -> Any:
        try:
            return called(array, key, *value)
        except IndexError:
            parts = list(key) if isinstance(key, tuple) else [key]
            spans = [p.ndim if is_mask(p) else p is not None and p is not Ellipsis for p in parts]
            axis = 0
            for i, part in enumerate(parts):
                if isinstance(part, np.ndarray) and not is_mask(part):
                    parts[i] = part % array.shape[axis]
                axis += array.ndim - sum(spans) if part is Ellipsis else spans[i]
            return called(array, tuple(parts), *value)

    return indexed


def is_mask(part: Any) -> bool:
    return getattr(part, "dtype", None) == np.bool


def dispatch(name: str, called: Callable[..., Any], args: Any, options: Any) -> Any:
    """Find out what `called` gives, allocate that on the current stream, and queue the work there."""
    written = arrays_in(options.get("out"))
    if name in WRITES_FIRST or name.endswith(".at"):
        written.append(args[0])
    if name in DATA_DEPENDENT:
        return _after_waiting(name, called, args, options)
    dummies: dict[int, Any] = {id(a): a.dummy() for a in arrays_in((args, options))}
    sources = {id(a): a for a in arrays_in((args, options))}
    with np.errstate(all="ignore"):
        found = called(*replace(args, lambda a: dummies[id(a)]), **replace(options, lambda a: dummies[id(a)]))
    results = [_result(r, dummies, sources) for r in flat(found)]
    fresh = [r for r, is_new in results if is_new]
    if fresh or written:
        _launch(name, called, args, options, fresh, written, [is_new for _, is_new in results])
    return like(found, iter([r for r, _ in results]))


def _result(found: Any, dummies: dict[int, Any], sources: dict[int, Any]) -> tuple[Any, bool]:
    """The array for one result, and whether it is new: it may be an argument, or a view of one."""
    from .arrays import ndarray

    if not isinstance(found, np.ndarray | np.generic | bool | int | float | complex):
        return found, False
    found = np.asarray(found)
    owner = _owner(found)
    for key, dummy in dummies.items():
        if dummy is found:
            return sources[key], False
        if _owner(dummy) is owner:
            return sources[key].view_at(_offset(found, dummy), found), False
    return ndarray(found.shape, found.dtype, strides=_layout(found)), True


def _offset(found: Any, dummy: Any) -> int:
    return int(found.__array_interface__["data"][0] - dummy.__array_interface__["data"][0])


def _layout(found: Any) -> Any:
    return None if found.flags.c_contiguous or 0 in found.strides else found.strides


def _owner(array: Any) -> Any:
    # `as_strided` puts something that is no array between its result and what that shows, with a `base` of its own.
    while getattr(array, "base", None) is not None and not isinstance(array.base, bytes | memoryview):
        array = array.base
    return array


def _launch(
    name: str, called: Any, args: Any, options: Any, fresh: list[Any], written: list[Any], new: list[bool]
) -> None:
    fake = current()
    if name in CUBLAS and fake.queue(_stream_pointer()).capture and all(a.dtype.kind in "fc" for a in fresh):
        raise NotImplementedError("calling cuBLAS API during stream capture is currently unsupported")
    _compile(name, args, options, fresh)
    _check_devices([*arrays_in((args, options)), *fresh])
    views = {id(a): a.numpy_view() for a in (*arrays_in((args, options)), *fresh)}
    # What runs later must not keep arrays alive: only the bytes.
    later_args = replace(args, lambda a: View(views[id(a)]))
    later_options = replace(options, lambda a: View(views[id(a)]))
    targets = [views[id(a)] for a in fresh]

    def run() -> None:
        found = called(*opened(later_args), **opened(later_options))
        for target, value in zip(targets, itertools.compress(flat(found), new), strict=True):
            np.copyto(target, value, casting="unsafe")

    reads = [a for a in arrays_in((args, options)) if not any(a is w for w in written)]
    touches = [(*a.bounds(), False) for a in reads if a.size] + [
        (*a.bounds(), True) for a in (*written, *fresh) if a.size
    ]
    with fake.lock:
        queue = fake.queue(_stream_pointer())
        gpu_works(queue.gpu)
        if name.startswith(SHARED_STATE):
            block = _shared_block(name)
            touches.append((block, block.address, block.address + block.size, True))
        enqueue(queue, Work(name, run, touches))


def _after_waiting(name: str, called: Any, args: Any, options: Any) -> Any:
    """The shape depends on data: wait, look, and queue a copy of what was found."""
    found = called(*replace(args, lambda a: a.get()), **replace(options, lambda a: a.get()))
    return like(found, map(filled, flat(found)))


def filled(value: Any) -> Any:
    """An array that a kernel fills with some numbers."""
    from .arrays import ndarray

    result = ndarray(np.shape(value), np.asarray(value).dtype)
    dispatch("setitem", _set_all, (result,), {"value": _Host(np.ascontiguousarray(value))})
    return result


def _set_all(target: Any, *, value: Any) -> None:
    target[...] = value.content


class _Host:
    """A host array that passes as an argument."""

    def __init__(self, content: Any) -> None:
        self.content = content


def _compile(name: str, args: Any, options: Any, fresh: list[Any]) -> None:
    """The first call on these dtypes compiles. It takes a while, so another thread may come to do the same."""
    fake = current()
    key = (name, *(str(a.dtype) for a in (*arrays_in((args, options)), *fresh)))
    if not fake.jit or key in fake.compiled:
        return
    fake.blocks(f"compiling {key}")
    fake.statistics["compiles"] += 1
    with fake.lock:
        if key in fake.compiling:
            fake.duplicate_compiles.append(f"{key} at {caller()}")
        fake.compiling.add(key)
        fake.busy += 1
    for _ in range(_COMPILE_YIELDS):
        os.sched_yield()
    with fake.lock:
        fake.busy -= 1
        fake.compiled.add(key)


def _check_devices(arrays: list[Any]) -> None:
    import warnings

    device = current().device()
    for array in arrays:
        other = array.data.device_id
        if other == device or other in current().gpu().peers:
            continue
        text = f"The device where the array resides ({other}) is different from the current device ({device})."
        current().race(f"{text} No access to it was enabled.")
        warnings.warn(f"{text} Peer access has been activated automatically.", PerformanceWarning, stacklevel=2)
        current().gpu().peers.add(other)


def _shared_block(name: str) -> Block:
    """The workspace that all streams share for a plan, or the state of a generator."""
    fake = current()
    key = (fake.device(), name if name.startswith("fft.") else "random")
    if key not in fake.shared:
        fake.shared[key] = fake.space.device(fake.device(), 512)
    return fake.shared[key]


def _stream_pointer() -> int:
    from .streams import get_current_stream

    return int(get_current_stream().ptr)


def empty(shape: Any, dtype: Any, strides: Any = None) -> MemoryPointer:
    """Memory from the current allocator, for an array."""
    from .memory import alloc

    low, high = span(shape, np.dtype(dtype).itemsize, strides)
    return alloc(high - low) + -low


def span(shape: Any, itemsize: int, strides: Any) -> tuple[int, int]:
    """The first byte and the last plus one, from the first element."""
    if 0 in shape:
        return 0, 0
    if strides is None:
        return 0, int(np.prod(shape, dtype=np.int64)) * itemsize
    steps = [(n - 1) * s for n, s in zip(shape, strides, strict=True)]
    return sum(s for s in steps if s < 0), sum(s for s in steps if s > 0) + itemsize
