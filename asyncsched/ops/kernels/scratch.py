"""Scratch memory: what a kernel fills and drops within one call.

On the host it belongs to the calling thread, a stream's, and is taken by the next call too: what lies in the cache is
written over instead of pushed out by fresh memory. It goes with the thread. A plan's workspace counts it as if it were
made for each task.
"""

from __future__ import annotations

import threading
from math import prod
from typing import Any

import numpy as np

PLACES = 4  # that a thread keeps at most
LINE_BYTES = 64  # of the cache, at which places begin: a vector over the end of one takes two
PLACE_BYTES = 3 << 20  # of one at most, a long block of 8 bytes each: what is larger is made for the call


_NOTHING = np.empty(0, np.uint8)


class _Places(threading.local):
    def __init__(self) -> None:
        self.buffers = [_NOTHING] * PLACES


_places = _Places()


def scratch(xp: Any, place: int, shape: tuple[int, ...], dtype: Any) -> Any:
    """An array with undefined contents, until the next call for the same place on this thread; places count from 0."""
    nbytes = prod(shape) * np.dtype(dtype).itemsize
    if xp is not np or nbytes > PLACE_BYTES or place >= PLACES:
        return xp.empty(shape, dtype)
    buffer = _places.buffers[place]
    if buffer.nbytes < nbytes:
        buffer = _places.buffers[place] = _NOTHING  # first, so that both are never there
        room = np.empty(nbytes + LINE_BYTES, np.uint8)
        buffer = _places.buffers[place] = room[-room.ctypes.data % LINE_BYTES :][:nbytes]
    return np.ndarray(shape, dtype, buffer)
