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
from tests.ops.growth import drawn
from tests.thorough import usually

pytestmark = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux alone tells the peak")
ROOT = Path(__file__).parents[2]
MARGIN = 2 << 20  # bytes that no operation counts: Python's own, BLAS's buffers, and pages that are not full
LEAST = 32 << 20  # bytes; in less, what LAPACK takes for itself counts
MORE, LESS = 1.1, 1 / 1.25  # of what is charged
PARTS = usually(2, 16)

# Views, and what makes a few numbers, or calls a generator that a user seeded: nothing of size is made beside a result.
NOT_TRIED = {
    "broadcast_to", "diagonal", "draw", "draw_seeded", "expand_dims", "getitem", "imag", "listed", "matrix_transpose",
    "permute_dims", "real", "sliding_window_view", "squeeze",
}  # fmt: skip
# What these take may be less than they are charged, whatever the operands' layout.
CHARGED_MORE = {
    "isin": "before 2.3 NumPy has no hash table of integers",
    "unique_values": "before 2.3 NumPy sorts integers of few bits, which takes more than its hash table",
}


def test_every_operation_is_tried():
    assert {one.name for one in drawn()} == set(TABLE) - NOT_TRIED


def grown(*arguments: object) -> list[tuple[str, int, int, str]]:
    """What `growth` prints: the operation, by how much a process grew, what was charged, and for what."""
    # Large blocks are mapped one by one, and given back at once: so nothing is left of what made the operands.
    told = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.ops.growth", *map(str, arguments)], cwd=ROOT, env={**os.environ, **told},
        capture_output=True, text=True, timeout=580, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


def beyond(found: list[tuple[str, int, int, str]]) -> str:
    """The lines that are out of bounds."""
    return "\n".join([
        f"{name}: {grew:,} of {charged:,} for {what}"
        for name, grew, charged, what in found
        if max(grew, charged) >= LEAST
        and (
            grew > charged * MORE + MARGIN
            or (grew < charged * LESS - MARGIN and name not in CHARGED_MORE and _whole(what))
        )
    ])  # fmt: skip


def _whole(what: str) -> bool:
    """Whether all operands are contiguous. Of others a plan knows no strides, and so not whether NumPy copies them."""
    return not any(layout in what for layout in ("turned", "spaced", "flipped"))


@pytest.mark.timeout(600)  # on a machine that may be busy
@pytest.mark.parametrize("part", range(PARTS))
def test_a_process_grows_by_what_is_charged(part):
    found = grown(part, PARTS, usually(10, 100))
    assert found
    assert not beyond(found)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("names", "streams"),
    [
        ("argsort,sort", 2),
        ("std,var,cumulative_sum,cumulative_prod", 2),
        ("inv,cholesky,det,svdvals,solve,svd,unique_values", 2),
        ("matmul,linear,tensordot", 2),
        ("cofactors,eig,pinv,qr,matrix_norm", 2),
        ("fft,ifftn,irfft,rfft", 2),
        ("gradient,interp,isin,pad,round,unique_packed", 2),
        ("conv2d,conv2d_input_grad,conv2d_weight_grad", 1),  # more would not be at work at the same time
    ],
)
def test_what_is_taken_beside_arrays_is_charged(names, streams):
    found = grown(0, 17, 3, names, streams)
    assert found
    assert not beyond(found)


@pytest.mark.parametrize("name", ["fft", "rfft", "irfft"])
async def test_a_transform_of_a_prime_length_is_refused_where_it_cannot_fit(name):
    async with asc.Scheduler("cpu", max_bytes="64 MiB") as s:
        x = await s.put([1.0, 2, 3])
        with pytest.raises(asc.TaskTooLarge, match=name):
            getattr(asc.fft, name)(x, n=(3 << 20) + 1)
        await getattr(asc.fft, name)(x, n=1 << 18)
