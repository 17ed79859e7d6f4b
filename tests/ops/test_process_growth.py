"""Each operation of the table against the growth of a process: what is taken beside NumPy's arrays counts, too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import asyncsched as asc
from asyncsched.ops import TABLE
from tests.thorough import usually

pytestmark = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux alone tells the peak")
ROOT = Path(__file__).parents[2]
MARGIN, SHARE = 5 << 18, 0.05  # bytes that no operation counts: Python's own, LAPACK's, and pages that are not full

# Views, and what makes a few numbers, or calls a generator that a user seeded: nothing of size is made beside a result.
NOT_TRIED = {
    "broadcast_to", "diagonal", "draw", "draw_seeded", "expand_dims", "getitem", "imag", "listed", "matrix_transpose",
    "permute_dims", "real", "sliding_window_view", "squeeze",
}  # fmt: skip


@pytest.mark.timeout(180)  # some hundred operations on some megabytes, on a machine that may be busy
def test_a_process_grows_by_no_more_than_is_charged():
    # Large blocks are mapped one by one, and given back at once: so one operation leaves nothing to the next.
    told = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.ops.growth", str(usually(2, 100))], cwd=ROOT, env={**os.environ, **told},
        capture_output=True, text=True, timeout=170, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert {name for name, *_ in found} == set(TABLE) - NOT_TRIED
    more = [f"{name}: {grown:,} of {charged:,} for {what}" for name, grown, charged, what in found
            if grown > charged * (1 + SHARE) + MARGIN]  # fmt: skip
    assert not more, "\n".join(more)


@pytest.mark.parametrize("name", ["fft", "rfft", "irfft"])
async def test_a_transform_of_a_prime_length_is_refused_where_it_cannot_fit(name):
    async with asc.Scheduler("cpu", max_bytes="64 MiB") as s:
        x = await s.put([1.0, 2, 3])
        with pytest.raises(asc.TaskTooLarge, match=name):
            getattr(asc.fft, name)(x, n=(3 << 20) + 1)
        await getattr(asc.fft, name)(x, n=1 << 18)
