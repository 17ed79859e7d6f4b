"""Which stream gets the next task."""

from __future__ import annotations

from .model import DONE, Lane, Task


def choose(task: Task) -> Lane:
    """Follow a producer that is the last of its lane (order is free there), else take the least loaded lane.

    Or, of a device to which it matters where data is, the one that it says.
    """
    lanes = task.lanes
    if len(lanes) == 1:
        return lanes[0]
    for value in task.inputs:
        producer = value.task
        if producer is not None and producer.state < DONE:
            lane = producer.lane
            if lane is not None and lane.tail is producer and lane in lanes:
                return lane
    place = lanes[0].place
    return min(lanes, key=_load) if place is None else place(task)


def _load(lane: Lane) -> int:
    return lane.load
