"""The random programs of the CPU device on the CUDA device, over a fake of CuPy that behaves badly on purpose.

After each: equal to eager NumPy byte for byte, no read before its write or after its buffer's reuse (vector clocks),
the event loop never blocked, nothing launched on the default stream, nothing left on the device.
"""

from __future__ import annotations

import gc
import os
import random
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

import asyncsched as asc
from asyncsched.ops.op import CARD_GRANULE
from tests.devices.conftest import CrossingDevice
from tests.fake_cupy import fake_cupy
from tests.oracle import watching
from tests.thorough import usually

from .programs import OPS, Array, Program, make
from .runner import run

PROGRAMS = int(os.environ.get("ASYNCSCHED_CUDA_PROGRAMS", usually(30, 500)))
CHUNK = 25
MAX_OPS = (1, 2, 64, None)


async def _limit(program: Program, rng: random.Random) -> int | None:
    if program.scopes > 1:
        total = sum(_footprint(a.nbytes) for a in program.expected.values() if a is not None)
        return rng.choice([None, 1000 + 4 * total])
    times = rng.choice([None, 1, 1.3, 4])
    if times is None:
        return None
    serial = await run(program, lambda: asc.Scheduler("cuda", max_ops=1), serial=True)
    return max(1, int(times * serial.peak_bytes))


def _footprint(nbytes: int) -> int:
    return -(-nbytes // CARD_GRANULE) * CARD_GRANULE


@pytest.fixture(autouse=True)
def halves_in_single(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a card halves are added up in single precision along every axis, where NumPy does so along the last alone."""
    for name in ("sum", "sum0"):
        count, eager, ours = OPS[name]
        monkeypatch.setitem(OPS, name, (count, partial(_in_single, eager), ours))


def _in_single(eager: Callable[[Array], Array], a: Array) -> Array:
    return eager(a.astype(np.float32)).astype(a.dtype) if a.dtype == np.float16 else eager(a)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("chunk", range(max(1, PROGRAMS // CHUNK)))
@pytest.mark.one_loop
async def test_programs_equal_eager_numpy(chunk: int) -> None:
    for seed in range(chunk * CHUNK, (chunk + 1) * CHUNK):
        rng = random.Random(seed)
        program = make(seed, scopes=rng.choice([1, 1, 3]), most=rng.choice([40, 100]))
        with fake_cupy(seed) as fake:
            limit = await _limit(program, rng)
            max_ops, streams = rng.choice(MAX_OPS), rng.randint(1, 4)
            device = CrossingDevice(0, streams, spin=rng.choice([0.0, 1e-5]))
            setting = f"{seed=} {max_ops=} max_bytes={limit} {streams=} scopes={program.scopes}"
            try:
                await run(program, partial(asc.Scheduler, device, max_ops=max_ops, max_bytes=limit))
                del device
                gc.collect()
                assert fake.races == []
                assert fake.loop_blocks == []
                assert fake.default_stream_launches == []
            except BaseException as error:
                error.add_note(setting)
                raise


@pytest.mark.one_loop
async def test_what_is_written_over_has_no_holder_that_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0
    for seed in range(usually(10, 100)):
        rng = random.Random(seed)
        program = make(seed, scopes=rng.choice([1, 1, 3]), most=40)
        with fake_cupy(seed), watching(monkeypatch) as oracle:
            await run(program, partial(asc.Scheduler, CrossingDevice(0, rng.randint(1, 4))))
            gc.collect()
        assert not oracle.wrong, f"{seed=}: {oracle.wrong[:3]}"
        asked += oracle.asked
    assert asked > 5
