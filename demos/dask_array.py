"""A reduction of more data than fits into memory: a Dask array on asyncsched, and on Dask's own threads.

The data are --fields fields of 8 MiB, made block by block as if they were read, and averaged over time. Both ways have
the same number of threads. Each runs in a process of its own, whose resident set is sampled:

    asyncsched   `dask.config.set(scheduler=asyncsched.cluster.get)`, with at most --max-bytes tracked
    threads      Dask's default scheduler, which starts ready tasks on every thread, without a limit

Not all memory of a running function is known beforehand, so the resident set is somewhat above the tracked bytes. Both
ways give freed blocks back to the system at once. (Otherwise glibc keeps them, and the picture would show its heap.)

    python demos/dask_array.py [--fields 96] [--threads 8] [--max-bytes "192 MiB"] [--plot PATH]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
from time import perf_counter
from typing import Any

if __name__ == "__main__" and "--way" not in sys.argv:
    print(__doc__.splitlines()[0], flush=True)  # now, since the imports below take a while

import numpy as np
import psutil

try:
    import dask
    import dask.array as da
except ImportError:
    sys.exit('Dask is not installed: pip install "asyncsched[cluster]"')

from asyncsched import cluster

WAYS = ("asyncsched", "threads")
MIB = 2**20
Result = dict[str, Any]


def reduction(fields: int) -> da.Array:
    """The mean over time of fields of 1024 by 1024 numbers, and the standard deviation of that mean."""
    x = da.random.default_rng(0).random((fields, 1024, 1024), chunks=(1, 1024, 1024))
    return x.mean(axis=0).std()


def compute(way: str, options: argparse.Namespace) -> Result:
    """Compute it one way. Returns the result, the time, and samples of the resident set."""
    lazy, warm = reduction(options.fields), reduction(2)
    if way == "asyncsched":
        cluster.using(streams=options.threads, max_bytes=options.max_bytes)
        settings: dict[str, Any] = {"scheduler": cluster.get}
    else:
        settings = {"scheduler": "threads", "num_workers": options.threads}
    with dask.config.set(settings):
        warm.compute()
        memory = Memory()
        value = float(lazy.compute())
        result = {"value": value, "seconds": perf_counter() - memory.begun, "resident": memory.stop()}
    if way == "asyncsched":
        statistics = cluster.statistics()
        result |= {"tracked": statistics.peak_bytes, "limit": statistics.max_bytes}
    return result


class Memory:
    """Samples how far the resident set has grown, in a thread."""

    def __init__(self) -> None:
        self.samples: list[tuple[float, int]] = []
        self.process, self.ended = psutil.Process(), threading.Event()
        self.begun, self.before = perf_counter(), self.process.memory_info().rss
        self.thread = threading.Thread(target=self._sample, daemon=True)
        self.thread.start()

    def stop(self) -> list[tuple[float, int]]:
        self.ended.set()
        self.thread.join()
        return self.samples

    def _sample(self) -> None:
        while True:
            self.samples.append((perf_counter() - self.begun, self.process.memory_info().rss - self.before))
            if self.ended.wait(0.005):
                return


def main(options: argparse.Namespace) -> None:
    if options.way:
        print(json.dumps(compute(options.way, options)))
        return
    settings = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": str(MIB)}
    results: dict[str, Result] = {}
    for way in WAYS:
        child = [sys.executable, __file__, *sys.argv[1:], "--way", way]
        done = subprocess.run(child, stdout=subprocess.PIPE, check=True, env=os.environ | settings)
        results[way] = json.loads(done.stdout)
    table(results, options.fields)
    draw(results, options)


def growth(result: Result) -> float:
    return float(max(n for _, n in result["resident"]))


def mib(nbytes: float) -> str:
    return f"{nbytes / MIB:.0f} MiB"


def table(results: dict[str, Result], fields: int) -> None:
    print(f"{mib(8 * MIB * fields)} of data")
    print(f"{'way':12}{'time':>10}{'resident growth':>18}{'result':>12}")
    for way, r in results.items():
        print(f"{way:12}{r['seconds']:8.2f} s{mib(growth(r)):>18}{r['value']:12.6f}")
    ours, theirs = results["asyncsched"], results["threads"]
    print(
        f"\nThe results are {'equal to rounding' if np.isclose(ours['value'], theirs['value']) else 'NOT equal'}."
        f" asyncsched tracked {mib(ours['tracked'])} at most,"
        f" {'within' if ours['tracked'] <= ours['limit'] else 'NOT within'} its limit of {mib(ours['limit'])};"
        f" its process took {growth(ours) / growth(theirs):.2f} times the memory of Dask's threads."
    )


def draw(results: dict[str, Result], options: argparse.Namespace) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 5), layout="constrained")
    end = max(r["resident"][-1][0] for r in results.values())
    limit = results["asyncsched"]["limit"] / MIB
    for way, colour in (("threads", "tab:red"), ("asyncsched", "tab:blue")):
        times, sizes = np.array(results[way]["resident"]).T
        axes.plot(times, sizes / MIB, color=colour, linewidth=1.6)
        label = f" {way}: {mib(growth(results[way]))} at most"
        above = sizes.max() / MIB if way == "threads" else max(sizes.max() / MIB, limit)
        axes.text(times[sizes.argmax()], above, label, color=colour, va="bottom")
    axes.axhline(limit, color="tab:blue", linestyle=":", linewidth=1)
    axes.text(1.24 * end, limit, "limit of tracked bytes", color="tab:blue", ha="right", va="top", fontsize="small")
    axes.set(xlabel="time since the computation began (s)", ylabel="memory beyond that at the start (MiB)")
    axes.set(xlim=(0, 1.25 * end), ylim=(0, 1.12 * max(map(growth, results.values())) / MIB))
    axes.grid(alpha=0.3)
    axes.set_title(f"The mean of {mib(8 * MIB * options.fields)} in blocks, on {options.threads} threads")
    figure.savefig(options.plot, dpi=150)
    print(f"plot: {options.plot}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fields", type=int, default=96, help="of 8 MiB each")
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--max-bytes", default="192 MiB", help="the limit of asyncsched")
    parser.add_argument("--plot", metavar="PATH", default="dask_array.png")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    main(parser.parse_args())
