"""What the page of a server shows, and the page: nothing that a request brought, and none of the program's lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from .http import Problem
from .service import Service

_MOST = 20  # operations
PAGE: Final = Path(__file__).with_name("status.html").read_bytes()


def status(service: Service) -> dict[str, Any]:
    """Requests, tasks, bytes, streams, and the operations that took longest.

    Raises:
        Problem: 503 while the scheduler is not open.
    """
    if service.summary is None:
        raise Problem(503, "The server is not ready, or shutting down.", retry_after=1.0)
    found = service.summary.read()
    s, load = found.statistics, found.load
    return {
        "ready": service.ready,
        "seconds": found.seconds,
        "requests": {
            "in_progress": len(service.limiter),
            "limit": service.limiter.max_requests,
            "refused": service.limiter.refused,
        },
        "adopted": {"requests": service.limiter.adopted, "tasks": len(service.bodies())},
        "tasks": {
            "pending": s.tasks_pending,
            "in_flight": s.tasks_in_flight,
            "limit": s.max_ops,
            "completed": s.tasks_completed,
            "failed": s.tasks_failed,
            "cancelled": s.tasks_cancelled,
            "per_second": load.drain_rate_tasks,
        },
        "bytes": {
            "in_flight": s.bytes_in_flight,
            "retained": s.bytes_retained,
            "reserved": s.bytes_reserved,
            "peak": s.peak_bytes,
            "limit": s.max_bytes,
            "per_second": load.drain_rate_bytes,
        },
        "estimated_wait": service.estimated_wait(),
        "coroutines_waiting": found.waiting_count,
        "scopes": found.scope_count,
        "streams": [
            {
                "name": stream.name,
                "busy_seconds": stream.busy_seconds,
                "tasks": stream.tasks,
                "running": stream.running,
                "running_seconds": stream.running_seconds,
            }
            for stream in found.streams
        ],
        "operations": [
            {"name": operation.name, "count": operation.count, "seconds": operation.seconds}
            for operation in found.operations[:_MOST]
        ],
    }
