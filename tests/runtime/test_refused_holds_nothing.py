"""What is refused holds no bytes, and nothing that it was given, though the collector never runs."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable

import numpy as np
import pytest

import asyncsched as asc
from asyncsched import optim
from tests.waiting import held, no_collector

BLOCK = np.ones((100, 100))
NB = BLOCK.nbytes

Form = Callable[[asc.Scheduler, asc.Tensor], object]


class refused:  # noqa: N801  # it is written like a function, as `pytest.raises` is
    """As `pytest.raises`, which would keep the exception, and so the frames it passed. So would a generator's frame."""

    def __init__(self, *errors: type[Exception]) -> None:
        self._errors = errors

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *raised: object) -> bool:
        assert kind is not None, "it was taken"
        return issubclass(kind, self._errors)


def gradients(s: asc.Scheduler, x: asc.Tensor) -> None:
    x.requires_grad = True
    x.grad = asc.ones_like(x)


def a_step(s: asc.Scheduler, x: asc.Tensor) -> None:
    optim.SGD([x], lr=0.1, momentum=0.9).step()


@pytest.mark.parametrize(
    "form",
    [
        lambda s, x: x + 1,
        lambda s, x: x + x,
        lambda s, x: x[1:],
        lambda s, x: x.__setitem__(0, 1),
        lambda s, x: s.submit_nowait(np.sum, x),
        lambda s, x: s.submit_nowait(np.add, x, x, shape=(100, 100), dtype=float),
        a_step,
    ],
    ids=["operator", "two operands", "view", "assignment", "call", "declared", "step"],
)
async def test_by_a_full_backlog(form: Form, gate: threading.Event) -> None:
    async with asc.Scheduler("cpu", max_ops=1, max_pending=2) as s:
        with no_collector():
            x = await s.put(BLOCK)
            if form is a_step:
                gradients(s, x)
                await s.barrier()
            running = await s.submit(held, gate)
            waiting = [s.submit_nowait(int) for _ in range(2)]
            with refused(asc.QueueFull):
                form(s, x)
            gate.set()
            await s.barrier()
            del x, running, waiting
            assert s.statistics().bytes_retained == 0


async def test_by_a_full_backlog_it_lets_go_of_arrays_from_outside(gate: threading.Event) -> None:
    async with asc.Scheduler("cpu", max_ops=1, max_pending=1) as s:
        with no_collector():
            await s.submit(held, gate)
            s.submit_nowait(int)
            for form in (s.put_nowait, lambda array: s.submit_nowait(np.sum, array)):
                array = np.ones(3)
                kept = weakref.ref(array)
                with refused(asc.QueueFull):
                    form(array)
                del array
                assert kept() is None
            gate.set()


@pytest.mark.parametrize(
    "form",
    [
        lambda s, x: asc.concat([x, x, x]),
        lambda s, x: s.submit_nowait(np.sum, x, nbytes=3 * NB),
    ],
    ids=["operator", "call"],
)
async def test_by_the_limit(form: Form) -> None:
    async with asc.Scheduler("cpu", max_bytes=5 * NB // 2) as s:
        with no_collector():
            x = await s.put(BLOCK)
            with refused(asc.TaskTooLarge):
                form(s, x)
            await s.barrier()
            del x
            assert s.statistics().bytes_retained == 0


async def test_by_a_capture(s: asc.Scheduler) -> None:
    with no_collector():
        tensors = [await s.put(BLOCK), await s.put(BLOCK)]
        with refused(asc.CaptureError):
            await s.capture(lambda x: (tensors[1] + x)[x > 0], tensors[0])
        with refused(asc.CaptureError):
            await s.capture(lambda _: s.submit_nowait(np.sum, tensors[1]), tensors[0])
        await s.barrier()
        tensors.clear()
        assert s.statistics().bytes_retained == 0
