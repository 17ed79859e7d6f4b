"""Random programs whose finalisers submit, cancel, assign, keep, read, drop, close and raise, wherever they run.

Each ends right, or with a `SchedulerClosed` that names its cause. `ASYNCSCHED_FINALISER_PROGRAMS=n` changes how many
there are; a program that fails is told with the line that runs it again, alone. Thousands by hand:
`python -m tests.differential.finalisers --programs 2000`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from tests.thorough import usually

from .finalisers import LOOPS, STREAMS, Case, run_all
from .shadow import SURELY, Shadow, Version, Watch, derived

PROGRAMS = int(os.environ.get("ASYNCSCHED_FINALISER_PROGRAMS", usually(25, 100)))
CHUNK = 5
# What may end a process, or leave it without memory, runs in one of its own.
SHARES = {"plain": 0.2, "collector": 0.35}
SHARES_IN_CHILDREN = {"recursion": 0.1, "interrupt": 0.15, "memory": 0.15}
if sys.platform == "linux":
    SHARES_IN_CHILDREN["address space"] = 0.05


def _chunks(shares: dict[str, float]) -> list[tuple[str, int]]:
    """The kinds of programs, and the first seed of each chunk."""
    return [(kind, first) for kind, share in shares.items() for first in range(0, max(1, int(PROGRAMS * share)), CHUNK)]


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("kind", "first"), _chunks(SHARES))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of numbers that overflow
def test_programs(kind: str, first: int) -> None:
    cases = [
        Case(kind, seed, STREAMS[seed % len(STREAMS)], loop) for seed in range(first, first + CHUNK) for loop in LOOPS
    ]
    failed = run_all(cases)
    assert not failed, "\n".join(failed)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("kind", "first"), _chunks(SHARES_IN_CHILDREN))
def test_programs_in_a_process_of_their_own(kind: str, first: int) -> None:
    command = [sys.executable, "-m", "tests.differential.finalisers", "--kind", kind.replace(" ", "-"), "--in-turn"]
    command += ["--first", str(first), "--programs", str(CHUNK)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    if kind == "address space" and done.returncode == -signal.SIGSEGV:
        pytest.skip("NumPy ended the process: where an iterator gets no buffer, it raises MemoryError without the GIL")
    assert done.returncode == 0, done.stdout + done.stderr[-8000:]


# -- what the programs are judged by --------------------------------------------------------------------------------


def _set(key: int, number: int):
    def assign(version: Version) -> Version:
        array = version.array.copy()
        array[key] = number
        return Version(array, [version])

    return assign


def _held(x: Shadow) -> list[list[int]]:
    """Each once."""
    return [list(values) for values in sorted({tuple(version.array.tolist()) for version in x.versions})]


def test_one_that_is_assigned_to_in_the_middle_of_an_assignment_has_both() -> None:
    x = Shadow(None, [Version(np.zeros(3, int))])
    outer = x.begin(_set(0, 1))
    assert _held(x) == [[0, 0, 0], [1, 0, 0]]
    inner = x.begin(_set(1, 2))
    x.end(inner, True)
    assert _held(x) == [[0, 2, 0], [1, 2, 0]]
    x.end(outer, True)
    assert _held(x) == [[1, 2, 0]]


def test_of_the_same_place_one_of_both_is_right() -> None:
    x = Shadow(None, [Version(np.zeros(1, int))])
    outer = x.begin(_set(0, 1))
    x.end(x.begin(_set(0, 2)), True)
    x.end(outer, True)
    assert _held(x) == [[1], [2]]


def test_an_assignment_that_was_refused_was_not_made() -> None:
    x = Shadow(None, [Version(np.zeros(1, int))])
    x.end(x.begin(_set(0, 1)), False)
    assert _held(x) == [[0]]
    x.end(x.begin(_set(0, 1)), None)
    assert _held(x) == [[0], [1]]


def test_what_reads_in_the_meantime_may_have_read_either() -> None:
    x = Shadow(None, [Version(np.zeros(1, int))])
    with Watch([x]) as seen:
        x.end(x.begin(_set(0, 1)), True)
    y = Shadow(None, derived(lambda a: a + 10, seen))
    assert _held(y) == [[10], [11]]
    with Watch([x]) as seen:
        pass
    assert [version.array.tolist() for version in derived(lambda a: a + 10, seen)] == [[11]]


def test_what_is_made_of_one_that_may_hold_too_many_arrays_may_be_anything() -> None:
    x = Shadow(None, [Version(np.zeros(4, int))])
    with Watch([x]) as (seen,):
        names = [x.begin(_set(place, 1)) for place in range(4)]
        for name in names:
            x.end(name, True)
    assert x.lost
    assert Shadow(None, derived(np.negative, [x.versions])).lost
    assert Shadow(None, derived(np.negative, [seen])).lost
    x.end(x.begin(_set(0, 2)), True)
    assert x.lost


def test_what_depends_on_what_was_cancelled_is_cancelled() -> None:
    x = Version(np.zeros(1))
    (y,) = derived(np.exp, [[x]])
    (z,) = derived(np.exp, [[y]])
    y.cancel(SURELY)
    assert (x.gone, y.gone, z.gone) == (0, SURELY, SURELY)
    (late,) = derived(np.exp, [[z]])
    assert late.gone == SURELY


def test_what_was_there_before_what_it_read_was_cancelled_is_not() -> None:
    x = Version(np.zeros(1))
    (y,) = derived(np.exp, [[x]])
    (z,) = derived(np.exp, [[y]])
    y.there = True
    x.cancel(SURELY)
    assert (x.gone, y.gone, z.gone) == (SURELY, 0, 0)
