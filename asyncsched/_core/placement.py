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


def soonest(task: Task, now: float) -> Lane:
    """The lane on which a task begins first, by estimate: for lanes to which a hop takes longer than many a task.

    A hop is what it takes to wake a lane that is idle, or has to wait for another: what is shorter stays where its
    producers are, or behind others that are short.

    A lane's time is what it was given and has not finished, with its waits for others. When it has told of the end of a
    task, it is as far as was thought when that was launched: so wrong guesses do not add up. One that has told of none
    for longer than was thought, as with a user's function that takes a second, is expected to take as long again: so
    short tasks do not pile up behind it while another lane is free.
    """
    best = task.lanes[0]
    if not sum([lane.load for lane in task.lanes]):  # one like the other
        task.due = best.given = best.ended + task.seconds
        best.since = now
        return best
    reads, waits = task.reads, []
    for value in (reads,) if type(reads) is Value else reads:
        producer = value.task
        if producer is not None and producer.lane is not None and producer.state < DONE:
            waits.append((producer.lane, producer.due - producer.lane.ended))
    first, begins = -1.0, 0.0
    for lane in task.lanes:
        begin = lane.given - lane.ended
        if lane.load and now - lane.since > begin:
            begin = now - lane.since
        for other, due in waits:
            if other is not lane and due + lane.hop > begin:
                begin = due + lane.hop
        # Who has been woken for one task has been for the next: so this is no time of the lane's.
        start = begin if lane.load else max(begin, lane.hop)
        if start < first or first < 0:
            best, first, begins = lane, start, begin
    task.due = best.given = best.ended + begins + task.seconds
    if not best.load:
        best.since = now
    return best
