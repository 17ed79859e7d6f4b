"""Other libraries in the same run, each in a child process.

They are not imported beside the others: PyTorch and JAX start thread pools, PyTorch brings an OpenMP runtime and
its own BLAS (whose threads `threadpoolctl` would then change too), and both make every garbage collection longer. So a
child runs NumPy inline and the peer in turn whenever the parent's round asks for them; between its turns it blocks on a
pipe. Its ratio is taken to the NumPy of its own process.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np

from .measure import ROOT, Contestant, Report, cpus, timed

Shape = tuple[int, int]
Work = Callable[[], object]


def add_repeatedly(x: Any, n: int) -> Any:
    """What every contestant does: `y = x + 1`, n times."""
    for _ in range(n):
        y = x + 1
    return y


def _torch(shape: Shape, n: int) -> Work:
    import torch

    torch.set_num_threads(cpus())
    x = torch.ones(shape)
    return lambda: add_repeatedly(x, n)


def _jax(shape: Shape, n: int) -> Work:
    import jax

    jax.config.update("jax_platforms", "cpu")
    x = jax.numpy.ones(shape, jax.numpy.float32)
    return lambda: add_repeatedly(x, n).block_until_ready()


def _dask(shape: Shape, n: int) -> Work:
    import dask

    x, add = np.ones(shape, np.float32), dask.delayed(np.add, pure=False)

    def work() -> None:
        for at in range(0, n, 100):  # results live until a batch ends
            dask.compute(*[add(x, 1) for _ in range(min(100, n - at))], scheduler="threads", num_workers=cpus())

    return work


_PEERS: dict[str, tuple[str, Callable[[Shape, int], Work], str]] = {
    "torch": ("PyTorch", _torch, "pip install torch --index-url https://download.pytorch.org/whl/cpu"),
    "jax": ("JAX", _jax, "pip install jax"),
    "dask": ("Dask delayed, threads", _dask, "pip install dask"),
}


class Child:
    """The child process of one peer."""

    def __init__(self, library: str, shape: Shape, n: int) -> None:
        command = [sys.executable, "-m", "bench.peers", library, *map(str, (*shape, n))]
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, who: str) -> float:
        """One round of "numpy" or "peer", in seconds."""
        questions, answers = self._process.stdin, self._process.stdout
        assert questions is not None
        assert answers is not None
        print(who, file=questions, flush=True)
        return float(answers.readline())

    def close(self) -> None:
        self._process.communicate()


def peers(stack: ExitStack, section: str, shape: Shape, n: int, report: Report) -> list[Contestant]:
    """The installed peers with NumPy beside each; `stack` ends their processes."""
    found: list[Contestant] = []
    for library, (title, _, cure) in _PEERS.items():
        if importlib.util.find_spec(library) is None:
            report.notes.append(f"{section} {title}: not installed, skipped (`{cure}`)")
            continue
        ops = max(1, n // 10) if library == "dask" else n  # a hundred times slower: enough is enough
        child = Child(library, shape, ops)
        stack.callback(child.close)
        beside = f"{section} NumPy beside {title}"
        found.append(Contestant(beside, partial(child.ask, "numpy"), ops, to=beside))
        found.append(Contestant(f"{section} {title}", partial(child.ask, "peer"), ops, to=beside))
    return found


def main(library: str, rows: str, columns: str, n: str) -> None:
    """In the child: answer each line of standard input with the seconds of one round."""
    shape = int(rows), int(columns)
    x = np.ones(shape, np.float32)
    peer = _PEERS[library][1](shape, int(n))
    contestants: dict[str, Work] = {"numpy": lambda: add_repeatedly(x, int(n)), "peer": peer}
    for line in sys.stdin:
        print(timed(contestants[line.strip()]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
