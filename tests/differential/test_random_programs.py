"""Random programs, equal to eager NumPy byte for byte. `ASYNCSCHED_PROGRAMS=n` changes how many."""

from __future__ import annotations

import os
import random
from functools import partial
from typing import Any

import pytest

import asyncsched as asc
from asyncsched.devices.sim import SimDevice
from tests.oracle import watching
from tests.thorough import usually

from .programs import Program, make
from .runner import run

PROGRAMS = int(os.environ.get("ASYNCSCHED_PROGRAMS", usually(300, 2000)))
CHUNK = 25
MAX_OPS = (1, 2, 64, None)


def _device(kind: str, seed: int, streams: int) -> Any:
    return SimDevice(seed, streams, laziness=random.Random(seed).choice([0.0, 0.3, 0.6])) if kind == "sim" else "cpu"


async def _limit(program: Program, rng: random.Random) -> int | None:
    """A byte limit from just feasible up, or none: run one task at a time, the program needs exactly its peak."""
    if program.scopes > 1:
        # Scopes take turns, so tasks run in another order than they were issued, and more may be held at once.
        total = sum(array.nbytes for array in program.expected.values() if array is not None)
        return rng.choice([None, 1000 + 4 * total])
    times = rng.choice([None, 1, 1.3, 4])
    if times is None:
        return None
    serial = await run(program, lambda: asc.Scheduler("cpu", max_ops=1), serial=True)
    return max(1, int(times * serial.peak_bytes))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("chunk", range(max(1, PROGRAMS // (CHUNK * 2))))
@pytest.mark.one_loop
async def test_programs_equal_eager_numpy(chunk: int) -> None:
    for seed in range(chunk * CHUNK, (chunk + 1) * CHUNK):
        rng = random.Random(seed)
        program = make(seed, scopes=rng.choice([1, 1, 3]), most=rng.choice([40, 200]))
        limit = await _limit(program, rng)
        max_ops, streams = rng.choice(MAX_OPS), rng.randint(1, 4)
        for kind in ("cpu", "sim"):
            setting = f"{seed=} {kind} {max_ops=} max_bytes={limit} {streams=} scopes={program.scopes}"
            try:
                device = _device(kind, seed, streams)
                own = None if kind == "sim" else streams
                await run(program, partial(asc.Scheduler, device, streams=own, max_ops=max_ops, max_bytes=limit))
            except BaseException as error:
                error.add_note(setting)
                raise


@pytest.mark.one_loop
@pytest.mark.parametrize("kind", ["cpu", "sim"])
async def test_what_is_written_over_has_no_holder_that_does_not_count(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values of all sizes are written over here."""
    asked = 0
    for seed in range(usually(150, 1000)):
        rng = random.Random(seed)
        program, streams = make(seed, scopes=rng.choice([1, 1, 3]), most=40), rng.randint(1, 4)
        with watching(monkeypatch, smallest=1) as oracle:
            device, own = _device(kind, seed, streams), None if kind == "sim" else streams
            await run(program, partial(asc.Scheduler, device, streams=own))
        assert not oracle.wrong, f"{seed=} {streams=}: {oracle.wrong[:3]}"
        asked += oracle.asked
    assert asked > 20
