"""The mean and the spread of each column of an array on disk, many times larger than the limit in bytes.

A pipeline reads slices of the memmap ahead of the computation, and waits if the next one would pass the limit. So the
disk and the streams work at the same time, within the limit on memory. One pass suffices: the moments of a slice are
merged into those of all slices before it (Chan, Golub and LeVeque, "Updating formulae ...", 1979).

    python demos/out_of_core.py [MiB]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

if __name__ == "__main__":
    print(__doc__.splitlines()[0], flush=True)  # now, since the imports below take a while

import numpy as np

import asyncsched as asc

COLUMNS, ROWS, LIMIT = 256, 1024, "16 MiB"  # a slice of so many rows is 2 MiB
Moments = tuple[int, asc.Tensor, asc.Tensor]  # a count, the mean, the sum of squared differences from it


def merged(before: Moments, x: asc.Tensor) -> Moments:
    n, mean, squares = before
    k, here = x.shape[0], x.mean(axis=0)
    apart = here - mean
    within = ((x - here) ** 2).sum(axis=0)
    return n + k, mean + apart * (k / (n + k)), squares + within + apart**2 * (n * k / (n + k))


async def moments(data: np.ndarray) -> tuple[np.ndarray, np.ndarray, asc.Statistics]:
    async with asc.Scheduler("cpu", max_bytes=LIMIT) as s:
        found = 0, asc.zeros(COLUMNS), asc.zeros(COLUMNS)
        slices = s.pipeline(range(0, len(data), ROWS)).map(lambda start: data[start : start + ROWS]).to_device(depth=2)
        window = s.window(2)  # at most so many slices are computed: without it the loop would issue all at once
        async with slices.open() as items:
            async for x in items:
                async with window:
                    found = merged(found, x)
                del x
        mean, deviation = await asc.gather(found[1].numpy(), asc.sqrt(found[2] / found[0]).numpy())
        return mean, deviation, s.statistics()


if __name__ == "__main__":
    size = int(sys.argv[1]) if sys.argv[1:] else 256
    with tempfile.TemporaryDirectory() as folder:
        data = np.memmap(Path(folder) / "data", np.float64, "w+", shape=(size * 2**20 // 8 // COLUMNS, COLUMNS))
        for start in range(0, len(data), ROWS):
            data[start : start + ROWS] = np.random.default_rng(start).normal(start, 1, data[start : start + ROWS].shape)
        mean, deviation, statistics = asc.run(moments(data))
        np.testing.assert_allclose(mean, data.mean(axis=0), rtol=1e-10)
        np.testing.assert_allclose(deviation, data.std(axis=0), rtol=1e-10)
    print(f"{size} MiB on disk, as NumPy has it; peak {statistics.peak_bytes / 2**20:.1f} MiB under a limit of {LIMIT}")
