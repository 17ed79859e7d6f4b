"""Which stream gets the next task."""

from __future__ import annotations

from operator import attrgetter

from .model import DONE, Lane, Task, Value


def choose(task: Task) -> Lane:
    """Follow a producer that is the last of its lane (order is free there), else take the least loaded lane.

    Or, of a device to which it matters where data is, the one that it says.
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
    return min(lanes, key=attrgetter("load"))


def soonest(task: Task, now: float) -> Lane:
    """The lane on which a task begins first, by estimate: for lanes to which a hop takes longer than many a task.

    A hop is what it takes to wake a lane that is idle, or has to wait for another. What is shorter stays where its
    producers are, or behind others that are short.

    Each lane has a time of its own: the seconds of work that it was given, by estimate, with its waits for others. When
    it tells of the end of a task, its time is what was expected for that end: so wrong guesses do not add up. A lane
    that has told of no end for longer than expected, as with a user's function that takes a second, is expected to take
    as long again: so short tasks do not pile up behind it while another lane is free.
    """
    best = task.lanes[0]
    if not sum([lane.load for lane in task.lanes]):  # all are idle: one is like the other
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
