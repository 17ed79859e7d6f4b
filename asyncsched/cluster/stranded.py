"""What Dask's scheduler is told to do with tasks whose workers are all gone.

Theory of operation. Each task of ours names a worker, and others may do it where that is gone (`allow_other_workers`).
But a task that finds no worker at all waits, and of a worker that joins Dask asks only whether the task names it: that
others may is looked at when there is a choice. So after the last worker died, tasks wait for an address that never
comes back, and with them what is computed again for them, of which nobody here has a future. Hence this, in Dask's
scheduler.
"""

from __future__ import annotations

from typing import Any


def release_stranded() -> Any:
    """A plugin of Dask's scheduler. Its class is a local one, which travels as code: this package need not be there."""
    from distributed.diagnostics.plugin import SchedulerPlugin

    class ReleaseStranded(SchedulerPlugin):
        name, idempotent = "asyncsched-release-stranded", True

        def add_worker(self, scheduler: Any, worker: str) -> None:
            """Called before Dask looks which of the waiting tasks the new worker may do."""
            for task in scheduler.unrunnable:
                named = task.worker_restrictions
                if named and task.loose_restrictions and named.isdisjoint(scheduler.workers):
                    task.worker_restrictions = None

    return ReleaseStranded()
