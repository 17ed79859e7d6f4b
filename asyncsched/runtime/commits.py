"""Making a commit of tasks: what its gate reads, and what each task is granted. `_core.commit` says what a commit is.

Bytes. The gate is charged an output for each task, and for each stream the workspace of the one that needs most. An
output that is written over its old version needs none; but whether nobody else holds that is certain only when the task
runs. So it counts where nobody can come to hold it meanwhile: an optimiser's moments, which it shares with nobody, but
seldom parameters, which the passes before are still reading.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from .._core.commit import Commit, Move
from .._core.model import DONE, CallPlan, Lane, Task, Value, new_value
from .._core.refcounts import references
from ..ops.meta import meta
from ..ops.program import ref

_TRUTH = meta((), np.dtype(bool))


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
