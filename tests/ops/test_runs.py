"""Runs of a program: which steps go together, what of them is written, and what a program takes at most."""

from __future__ import annotations

import numpy as np

from asyncsched.ops.meta import meta
from asyncsched.ops.program import Program, Step, ref
from asyncsched.ops.table import TABLE

FORM = meta((10,), np.dtype(np.float64))


def program(*reads: tuple[int, ...], outputs: tuple[int, ...], workspace: int = 0) -> Program:
    """Of one input; each step adds slots."""
    steps = [Step(TABLE["add"], tuple(map(ref, slots)), {}, FORM, 80, workspace, "") for slots in reads]
    return Program((FORM,), steps, outputs)


def test_steps_of_one_shape_go_together():
    found = program((0, 0), (1, 0), (2, 0), (3, 1), (4, 4), outputs=(5,))
    shapes = ["a", "a", None, "b", "a"]
    assert list(found.runs(shapes.__getitem__)) == [range(2), range(2, 3), range(3, 4), range(4, 5)]


def test_results_that_are_read_later_are_written():
    found = program((0, 0), (1, 0), (2, 2), (3, 1), (0, 0), outputs=(4, 2))
    last = found.last_reads()
    assert found.written(range(3), last) == [1, 2, 3]
    assert found.written(range(4), last) == [2, 4]
    assert found.written(range(4, 5), last) == [], "nobody reads it"


def test_values_that_only_a_run_reads_take_no_memory():
    found = program((0, 0), (1, 0), (2, 2), (3, 1), outputs=(4,), workspace=7)
    assert found.peak(lambda nbytes: nbytes) == 3 * 80 + 7
    assert found.peak(lambda nbytes: nbytes, [(range(4), [4])]) == 80
    assert found.peak(lambda nbytes: nbytes, [(range(3), [1, 3]), (range(3, 4), None)]) == 3 * 80 + 7
