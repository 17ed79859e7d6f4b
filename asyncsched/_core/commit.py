"""Commits: tasks that bring a group of values to their next versions, all of them or none.

Theory of operation. An optimiser's step moves many parameters, each by tasks of its own, and any gradient may fail. No
parameter may fail with it, nor may half of them move. So the tasks of a step are *members* of a commit, and before them
goes one more, the *gate*, which reads whatever they read from outside:

1. The gate is admitted when there is room for all of it: it is charged what the members will need, and they nothing.
   So once it has been admitted, none of them can be short of bytes.
2. It *decides* when it runs, after everything that it reads has ended: for the commit, unless an input failed. Before
   that, cancelling any task of the commit decides against it; afterwards cancelling has no effect. The first decision
   counts, on whichever thread it is made.
3. Each member then computes its value, or, if the decision was against, takes over the version before, in the same
   buffer. Either way it has a value, and tasks that read it go on.

So two things are different for these tasks: they are not settled when what they read has failed, and they are not
cancelled one by one.

Alternatives: one task for everything would use one stream. Without a gate each member would have to read everything:
edges grow with the square of the number of parameters.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .model import Task


@dataclass(slots=True, eq=False)
class Commit:
    """What the tasks of one commit share."""

    gate: Task
    charged: bool = False  # whether the gate was admitted with the bytes for all
    _decision: dict[str, bool] = field(default_factory=dict)

    def decide(self, go: bool) -> bool:
        """Decide, unless that was done before. Returns the decision. Thread-safe, since `dict.setdefault` is atomic."""
        return self._decision.setdefault("go", go)


@dataclass(slots=True, eq=False)
class Move:
    """A task's part in a commit."""

    commit: Commit
    grant: int  # bytes that it takes over of the gate's charge; the gate itself, what it keeps for members' workspace
    place: int | None = None  # of the version before among its inputs; None if before it there were zeros
    hands_on: bool = False  # whether its value is a version. Others are only read by members

    def charge(self, task: Task) -> None:
        """The task was admitted: from now on its cost is its part of what was charged for all."""
        commit = self.commit
        if task is commit.gate:
            commit.charged = task.cost > 0  # zero where the commit was given up before
        task.cost = self.grant if commit.charged else 0
