"""Libraries that find no memory on the device get the pool's idle memory, and are called once more."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched.devices.cuda import memory
from asyncsched.devices.cuda.context import of_memory
from tests.fake_cupy import Fake
from tests.waiting import held

from .conftest import opened

pytestmark = pytest.mark.one_loop
BLOCK = np.arange(64.0).reshape(8, 8)


class CUBLASError(RuntimeError):
    """As CuPy's: told by its name and status."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[int]]:
    """Kernels of an operation fail so often, when they have written to `out` if they got one. Gives the reserved bytes
    at each call."""

    def failing(name: str, times: int, pool: Any, status: int = 3) -> list[int]:
        resolve, calls = memory.resolve, list[int]()

        def resolved(op: Any, xp: Any) -> Any:
            kernel = resolve(op, xp)

            def fails(*args: Any, out: Any = None, **options: Any) -> Any:
                calls.append(pool.reserved())
                if len(calls) > times:
                    return kernel(*args, **options) if out is None else kernel(*args, out=out, **options)
                if out is not None:
                    out.fill(-1.0)
                raise CUBLASError(status)

            return fails if op.name == name else kernel

        monkeypatch.setattr(memory, "resolve", resolved)
        return calls

    return failing


async def idle(s: asc.Scheduler) -> Any:
    """The pool, which has idle memory now."""
    large = await s.put(np.ones(1 << 21))
    del large
    await s.barrier()
    return s.devices[0].memory.pool  # type: ignore[attr-defined]


async def test_a_library_gets_the_idle_memory(fake: Fake, failing: Callable[..., list[int]]) -> None:
    async with opened(1, max_bytes="64 MiB") as s:
        x = await s.put(BLOCK)
        calls = failing("matmul", 1, await idle(s))
        assert np.array_equal(await (x @ x).numpy(), BLOCK @ BLOCK)
        first, second = calls
        assert second <= first - (16 << 20)


async def test_without_any_it_fails_with_the_cure(fake: Fake, failing: Callable[..., list[int]]) -> None:
    async with opened(1, max_bytes="64 MiB") as s:
        x = await s.put(BLOCK)
        calls = failing("matmul", 2, await idle(s))
        with pytest.raises(CUBLASError) as caught:
            await (x @ x)
        assert "the device seems to be full" in "".join(caught.value.__notes__)
        assert len(calls) == 2
        assert np.array_equal(await (x @ x).numpy(), BLOCK @ BLOCK)


async def test_other_errors_are_raised_at_once(fake: Fake, failing: Callable[..., list[int]]) -> None:
    async with opened(1) as s:
        x = await s.put(BLOCK)
        calls = failing("matmul", 1, await idle(s), 13)
        with pytest.raises(CUBLASError):
            await (x @ x)
        assert len(calls) == 1


@pytest.mark.parametrize("sole", [False, True], ids=["held", "sole holder"])
async def test_what_may_have_written_over_its_input_is_not_called_again(
    fake: Fake, failing: Callable[..., list[int]], gate: threading.Event, sole: bool
) -> None:
    async with opened(1, max_bytes="64 MiB") as s:
        x = await s.put(BLOCK)
        expected = await asc.nn.functional.softmax(x, -1).numpy()
        calls = failing("softmax", 1, await idle(s))
        y = x + 0.0
        await s.barrier()
        kept = None if sole else y
        s.submit_nowait(held, gate)
        found = asc.nn.functional.softmax(y, -1)
        del y
        gate.set()
        if sole:
            with pytest.raises(CUBLASError):
                await found
            assert len(calls) == 1
        else:
            assert np.array_equal(await found.numpy(), expected)
            assert np.array_equal(await kept.numpy(), BLOCK)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("name", "field", "number", "expected"),
    [
        ("CUDARuntimeError", "status", 2, True),
        ("CUDARuntimeError", "status", 700, False),
        ("CUDADriverError", "status", 2, True),
        ("CUSOLVERError", "status", 2, True),
        ("CuFFTError", "result", 2, True),
        ("CuFFTError", "result", 8, False),
        ("CURANDError", "status", 102, True),
        ("ValueError", "status", 2, False),
    ],
)
def test_errors_of_memory(name: str, field: str, number: int, expected: bool) -> None:
    error = type(name, (RuntimeError,), {field: number})()
    assert of_memory(error) == expected
