"""NumPy's error state is set where no finaliser can disturb it."""

from __future__ import annotations

import numpy as np

from asyncsched.ops.quiet import quietly
from tests.processes import fresh

# A finaliser runs at each of the collector's runs, and those come at every allocation.
FINALISERS_COMPUTE = """
import asyncio, gc, operator, threading
import numpy as np
import asyncsched as asc

async def main():
    async with asc.Scheduler("cpu") as s:
        tensors, done = [await s.put(np.ones(3, dtype)) for dtype in ("f4", "f8", "c8")], []

        def finaliser(phase, info):
            if threading.current_thread() is threading.main_thread() and phase == "start":
                done.append(np.ones(1) + 1)
                tensors[len(done) % 3] * len(done)

        gc.callbacks.append(finaliser)
        gc.set_threshold(1, 1, 1)
        for compute in (operator.add, operator.sub, operator.truediv, operator.pow, operator.lt, operator.ge):
            for number in range(60):  # all of which are new
                for x in tensors:
                    compute(x, number + 0.5)
        gc.callbacks.clear()
        gc.set_threshold(700, 10, 10)
        print(len(done) > 100)

asyncio.run(main())
"""


def test_finalisers_compute_while_the_error_state_is_set() -> None:
    """Before Python 3.12 that crashed the interpreter."""
    assert fresh(FINALISERS_COMPUTE) == "True\n"


def test_it_warns_of_nothing_and_leaves_the_callers_state() -> None:
    before = np.geterr()
    assert quietly(np.array, 1e300, np.float32) == np.inf
    assert quietly(np.true_divide, 1.0, 0.0) == np.inf
    assert np.geterr() == before
