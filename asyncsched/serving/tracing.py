"""OpenTelemetry's spans of requests: its own middleware, and what it cannot know."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .http import App, ASGIScope, Exchange, Receive, Send


def traced(app: App) -> App:
    """Within OpenTelemetry's middleware (opentelemetry-instrumentation-asgi): one span for each request, no metrics,
    since those of a framework's instrumentation would count each request again."""
    from opentelemetry import trace
    from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware
    from opentelemetry.metrics import NoOpMeterProvider
    from opentelemetry.util.http import sanitize_method

    middleware = OpenTelemetryMiddleware(
        app,
        # Named by the method alone: only the framework knows the route, and there is no bound to the number of paths.
        default_span_details=lambda scope: (sanitize_method(scope["method"]), {}),
        meter_provider=NoOpMeterProvider(),
        exclude_spans=["receive", "send"],
    )

    async def traced_app(scope: ASGIScope, receive: Receive, send: Send) -> None:
        # Where no SDK is set up nobody sees a span, and making one takes longer than refusing a request.
        nobody_sees = isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)
        await (app if nobody_sees else middleware)(scope, receive, send)

    return traced_app


@contextmanager
def mark_disconnected(exchange: Exchange) -> Iterator[None]:
    """An instrument: the span of a request whose client has left tells so."""
    yield
    if exchange.disconnected:
        from opentelemetry import trace

        span = trace.get_current_span()
        span.set_attribute("error.type", "disconnected")
        span.set_status(trace.StatusCode.ERROR)
