"""PyTorch trained as a guest, by the demo's `Guest`, beside PyTorch's own loop: `python -m bench.guests`.

a  the batches are ready in memory
b  they are decoded: JPEGs, in the loop, by DataLoader's worker processes, and by a pipeline's threads; and ready, which
   is what is left when all decoding is hidden

Each turn is a process of its own, with PyTorch at one thread: of two processors, one is left to decode. The first
epoch, in which workers start and costs are learned, is not counted.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import runpy
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

import asyncsched as asc

from .measure import ROOT, Asked, Contestant, Report, compare, run_bench

NEEDED = ("torch", "PIL", "sklearn")
WORKERS = 2
Batch = tuple[np.ndarray, np.ndarray]


def ready(quick: bool, report: Report) -> None:
    report.rows += compare(
        [
            _contestant("a plain loop", "plain-ready", quick),
            _contestant("a asyncsched", "guest-ready", quick, Asked(ratio=1.03)),
        ],
        1 if quick else 9,
    )


def decoded(quick: bool, report: Report) -> None:
    found = [
        _contestant("b plain loop, decodes", "plain-decoded", quick),
        _contestant(f"b DataLoader(num_workers={WORKERS})", "loader-decoded", quick),
        _contestant(f"b asyncsched, {WORKERS} threads decode", "guest-decoded", quick, Asked(ratio=1.0)),
        _contestant("b plain loop, data ready", "plain-ready", quick),
    ]
    report.rows += compare(found, 1 if quick else 7)


def _contestant(name: str, way: str, quick: bool, asked: Asked | None = None) -> Contestant:
    return Contestant(name, partial(_in_a_child, way, 1 if quick else 5), 1, "ms", asked=asked)


def _in_a_child(way: str, epochs: int) -> float:
    """Seconds of a step."""
    environment = {k: v for k, v in os.environ.items() if k not in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")}
    command = [sys.executable, "-m", "bench.guests", "--child", way, str(epochs)]
    return float(subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=ROOT, env=environment).stdout)


# -- in a child -------------------------------------------------------------------------------------------------------


def measured(way: str, epochs: int) -> float:
    """Seconds of a step, after the first epoch."""
    import torch

    torch.set_num_threads(1)
    demo: Any = runpy.run_path(str(ROOT / "demos" / "pytorch_training.py"))
    files = demo["Files"]()
    batches = _stacked(files, demo["BATCH"]) if way.endswith("ready") else None
    if way.startswith("guest"):
        return asyncio.run(_guest(demo, files, batches, epochs))
    module = demo["network"]()
    optimizer = torch.optim.AdamW(module.parameters(), lr=2e-3)
    loader = _loader(files, demo["BATCH"]) if way.startswith("loader") else None
    began, steps = 0.0, 0
    for epoch in range(1 + epochs):
        if epoch == 1:
            began, steps = perf_counter(), 0
        for x, y in loader or batches or _decoding(files, demo["BATCH"]):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(module(torch.as_tensor(x)), torch.as_tensor(y)).backward()
            optimizer.step()
            steps += 1
    return (perf_counter() - began) / steps


async def _guest(demo: Any, files: Any, batches: list[Batch] | None, epochs: int) -> float:
    async with asc.Scheduler("cpu", max_bytes="64 MiB") as s:
        guest, window = demo["Guest"](s, demo["network"]()), s.window(2)
        if batches is None:
            pipe = s.pipeline(range(len(files.files))).map(files.example, workers=WORKERS).batch(demo["BATCH"])
        else:
            pipe = s.pipeline(batches)
        ahead, began, steps = pipe.to_device(depth=2), 0.0, 0
        for epoch in range(1 + epochs):
            if epoch == 1:
                began, steps = perf_counter(), 0
            async with ahead.open() as items:
                async for x, y in items:
                    async with window:
                        await guest.step(x, y)
                    del x, y
                    steps += 1
            await s.barrier()
        return (perf_counter() - began) / steps


def _decoding(files: Any, size: int) -> Iterator[Batch]:
    for start in range(0, len(files.files), size):
        images, labels = zip(*map(files.example, range(start, start + size)), strict=True)
        yield np.stack(images), np.stack(labels)


def _stacked(files: Any, size: int) -> list[Batch]:
    return list(_decoding(files, size))


def _loader(files: Any, size: int) -> Any:
    from torch.utils.data import DataLoader

    class Examples:
        def __len__(self) -> int:
            return len(files.files)

        def __getitem__(self, i: int) -> Any:
            return files.example(i)

    return DataLoader(Examples(), size, num_workers=WORKERS, persistent_workers=True)  # type: ignore[arg-type]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        print(measured(sys.argv[2], int(sys.argv[3])))
    elif missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        print(f"guests: needs {', '.join(missing)}: skipped (`pip install torch pillow scikit-learn`)")
    else:
        run_bench("guests", {"a": ready, "b": decoded})
