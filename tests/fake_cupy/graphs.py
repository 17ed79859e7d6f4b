"""`cupy.cuda.graph`: work that was captured instead of launched."""

from __future__ import annotations

from typing import Any

from .fake import current, gpu_works
from .launching import enqueue
from .machine import Queue, Work


class Graph:
    """Captured work. It keeps no memory alive: a block given to another since the capture is a race."""

    def __init__(self, work: list[Work]) -> None:
        self._work = [(step, [(t[0], t[0].used, t[0].handed_out) for t in step.touches]) for step in work]

    def launch(self, stream: Any = None) -> None:
        fake = current()
        with fake.lock:
            queue: Queue = fake.queue((stream or _current()).ptr)
            gpu_works(queue.gpu)
            for step, blocks in self._work:
                for block, used, handed_out in blocks:
                    if not block.live or (used, handed_out) != (block.used, block.handed_out):
                        fake.race(f"a graph with {step.what!r} uses a block that is no longer as it was captured")
                enqueue(queue, Work(step.what, step.run, step.touches, replayed=True))


def _current() -> Any:
    from .streams import get_current_stream

    return get_current_stream()
