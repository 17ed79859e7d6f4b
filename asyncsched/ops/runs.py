"""Runs of a program: which steps may be done together, and which of their results somebody else reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from .program import Program, Ref, Step


def runs(program: Program, shape_of: Callable[[int], Any]) -> Iterator[range]:
    """The steps in order, those that follow each other and have one shape together.

    Args:
        shape_of: the shape of a run that a step may be in; None if it may be in none.
    """
    start, shape = 0, None
    for i in range(len(program.steps)):
        found = shape_of(i)
        if i > start and (found is None or found != shape):
            yield range(start, i)
            start = i
        shape = found
        if found is None:
            yield range(i, i + 1)
            start = i + 1
    if start < len(program.steps):
        yield range(start, len(program.steps))


def written(program: Program, steps: range) -> list[int]:
    """The slots of a run's results that are read outside of it. The others never need to be arrays."""
    outside = set(program.outputs)
    outside.update(slot for i, step in enumerate(program.steps) if i not in steps for slot in slots_of(step))
    return [program.inputs + i for i in steps if program.inputs + i in outside]


def slots_of(step: Step) -> list[int]:
    """What it reads."""
    return [a.slot for a in step.args if type(a) is Ref]
