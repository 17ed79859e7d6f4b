"""A cluster in a process of its own: it prints its scheduler's address, and ends when its input does."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def cluster(workers: int = 2) -> Iterator[str]:
    """The address of a cluster of so many worker processes, of one thread each."""
    command = [sys.executable, "-m", __name__, str(workers)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()


if __name__ == "__main__":
    import dask
    from distributed import LocalCluster

    dask.config.set({"distributed.scheduler.allowed-failures": 100})  # of a task's workers: some tests kill many
    with LocalCluster(
        n_workers=int(sys.argv[1]), threads_per_worker=1, processes=True, dashboard_address=None, memory_limit="1 GiB"
    ) as started:
        print(started.scheduler_address, flush=True)
        sys.stdin.read()
