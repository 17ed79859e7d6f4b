"""`cupy.ndarray`: a place in device memory, with a shape, a dtype and strides."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from .devices import Device
from .functions import dispatch, empty, function, is_mask, span, wrapping
from .launching import block_at
from .memory import MemoryPointer
from .streams import get_current_stream


class Flags:
    """CuPy has these and no more: no array is read-only."""

    def __init__(self, array: ndarray) -> None:
        flags = array.dummy().flags
        self.c_contiguous = bool(flags.c_contiguous)
        self.f_contiguous = bool(flags.f_contiguous)
        self.owndata = array.base is None

    def __getitem__(self, name: str) -> bool:
        found: bool = getattr(self, name.lower())
        return found


class ndarray:
    """An array on a device; its elements are there only once its stream has come so far."""

    __array_priority__ = 100
    __hash__ = None  # type: ignore[assignment]

    def __init__(
        self, shape: Any, dtype: Any = float, memptr: MemoryPointer | None = None, strides: Any = None, order: str = "C"
    ) -> None:
        self.shape = (shape,) if isinstance(shape, int | np.integer) else tuple(int(n) for n in shape)
        self.dtype = np.dtype(dtype)
        if strides is None:
            strides = _contiguous(self.shape, self.dtype.itemsize, order)
        self.strides = tuple(int(s) for s in strides)
        self.base: ndarray | None = None
        self.data = empty(self.shape, self.dtype, self.strides) if memptr is None else memptr

    # What is known at once.

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self.size * self.itemsize

    @property
    def flags(self) -> Flags:
        return Flags(self)

    @property
    def device(self) -> Device:
        return Device(self.data.device_id)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of unsized object")
        return self.shape[0]

    # The parts that functions use.

    def dummy(self) -> Any:
        """A NumPy array of zeros with this shape, dtype and strides."""
        low, high = span(self.shape, self.itemsize, self.strides)
        return np.ndarray(self.shape, self.dtype, np.zeros(max(high - low, 1), np.uint8), -low, self.strides)

    def numpy_view(self) -> Any:
        """The bytes themselves, as a NumPy array, for the GPU's thread."""
        if not self.size:
            return np.empty(self.shape, self.dtype)
        return self.bounds()[0].view(self.data.ptr, self.shape, self.dtype, self.strides)

    def bounds(self) -> tuple[Any, int, int]:
        """The block, and the addresses from the first byte to behind the last."""
        low, high = span(self.shape, self.itemsize, self.strides)
        return block_at(self.data.ptr + low, high - low), self.data.ptr + low, self.data.ptr + high

    def view_at(self, offset: int, like: Any) -> ndarray:
        """A view from `offset` bytes on."""
        view = ndarray(like.shape, like.dtype, self.data + offset if like.size else self.data, like.strides)
        view.base = self if self.base is None else self.base
        return view

    # From and to the host.

    def get(self, stream: Any = None, order: str = "C", out: Any = None, blocking: bool = True) -> Any:
        """A copy on the host; into ordinary memory it blocks in any case."""
        stream = stream or get_current_stream()
        if out is None:
            out = np.empty(self.shape, self.dtype, order="F" if order == "F" else "C")
        elif out.dtype != self.dtype:
            raise TypeError(f"{out.dtype} array cannot be obtained from {self.dtype} array")
        elif out.shape != self.shape:
            raise ValueError(f"Shape mismatch. Expected shape: {self.shape}, actual shape: {out.shape}")
        if not self.size:
            return out
        source = self
        with Device(self.data.device_id):
            if not (self.flags.c_contiguous if out.flags.c_contiguous else self.flags.f_contiguous):
                with stream:
                    source = self.copy("C" if out.flags.c_contiguous else "F")
            source.data.copy_to_host_async(out.ctypes.data, self.nbytes, stream)
            if blocking:
                stream.synchronize()
        return out

    def set(self, arr: Any, stream: Any = None) -> None:
        """Copy from the host; nothing keeps the source alive."""
        if not isinstance(arr, np.ndarray):
            raise TypeError("Only numpy.ndarray can be set to cupy.ndarray")
        if arr.dtype != self.dtype:
            raise TypeError(f"{arr.dtype} array cannot be set to {self.dtype} array")
        if arr.shape != self.shape:
            raise ValueError(f"Shape mismatch. Old shape: {self.shape}, new shape: {arr.shape}")
        if not (self.flags.c_contiguous or self.flags.f_contiguous):
            raise RuntimeError("Cannot set to non-contiguous array")
        arr = np.ascontiguousarray(arr) if self.flags.c_contiguous else np.asfortranarray(arr)
        with Device(self.data.device_id):
            self.data.copy_from_host_async(arr.ctypes.data, self.nbytes, stream)

    def item(self) -> Any:
        return self.get().item()

    def tolist(self) -> Any:
        return self.get().tolist()

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise TypeError(
            "Implicit conversion to a NumPy array is not allowed."
            " Please use `.get()` to construct a NumPy array explicitly."
        )

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        if method != "__call__":
            return NotImplemented
        return function(ufunc.__name__)(*inputs, **options)

    def __array_function__(self, called: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return function(called.__name__)(*args, **kwargs)

    # To other libraries.

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.data.device_id

    def __dlpack__(
        self, *, stream: int | None = None, max_version: Any = None, dl_device: Any = None, copy: Any = None
    ) -> Any:
        """The consumer's stream waits for the current one; -1 for neither."""
        from .streams import ExternalStream

        here = get_current_stream()
        consumer = 1 if stream is None else stream
        if consumer >= 0 and consumer != (here.ptr or 1):
            ExternalStream(consumer).wait_event(here.record())
        return Capsule(self)

    # Indexing.

    def __getitem__(self, key: Any) -> Any:
        key = _on_device(key)
        parts = key if isinstance(key, tuple) else (key,)
        if any(map(is_mask, parts)):
            return dispatch("getitem by mask", operator.getitem, (self, key), {})
        basic = not any(isinstance(part, ndarray | list) for part in parts)
        if basic and not any(part is Ellipsis for part in parts):
            key = (*parts, Ellipsis)  # one element is a view, too
        return dispatch("getitem", wrapping(operator.getitem), (self, key), {})

    def __setitem__(self, key: Any, value: Any) -> None:
        value, key = asarray_host(value) if isinstance(value, np.ndarray) else value, _on_device(key)
        for mask in filter(is_mask, key if isinstance(key, tuple) else (key,)):
            mask.get()  # what it selects is counted
        dispatch("setitem", wrapping(operator.setitem), (self, key, value), {})

    def __iter__(self) -> Any:
        return iter([self[i] for i in range(len(self))])

    # Methods that are functions with this array first.

    @property
    def T(self) -> ndarray:
        return self.transpose()

    @property
    def mT(self) -> ndarray:
        return self.swapaxes(-1, -2)

    @property
    def real(self) -> Any:
        return dispatch("real", lambda a: a.real, (self,), {})

    @property
    def imag(self) -> Any:
        return dispatch("imag", lambda a: a.imag, (self,), {})

    def copy(self, order: str = "C") -> Any:
        return dispatch("copy", np.ndarray.copy, (self,), {"order": order})

    def astype(self, dtype: Any, order: str = "K", casting: Any = None, subok: Any = None, copy: bool = True) -> Any:
        return dispatch("astype", np.ndarray.astype, (self, dtype), {"order": order, "copy": copy})

    def fill(self, value: Any) -> None:
        dispatch("fill", np.ndarray.fill, (self, value.get() if isinstance(value, ndarray) else value), {})

    def sort(self, axis: int = -1, kind: Any = None) -> None:
        if kind not in (None, "stable"):
            raise ValueError("kind can only be None or 'stable'")
        dispatch("sort in place", np.ndarray.sort, (self,), {"axis": axis, "kind": kind})

    def reshape(self, *shape: Any, order: str = "C", copy: Any = None) -> Any:
        return dispatch("reshape", np.ndarray.reshape, (self, *shape), {"order": order, "copy": copy})

    def view(self, dtype: Any = None, type: Any = None) -> Any:
        return dispatch("view", lambda a: a.view() if dtype is None else a.view(dtype), (self,), {})


class Capsule:
    """What `__dlpack__` gives here: no real capsule, for no real device."""

    def __init__(self, array: ndarray) -> None:
        self.array = array


def asarray_host(value: Any, dtype: Any = None, order: Any = None) -> ndarray:
    """An array from host data. A scalar is an argument of a kernel; anything larger is copied, which may block."""
    value = np.asarray(value, dtype, order=order)
    if value.dtype.kind not in "biufc":
        raise ValueError(f"Unsupported dtype {value.dtype}")
    fortran = value.flags.f_contiguous and not value.flags.c_contiguous
    array = ndarray(value.shape, value.dtype, order="F" if fortran else "C")
    if value.ndim == 0:
        array.fill(value[()])
    elif value.size:
        array.set(value)
    return array


def _on_device(key: Any) -> Any:
    """Index arrays of the host are copied, which may block."""
    if isinstance(key, tuple):
        return tuple(_on_device(part) for part in key)
    return asarray_host(key) if isinstance(key, np.ndarray | list) else key


def _contiguous(shape: Any, itemsize: int, order: str) -> list[int]:
    strides, step = [], itemsize
    for n in shape if order == "F" else reversed(shape):
        strides.append(step)
        step *= max(n, 1)
    return strides if order == "F" else strides[::-1]
