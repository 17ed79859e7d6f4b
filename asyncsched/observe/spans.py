"""Instruments for the tools of others: spans for OpenTelemetry, marks for profilers.

Theory of operation of `Spans`. Events of submission come in the code that submits, in its context. So the parent of a
span is what `opentelemetry.trace.get_current_span()` gives there: a request's, say. The code in a scope's block sees
the same current span as the code around it, since a callback cannot make a span current for a block that may be left
in another context. So each scope keeps what was current where it was opened. Where that is still current, or nothing
is, the scope's own span is the parent; else the user has begun a span in the block, and that is.

A span ends when its task has physically ended, on the loop's thread, in whatever context. No context is needed for
that. The body of a call runs in a context of its own, in which the call's span is made current. A coroutine function
of a batcher runs in a copy of the context in which its batch was formed: there the batch's span is current.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from time import perf_counter, time_ns
from typing import TYPE_CHECKING, Any

from .._arguments import require_package
from .._core.callsite import line_of
from .._core.instrument import InlineOp, Instrument, kind_of, tenant_of
from .._core.model import FAILED, STATE_NAMES, Scope, Task
from .probe import OfOne

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, TracerProvider


@dataclass(slots=True)
class _Opened:
    """The span of a task that has not ended."""

    span: Span
    attributes: dict[str, Any]
    submitted: float
    launched: float = 0.0
    body: tuple[float, float] | None = None  # its beginning and end


@dataclass(slots=True)
class _OpenedScope:
    """The spans of a scope that is open."""

    span: Span
    here: Context  # the context in which it was opened
    within: Context  # the context of its tasks: that of its batch, if it has one
    batch: Span | None = None
    claimed: float = 0.0  # when it began to wait for its reserve
    failed: int = 0  # tasks of its own
    left: bool = False


class Spans(OfOne):
    """Spans for OpenTelemetry, by the package opentelemetry-api alone (`pip install "asyncsched[otel]"`).

    Each scope has a span (a request's, a window's iteration), each batch, and each task of `put`, `submit` and `call`.
    With `operations=True` each operation has one, too, also those that run on the loop's thread. The parent of a span
    is the current span of the code that issued it, or of the scope in which that runs. A batch links to the spans of
    those that called the batcher. Spans that a function begins on its stream's thread are below its task's.

    | attribute | of | value |
    |---|---|---|
    | `asyncsched.bytes` | tasks, scopes | the cost, the reserve |
    | `asyncsched.stream` | tasks | the name of the stream |
    | `asyncsched.wait_seconds` | tasks, scopes | from submission to launch; for the reserve |
    | `asyncsched.stream_wait_seconds` | tasks | from launch to the beginning of the body |
    | `asyncsched.run_seconds` | tasks | of the body |
    | `asyncsched.state` | tasks | done, failed or cancelled |
    | `asyncsched.line` | tasks | the user's line |
    | `asyncsched.tenant` | tasks, scopes | the tenant, if one was named |
    | `asyncsched.items` | batches | how many items it has |
    | `asyncsched.failed` | scopes | how many tasks failed |

    A task that failed, and a scope that an exception has left, have the status ERROR and the exception. A cancellation
    is no error.

    Spans end in the middle of the scheduler's work, so use a `BatchSpanProcessor`: the simple one exports at once, on
    the loop's thread. What is not sampled costs little, and no memory. One instrument is for one scheduler.

    >>> async def main():
    ...     async with asc.Scheduler("cpu", instruments=[asc.observe.Spans()]) as s:
    ...         await s.call(max, 1, 2)
    >>> asc.run(main)

    Args:
        operations: a span for each operation, too.
        tracer_provider: default the global one.

    Raises:
        ModuleNotFoundError: if opentelemetry-api is not installed.
        RuntimeError: when it is given to a second scheduler.
    """

    def __init__(self, *, operations: bool = False, tracer_provider: TracerProvider | None = None) -> None:
        require_package("asc.observe.Spans", "opentelemetry", "otel")
        from opentelemetry import context, trace

        self._trace = trace
        self._context = context
        self._tracer = trace.get_tracer("asyncsched", tracer_provider=tracer_provider)
        self._operations = operations
        self._tasks: dict[Task, _Opened] = {}
        self._scopes: dict[Scope, _OpenedScope] = {}
        if operations:  # else nobody asks for them
            self.op_ran_inline: Callable[[InlineOp], None] = self._op_ran_inline  # type: ignore[assignment]

    def detached(self) -> None:
        for opened in self._tasks.values():
            opened.span.end()
        for scope in [*self._scopes]:
            self._end_scope(scope)
        self._tasks.clear()

    # -- scopes and batches -----------------------------------------------------------------------------------------

    def scope_opened(self, scope: Scope) -> None:
        span = self._tracer.start_span(scope.name, self._within(scope.parent), attributes=_whose(scope))
        here = self._context.get_current()
        self._scopes[scope] = _OpenedScope(span, here, self._trace.set_span_in_context(span, here))

    def scope_left(self, scope: Scope) -> None:
        opened = self._scopes.get(scope)
        if opened is not None:
            opened.left = True  # it closes at some later time, when another opens
            if not scope.tasks:
                self._end_scope(scope)

    def scope_closed(self, scope: Scope, error: BaseException | None) -> None:
        self._end_scope(scope, error)

    def batch_formed(self, scope: Scope, items: int, callers: Sequence[Any]) -> None:
        opened = self._scopes.get(scope)
        if opened is None:  # it was opened before this was attached
            return
        self._end_batch(opened)
        trace = self._trace
        spans = [context.run(self._issuer).get_span_context() for context in callers]
        opened.batch = self._tracer.start_span(
            "batch", trace.set_span_in_context(opened.span), attributes={"asyncsched.items": items},
            links=[trace.Link(span) for span in {span.span_id: span for span in spans}.values() if span.is_valid],
        )  # fmt: skip
        opened.within = trace.set_span_in_context(opened.batch)
        self._context.attach(opened.within)

    def _issuer(self) -> Span:
        """The span of the code that runs in this context."""
        return self._trace.get_current_span(self._within(self._probe.current))

    def _end_batch(self, opened: _OpenedScope) -> None:
        if opened.batch is not None:
            opened.batch.end()
            if self._context.get_current() is opened.within:  # else this is another context
                self._context.attach(opened.here)
            opened.batch = None

    def _end_scope(self, scope: Scope, error: BaseException | None = None) -> None:
        opened = self._scopes.pop(scope, None)
        if opened is None:
            return
        self._end_batch(opened)
        span = opened.span
        if span.is_recording():
            if scope.reserve:
                span.set_attribute("asyncsched.bytes", scope.reserve)
            if opened.failed:
                span.set_attribute("asyncsched.failed", opened.failed)
                span.set_status(self._trace.StatusCode.ERROR, f"tasks that failed: {opened.failed}")
            if error is not None and not isinstance(error, asyncio.CancelledError | GeneratorExit):
                self._note(span, error)
        span.end()

    def _note(self, span: Span, error: BaseException) -> None:
        told = type(error).__name__
        with suppress(Exception):  # its text cannot be had: its `__str__` raises
            told = f"{told}: {error}"
            span.record_exception(error)
        span.set_status(self._trace.StatusCode.ERROR, told)

    def _within(self, scope: Scope | None) -> Context:
        """The context of what is issued in a scope. Asked for once: each look at a context variable takes its time."""
        here = self._context.get_current()
        while scope is not None:
            opened = self._scopes.get(scope)
            if opened is not None:
                if here is opened.here:  # most often, and quicker told than that the spans are the same
                    return opened.within
                current, outer = self._trace.get_current_span(here), self._trace.get_current_span(opened.here)
                alone = current is outer or current is opened.batch or current is self._trace.INVALID_SPAN
                return opened.within if alone else here
            scope = scope.parent
        return here

    # -- tasks ------------------------------------------------------------------------------------------------------

    def task_submitted(self, task: Task) -> None:
        scope, kind = task.scope, kind_of(task)
        if kind == "claim":
            if (claims := self._scopes.get(scope)) is not None:
                claims.claimed = perf_counter()
            return
        if not self._operations and kind not in ("call", "copy"):
            return
        within = self._within(scope)
        span = self._tracer.start_span(task.name, within)
        if kind == "call":
            task.context.run(self._context.attach, self._trace.set_span_in_context(span, within))
        if span.is_recording():
            attributes = {"asyncsched.bytes": task.cost, "asyncsched.line": line_of(task.site)}
            self._tasks[task] = _Opened(span, attributes, perf_counter())

    def task_launched(self, task: Task) -> None:
        if (opened := self._tasks.get(task)) is not None:
            opened.launched = perf_counter()

    def body_ended(self, task: Task, began: float, ended: float) -> None:
        if (opened := self._tasks.get(task)) is not None:
            opened.body = began, ended

    def task_ended(self, task: Task) -> None:
        scope = self._scopes.get(task.scope)
        if scope is not None:
            self._ended_in(scope, task)
        if (opened := self._tasks.pop(task, None)) is None:
            return
        span, told, launched = opened.span, opened.attributes, opened.launched
        told["asyncsched.state"] = STATE_NAMES[task.state]
        told["asyncsched.wait_seconds"] = (launched or perf_counter()) - opened.submitted
        if (tenant := tenant_of(task.scope)) is not None:
            told["asyncsched.tenant"] = str(tenant)
        if task.lane is not None:
            told["asyncsched.stream"] = task.lane.stream.name
        if opened.body is not None:
            began, ended = opened.body
            told["asyncsched.stream_wait_seconds"] = max(0.0, began - launched)
            told["asyncsched.run_seconds"] = ended - began
        span.set_attributes(told)
        if task.state == FAILED and task.failure is not None:
            self._note(span, task.failure.error)
        span.end()

    def _op_ran_inline(self, op: InlineOp) -> None:
        now = time_ns() - int(1e9 * perf_counter())
        attributes = {"asyncsched.bytes": op.nbytes, "asyncsched.line": line_of(op.site), **_whose(op.scope)}
        began = now + int(1e9 * op.began)
        span = self._tracer.start_span(op.name, self._within(op.scope), attributes=attributes, start_time=began)
        span.end(now + int(1e9 * op.ended))

    def _ended_in(self, scope: _OpenedScope, task: Task) -> None:
        if not task.lanes and scope.claimed:
            scope.span.set_attribute("asyncsched.wait_seconds", perf_counter() - scope.claimed)
            scope.claimed = 0.0
        if task.state == FAILED:
            scope.failed += 1
        if scope.left and not task.scope.tasks:
            self._end_scope(task.scope)


def _whose(scope: Scope) -> dict[str, Any]:
    tenant = tenant_of(scope)
    return {} if tenant is None else {"asyncsched.tenant": str(tenant)}


class Marks(Instrument):
    """Names tasks in the profilers of Intel and NVIDIA, each by its device.

    On the CPU a task is an ITT task of the domain "asyncsched" while it runs, on its stream's thread. On CUDA it is an
    NVTX range from when it is issued until the host has seen its end; ranges overlap.

    Without a profiler a mark costs next to nothing. On CUDA timing events are recorded, as for any instrument that
    learns when bodies ended::

        async with asc.Scheduler("cuda", instruments=[asc.observe.Marks()]) as s:   # under `nsys profile python ...`
            ...

    Raises:
        ModuleNotFoundError: when given to a scheduler on the CPU, if ittapi is missing.
    """

    def __init__(self) -> None:
        self._ittapi: Any = None
        self._nvtx: Any = None
        self._domain: Any = None
        self._names: dict[str, Any] = {}  # handles of ITT's
        self._ranges: dict[Task, int] = {}  # of NVTX's, open

    def attached(self, scheduler: Any) -> None:
        if any(device.kind == "cpu" for device in scheduler.devices):
            require_package("asc.observe.Marks on the CPU", "ittapi", "vtune")
            self._ittapi = import_module("ittapi")
            self._domain = self._ittapi.domain("asyncsched")

    def body_began(self, task: Task) -> None:
        kind = _kind(task)
        if kind == "cpu":
            handle = self._names.get(task.name)
            if handle is None:
                handle = self._names[task.name] = self._ittapi.string_handle(task.name)
            self._ittapi.task_begin(self._domain, handle)
        elif kind == "cuda" and task not in self._ranges:  # it may begin twice, if it was put off
            if self._nvtx is None:
                self._nvtx = import_module("cupy.cuda.nvtx")
            self._ranges[task] = self._nvtx.RangeStart(task.name, None)

    def body_ended(self, task: Task, began: float, ended: float) -> None:
        if _kind(task) == "cpu":
            self._ittapi.task_end(self._domain)
        elif (open_range := self._ranges.pop(task, None)) is not None:
            self._nvtx.RangeEnd(open_range)


def _kind(task: Task) -> str:
    lane = task.lane
    return "" if lane is None else str(lane.device.kind)
