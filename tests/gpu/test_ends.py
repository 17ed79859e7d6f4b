"""Memory that is not enough, on a card. Faults and ends of processes are programs of `asyncsched/gpu_check`."""

from __future__ import annotations

import numpy as np
import pytest

import asyncsched as asc

pytestmark = pytest.mark.one_loop


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
