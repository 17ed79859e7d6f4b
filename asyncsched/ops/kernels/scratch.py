"""Scratch memory: arrays that a kernel fills and drops within one call.

On the host it belongs to the calling thread, a stream's, and each call reuses it: it stays in the cache, and no fresh
memory pushes other data out. It is freed with the thread. A plan's workspace counts it as if it were made for each
task.

Parts of one operation differ a little in length. So a buffer is longer than what is first asked for: otherwise the next
part would need another one, and the heap would keep the hole. What is never touched takes only addresses.
"""

from __future__ import annotations

import threading
from math import prod
from typing import Any

import numpy as np

PLACES = 4  # buffers that a thread keeps at most
LINE_BYTES = 64  # bytes of a cache line, at which buffers begin: a vector across two lines takes two accesses
PLACE_BYTES = 3 << 20  # bytes of one buffer at most, a long block of 8 bytes each; larger ones are made for each call


_NOTHING = np.empty(0, np.uint8)


class _Places(threading.local):
    def __init__(self) -> None:
        self.buffers = [_NOTHING] * PLACES


_places = _Places()


def scratch(xp: Any, place: int, shape: tuple[int, ...], dtype: Any) -> Any:
    """An array with undefined contents, valid until this thread's next call for the same place. Places count from 0."""
    nbytes = prod(shape) * np.dtype(dtype).itemsize
    if xp is not np or nbytes > PLACE_BYTES or place >= PLACES:
        return xp.empty(shape, dtype)
    buffer = _places.buffers[place]
    if buffer.nbytes < nbytes:
        buffer = _places.buffers[place] = _NOTHING  # drops the old one first, so that both never exist at once
        room = np.empty(nbytes + nbytes // 4 + LINE_BYTES, np.uint8)
        buffer = _places.buffers[place] = room[-room.ctypes.data % LINE_BYTES :]
    return np.ndarray(shape, dtype, buffer)
