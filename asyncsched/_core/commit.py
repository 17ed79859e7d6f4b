"""Commits: tasks that bring a group of values to their next versions, all of them or none.

Theory of operation. An optimiser's step moves many parameters, each by tasks of its own, and any gradient may fail. No
parameter may fail with it, and either all parameters move or none. So the tasks of a step are *members* of a commit.
One more task, the *gate*, goes before them and reads all their inputs from outside:

1. The gate is admitted when there are bytes for the whole commit: it is charged for all members, and they are charged
   nothing. So once it is admitted, no member can be short of bytes.
2. The gate *decides* when it runs, after all its inputs have ended: for the commit, unless an input failed. Before
   that, cancelling any task of the commit decides against it; afterwards cancelling has no effect. The first decision
   counts, on whichever thread it is made.
3. If the decision was for the commit, each member computes its value. If not, it takes over the previous version, in
   the same buffer. Either way it has a value, and tasks that read it go on.

So these tasks differ from others in two ways: a failed input does not settle them, and they are not cancelled one by
one.

Alternatives: one task for everything would use one stream. Without a gate each member would have to read all inputs:
the number of edges grows with the square of the number of parameters.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .model import Task


@dataclass(slots=True, eq=False)
class Commit:
    """The state that the tasks of one commit share."""

    gate: Task
    charged: bool = False  # whether the gate was admitted with the bytes for all members
    _decision: dict[str, bool] = field(default_factory=dict)

    def decide(self, go: bool) -> bool:
        """Decide, unless that was done before. Returns the decision. On any thread: `dict.setdefault` is one step."""
        return self._decision.setdefault("go", go)

    @property
    def decision(self) -> bool | None:
        """Whether the values moved to their next versions; None if that is not decided."""
        return self._decision.get("go")


@dataclass(slots=True, eq=False)
class Move:
    """A task's part in a commit."""

    commit: Commit
    grant: int  # bytes it takes over from the gate's charge; for the gate, what it keeps for members' workspace
    place: int | None = None  # of the previous version among its inputs; None if that was zeros
    hands_on: bool = False  # whether its value is a version; only members read other values

    def charge(self, task: Task) -> None:
        """Set the cost of an admitted task to its part of the commit's charge."""
        commit = self.commit
        if task is commit.gate:
            commit.charged = task.cost > 0  # zero if the commit was given up before
        task.cost = self.grant if commit.charged else 0
