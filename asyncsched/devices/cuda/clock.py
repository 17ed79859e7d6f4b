"""The times of tasks on the device: timing events, read against one whose time on the host is known.

Used only if an instrument asks for times, since such an event takes the device longer to record. CUDA gives the time
between two events in milliseconds as a float of 32 bits. So the base is taken anew every `_KEPT` seconds, else the
times would grow coarse.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from time import perf_counter
from typing import Any, Final

_KEPT: Final = 10.0  # seconds: after so long, times are still exact to a microsecond


class Clock:
    """Tells when one device passed an event.

    Args:
        current: a context manager in which it is CUDA's current device.
    """

    def __init__(self, cupy: Any, current: Callable[[], Any]) -> None:
        self._cupy = cupy
        self._current = current
        self._spare: deque[Any] = deque()
        self._base: tuple[Any, float] | None = None

    def take(self) -> Any:
        """An event that records its time, perhaps one that was given back."""
        try:
            return self._spare.pop()
        except IndexError:
            return self._cupy.cuda.Event(block=True, disable_timing=False)

    def give(self, events: Iterable[Any]) -> None:
        """Take back events that were read."""
        self._spare.extend(events)

    def base(self) -> tuple[Any, float]:
        """An event that was passed, and its time, in seconds of `perf_counter`."""
        found = self._base
        if found is None or perf_counter() - found[1] > _KEPT:
            with self._current():
                event = self._cupy.cuda.Event(block=False, disable_timing=False)
                event.record(self._cupy.cuda.Stream(non_blocking=True))  # on which nothing ever waits
                event.synchronize()
                found = self._base = event, perf_counter()
        return found

    def seconds(self, event: Any) -> float:
        """When the device passed an event, in seconds of `perf_counter`. The host has seen that it did."""
        base, at = self.base()
        return at + float(self._cupy.cuda.get_elapsed_time(base, event)) * 1e-3


class Times:
    """When a task began and ended on the device; on the host, if the device is lost."""

    __slots__ = ("_clock", "_events", "_issued")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._issued = perf_counter()
        self._events: list[Any] = []  # before its work, and behind it

    def record(self, stream: Any) -> None:
        """Call it before the task puts its work on the stream, and again when that is there."""
        self._events.append(self._clock.take())
        self._events[-1].record(stream)

    def read(self, healthy: bool) -> tuple[float, float]:
        """When it began and ended, in seconds of `perf_counter`. Call it once."""
        if not healthy or len(self._events) < 2:  # it did not come so far
            return self._issued, max(self._issued, perf_counter())
        began, ended = [self._clock.seconds(event) for event in self._events]
        self._clock.give(self._events)
        return began, max(began, ended)
