"""OpenTelemetry's spans: whose they are, what they say, that all of them end."""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched.serving.http import ASGIScope, Receive, Send
from tests.serving.rig import Call, opened
from tests.waiting import turns, until

pytest.importorskip("opentelemetry.sdk")
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import NoOpTracerProvider, StatusCode

pytestmark = pytest.mark.usefixtures("may_block")  # the SDK has locks, and reads files
BLOCK = np.ones(1 << 14)


class Told:
    """A provider that remembers the spans."""

    def __init__(self, **options: Any) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False, **options)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("the program")

    def tree(self) -> dict[str, str]:
        """The name of each span's parent, by its name."""
        spans = self.exporter.get_finished_spans()
        names = {span.context.span_id: span.name for span in spans if span.context}
        return {span.name: names[span.parent.span_id] if span.parent else "" for span in spans}

    def named(self, name: str) -> Any:
        (found,) = [span for span in self.exporter.get_finished_spans() if span.name == name]
        return found


@pytest.fixture
def told() -> Told:
    return Told()


def scheduler(told: Told, operations: bool = False, **options: Any) -> asc.Scheduler:
    spans = asc.observe.Spans(operations=operations, tracer_provider=told.provider)
    return asc.Scheduler("cpu", instruments=[spans], **options)


def first() -> int:
    return 1


def second() -> int:
    return 2


def third() -> int:
    return 3


async def test_the_parent_is_the_current_span_or_that_of_the_scope(told: Told) -> None:
    async with scheduler(told) as s:
        await s.call(first)
        with told.tracer.start_as_current_span("request"):
            async with s.scope(name="work") as scope:
                await scope.call(second)
                with told.tracer.start_as_current_span("part"):
                    await scope.call(third)
                    async with s.scope(name="inner") as inner:
                        await inner.call(max, 1, 2)
                await asyncio.gather(*[asyncio.create_task(scope.call(min, 1, 2))])
    assert told.tree() == {
        "first": "", "second": "work", "third": "part", "max": "inner", "inner": "part", "min": "work",
        "part": "request", "work": "request", "request": "",
    }  # fmt: skip


async def test_what_a_task_says(told: Told) -> None:
    async with (
        scheduler(told) as s,
        s.scope(name="work", reserve="1 MiB", tenant="she") as scope,
    ):
        x = await scope.put(BLOCK)
        await scope.submit(np.sum, x, nbytes=8, name="total")
        del x
    task, work = told.named("total"), told.named("work")
    found = task.attributes
    assert found["asyncsched.bytes"] == 8
    assert found["asyncsched.stream"].startswith("cpu stream")
    assert found["asyncsched.state"] == "done"
    assert found["asyncsched.tenant"] == work.attributes["asyncsched.tenant"] == "she"
    assert "test_spans.py" in found["asyncsched.line"]
    assert found["asyncsched.wait_seconds"] >= 0
    assert 0 < found["asyncsched.run_seconds"] < (task.end_time - task.start_time) / 1e9
    assert work.attributes["asyncsched.bytes"] == 1 << 20
    assert work.attributes["asyncsched.wait_seconds"] >= 0
    assert told.tree() == {"put": "work", "total": "work", "work": ""}


async def test_a_failure_is_told_and_still_reported(told: Told) -> None:
    async with scheduler(told) as s:
        with pytest.raises(ExceptionGroup):
            async with s.scope(name="work") as scope:
                await scope.submit(int, "no number")
    task, work = told.named("int"), told.named("work")
    assert task.status.status_code == work.status.status_code == StatusCode.ERROR
    assert task.attributes["asyncsched.state"] == "failed"
    (event,) = task.events
    assert event.name == "exception"
    assert event.attributes["exception.type"] == "ValueError"
    assert "no number" in event.attributes["exception.message"]


async def test_a_cancelled_task_is_no_error(told: Told) -> None:
    begun, gate = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        assert gate.wait(60)

    async with scheduler(told, streams=1) as s:
        running = await s.submit(hold)
        waiting = s.submit_nowait(first)
        await until(begun.is_set)
        waiting.cancel()
        gate.set()
        await running
    task = told.named("first")
    assert task.attributes["asyncsched.state"] == "cancelled"
    assert task.status.status_code == StatusCode.UNSET


@pytest.mark.parametrize("operations", [False, True])
async def test_operations_have_spans_if_asked_for(told: Told, operations: bool) -> None:
    async with scheduler(told, operations) as s:
        x = await s.put(BLOCK)
        small = await s.put(np.ones(3))
        with told.tracer.start_as_current_span("sums"):
            await (x * 2)
            await (small + 1)  # on the loop's thread
        del x, small
    operators = {"multiply": "sums", "add": "sums"}
    assert told.tree() == {"put": "", "sums": ""} | (operators if operations else {})


async def test_batches_have_spans_of_their_own(told: Told) -> None:
    async def double(items: list[int]) -> list[int]:
        return [2 * item * await s.call(first) for item in items]

    async with scheduler(told) as s:
        batcher = asc.Batcher(double)
        with told.tracer.start_as_current_span("request"):
            assert await batcher(3) == 6
    tree = told.tree()
    assert tree["first"] == "batch"
    assert tree[tree["batch"]] == ""  # in the context in which the batcher was made
    assert told.named("batch").attributes["asyncsched.items"] == 1


async def test_a_batch_links_to_those_that_asked(told: Told) -> None:
    async def double(items: list[int]) -> list[int]:
        with told.tracer.start_as_current_span(f"in the batch of {items[0]}"):
            return [2 * item for item in items]

    async with scheduler(told) as s:
        batcher = asc.Batcher(double)

        async def ask(name: str) -> None:
            async with s.scope(name=name):
                await batcher(1)

        await asyncio.gather(ask("one"), ask("two"))
        with told.tracer.start_as_current_span("three"):
            await batcher(3)
        await batcher(4)
    ids = {name: told.named(name).context.span_id for name in ("one", "two", "three")}
    batches = [span for span in told.exporter.get_finished_spans() if span.name == "batch"]
    links = [{link.context.span_id for link in batch.links} for batch in batches]
    assert links in (
        [{ids["one"], ids["two"]}, {ids["three"]}, set()],
        [{ids["one"]}, {ids["two"]}, {ids["three"]}, set()],
    )
    tree = told.tree()
    assert tree["in the batch of 1"] == tree["in the batch of 3"] == tree["in the batch of 4"] == "batch"
    assert tree["batch of " + double.__qualname__] == ""  # the last batch is not the current span of the next one


@pytest.mark.parametrize("later", [False, True])
async def test_steps_link_to_their_members(told: Told, later: bool) -> None:
    def step(members: list[str]) -> list[Any]:
        with told.tracer.start_as_current_span("inside"):
            return [asc.Last(member) for member in members]

    async def step_later(members: list[str]) -> list[Any]:
        return step(members)

    async with scheduler(told) as s:
        stepper: asc.Stepper[str, str] = asc.Stepper(step_later if later else step)
        for name in ("one", "two"):
            async with s.scope(name=name), stepper.join(name) as outputs:
                assert [output async for output in outputs] == [name]
    spans = told.exporter.get_finished_spans()
    batches = [span for span in spans if span.name == "batch"]
    links = [[link.context.span_id for link in batch.links] for batch in batches]
    assert links == [[told.named(name).context.span_id] for name in ("one", "two")]
    names = {span.context.span_id: span.name for span in spans}
    inside = [names[span.parent.span_id] for span in spans if span.name == "inside" and span.parent]
    assert inside == ["batch"] * 2 if later else [step.__qualname__] * 2


async def test_spans_of_a_function_are_below_its_task(told: Told) -> None:
    def work() -> None:
        with told.tracer.start_as_current_span("inside"):
            pass

    async with scheduler(told) as s:
        await s.call(work, name="task")
        await asc.Batcher(lambda items: [work() for _ in items], scheduler=s)(1)
        await s.call(work, name="last")
    parents = {span.context.span_id: span.name for span in told.exporter.get_finished_spans()}
    found = [parents[span.parent.span_id] for span in told.exporter.get_finished_spans() if span.name == "inside"]
    assert found == ["task", "test_spans_of_a_function_are_below_its_task.<locals>.<lambda>", "last"]


async def test_a_scope_tells_what_left_it(told: Told) -> None:
    async with scheduler(told) as s:
        with pytest.raises(LookupError):
            async with s.scope(name="raised"):
                raise LookupError("it")
        with pytest.raises(asc.DeadlineExceeded):
            async with s.scope(name="late", deadline=0.001):
                await asyncio.Event().wait()
        task = asyncio.create_task(_enter_and_wait(s))
        await turns(3)
        task.cancel()
        await asyncio.wait([task])
    assert {name: told.named(name).status.status_code.name for name in ("raised", "late", "waits")} == {
        "raised": "ERROR", "late": "ERROR", "waits": "UNSET",
    }  # fmt: skip
    assert told.named("raised").status.description == "LookupError: it"
    assert told.named("late").events[0].attributes["exception.type"].endswith("DeadlineExceeded")


class Wordless(Exception):
    def __str__(self) -> str:
        raise LookupError("no text")


async def test_an_exception_without_a_text_is_told_by_its_name(told: Told) -> None:
    async with scheduler(told) as s:
        with pytest.raises(Wordless):
            async with s.scope(name="left"):
                raise Wordless
        with pytest.raises(Wordless):
            await s.call(raises_wordless)
    assert {told.named(name).status.description for name in ("left", "raises_wordless")} == {"Wordless"}
    assert told.named("raises_wordless").attributes["asyncsched.state"] == "failed"


def raises_wordless() -> None:
    raise Wordless


async def _enter_and_wait(s: asc.Scheduler) -> None:
    async with s.scope(name="waits"):
        await asyncio.Event().wait()


async def test_a_request_is_a_scope_below_the_servers_span(told: Told) -> None:
    async def app(scope: ASGIScope, receive: Receive, send: Send) -> None:
        await scope["state"]["scheduler"].call(first)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
        await send({"type": "http.response.body", "body": b"it"})

    async with opened(app, lambda: scheduler(told), tenant=lambda scope: "she") as server:
        with told.tracer.start_as_current_span("server"):
            assert await Call(server, "/path").feed().answer() == (200, b"it")
    (request,) = [name for name, parent in told.tree().items() if parent == "server"]
    assert told.tree() == {"first": request, request: "server", "server": ""}
    for name in (request, "first"):
        assert told.named(name).attributes["asyncsched.tenant"] == "she"


async def test_iterations_of_a_window_end_when_their_tasks_have(told: Told) -> None:
    async with scheduler(told) as s:
        window = s.window(2)
        for _ in range(3):
            async with window:
                await s.submit(first)
    spans = told.exporter.get_finished_spans()
    tasks = [span for span in spans if span.name == "first"]
    assert len(tasks) == 3
    assert len({span.parent.span_id for span in tasks if span.parent}) == 3


async def test_all_spans_end_where_it_is_removed(told: Told) -> None:
    gate = threading.Event()
    spans = asc.observe.Spans(tracer_provider=told.provider)
    async with asc.Scheduler("cpu", instruments=[spans]) as s, s.scope(name="work") as scope:
        running = await scope.submit(gate.wait, 60)
        s.remove_instrument(spans)
        assert told.tree() == {"Event.wait": "work", "work": ""}
        gate.set()
        await running


async def test_it_is_removed_in_the_middle_of_a_batch_where_no_sdk_is_in_use(caplog: pytest.LogCaptureFixture) -> None:
    begun, gate = asyncio.Event(), asyncio.Event()

    async def wait(items: list[int]) -> list[int]:
        begun.set()
        await gate.wait()
        return items

    spans = asc.observe.Spans(tracer_provider=NoOpTracerProvider())  # whose spans are all the same one
    async with asc.Scheduler("cpu", instruments=[spans]) as s:
        answer = asyncio.create_task(asc.Batcher(wait)(1))
        await begun.wait()
        s.remove_instrument(spans)
        gate.set()
        assert await answer == 1
    assert not caplog.records


async def test_what_is_not_sampled_costs_no_memory() -> None:
    told = Told(sampler=ALWAYS_OFF)
    spans = asc.observe.Spans(tracer_provider=told.provider)
    async with asc.Scheduler("cpu", instruments=[spans]) as s:
        await s.submit(first)
        assert not spans._tasks
    assert not told.tree()


async def test_what_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    spans = asc.observe.Spans()
    async with asc.Scheduler("cpu", instruments=[spans]):
        with pytest.raises(RuntimeError, match="this Spans has a scheduler already"):
            asc.Scheduler("cpu", instruments=[spans])
    monkeypatch.delitem(sys.modules, "opentelemetry")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"asyncsched\[otel\]"):
        asc.observe.Spans()
