"""The runtime in host memory as its tests see it: what was called, and faults at will."""

from __future__ import annotations

import ctypes
from collections import Counter
from contextlib import suppress

_ROOM = 1 << 16


class Calls:
    """How often each call that may block was made, since `reset`.

    Attributes:
        loop: by the process's main thread, where event loops run.
        others: by all other threads.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        text = ctypes.create_string_buffer(_ROOM)
        library.hostcuda_report(text, ctypes.c_size_t(_ROOM - 1))
        lines = [line.split(maxsplit=2) for line in text.value.decode().splitlines()]
        self.loop = Counter({name: int(main) for main, _, name in lines if int(main)})
        self.others = Counter({name: int(others) for _, others, name in lines if int(others)})

    def __getitem__(self, name: str) -> int:
        return self.loop[name] + self.others[name]


class Runtime:
    """The runtime of this process."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def calls(self) -> Calls:
        return Calls(self._library)

    def reset(self) -> None:
        """Count anew."""
        self._library.hostcuda_reset()

    def fail(self, device: int, error: int = 700) -> None:
        """Lose a device: from now on each call fails with this error. 0 cures it, which no card does."""
        self._library.hostcuda_fail(device, error)


def loaded() -> Runtime | None:
    """The runtime, if it is loaded into this process."""
    with suppress(OSError):
        return Runtime(ctypes.CDLL("libhostcuda.so"))
    return None
