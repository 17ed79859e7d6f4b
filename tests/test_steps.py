"""A step is all or nothing: whatever fails or is cancelled, the model is that of the last whole step, bit for bit."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched import nn, optim
from asyncsched._core.failure import Failure
from asyncsched._core.model import Task
from asyncsched.devices.sim import SimDevice, SimFault
from asyncsched.errors import TaskCancelled
from asyncsched.ops.op import Op
from asyncsched.runtime.life import InlineMode
from tests.fake_cupy import fake_cupy
from tests.ledger import address_of, engine_of
from tests.thorough import usually
from tests.validate import validate
from tests.waiting import held, passes, until

pytestmark = pytest.mark.one_loop
BATCHES = 4
HIT = 1  # the batch whose tasks fail
WIDTHS = (16, 600, 3)  # the first weight is large enough for a pooled buffer, the rest are not
Bytes = dict[str, bytes]
OPTIONS: dict[str, dict[str, Any]] = {
    "AdamW": {},
    "Adam": {"weight_decay": 0.01},
    "RMSprop": {"momentum": 0.9, "weight_decay": 0.01},
    "SGD": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
}


def data(batch: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(batch)
    return rng.standard_normal((8, WIDTHS[0])), rng.integers(0, WIDTHS[-1], 8)


class Training:
    """A model, its optimiser, and what a batch does to them."""

    def __init__(self, kind: str = "AdamW") -> None:
        rng = np.random.default_rng(0)
        self.model = nn.Sequential(
            nn.Linear(WIDTHS[0], WIDTHS[1], rng=rng, dtype="f8"), nn.ReLU(),
            nn.Linear(WIDTHS[1], WIDTHS[2], rng=rng, dtype="f8"),
        )  # fmt: skip
        self.optimizer = getattr(optim, kind)(self.model.parameters(), lr=0.01, **OPTIONS[kind])

    async def batch(self, s: asc.Scheduler, number: int) -> None:
        x, target = data(number)
        self.optimizer.zero_grad()
        nn.cross_entropy(self.model(await s.put(x)), await s.put(target)).backward()
        self.optimizer.step()

    async def state(self) -> Bytes:
        """All that a checkpoint would hold, as bytes."""
        saved = {f"model {name}": p for name, p in self.model.state_dict().items()}
        for i, kept in enumerate(self.optimizer.state_dict()["state"]):
            saved |= {f"{name} {i}": tensor for name, tensor in kept.items()}
        return {name: (await tensor.numpy()).tobytes() for name, tensor in saved.items()}


async def trained(s: asc.Scheduler, batches: Iterator[int] | range | list[int], kind: str = "AdamW") -> Bytes:
    training = Training(kind)
    for number in batches:
        await training.batch(s, number)
    return await training.state()


async def references(kind: str, device: str = "cpu") -> tuple[Bytes, Bytes]:
    """What a training with all batches gives, and one without the one that is hit."""
    async with asc.Scheduler(device, streams=1) as s:
        whole = await trained(s, range(BATCHES), kind)
        return whole, await trained(s, [n for n in range(BATCHES) if n != HIT], kind)


class Injected(Exception):
    """What the tests make a task raise."""


class Injector:
    """Does something to the nth task that is submitted while it is on. Nothing runs inline then: each row is a task."""

    def __init__(self, s: asc.Scheduler, hit: Callable[[Task], None]) -> None:
        self.seen: list[Task] = []
        self.nth = -1
        self._engine = engine_of(s)
        self._submit = self._engine.submit
        self._hit = hit

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        runtime = self._engine.ledger.account.runtime
        self._engine.submit = runtime.submit = self._take  # type: ignore[method-assign]
        inline, runtime.inline = runtime.inline, InlineMode.NEVER
        try:
            yield
        finally:
            runtime.inline = inline
            self._engine.submit = runtime.submit = self._submit  # type: ignore[method-assign]

    def _take(self, task: Task, **options: bool) -> None:
        mine, number = len(self.seen) == self.nth, len(self.seen)
        self.seen.append(task)
        if mine and self._hit is break_body:
            self._hit(task)
        self._submit(task, **options)
        if number == self.nth and self._hit is not break_body:
            self._hit(task)


def break_body(task: Task) -> None:
    """The task's kernel raises."""

    def broken(*_: Any, **__: Any) -> Any:
        raise Injected

    if task.move is None and isinstance(task.call, Op):
        task.call = replace(task.call, kernel=broken)


def cancel(task: Task) -> None:
    """The task is cancelled as soon as it is submitted."""
    if not task.settled:
        engine = task.scope.account.runtime.engine
        engine.cancel(task, Failure.of(TaskCancelled("injected"), task.name, task.site))


async def hit_training(
    s: asc.Scheduler, hit: Callable[[Task], None], nth: int, depth: int, kind: str
) -> tuple[Bytes, bool, int]:
    """Train with one task of a batch hit. Gives the state, whether a gradient failed, and how many tasks it had."""
    training, window, injector = Training(kind), s.window(depth), Injector(s, hit)
    injector.nth = nth
    failed, number, told = False, 0, 0
    while number < BATCHES:
        try:
            async with window:
                this, number = number, number + 1
                with injector.on() if this == HIT else contextlib.nullcontext():
                    await training.batch(s, this)
                if this == HIT:
                    gradients = [p.grad for p in training.model.parameters()]
        except* (Injected, TaskCancelled) as error:
            told += len(error.exceptions)
            if this == HIT:
                gradients = []  # put failed
                failed = True
    try:
        await s.barrier()
    except* Injected as error:
        told += len(error.exceptions)
    for gradient in gradients:
        failed = failed or (gradient is not None and gradient.exception() is not None)
    assert told <= 1
    return await training.state(), failed, len(injector.seen)


SCHEDULERS: dict[str, Callable[[], asc.Scheduler]] = {
    "one stream": lambda: asc.Scheduler("cpu", streams=1),
    "two streams": lambda: asc.Scheduler("cpu", streams=2),
    "one at a time": lambda: asc.Scheduler("cpu", streams=2, max_ops=1),
    "sim": lambda: asc.Scheduler(SimDevice(seed=5, streams=3)),
    "sim, little room": lambda: asc.Scheduler(SimDevice(seed=6, streams=2), max_bytes=LIMIT),
    "CUDA": lambda: asc.Scheduler("cuda"),
}
LIMIT = 1_000_000  # bytes; without failures 0.95 million do


CASES = [(w, d, kind) for d, w in enumerate(SCHEDULERS, 1) for kind in ("AdamW", "SGD") if (w, kind) != ("CUDA", "SGD")]
CASES += [("two streams", 2, "Adam"), ("one at a time", 2, "RMSprop"), ("CUDA", 2, "RMSprop")]


@pytest.mark.parametrize(("which", "depth", "kind"), CASES)
@pytest.mark.parametrize("hit", [break_body, cancel])
async def test_whatever_is_hit_the_model_is_that_of_the_last_whole_step(which, hit, kind, depth):
    """By default the commit, and some of the tasks before it, of which each case has others; each task in CI."""
    stride = usually(18 if which == "CUDA" else 3, 1)
    with fake_cupy(seed=3, laziness=0.0) if which == "CUDA" else contextlib.nullcontext() as fake:
        whole, without = await references(kind, "cuda" if fake else "cpu")
        async with SCHEDULERS[which]() as s:
            state, _, count = await hit_training(s, hit, -1, 1 + depth % 3, kind)
            assert state == whole
            for nth in sorted({count - 1, *range(depth % stride, count, stride)}, reverse=True):
                state, failed, seen = await hit_training(s, hit, nth, 1 + depth % 3, kind)
                assert seen <= count
                allowed = (without,) if failed else (whole, without) if hit is cancel else (whole,)
                differing = [{name for name in state if state[name] != other[name]} for other in allowed]
                assert set() in differing, (nth, failed)
            gc.collect()
            engine = engine_of(s)
            engine.drain()
            validate(engine)
            assert engine.ledger.account.used == 0
            assert engine.ledger.account.limit is None or s.statistics().peak_bytes <= engine.ledger.account.limit
        if fake is not None:
            gc.collect()
            assert fake.problems() == []
    assert count >= 20


async def leave_by_error(s: asc.Scheduler, training: Training, turns: int, number: int = HIT) -> None:
    async with s.scope():
        await training.batch(s, number)
        for _ in range(turns):
            await asyncio.sleep(0)
        raise Injected


async def pass_a_deadline(s: asc.Scheduler, training: Training, turns: int) -> None:
    async with s.scope(deadline=1000) as scope:
        await training.batch(s, HIT)
        for _ in range(turns):
            await asyncio.sleep(0)
        passes(scope)
        await asyncio.Event().wait()


async def cancel_a_parameter(s: asc.Scheduler, training: Training, turns: int, number: int = HIT) -> None:
    await training.batch(s, number)
    for _ in range(turns):
        await asyncio.sleep(0)
    next(iter(training.model.parameters())).cancel()


@pytest.mark.parametrize("how", [leave_by_error, pass_a_deadline, cancel_a_parameter])
@pytest.mark.parametrize("which", ["one stream", "two streams", "sim"])
async def test_a_step_given_up_at_any_moment_goes_whole_or_not_at_all(which, how):
    whole, without = await references("AdamW")
    outcomes = set()
    for turns in range(30):
        async with SCHEDULERS[which]() as s:
            training = Training()
            for number in range(BATCHES):
                if number == HIT:
                    with contextlib.suppress(Injected, asc.DeadlineExceeded):
                        await how(s, training, turns)
                else:
                    await training.batch(s, number)
            state = await training.state()
            assert state in (whole, without)
            outcomes.add(state == whole)
            with contextlib.suppress(ExceptionGroup):
                await s.barrier()
    assert False in outcomes


@pytest.mark.parametrize("seed", range(usually(15, 40)))
async def test_what_is_left_after_failures_at_random_is_what_the_whole_steps_make(seed):
    """Which steps were whole one weight tells; the rest is compared with a training on those batches alone."""
    rng = random.Random(seed)
    kind, batches = rng.choice(["AdamW", "SGD"]), 12
    versions: list[Any] = []
    device = SimDevice(seed, streams=rng.randint(1, 3), fault_rate=0.004, laziness=0.3 * rng.random())
    async with asc.Scheduler(device, max_ops=rng.choice([1, 4, 64]), max_bytes=rng.choice([2 * LIMIT, None])) as s:
        training, window, number = Training(kind), s.window(rng.randint(1, 3)), 0
        weight = next(iter(training.model.parameters()))
        while number < batches:
            this, number = number, number + 1
            how = rng.choice([None, None, None, leave_by_error, cancel_a_parameter])
            with contextlib.suppress(
                BaseExceptionGroup, asc.TaskCancelled, Injected, SimFault, asc.MemoryDeadlockError
            ):
                async with window:
                    if how is None:
                        await training.batch(s, this)
                    else:
                        await how(s, training, rng.randint(0, 20), this)
            versions.append(weight.detach())
        state = await training.state()
        made = [(await version.numpy()).tobytes() for version in versions]
        with contextlib.suppress(BaseExceptionGroup):
            await s.barrier()
    async with asc.Scheduler("cpu", streams=1) as s:
        first = (await next(iter(Training().model.parameters())).numpy()).tobytes()
        whole = [n for n, before in enumerate([first, *made[:-1]]) if made[n] != before]
        assert state == await trained(s, whole, kind), whole


async def test_once_it_has_decided_nothing_cancels_a_step(gate):
    """While its members wait behind a body."""
    async with asc.Scheduler("cpu", streams=1, max_ops=2) as s:
        p = await s.put(np.ones(10_000))  # in a stream's buffer, so not moved on the loop's thread
        p.requires_grad = True
        optimizer = optim.SGD([p], lr=0.5, momentum=0.9)
        p.sum().backward()
        await p.grad
        s.submit_nowait(held, gate)
        optimizer.step()
        (commit,) = {task.move.commit for task in engine_of(s).root.unfinished() if task.move is not None}
        await until(lambda: commit.decide(True) if commit.gate.state >= 1 else False)
        assert not p.cancel()
        gate.set()
        assert set(await p) == {0.5}
        assert set(await optimizer.state[0]["momentum"]) == {1}


async def test_a_gradient_that_failed_skips_steps_until_it_is_dropped(s):
    p = await s.put(np.ones(3))
    p.requires_grad = True
    optimizer = optim.AdamW([p], lr=0.5)

    def broken() -> np.ndarray:
        raise Injected

    def passes(times: Any) -> None:
        (p * times).sum().backward()

    bad = s.submit_nowait(broken, shape=(3,), dtype="f8")
    for times in (1.0, bad, 1.0):  # gradients add up, and one of three has failed
        passes(times)
    before = address_of(p)
    optimizer.step()
    with pytest.raises(ExceptionGroup) as caught:
        await s.barrier()
    assert [type(error) for error in caught.value.exceptions] == [Injected]  # once
    assert address_of(p) == before  # no copy
    passes(1.0)
    optimizer.step()
    assert (await p).tolist() == [1] * 3
    assert await optimizer.state[0]["step"].item() == 0
    assert (await optimizer.state[0]["mean"]).tolist() == [0] * 3
    with pytest.raises(Injected):
        await p.grad
    optimizer.zero_grad()
    passes(1.0)
    optimizer.step()
    assert (await p).tolist() != [1] * 3
    assert await optimizer.state[0]["step"].item() == 1


async def test_a_step_that_is_skipped_takes_nothing_from_the_reserve_it_was_issued_in(s):
    n = 100_000
    p = await s.put(np.ones(n))
    p.requires_grad = True
    optimizer = optim.SGD([p], lr=0.5)

    def broken() -> np.ndarray:
        raise Injected

    async with s.scope(name="tuning", reserve=3 * p.nbytes) as tuning:
        p.grad = s.submit_nowait(broken, shape=(n,), dtype="f8")
        optimizer.step()
        with pytest.raises(ExceptionGroup):
            await tuning.barrier()
        optimizer.zero_grad()
        assert (await (await tuning.put(np.ones(3 * n))).numpy()).sum() == 3 * n
    assert (await p.numpy()).sum() == n


async def test_without_room_a_step_is_skipped_and_that_is_told():
    n = 100_000
    async with asc.Scheduler("cpu", streams=1, max_bytes=int(5.5 * 8 * n)) as s:
        p = await s.put(np.ones(n))
        p.requires_grad = True
        optimizer = optim.SGD([p], lr=0.5)
        p.grad = await s.put(np.ones(n))
        before, kept = p.detach(), await s.put(np.zeros(2 * n))
        optimizer.step()
        with pytest.raises(ExceptionGroup) as caught:
            await s.barrier()
        (error,) = caught.value.exceptions
        assert isinstance(error, asc.MemoryDeadlockError)
        assert "step() (submitted at" in str(error)
        assert (await p.numpy()).sum() == n
        del kept
        optimizer.step()
        assert (await p.numpy()).sum() == n / 2
        assert (await before.numpy()).sum() == n


async def test_what_an_optimiser_keeps_takes_no_room_again(gate):
    """Moments are written over, and nobody else holds them; parameters may be read by passes that are not over."""

    def room() -> int:
        (p * p).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        return [task for task in engine_of(s).admission.tasks() if task.name == "step()"][-1].cost

    async with asc.Scheduler("cpu", streams=1, max_ops=1) as s:
        p = await s.put(np.ones(100_000))
        p.requires_grad = True
        optimizer, one = optim.AdamW([p]), p.nbytes
        running = s.submit_nowait(held, gate)
        workspace = one
        # The second may have to hand on the zeros of the first, which are no buffers.
        assert [room() - workspace - 8 for _ in range(4)] == [3 * one, 3 * one, one, one]
        saved = optimizer.state_dict()
        assert room() - workspace - 8 == 3 * one
        del saved
        gate.set()
        await running
        await s.barrier()
        assert s.statistics().bytes_retained == 3 * one + 8
        assert await optimizer.state[0]["step"].item() == 5


async def test_what_looks_at_a_moment_meanwhile_does_not_cost_room(s):
    """A profiler has all objects in a list, and `statistics()` the inputs of tasks: they are no holders."""
    p = await s.put(np.ones(100_000))
    p.requires_grad = True
    optimizer = optim.SGD([p], lr=0.5, momentum=0.5)
    buffers = []
    for _ in range(4):
        (p * 1.0).sum().backward()
        gate = threading.Event()
        running = s.submit_nowait(held, gate)
        optimizer.step()
        optimizer.zero_grad()
        looking = gc.get_objects(), [found.inputs for found in engine_of(s).root.tasks]
        gate.set()
        await running
        await s.barrier()
        del looking
        buffers.append(address_of(optimizer.state[0]["momentum"]))
    assert buffers[1] == buffers[2] == buffers[3]


async def test_on_cuda_a_step_writes_over_what_it_alone_holds():
    with fake_cupy(seed=1):
        async with asc.Scheduler("cuda", streams=1) as s:
            p = await s.put(np.ones(1000))
            p.requires_grad = True
            p.grad = await s.put(np.ones(1000))
            optimizer, places = optim.SGD([p], lr=0.5, momentum=0.5), []
            for _ in range(3):
                optimizer.step()
                await s.barrier()
                places.append([address_of(tensor) for tensor in (p, optimizer.state[0]["momentum"])])
            assert places[0] == places[1] == places[2]
            assert (await p.numpy()).tolist() == [1 - 0.5 * (1 + 1.5 + 1.75)] * 1000
        del p, optimizer
