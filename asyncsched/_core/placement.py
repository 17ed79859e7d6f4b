"""The choice of a stream for the next task."""

from __future__ import annotations

from operator import attrgetter

from .model import DONE, Lane, Task, Value

_load = attrgetter("load")


def choose(task: Task) -> Lane:
    """Follow a producer that is the last of its lane (order is free there), else take the least loaded lane.

    A device for which it matters where data is makes the second choice itself.
    """
    lanes = task.lanes
    if len(lanes) == 1:
        return lanes[0]
    reads = task.reads
    for value in (reads,) if type(reads) is Value else reads:
        producer = value.task
        if producer is not None and producer.state < DONE:
            lane = producer.lane
            if lane is not None and lane.tail is producer and lane in lanes:
                return lane
    if lanes[0].place is not None:
        return lanes[0].place(task)
    return min(lanes, key=_load)


def soonest(task: Task, now: float) -> Lane:
    """The lane on which a task begins first, by estimate. For lanes whose hop takes longer than many a task.

    A hop is the time to wake a lane that is idle or must wait for another. A task shorter than a hop stays where its
    producers are, or behind other short tasks.

    Each lane has a time of its own: the estimated seconds of work that it was given, with its waits for other lanes.
    When it reports the end of a task, its time becomes the estimate for that end, so wrong guesses do not add up. If a
    lane has reported no end for longer than estimated, as with a user's function that takes a second, it is expected to
    take as long again. So short tasks do not pile up behind it while another lane is free.
    """
    best = task.lanes[0]
    if not any(map(_load, task.lanes)):  # all are idle, so any will do
        task.due = best.booked_until = best.done_until + task.plan.estimate
        best.done_at = now
        return best
    reads, waits = task.reads, []
    for value in (reads,) if type(reads) is Value else reads:
        producer = value.task
        if producer is not None and producer.lane is not None and producer.state < DONE:
            waits.append((producer.lane, producer.due - producer.lane.done_until))
    for reader in task.after or ():
        if reader.lane is not None and reader.state < DONE:
            waits.append((reader.lane, reader.due - reader.lane.done_until))
    first, begins = -1.0, 0.0
    for lane in task.lanes:
        begin = lane.booked_until - lane.done_until
        if lane.load and now - lane.done_at > begin:
            begin = now - lane.done_at
        for other, due in waits:
            if other is not lane and due + lane.hop > begin:
                begin = due + lane.hop
        # A lane that is awake takes its next task without a wake-up, so no hop is added to its time.
        start = begin if lane.load else max(begin, lane.hop)
        if start < first or first < 0:
            best, first, begins = lane, start, begin
    task.due = best.booked_until = best.done_until + begins + task.plan.estimate
    if not best.load:
        best.done_at = now
    return best
