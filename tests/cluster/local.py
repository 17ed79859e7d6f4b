"""A cluster in a process of its own: it prints its scheduler's address, and ends when its input does."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

# What Dask's processes do of themselves while they wait: many times a second, or with workers that died.
RESTS = {
    "DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "False",
    "DASK_DISTRIBUTED__ADMIN__TICK__INTERVAL": "1s",
    "DASK_DISTRIBUTED__ADMIN__SYSTEM_MONITOR__INTERVAL": "10s",
    # So long after a worker was lost, `LocalCluster` closes a nanny that is starting one again just then.
    "DASK_DISTRIBUTED__DEPLOY__LOST_WORKER_TIMEOUT": "1h",
}


@contextmanager
def cluster(
    workers: int, *, mortal: bool = False, cards: int = 0, fake: bool = True, threads: int = 1
) -> Iterator[str]:
    """The address of a cluster of so many worker processes, of so many threads each.

    If they are `mortal`, they have no nannies, since one whose worker dies while it starts starts no other: each is
    started again under its name however it ended. The first so many have `cards`, and GPU=1: the fake CuPy's, or those
    of the CuPy that is installed.
    """
    command = [sys.executable, "-m", __name__, *map(str, (workers, int(mortal), cards, int(fake), threads))]
    # Who wants to connect to a worker that died tries for so long, half a minute otherwise.
    environment = os.environ | RESTS | ({"DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "2s"} if mortal else {})
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()


def start(address: str, name: int, threads: int, gpu: list[str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "distributed.cli.dask_worker", address, "--no-nanny", "--no-dashboard"]
    limits = ["--nthreads", str(threads), "--name", str(name), "--memory-limit", "1 GiB", "--local-directory", "/tmp"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen([*command, *limits, *gpu], env=environment, **quiet)


def watch(address: str, count: int, again: bool, cards: int, fake: bool, threads: int) -> None:
    """Start workers until the input ends, each `again` when it has ended."""
    card = ["--resources", "GPU=1", *(["--preload", "tests.cluster.fake_card"] if fake else [])]
    begin = [partial(start, address, name, threads, card if name < cards else []) for name in range(count)]
    workers = [start_one() for start_one in begin]
    while not select.select([sys.stdin], [], [], 0.05)[0]:
        for name, worker in enumerate(workers):
            if again and worker.poll() is not None:
                workers[name] = begin[name]()
    for worker in workers:
        worker.kill()
        worker.wait()


if __name__ == "__main__":
    import dask
    from distributed import LocalCluster

    dask.config.set({"distributed.scheduler.allowed-failures": 1000})  # of a task's workers: some tests kill many
    count, mortal, cards, fake, threads = map(int, sys.argv[1:])
    options = {"threads_per_worker": threads, "processes": True, "dashboard_address": None, "memory_limit": "1 GiB"}
    alone = mortal or cards
    with LocalCluster(n_workers=0 if alone else count, **options) as started:
        print(started.scheduler_address, flush=True)
        if alone:
            watch(started.scheduler_address, count, bool(mortal), cards, bool(fake), threads)
        sys.stdin.read()
