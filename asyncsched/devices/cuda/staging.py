"""Copies between the host and a CUDA device, through pinned buffers that the device can read while the host goes on.

A pageable copy blocks its caller and, if its source is dropped, may read freed memory. So bytes go through a few pinned
slots, one after the other and then the first again.

Theory of operation. CUDA moves a slot's bytes some time after the transfer was enqueued, and reports no error if they
are touched too early. So each slot has an event, recorded after its transfer, and the host waits for it before it
touches the slot again: on the way up before it fills the slot with the next part, on the way down before it reads what
came. So all slots but one may be under way while the host works on that one. The pinned memory belongs to the slots for
as long as the device is open: CuPy's pool of pinned memory would hand out dropped memory without a look at events.

A source that CuPy or PyTorch has pinned is copied directly. Not taken: pinning the user's own array, which costs more
than copying it (a guess, from what a page costs to pin), and fails where the memory is mapped from a file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..._interrupts import Lock

SLOTS = 4
# A guess: large enough for PCIe to reach its bandwidth, small enough to keep four pinned. A multiple of every itemsize.
SLOT_BYTES = 4 << 20
LEAST_PINNED = 1 << 16  # bytes: for fewer it does not pay to ask whether a source is pinned. A guess

HostArray = np.ndarray[Any, Any]


class Slot:
    """One pinned buffer, and the event that is recorded after each of its transfers."""

    def __init__(self, cupy: Any) -> None:
        self.bytes: HostArray = np.frombuffer(cupy.cuda.alloc_pinned_memory(SLOT_BYTES), np.uint8, SLOT_BYTES)
        self.event: Any = cupy.cuda.Event(block=True, disable_timing=True)
        self.place: int = self.bytes.ctypes.data


class Staging:
    """The slots of one direction of one device, pinned when first used. One array at a time."""

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        self._runtime = cupy.cuda.runtime
        self._slots: list[Slot] = []  # the one used longest ago first
        self._lock = Lock()

    def upload(self, source: HostArray, target: Any, stream: Any) -> None:
        """Copy `source` to the device array `target`, of the same layout.

        Returns when `source` may be reused. If it is pinned, that is when `stream` has made the copy. The copy is
        enqueued on `stream`. If the byte orders differ, bytes are swapped on the way.
        """
        runtime = self._runtime
        if source.dtype == target.dtype and self._pinned(source):
            place = source.ctypes.data
            runtime.memcpyAsync(target.data.ptr, place, source.nbytes, runtime.memcpyHostToDevice, stream.ptr)
            return
        flat = source.ravel(order="K")  # the elements as they lie in memory: a view
        with self._lock:
            for start, slot in self._parts(self._slots, flat.nbytes):
                part = flat[start // flat.itemsize : (start + SLOT_BYTES) // flat.itemsize]
                slot.event.synchronize()  # at once, if it was never recorded
                slot.bytes[: part.nbytes].view(target.dtype)[:] = part
                place = target.data.ptr + start
                runtime.memcpyAsync(place, slot.place, part.nbytes, runtime.memcpyHostToDevice, stream.ptr)
                slot.event.record(stream)

    def download(self, source: Any, stream: Any) -> HostArray:
        """A host copy of a device array without gaps. Blocks until it is there."""
        runtime, flat = self._runtime, np.empty(source.nbytes, np.uint8)
        with self._lock:
            slots, self._slots = self._slots, []  # a finaliser that reads here has its own slots
            try:
                unread: list[tuple[int, Slot]] = []
                for start, slot in self._parts(slots, flat.nbytes):
                    if len(unread) == SLOTS:
                        _read(flat, *unread.pop(0))
                    place, nbytes = source.data.ptr + start, min(SLOT_BYTES, flat.nbytes - start)
                    runtime.memcpyAsync(slot.place, place, nbytes, runtime.memcpyDeviceToHost, stream.ptr)
                    slot.event.record(stream)
                    unread.append((start, slot))
                for start, slot in unread:
                    _read(flat, start, slot)
            finally:
                self._slots = slots
        return np.ndarray(source.shape, source.dtype, flat, strides=source.strides)

    def _pinned(self, source: HostArray) -> bool:
        """Whether the device can read an array's memory directly. Both ends are asked for, since only a part may be
        registered."""
        if source.nbytes < LEAST_PINNED:
            return False
        runtime, start = self._runtime, source.ctypes.data
        ends = start, start + source.nbytes - 1
        return all(runtime.pointerGetAttributes(end).type == runtime.memoryTypeHost for end in ends)

    def _parts(self, slots: list[Slot], nbytes: int) -> Iterator[tuple[int, Slot]]:
        """The parts of a copy: where each starts, and the slot that it goes through."""
        for start in range(0, nbytes, SLOT_BYTES):
            slots.append(slots.pop(0) if len(slots) == SLOTS else Slot(self._cupy))
            yield start, slots[-1]


def _read(flat: HostArray, start: int, slot: Slot) -> None:
    slot.event.synchronize()
    part = flat[start : start + SLOT_BYTES]
    part[:] = slot.bytes[: part.nbytes]


def without_gaps(array: Any) -> Any:
    """The array, or a copy of it in the order of its axes, if it has gaps."""
    flags = array.flags
    return array if flags.c_contiguous or flags.f_contiguous else array.copy(order="K")
