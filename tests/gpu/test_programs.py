"""The random programs of the CPU device on the card.

Another library's last bits differ, and a long program would carry them far. So a program runs on one stream first, one
step at a time, and each step is compared with NumPy's for the very same operands. Those results are then what the
program must give on several streams, under any limits. (In layouts, too: CuPy's new arrays lie in C order where NumPy's
keep that of their operands.)
"""

from __future__ import annotations

import os
import random
from functools import partial
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from tests.devices.conftest import CrossingDevice
from tests.differential import runner
from tests.differential.programs import OPS, Program, Step, make
from tests.differential.users import EVERY_WAY, NON_BLOCKING

from .close import differs

pytestmark = pytest.mark.one_loop
PROGRAMS = int(os.environ.get("ASYNCSCHED_CUDA_PROGRAMS", "200"))
MAX_OPS = (1, 2, 64, None)
# Sums whose terms may cancel.
SUMS = ("matmul", "sum", "sum0", "mean", "cumsum", "trace")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("chunk", range(10))
async def test_programs(card, chunk, monkeypatch):
    monkeypatch.setattr(runner, "compare", compare)
    for seed in range(chunk, card.pick(PROGRAMS, 10), 10):
        rng = random.Random(seed)
        program = make(seed, scopes=rng.choice([1, 1, 3]), most=rng.choice([40, 100]), around=False)
        settings = {"max_ops": rng.choice(MAX_OPS), "streams": rng.randint(1, 4)}
        try:
            await _step_by_step(program)
            settings["max_bytes"] = rng.choice(await _limits(program))
            device = CrossingDevice(0, settings["streams"])
            limits = {name: settings[name] for name in ("max_ops", "max_bytes")}
            await runner.run(program, partial(asc.Scheduler, device, **limits), ways=_ways(card))
        except BaseException as error:
            error.add_note(f"{seed=} {settings} scopes={program.scopes}")
            raise


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("peers")
@pytest.mark.parametrize("chunk", range(10))
async def test_programs_on_two_devices(card, chunk, monkeypatch):
    """Each step on one of them, with copies between."""
    monkeypatch.setattr(runner, "compare", compare_values)
    for seed in range(1000 + chunk, 1000 + card.pick(PROGRAMS // 4, 10), 10):
        rng = random.Random(seed)
        program = make(seed, scopes=rng.choice([1, 1, 3]), most=rng.choice([40, 100]), around=False)
        await _step_by_step(program)
        devices = [CrossingDevice(i, rng.randint(1, 3)) for i in range(2)]
        limits = {"max_ops": rng.choice(MAX_OPS), "max_bytes": rng.choice((None, _room(program)))}
        try:
            places = ("cuda:0", "cuda:1")
            await runner.run(program, partial(asc.Scheduler, devices, **limits), places=places, ways=_ways(card))
        except BaseException as error:
            error.add_note(f"{seed=} {limits} streams={[device._count for device in devices]} scopes={program.scopes}")
            raise


def _ways(card: Any) -> tuple[str, ...]:
    return EVERY_WAY if card.fake is None else NON_BLOCKING


def _room(program: Program) -> int:
    return 1000 + 4 * sum(a.nbytes + 512 for a in program.expected.values() if a is not None)


async def _limits(program: Program) -> list[int | None]:
    if program.scopes > 1:
        return [None, _room(program)]
    serial = await runner.run(program, lambda: asc.Scheduler("cuda", max_ops=1), serial=True)
    return [None, max(1, serial.peak_bytes), 4 * serial.peak_bytes + 1]


async def _step_by_step(program: Program) -> None:
    """Replace what the program must give by what the device gives, every step of it close to NumPy's."""
    handles: dict[int, Any] = {}
    async with asc.Scheduler("cuda", streams=1, max_ops=1) as s:
        for step in program.steps:
            expected = program.expected.get(step.out)
            if expected is not None and all(read in handles for read in step.reads):
                handles[step.out] = handle = await _issue(s, step, handles)
                host = await handle.numpy()
                text = differs(host, _eager(program, step), _magnitude(program, step))
                assert text is None, f"step {step}: {text}"
                program.expected[step.out] = _in_layout(host, (await handle).strides)
                del handle
        handles.clear()


async def _issue(s: asc.Scheduler, step: Step, handles: dict[int, Any]) -> Any:
    operands = [handles[read] for read in step.reads]
    if step.kind == "put":
        return await s.put(step.extra)
    if step.kind == "op":
        return OPS[step.extra][2](*operands)
    if step.kind == "held":
        return OPS["add1"][2](*operands)
    if step.kind == "assign":
        moved = operands[0][...]
        moved[..., :1] = 7
        return moved
    return await s.submit(runner.reverse, operands, shape=operands[0].shape, dtype=operands[0].dtype)


def _eager(program: Program, step: Step) -> np.ndarray:
    operands: list[Any] = [program.expected[read] for read in step.reads]
    with np.errstate(all="ignore"):
        if step.kind == "op":
            return np.asarray(OPS[step.extra][1](*operands))
        if step.kind == "held":
            return np.asarray(OPS["add1"][1](*operands))
        if step.kind == "assign":
            moved = operands[0].copy(order="K")
            moved[..., :1] = 7
            return moved
        return np.array(step.extra if step.kind == "put" else operands[0][::-1] if operands[0].ndim else operands[0])


def _magnitude(program: Program, step: Step) -> Any:
    if step.kind != "op" or step.extra not in (*SUMS, "fft"):
        return None
    operands: list[Any] = [program.expected[read] for read in step.reads]
    with np.errstate(all="ignore"):
        if step.extra == "fft":  # along the first axis
            return np.abs(operands[0]).sum(axis=0, keepdims=True)
        return OPS[step.extra][1](*[np.abs(a) for a in operands])


def _in_layout(array: np.ndarray, layout: tuple[int, ...]) -> np.ndarray:
    """The same numbers, with the strides that the device's array has."""
    if array.strides == layout or not array.size:
        return array
    reach = [s * (n - 1) for s, n in zip(layout, array.shape, strict=True)]
    low = sum(min(0, r) for r in reach)
    memory = np.zeros(sum(map(abs, reach)) + array.itemsize, np.uint8)
    out: np.ndarray = np.ndarray(array.shape, array.dtype, memory, -low, layout)
    out[...] = array
    return out


def compare(array: Any, layout: tuple[int, ...], expected: np.ndarray, number: int) -> None:
    """Equal in type and layout, and in every byte but for sums, which a busy device may take in another order."""
    compare_values(array, layout, expected, number)
    if array.size > 1:
        pairs = zip(layout, expected.strides, array.shape, strict=True)
        assert all(a == e for a, e, n in pairs if n > 1), (number, layout, expected.strides)


def compare_values(array: Any, layout: tuple[int, ...], expected: np.ndarray, number: int) -> None:
    """The same without the layout: a copy from another device has no gaps."""
    assert (text := differs(array, expected)) is None, f"array {number}: {text}"
