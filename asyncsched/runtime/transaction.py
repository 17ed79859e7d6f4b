"""Issuing several tasks together: all of them join the backlog, or none; as a commit, all of them move, or none.

`_core.commit` says what a commit is. Here is made what its gate reads, and what each task is granted.

Bytes. The gate is charged an output for each task, and for each stream the workspace of the one that needs most. An
output that is written over its old version needs none; but whether nobody else holds that is certain only when the task
runs. So it counts where nobody can come to hold it meanwhile: an optimiser's moments, which it shares with nobody, but
seldom parameters, which the passes before are still reading.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

from .._core.commit import Commit, Move
from .._core.model import DONE, CallPlan, Lane, Task, Value, new_value
from .._core.refcounts import references
from ..errors import QueueFull
from ..ops.meta import meta
from ..ops.program import ref
from .life import InlineMode
from .runtime import Runtime

_TRUTH = meta((), np.dtype(bool))


@contextmanager
def transaction(
    runtime: Runtime,
    what: str,
    *,
    expedited: bool = False,
    captured: bool = False,
    versions: Mapping[Value, Value | None] | None = None,
) -> Iterator[None]:
    """What is issued inside joins the backlog at the end: all, or nothing if anything raises. `dispatch` launches.

    A tiny operation may run at once all the same, but in a commit: if the rest is dropped, so is its result.

    Args:
        what: for the message.
        expedited: queue it before the rest of its scope.
        captured: it may be part of a captured step, since it moves no handle: what is recorded has no value.
        versions: make it a commit, with these versions (see `commit`); filled inside.

    Raises:
        QueueFull: if the backlog has no room for all.
    """
    runtime.check()
    if runtime.sink is not None:
        if not captured:
            runtime.sink.refuse(what)
        yield
        return
    engine, gathered, inline = runtime.engine, _Gathered(runtime), runtime.inline
    tasks = gathered.tasks
    # No function is entered between here and `try`, nor in `finally`, where a signal could be handled.
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
    except BaseException as error:  # some of the tasks have joined, and others not
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
        self._runtime.inline = InlineMode.NEVER  # what follows may depend on it
        self.tasks.append(task)

    def refuse(self, what: str) -> None:
        raise RuntimeError(f"{what} inside another transaction: issue one after the other")


def commit(name: str, tasks: Sequence[Task], versions: Mapping[Value, Value | None], lanes: Sequence[Lane]) -> Task:
    """Make tasks that are not submitted yet the members of a commit. Returns its gate, to be submitted before them.

    Args:
        name: the gate's.
        tasks: rows of the table, in order.
        versions: the version before of those of their values that are to be there in any case, which is among what
            makes them; None where there were zeros. For each its handle is the one holder besides.
        lanes: where the gate may run.
    """
    uses: dict[int, int] = {}
    first = tasks[0].value
    assert first is not None
    truth = new_value(first.account, first.device, _TRUTH, 0, first.site)
    gate = Task(tasks[0].scope, CallPlan(name), truth, None, (), (), None, lanes, 0)
    all_of_it = Commit(gate)
    room = workspace = 0
    for task in tasks:
        value, place = task.value, None
        assert value is not None
        before = versions.get(value)
        if before is not None:
            place = task.inputs.index(before)
        del before  # it would count as a reference
        needs = 0 if place == 0 and task.call.inplace and _sole_holder(task, tasks, uses) else value.nbytes
        room += needs
        workspace = max(workspace, task.cost - value.nbytes)
        task.move = Move(all_of_it, needs, place, hands_on=value in versions)
        task.cost = 0
        if task.args is None:
            task.args = tuple([ref(i) for i in range(len(task.inputs))])
    made = {task.value for task in tasks}
    gate.inputs = tuple(dict.fromkeys([value for task in tasks for value in task.inputs if value not in made]))
    for task in tasks:
        task.inputs = (*task.inputs, truth)
    kept = workspace * min(len(tasks), len({lane for task in tasks for lane in task.lanes}))
    gate.move, gate.cost = Move(all_of_it, kept), kept + room
    return gate


def _sole_holder(task: Task, tasks: Sequence[Task], uses: dict[int, int]) -> bool:
    """Whether the task will certainly write over its first input: all that holds it is known, and gone when it runs.

    Args:
        tasks: all of the commit.
        uses: how often they read what, by identity; counted when first asked for.
    """
    inputs, value = task.inputs, task.value
    assert value is not None
    if inputs[0].meta is not value.meta or not inputs[0].device.memory.may_recycle(inputs[0]):
        return False
    if not uses:
        uses |= Counter([id(value) for each in tasks for value in each.inputs])
    count = references(inputs, 0)  # first: what a stream's thread drops after this still counts as held
    old = inputs[0]
    known = uses[id(old)] + 2 + (inputs is not task.reads)  # its handle, `versions`, and `inputs` if made here
    producer = old.task
    if producer is not None and producer.state < DONE:
        move = producer.move  # read once, as are `value` and `inputs`: the stream's thread clears them
        if move is None or move.place is None:
            return False  # its buffer may be a view's, or one that cannot be written over
        known += producer.value is old
        # Members of the commit that made it may still read it. They will have ended: the gate waits for them.
        readers = [reader.inputs for reader in producer.dependents if reader.move is not None]
        known += sum([held is old for read in readers for held in read])
    return count <= known
