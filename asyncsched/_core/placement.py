"""Which stream gets the next task."""

from __future__ import annotations

from typing import Any

from .task import DONE, Task


class Lane:
    """The scheduler's view of one stream of a device."""

    __slots__ = ("copies", "device", "load", "stream", "tail")

    def __init__(self, device: Any = None, stream: Any = None, *, copies: bool = False) -> None:
        self.copies = copies  # carries host-to-device copies alone
        self.device = device
        self.stream = stream
        self.load = 0  # tasks launched and not ended
        self.tail: Task | None = None  # the last one launched, while it is unfinished


def choose(task: Task) -> Lane:
    """Follow a producer that is the last of its lane (order is free there), else take the least loaded lane."""
    lanes = task.lanes
    if len(lanes) == 1:
        return lanes[0]
    for value in task.inputs:
        producer = value.task
        if producer is not None and producer.state < DONE:
            lane = producer.lane
            if lane is not None and lane.tail is producer and lane in lanes:
                return lane
    return min(lanes, key=_load)


def _load(lane: Lane) -> int:
    return lane.load
