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


def last_reads(program: Program) -> dict[int, int]:
    """For each slot the last step that reads it; for a result a number behind all steps."""
    found = {slot: i for i, step in enumerate(program.steps) for slot in slots_of(step)}
    return found | dict.fromkeys(program.outputs, len(program.steps))


def written(program: Program, steps: range, last: dict[int, int]) -> list[int]:
    """The slots of a run's results that are read outside of it. The others never need to be arrays."""
    return [program.inputs + i for i in steps if last.get(program.inputs + i, -1) >= steps.stop]


def slots_of(step: Step) -> list[int]:
    """The slots that a step reads."""
    return [a.slot for a in step.args if type(a) is Ref]
