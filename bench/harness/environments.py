"""The interpreter of each peer: this one if the peer is installed here, else one in an environment of its own.

An environment is made once, under `ASYNCSCHED_BENCH_CACHE` (by default `asyncsched/bench` in the user's cache), and
used again as long as its packages stay the same.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from .rows import Unavailable

_OURS = ("numpy>=2.1", "anyio>=4.10", "threadpoolctl>=3.5")


@dataclass(frozen=True)
class Needs:
    """The name by which a peer is imported, its packages for pip, and the only Pythons for which it has wheels."""

    module: str
    packages: tuple[str, ...] = ()
    python: tuple[tuple[int, int], ...] = ()


# Versions are as exact as the wheels demand: others of PyTorch bring gigabytes of CUDA, MXNet needs an old NumPy.
NEEDS = {
    "numpy": Needs("numpy"),
    "torch": Needs("torch", ("torch==2.13.0", "numpy")),
    "jax": Needs("jax", ("jax",)),
    "mxnet": Needs("mxnet", ("mxnet==1.9.1", "numpy==1.23.5"), ((3, 8), (3, 9), (3, 10), (3, 11))),
    "dask": Needs("dask", ("dask", "numpy")),
    "distributed": Needs("distributed", ("dask", "distributed", "numpy")),
    "ray": Needs("ray", ("ray", "numpy"), tuple((3, minor) for minor in range(10, 14))),
    "numba": Needs("numba", (*_OURS, "numba")),
    "loaders": Needs("grain", ("torch==2.13.0", "torchdata", "spdl", "grain", "numpy")),
    "litserve": Needs("litserve", ("litserve>=0.2.12", *_OURS)),
    "guest": Needs("torch", ("torch==2.13.0", *_OURS, "pillow", "scikit-learn", "tqdm")),
}


@cache
def python_for(peer: str, *, install: bool = True) -> str:
    """The interpreter that has a peer. Raises Unavailable, with the reason."""
    needs = NEEDS[peer]
    if importlib.util.find_spec(needs.module) is not None:
        return sys.executable
    found = _folder(needs)
    interpreter = found / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if (found / "complete").exists():
        return str(interpreter)
    if needs.python and sys.version_info[:2] not in needs.python:
        raise Unavailable(f"no wheels for Python {sys.version_info[0]}.{sys.version_info[1]}")
    if not install:
        raise Unavailable(f"not installed (`pip install {' '.join(needs.packages)}`)")
    print(f"{peer}: making an environment, once ...", file=sys.stderr, flush=True)
    _run([sys.executable, "-m", "venv", "--clear", str(found)])
    _run([str(interpreter), "-m", "pip", "install", "-q", "--disable-pip-version-check", *needs.packages])
    _run([str(interpreter), "-c", f"import {needs.module}"])
    (found / "complete").touch()
    return str(interpreter)


def _folder(needs: Needs) -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    root = os.environ.get("ASYNCSCHED_BENCH_CACHE") or Path(base) / "asyncsched" / "bench"
    wanted = f"{sys.version_info[:2]} {needs.packages}".encode()
    return Path(root) / f"{needs.module}-{hashlib.sha256(wanted).hexdigest()[:8]}"


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        said = next((line for line in reversed(lines) if "ERROR" in line or "Error" in line), "no reason given")
        raise Unavailable(f"would not install: {said.strip()}")
