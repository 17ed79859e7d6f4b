"""PyTorch trained by tasks: the plain loop's weights, and steps that fail or are cancelled are skipped whole."""

from __future__ import annotations

import asyncio
import importlib.util
import threading
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from tests.waiting import held, until

from .test_demos import DEMOS, needs, run, said

pytestmark = needs("torch", "PIL", "sklearn", "tqdm")
LENGTH, CLASSES = 6, 3


@pytest.fixture
def demo() -> Any:
    """The demo as a module, imported where no loop runs."""
    spec = importlib.util.spec_from_file_location("pytorch_training", DEMOS / "pytorch_training.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.torch.optim.AdamW(module_of(module).parameters())  # which imports a good deal at first
    return module


def module_of(demo: Any) -> Any:
    demo.torch.manual_seed(0)
    return demo.torch.nn.Sequential(demo.torch.nn.Linear(LENGTH, 20), demo.torch.nn.Dropout(0.1), demo.torch.nn.Tanh(),
        demo.torch.nn.Linear(20, CLASSES))  # fmt: skip


def batches(count: int) -> list[tuple[Any, Any]]:
    rng = np.random.default_rng(0)
    return [(rng.standard_normal((8, LENGTH), np.float32), rng.integers(0, CLASSES, 8)) for _ in range(count)]


def trained_plainly(demo: Any, count: int) -> Any:
    module = module_of(demo)
    optimizer = demo.torch.optim.AdamW(module.parameters(), lr=2e-3)
    for x, y in batches(count):
        optimizer.zero_grad()
        demo.torch.nn.functional.cross_entropy(module(demo.torch.tensor(x)), demo.torch.tensor(y)).backward()
        optimizer.step()
    return module


def equal(demo: Any, a: Any, b: Any) -> bool:
    return all(map(demo.torch.equal, a.parameters(), b.parameters()))


def test_as_a_program() -> None:
    lines = run("pytorch_training", "--epochs", 1)
    assert said(lines, "weights ") == "weights the same to the last bit"
    assert said(lines, "losses ").endswith(", the same")
    assert said(lines, "a step with a wrong label failed: IndexError")
    assert said(lines, "a step was cancelled")
    assert said(lines, "the weights are as before both")


@pytest.mark.parametrize("streams", [1, 2])
async def test_the_weights_are_the_plain_loops(demo: Any, streams: int) -> None:
    expected = trained_plainly(demo, 20)
    async with asc.Scheduler("cpu", streams=streams) as s:
        guest, window = demo.Guest(s, module_of(demo)), s.window(2)
        for batch in batches(20):
            async with window:
                x, y = [await s.put(part) for part in batch]
                await guest.step(x, y)
    assert equal(demo, expected, guest.module)


async def test_a_step_waits_for_room(demo: Any, s: asc.Scheduler) -> None:
    """What other work holds is given back, and it goes on."""
    expected = trained_plainly(demo, 6)
    async with asc.Scheduler("cpu", max_bytes="64 KiB") as small:
        guest = demo.Guest(small, module_of(demo))
        guest.cost = asc.LearnedCost(first=5000)
        given = [[await small.put(part) for part in batch] for batch in batches(6)]
        for x, y in given[:3]:
            await (await guest.step(x, y))
        calls = (guest.forward, guest.backward, guest.move)
        learned = max(known.nbytes for call in calls for known in guest.cost.known(call.__qualname__))
        free = 2**16 - small.statistics().bytes_retained
        held = await small.put(np.zeros(free - learned // 2, np.uint8))
        stepping = asyncio.create_task(guest.step(*given[3]))
        await until(lambda: small.load().tasks_pending)
        del held
        await stepping
        for x, y in given[4:]:
            await (await guest.step(x, y))
        assert small.statistics().peak_bytes <= 2**16
    assert equal(demo, expected, guest.module)


@pytest.mark.parametrize("at", ["forward", "backward", "move"])
async def test_a_step_that_is_cancelled_before_it_moves_is_skipped(
    demo: Any, s: asc.Scheduler, gate: threading.Event, at: str
) -> None:
    module = module_of(demo)
    guest = demo.Guest(s, module)
    x, y = [await s.put(part) for part in batches(1)[0]]
    before = [p.clone() for p in module.parameters()]
    blocker = await s.submit(held, gate, resource=guest)
    loss = await s.submit(guest.forward, x, y, resource=guest)
    found = await s.submit(guest.backward, loss, resource=guest)
    tasks = {"forward": loss, "backward": found, "move": await s.submit(guest.move, found, resource=guest)}
    assert tasks[at].cancel()
    gate.set()
    await blocker
    with pytest.raises(asc.TaskCancelled):
        await tasks["move"]
    assert all(map(demo.torch.equal, before, module.parameters()))
    await (await guest.step(x, y))


async def test_a_step_that_fails_is_skipped_and_told_once(demo: Any) -> None:
    module = module_of(demo).eval()
    async with asc.Scheduler("cpu") as s:
        guest, window = demo.Guest(s, module), s.window(1)
        x, y = [await s.put(part) for part in batches(1)[0]]
        wrong = await s.put(np.full(8, CLASSES))
        before = [p.clone() for p in module.parameters()]
        async with window:
            await guest.step(x, wrong)
        with pytest.raises(ExceptionGroup) as caught:
            async with window:
                raise AssertionError("not reached")
        assert caught.group_contains(IndexError)
        assert all(map(demo.torch.equal, before, module.parameters()))
        async with window:
            await guest.step(x, y)
        await s.barrier()
        assert not all(map(demo.torch.equal, before, module.parameters()))


async def test_an_optimiser_that_fails_half_way_is_not_used_again(demo: Any, s: asc.Scheduler) -> None:
    guest = demo.Guest(s, module_of(demo))
    x, y = [await s.put(part) for part in batches(1)[0]]

    def break_off() -> None:
        raise MemoryError("half way")

    guest.optimizer.step = break_off
    with pytest.raises(MemoryError):
        await (await guest.step(x, y))
    with pytest.raises(RuntimeError, match="in the middle of a step: go on from a checkpoint"):
        await (await guest.step(x, y))


async def test_a_deadline_ends_it_between_two_steps(demo: Any, gate: threading.Event) -> None:
    guest: Any = None
    async with asc.Scheduler("cpu") as s:
        guest = demo.Guest(s, module_of(demo))
        before = [p.clone() for p in guest.module.parameters()]
        x, y = [await s.put(part) for part in batches(1)[0]]
        with pytest.raises(asc.DeadlineExceeded):
            async with s.scope(deadline=0.05):
                try:  # it may pass at any of these
                    blocker = await s.submit(held, gate, resource=guest)
                    await guest.step(x, y)
                    await blocker
                finally:
                    gate.set()
        assert all(map(demo.torch.equal, before, guest.module.parameters()))
