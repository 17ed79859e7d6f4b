"""Copies: late ones from and to pinned memory, blocking ones from and to any other memory of the host."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import errors
from .blocks import POISON, Block, device_of, host_bytes, is_device
from .clocks import before as over
from .errors import CUDARuntimeError
from .fake import current, gpu_works
from .launching import block_at, launch, synchronise


def memcpyAsync(dst: int, src: int, size: int, kind: int, stream: int) -> None:
    """From or to pinned memory it is asynchronous; from or to other host memory it blocks."""
    _copy(dst, src, size, stream)


def memcpyPeerAsync(dst: int, dstDevice: int, src: int, srcDevice: int, size: int, stream: int) -> None:
    if device_of(dst) != dstDevice or device_of(src) != srcDevice:
        raise CUDARuntimeError(errors.INVALID_VALUE)
    _copy(dst, src, size, stream)


def _copy(dst: int, src: int, size: int, stream: int) -> None:
    fake = current()
    fake.statistics["copies"] += 1
    with fake.lock:
        pageable_source = not is_device(src) and fake.space.find(src) is None
        pageable_target = not is_device(dst) and fake.space.find(dst) is None
    if pageable_source:
        fake.blocks("copy from pageable memory")
        content = host_bytes(src, size).copy()
        launch(stream, "copy from host", lambda target: np.copyto(target, content), [], [(dst, size)])
        return
    if pageable_target:
        fake.blocks("copy to pageable memory")
        target = host_bytes(dst, size)
        launch(stream, "copy to host", lambda source: np.copyto(target, source), [(src, size)], [])
        with fake.lock:
            synchronise(fake.queue(stream))
        return
    _copy_pinned(dst, src, size, stream)


def _copy_pinned(dst: int, src: int, size: int, stream: int) -> None:
    """The bytes are moved when the GPU comes to it. Until then nobody may write to the source or read the target."""
    fake = current()
    before: Any = None
    with fake.lock:
        gpu_works(fake.queue(stream).gpu)
        if not is_device(dst):
            block_at(dst, size).slice(dst, size).fill(POISON)  # seen by whoever reads it too early
        if not is_device(src) and fake.queue(stream).capture is None:
            before = block_at(src, size).slice(src, size).copy()
            _sources_unchanged(block_at(src, size))

    def run(source: Any, target: Any) -> None:
        if before is not None and not np.array_equal(before, source):
            fake.race(f"pinned memory changed before the copy from it, launched on stream {stream:#x}, had run")
        np.copyto(target, source)

    launch(stream, "copy", run, [(src, size)], [(dst, size)])
    if before is not None:
        block = block_at(src, size)
        block.sources.append((block.accesses[-1], before))


def _sources_unchanged(block: Block) -> None:
    """What earlier copies read, and the host has not seen complete, must be as it was when they were launched."""
    fake = current()
    block.sources = [(access, before) for access, before in block.sources if not over(access, fake.seen)]
    for access, before in block.sources:
        if not np.array_equal(before, block.slice(access.low, access.high - access.low)):
            fake.race(f"pinned memory was written to before the host had seen the end of {access}")
