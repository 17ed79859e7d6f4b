"""Several tasks issued together: either all join the backlog, or none; in a commit, either all values move, or none.

`_core.endings` says what a commit is. This file sets the inputs of its gate and the bytes granted to each task.

Bytes. The gate is charged an output for each task, and for each stream the largest workspace of any task. An output
that is written over its old version needs no bytes. But only when the task runs is it certain that nobody else holds
that version. So the output is free of charge only if nobody can come to hold the old version meanwhile. That holds for
an optimiser's moments, which it shares with nobody, but seldom for parameters, which earlier passes still read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from .._blocks import contextmanager
from .._core.endings import Commit, Move
from .._core.model import DONE, CallPlan, Lane, Task, Value, new_value
from ..errors import QueueFull
from ..ops.meta import meta
from ..ops.program import ref
from ..runtime.life import InlineMode
from ..runtime.runtime import Runtime

_TRUTH = meta((), np.dtype(bool))


@contextmanager
def transaction(
    runtime: Runtime,
    what: str,
    *,
    expedited: bool = False,
    captured: bool = False,
    cure: str = "",
    versions: Mapping[Value, Value | None] | None = None,
) -> Iterator[None]:
    """Let all tasks issued inside the block join the backlog at its end; none if an exception leaves it.

    `dispatch` launches them. Except in a commit, a tiny operation may run at once inside the block: if the rest is
    dropped, so is its result.

    Args:
        what: the name of the transaction, for messages.
        expedited: queue the tasks before the rest of their scope.
        captured: the transaction may be part of a captured step: it moves no handle, so recorded tasks need no values.
        cure: what to do if a captured step refuses the transaction; by default to call it outside.
        versions: make it a commit, with these versions (see `Commit`); filled inside the block.

    Raises:
        QueueFull: if the backlog has no room for all.
    """
    runtime.check()
    if runtime.sink is not None:
        if not captured:
            runtime.sink.refuse(what, cure)
        yield
        return
    engine, gathered, inline = runtime.engine, _Gathered(runtime), runtime.inline
    tasks = gathered.tasks
    # Between here and `try`, and in `finally`, no function is entered: a signal could be handled there.
    runtime.sink, runtime.submit = gathered, gathered.submit
    if versions is not None:
        runtime.inline = InlineMode.NEVER
    try:
        try:
            yield
        finally:
            runtime.sink, runtime.submit, runtime.inline = None, engine.submit, inline
        runtime.dispatch()
        if versions is not None:
            tasks.insert(0, commit(what, tasks, versions, runtime.lanes[next(iter(versions)).device].compute))
            engine.require(tasks[0])
        _require_room(runtime, what, len(tasks))
    except BaseException:
        for task in tasks:
            task.let_go()
        raise
    try:
        for task in tasks:
            task.expedited = expedited
            engine.submit(task, bounded=False, hold=True)
    except BaseException as error:  # some tasks have joined, and others have not
        runtime.on_interrupted(error)
        raise


def _require_room(runtime: Runtime, what: str, count: int) -> None:
    limit = runtime.ledger.limits.max_pending
    room = limit and limit - runtime.ledger.pending
    if room is not None and count > room:
        raise QueueFull(
            f"{what} takes {count:,} tasks and the backlog (max_pending) has room for {room:,}:"
            " `await s.barrier()` first, or raise max_pending, or bound the loop: `w = s.window(2)` before it,"
            " `async with w:` in it"
        )


class _Gathered:
    """The tasks of a transaction."""

    def __init__(self, runtime: Runtime) -> None:
        self.tasks: list[Task] = []
        self._runtime = runtime

    def submit(self, task: Task, **_: bool) -> None:
        self._runtime.engine.require(task)
        self._runtime.inline = InlineMode.NEVER  # a later operation may depend on this task
        self.tasks.append(task)

    def refuse(self, what: str, cure: str = "") -> None:
        raise RuntimeError(f"{what} inside another transaction: issue one after the other")


def commit(name: str, tasks: Sequence[Task], versions: Mapping[Value, Value | None], lanes: Sequence[Lane]) -> Task:
    """Make tasks that are not submitted yet the members of a commit. Returns its gate, to be submitted before them.

    Args:
        name: of the gate.
        tasks: the members, all of them operations, in order.
        versions: for each member's value that becomes a version: the previous version, which is one of the member's
            inputs, or None if that was zeros. Apart from this mapping, only its handle holds a previous version.
        lanes: the lanes on which the gate may run.
    """
    uses: dict[int, int] = {}
    first = tasks[0].value
    assert first is not None
    truth = new_value(first.account, first.device, _TRUTH, 0, first.site)
    gate = Task(tasks[0].scope, CallPlan(name, quick=True), truth, None, (), (), None, lanes, 0)
    all_of_it = Commit(gate)
    room = workspace = 0
    for task in tasks:
        value, place = task.value, None
        assert value is not None
        before = versions.get(value)
        if before is not None:
            place = task.inputs.index(before)
        needs = 0 if place == 0 and task.call.inplace and _sole_holder(task, tasks, uses) else value.nbytes
        room += needs
        workspace = max(workspace, task.cost - value.nbytes)
        task.move = Move(all_of_it, needs, place, hands_on=value in versions)
        task.cost = 0
        if task.args is None:
            task.args = tuple([ref(i) for i in range(len(task.inputs))])
    made = {task.value for task in tasks}
    gate.read(tuple(dict.fromkeys([value for task in tasks for value in task.inputs if value not in made])))
    for task in tasks:
        task.read((*task.inputs, truth))
    kept = workspace * min(len(tasks), len({lane for task in tasks for lane in task.lanes}))
    gate.move, gate.cost = Move(all_of_it, kept), kept + room
    return gate


def _sole_holder(task: Task, tasks: Sequence[Task], uses: dict[int, int]) -> bool:
    """Whether the task will certainly write over its first input: all its holders are known, and gone when it runs.

    Args:
        tasks: all members of the commit.
        uses: how often the members read each value, by identity; filled at the first call.
    """
    old, value = task.inputs[0], task.value
    assert value is not None
    if old.meta is not value.meta or not old.device.memory.may_recycle(old) or old.holders is None:
        return False
    if not uses:
        uses |= Counter([id(read) for each in tasks for read in each.inputs])
    count = len(old.holders)  # first: a task that lets go later still counts
    known = uses[id(old)] + 1  # its handle
    producer = old.task
    if producer is not None and producer.state < DONE:
        move = producer.move  # read once: the stream's thread clears it
        if move is None or move.place is None:
            return False  # its buffer may be a view's, or read-only
        # Members of the commit that made it may still read it. The gate waits for them, so they will have ended.
        readers = [reader.inputs for reader in producer.dependents if reader.move is not None]
        known += sum([held is old for read in readers for held in read])
    return count <= known
