"""An instrument is told every transition, in order; one that raises is dropped and changes nothing else."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import logging
import threading
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched._core.completions import Completions
from asyncsched._core.instrument import EVENTS
from asyncsched.devices.sim import SimDevice
from asyncsched.tensors import issue


class Log(asc.observe.Instrument):
    """Keeps everything it is told."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []
        self.times: list[tuple[float, float]] = []
        self.threads: set[int] = set()

    def attached(self, scheduler: Any) -> None:
        self.seen.append(("attached",))

    def opened(self) -> None:
        self.seen.append(("ready",))

    def detached(self) -> None:
        self.seen.append(("detached",))

    def task_submitted(self, task: Any) -> None:
        self.seen.append(("submitted", task.name))

    def task_launched(self, task: Any) -> None:
        self.seen.append(("launched", task.name))

    def body_began(self, task: Any) -> None:
        self.threads.add(threading.get_ident())

    def body_ended(self, task: Any, began: float, ended: float) -> None:
        self.times.append((began, ended))

    def task_ended(self, task: Any) -> None:
        self.seen.append(("ended", task.name, asc.observe.STATE_NAMES[task.state]))

    def op_ran_inline(self, row: Any) -> None:
        assert row.ended >= row.began
        line = asc.observe.line_of(row.site).rpartition(" in ")[2]
        self.seen.append(("inline", row.name, row.meta.shape, row.nbytes, line))

    def bytes_released(self, account: Any, nbytes: int, seq: int) -> None:
        self.seen.append(("released", nbytes))

    def scope_opened(self, scope: Any) -> None:
        self.seen.append(("opened", scope.name))

    def scope_left(self, scope: Any) -> None:
        self.seen.append(("left", scope.name))

    def scope_closed(self, scope: Any, error: BaseException | None) -> None:
        self.seen.append(("closed", scope.name))

    def batch_formed(self, scope: Any, items: int, callers: Any) -> None:
        self.seen.append(("batch", items))

    def wait_began(self, tasks: Any) -> None:
        self.seen.append(("waits", len(tasks)))

    def wait_ended(self, tasks: Any) -> None:
        self.seen.append(("waited", len(tasks)))


def test_log_overrides_everything() -> None:
    assert all(name in vars(Log) for name in EVENTS)


async def test_a_task_is_told_from_submit_to_its_end() -> None:
    log = Log()
    async with asc.Scheduler("cpu", instruments=[log]) as s:
        assert await s.call(max, 1, 2) == 2
    assert [event for event in log.seen if event[0] not in ("waits", "waited")] == [
        ("attached",),
        ("ready",),
        ("submitted", "max"),
        ("launched", "max"),
        ("ended", "max", "done"),
        ("detached",),
    ]
    ((began, ended),) = log.times
    assert began <= ended
    assert threading.get_ident() not in log.threads


async def test_inline_rows_and_drops_are_told(s: asc.Scheduler) -> None:
    log = Log()
    x = await s.put(np.ones(8))
    s.add_instrument(log)
    y = x + 1
    assert log.seen == [("attached",), ("ready",), ("inline", "add", (8,), 64, "test_inline_rows_and_drops_are_told")]
    del y
    s.statistics()
    assert log.seen[-1] == ("released", 64)
    s.remove_instrument(log)
    _ = x + 1
    assert log.seen[-1] == ("detached",)


async def test_failures_and_cancellation_are_told_once(s: asc.Scheduler, gate: threading.Event) -> None:
    log = Log()
    s.add_instrument(log)
    held = s.submit_nowait(gate.wait, name="held")
    bad = s.submit_nowait(divmod, 1, 0)
    after = s.submit_nowait(repr, bad)
    dropped = s.submit_nowait(repr, held, name="dropped")
    assert dropped.cancel()
    gate.set()
    await held
    with pytest.raises(ZeroDivisionError):
        await after
    with pytest.raises(asc.TaskCancelled):
        await dropped
    await s.barrier()  # an answer comes before the end, where the stream has not come to it yet
    ends = [event[1:] for event in log.seen if event[0] == "ended"]
    assert sorted(ends) == [("divmod", "failed"), ("dropped", "cancelled"), ("held", "done"), ("repr", "failed")]


async def test_scopes_windows_and_batches(s: asc.Scheduler) -> None:
    log = Log()
    s.add_instrument(log)
    async with s.scope(name="request", reserve="1 KiB"):
        window = s.window(1)
        for _ in range(2):
            async with window:
                pass
    batcher = asc.Batcher(lambda items: items, scheduler=s)
    await asyncio.gather(batcher(1), batcher(2))
    told = [event for event in log.seen if event[0] in ("opened", "left", "closed", "batch")]
    assert told[:5] == [
        ("opened", "request"),
        ("opened", "iteration 1"),
        ("left", "iteration 1"),
        ("closed", "iteration 1"),
        ("opened", "iteration 2"),
    ]
    assert told[5:8] == [("left", "iteration 2"), ("closed", "iteration 2"), ("closed", "request")]
    assert ("batch", 2) in told
    assert log.seen.count(("submitted", "scope 'request'")) == log.seen.count(("ended", "scope 'request'", "done")) == 1


async def test_one_that_raises_is_dropped_and_the_rest_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    class Bad(asc.observe.Instrument):
        def task_launched(self, task: Any) -> None:
            raise ValueError("mine")

        def body_began(self, task: Any) -> None:
            raise AssertionError("told after it raised")

    log = Log()
    with caplog.at_level(logging.ERROR, "asyncsched"):
        async with asc.Scheduler("cpu", instruments=[Bad(), log]) as s:
            assert await s.call(max, 1, 2) == 2
            assert await s.call(max, 1, 3) == 3
    assert [record.exc_info[1].args for record in caplog.records if record.exc_info] == [("mine",)]
    assert log.seen.count(("ended", "max", "done")) == 2


class Failing(asc.observe.Instrument):
    """Fails at one event, and tells nobody its name."""

    def __init__(self, event: str, error: BaseException) -> None:
        self.called = 0

        def fail(*_: Any) -> None:
            self.called += 1
            raise error

        setattr(self, event, fail)

    opened = task_submitted = body_began = task_ended = lambda self, *_: None  # type: ignore[assignment]

    def __repr__(self) -> str:
        raise RuntimeError("no name")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no comparison")

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("event", ["opened", "task_submitted", "body_began", "task_ended"])
@pytest.mark.parametrize("error", [ValueError("mine"), asyncio.CancelledError(), GeneratorExit()], ids=repr)
async def test_whatever_fails_of_one_reaches_nobody(event: str, error: BaseException, late: bool) -> None:
    failing, log = Failing(event, error), Log()
    async with asc.Scheduler("cpu", instruments=[] if late else [failing, log]) as s:
        for one in (failing, log) if late else ():
            s.add_instrument(one)
        for _ in range(2):
            assert await s.call(max, 1, 2) == 2
    assert failing.called == 1
    assert log.seen.count(("ended", "max", "done")) == 2


async def test_a_log_that_fails_does_not_pass_one_on(failing_log: Any) -> None:
    failing = Failing("task_submitted", ValueError("mine"))
    async with asc.Scheduler("cpu", instruments=[failing]) as s:
        assert await s.call(max, 1, 2) == 2
    assert failing.called == 1


async def test_what_is_no_instrument_is_refused(s: asc.Scheduler) -> None:
    with pytest.raises(TypeError, match=r"subclass of asyncsched\.observe\.Instrument"):
        s.add_instrument(print)  # type: ignore[arg-type]
    log = Log()
    s.add_instrument(log)
    with pytest.raises(ValueError, match="already"):
        s.add_instrument(log)
    s.remove_instrument(log)
    with pytest.raises(ValueError, match="removed"):
        s.remove_instrument(log)


async def test_it_is_refused_where_it_would_be_told_nothing() -> None:
    async with asc.Scheduler("cpu") as s:
        with pytest.raises(RuntimeError, match="only the thread of a scheduler's event loop"):
            await asyncio.to_thread(s.add_instrument, Log())
    log = Log()
    with pytest.raises(asc.SchedulerClosed):
        s.add_instrument(log)
    assert not log.seen


async def test_what_was_read_and_what_is_freed_are_told_by_number(s: asc.Scheduler) -> None:
    class Numbers(asc.observe.Instrument):
        def __init__(self) -> None:
            self.reads: dict[int, list[int]] = {}
            self.freed: list[tuple[int, int]] = []

        def task_submitted(self, task: Any) -> None:
            self.reads[task.seq] = [value.seq for value in task.inputs]

        def bytes_released(self, account: Any, nbytes: int, seq: int) -> None:
            self.freed.append((seq, nbytes))

    before, numbers = await s.put(np.ones(8)), Numbers()
    s.add_instrument(numbers)
    x = await s.put(np.ones(8))
    y = s.submit_nowait(np.add, x, 1)
    await y
    z = s.submit_nowait(np.add, before, y)
    w = x + 1  # inline, since all is done
    first, *_ = numbers.reads
    await z
    assert numbers.reads == {first: [], first + 1: [first], first + 2: [-1, first + 1]}
    kept = await w
    del x, w
    s.statistics()
    assert numbers.freed == [(first, 64)]
    del kept
    gc.collect()
    s.statistics()
    assert numbers.freed == [(first, 64), (first + 3, 64)]


@pytest.mark.parametrize("seed", range(5))
async def test_books_kept_from_what_is_told_are_the_schedulers(seed: int) -> None:
    """Bytes and tasks added up by an instrument are those of `statistics()`, whatever the order."""

    class Books(asc.observe.Instrument):
        used = in_flight = unfinished = 0

        def task_submitted(self, task: Any) -> None:
            self.unfinished += 1

        def task_launched(self, task: Any) -> None:
            self.used += task.cost
            self.in_flight += bool(task.lanes)

        def task_ended(self, task: Any) -> None:
            self.unfinished -= 1
            if task.lane is not None:
                self.in_flight -= 1
                self.used -= task.refund

        def bytes_released(self, account: Any, nbytes: int, seq: int) -> None:
            self.used -= nbytes

    books = Books()
    async with asc.Scheduler(SimDevice(seed), max_ops=3, max_bytes="64 KiB", instruments=[books]) as s:
        x = await s.put(np.ones(100))
        kept = []
        for i in range(60):
            y = x * i + 1
            if i % 7 == 0:
                kept.append(y)
            if i % 11 == 0:
                y.cancel()
            if i % 5 == 0:
                await asyncio.sleep(0)
                found = s.statistics()
                assert books.used == found.bytes_in_flight + found.bytes_retained
                assert books.in_flight == found.tasks_in_flight
                assert books.unfinished == found.tasks_in_flight + found.tasks_pending
        await s.barrier()
        del y, kept
        found = s.statistics()
        assert books.unfinished == books.in_flight == 0
        assert books.used == found.bytes_retained


class Blank(asc.observe.Instrument):
    """Asks for nothing."""


async def test_operations_at_once_are_told_to_nobody_who_does_not_ask(
    s: asc.Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then nothing is measured or built for them, and drops take the shortcut."""
    x = await s.put(np.ones(8))
    s.add_instrument(Blank())
    with monkeypatch.context() as patched:
        patched.setattr(issue, "InlineOp", None)
        patched.setattr(issue, "perf_counter", None)
        patched.setattr(Completions, "drain", None, raising=False)
        y = x + 1
        z = y * 2
        del y
        assert asc.observe.Probe(s).used_bytes == 2 * 64  # given back at once
    assert (await z)[0] == 4
    log = Log()
    s.add_instrument(log)
    _ = x + 1
    assert [event[0] for event in log.seen] == ["attached", "ready", "inline"]
    s.remove_instrument(log)
    monkeypatch.setattr(issue, "InlineOp", None)
    assert (await (x + 1))[0] == 2


async def test_an_error_is_read_without_seeing_it(s: asc.Scheduler) -> None:
    class Errors(asc.observe.Instrument):
        def __init__(self) -> None:
            self.found: list[tuple[str, str, list[str]]] = []

        def task_ended(self, task: Any) -> None:
            if task.failure is not None:
                told = task.failure.error.__notes__[0]
                self.found.append((task.name, repr(task.failure.error), [told.partition(",")[0]]))

    errors = Errors()
    s.add_instrument(errors)
    with pytest.raises(ExceptionGroup) as caught:
        async with s.scope() as scope:
            await scope.submit(int, "no number")
    assert caught.group_contains(ValueError, match="no number")
    told = "ValueError(\"invalid literal for int() with base 10: 'no number'\")"
    assert errors.found == [("int", told, ["raised by the task 'int'"])]


async def test_a_scope_says_what_left_it(s: asc.Scheduler) -> None:
    class Left(asc.observe.Instrument):
        def __init__(self) -> None:
            self.found: dict[str, str] = {}

        def scope_closed(self, scope: Any, error: BaseException | None) -> None:
            self.found[scope.name] = type(error).__name__

    left = Left()
    s.add_instrument(left)
    async with s.scope(name="well"):
        pass
    with pytest.raises(LookupError):
        async with s.scope(name="raised"):
            raise LookupError
    with pytest.raises(asc.DeadlineExceeded):
        async with s.scope(name="late", deadline=0.001):
            await asyncio.Event().wait()
    outside = contextvars.copy_context()

    async def begins_late() -> None:
        with pytest.raises(asc.DeadlineExceeded):
            async with s.scope(name="late before it began", reserve=1, deadline=0.001):
                pass

    async with s.scope(name="all", reserve=s.load().max_bytes):
        await asyncio.create_task(begins_late(), context=outside)
    with pytest.raises(ExceptionGroup):
        async with s.scope(name="of a task") as scope:
            await scope.submit(int, "no number")
    with pytest.raises(asc.TaskTooLarge):
        async with s.scope(name="too large", reserve=10**18):
            pass

    async def waits(scope: Any) -> None:
        async with scope:
            await asyncio.Event().wait()

    task = asyncio.create_task(waits(s.scope(name="cancelled")))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert left.found == {
        "well": "NoneType", "raised": "LookupError", "late": "DeadlineExceeded", "of a task": "NoneType",
        "cancelled": "CancelledError", "too large": "TaskTooLarge", "late before it began": "DeadlineExceeded",
        "all": "NoneType",
    }  # fmt: skip


async def test_kinds_tenants_and_what_is_around_a_body(s: asc.Scheduler) -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="nothing")

    class Kinds(asc.observe.Instrument):
        def __init__(self) -> None:
            self.found: list[tuple[str, str, Any]] = []

        def task_submitted(self, task: Any) -> None:
            self.found.append((task.name, asc.observe.kind_of(task), asc.observe.tenant_of(task.scope)))
            if asc.observe.kind_of(task) == "call":
                task.context.run(variable.set, f"around {task.name}")

    def double(items: list[int]) -> list[str]:
        return [variable.get()] * len(items)

    kinds = Kinds()
    s.add_instrument(kinds)
    async with s.scope(tenant="she"), s.scope(reserve=1 << 22):
        x = await s.put(np.ones((300, 300)))
        assert await s.call(variable.get, name="one") == "around one"
        assert await asc.Batcher(double)(1) == f"around {double.__qualname__}"
        await (x @ x).sum().item()
        del x
    assert variable.get() == "nothing"
    names = [(name, kind) for name, kind, _ in kinds.found if kind != "operation"]
    assert names == [("scope 'unnamed'", "claim"), ("put", "copy"), ("one", "call"), (double.__qualname__, "call")]
    assert ("matmul", "operation", "she") in kinds.found
    weight = await s.put(np.ones(3))
    weight.requires_grad = True
    (weight * 2).sum().backward()
    asc.optim.SGD([weight], 0.1).step()
    await s.barrier()
    assert kinds.found[-1][1] in ("operation", "step")
    assert "step" in [kind for _, kind, _ in kinds.found]


async def test_a_batch_names_its_callers(s: asc.Scheduler) -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")

    class Batches(asc.observe.Instrument):
        def __init__(self) -> None:
            self.found: list[list[str]] = []

        def batch_formed(self, scope: Any, items: int, callers: Any) -> None:
            self.found.append([context[variable] for context in callers])

    batches = Batches()
    s.add_instrument(batches)
    batcher = asc.Batcher(lambda items: items)

    async def ask(name: str) -> str:
        variable.set(name)
        return await batcher(name)

    assert await asyncio.gather(ask("one"), ask("two")) == ["one", "two"]
    assert sorted(name for names in batches.found for name in names) == ["one", "two"]
