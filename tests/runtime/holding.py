"""Coroutines that hold some of the bytes of a scheduler of four blocks, and want more."""

from __future__ import annotations

import numpy as np

import asyncsched as asc
from tests.waiting import until

BLOCK = np.ones((100, 100))
NB = BLOCK.nbytes


async def wants_a_third(s: asc.Scheduler) -> None:
    """Hold two blocks, and want one more once all four are held. What it holds goes with its end."""
    kept = [await s.put(BLOCK), await s.put(BLOCK)]
    await until(lambda: s.statistics().bytes_retained == 4 * NB)
    try:
        await s.put(BLOCK)
    finally:
        kept.clear()
