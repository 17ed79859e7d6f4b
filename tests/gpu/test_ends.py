"""What ends badly on a card: faults and exits in processes of their own, and memory that is not enough."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import asyncsched as asc

from .conftest import NONE

pytestmark = pytest.mark.one_loop
ROOT = Path(__file__).parents[2]

FAULT = """
import cupy, numpy as np, asyncsched as asc

cuda = cupy.cuda.runtime.CUDARuntimeError, cupy.cuda.driver.CUDADriverError
far = cupy.RawKernel('extern "C" __global__ void far(float* p) { p[1ll << 40] = 1; }', "far")
far.compile()

def bad(array):
    far((1,), (1,), (array,))
    return array

async def raised(awaitable):
    try:
        await awaitable
    except cuda as error:
        return error
    raise AssertionError("nothing was raised")

async def main():
    try:
        async with asc.Scheduler("cuda") as s:
            x = await s.put(np.ones(1000, np.float32))
            y = await s.submit(bad, x, shape=(1000,), dtype="float32")
            error = await raised((y + 1).numpy())
            assert "IllegalAddress" in str(error) or "ILLEGAL_ADDRESS" in str(error), error
            for met in (error, await raised(s.put(np.ones(3))), await raised((x + 1).numpy())):
                assert sum("unusable" in note for note in met.__notes__) == 1, met.__notes__
    except BaseExceptionGroup as group:
        assert group.split(cuda)[1] is None, group
    print("told and closed")

asc.run(main)
"""

# Met by the launch of the task itself.
AT_ONCE = FAULT.replace("    return array", "    cupy.cuda.get_current_stream().synchronize()\n    return array")

PENDING = """
import numpy as np, asyncsched as asc

async def main():
    s = await asc.Scheduler("cuda", max_ops=None).__aenter__()
    x = await s.put(np.ones((512, 512), np.float32))
    for _ in range(50):
        x = x @ x * 0.001
    print("left with work pending")

asc.run(main)
"""


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("program", "said"),
    [(FAULT, "told and closed"), (AT_ONCE, "told and closed"), (PENDING, "left with work pending")],
    ids=["fault", "fault at once", "pending"],
)
def test_a_process_ends(has_card, program, said):
    if not has_card:
        pytest.skip(NONE)
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False
    )
    assert said in run.stdout, run.stderr
    assert run.returncode == 0, run.stderr


async def test_what_is_too_much_fails_alone(card):
    """A function that takes more than the limit and its margin, and tasks after it."""
    import cupy

    async with asc.Scheduler("cuda", max_bytes="16 MiB") as s:
        x = await s.put(np.ones((64, 64), np.float32))
        with pytest.raises(cupy.cuda.memory.OutOfMemoryError) as caught:
            await s.call(lambda a: cupy.ones((256, 1024, 1024), np.uint8).sum() + a, x)
        assert any("lower max_bytes" in note for note in caught.value.__notes__)
        del caught
        assert (await (x + 1).numpy()).max() == 2
