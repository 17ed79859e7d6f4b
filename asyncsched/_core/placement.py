"""Which stream gets the next task."""

from __future__ import annotations

from .model import DONE, Lane, Task, Value


def choose(task: Task) -> Lane:
    """Follow a producer that is the last of its lane (order is free there), else take the least loaded lane.

    Or, of a device to which it matters where data is, the one that it says.
    """
    lanes = task.lanes
    least = lanes[0]
    if len(lanes) == 1:
        return least
    reads = task.reads
    for value in (reads,) if type(reads) is Value else reads:
        producer = value.task
        if producer is not None and producer.state < DONE:
            lane = producer.lane
            if lane is not None and lane.tail is producer and lane in lanes:
                return lane
    if least.place is not None:
        return least.place(task)
    for lane in lanes:
        if lane.load < least.load:
            least = lane
    return least
