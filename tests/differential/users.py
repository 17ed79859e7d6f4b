"""What users do with arrays of a CUDA device beside the scheduler: work on streams of their own.

An array that was awaited is copied on such a stream and dropped with the copy still under way; an array that is put is
written on one, put with that under way, and written over once `put` has returned. All of it is compared at the end.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from typing import Any

import anyio.to_thread
import numpy as np

# On the null stream, a blocking one, one that `record_stream` tells of, one that is current where the array is dropped.
EVERY_WAY = ("null", "blocking", "told", "current")
NON_BLOCKING = ("told", "current")


class Users:
    """Those of one program. All but `put` runs in worker threads: CuPy may block there.

    Args:
        ways: the streams that they use.
    """

    def __init__(self, ways: Sequence[str], rng: random.Random) -> None:
        self._ways = ways
        self._rng = rng
        self._streams: dict[tuple[int, str], Any] = {}
        self._copies: list[tuple[Any, Any, bytes]] = []

    async def use(self, held: list[Any], expected: np.ndarray[Any, Any]) -> None:
        """Mostly copy the one array that is held, which nobody holds afterwards."""
        if self._rng.random() < 0.8:
            await anyio.to_thread.run_sync(self._use, held, self._rng.choice(self._ways), expected.tobytes())

    async def put(self, put: Callable[[Any], Awaitable[Any]], source: np.ndarray[Any, Any]) -> Any:
        """Put an array, sometimes as CuPy's."""
        if not source.size or not source.flags.c_contiguous or self._rng.random() < 0.6:
            return await put(source)
        way = self._rng.choice(self._ways)
        array, stream = await anyio.to_thread.run_sync(self._written, source, way)
        with stream:
            tensor = await put(array)
        await anyio.to_thread.run_sync(_write_over, array, stream)
        return tensor

    async def check(self) -> None:
        """Everything they have is as it was."""
        await anyio.to_thread.run_sync(self._check)

    def _use(self, held: list[Any], way: str, expected: bytes) -> None:
        import cupy

        import asyncsched as asc

        with cupy.cuda.Device(held[0].device.id), ExitStack() as current:
            stream = current.enter_context(self._stream(held[0].device.id, way))
            self._copies.append((held[0].copy(), stream, expected))
            if way == "told":
                if held[0].nbytes:
                    asc.record_stream(held[0], stream)
                current.close()
            held.clear()

    def _written(self, source: np.ndarray[Any, Any], way: str) -> tuple[Any, Any]:
        import cupy

        with self._stream(0, way) as stream:
            array = cupy.zeros(source.shape, source.dtype)
            array.set(source, stream=stream)
        return array, stream

    def _stream(self, device: int, way: str) -> Any:
        import cupy

        if way == "null":
            return cupy.cuda.Stream.null
        if (device, way) not in self._streams:
            self._streams[device, way] = cupy.cuda.Stream(non_blocking=way != "blocking")
        return self._streams[device, way]

    def _check(self) -> None:
        import cupy

        for copy, stream, expected in self._copies:
            with cupy.cuda.Device(copy.device.id), stream:
                assert copy.get(stream=stream).tobytes() == expected, "what a user made of an array"
        self._copies.clear()


def _write_over(array: Any, stream: Any) -> None:
    with stream:
        array.fill(0)
