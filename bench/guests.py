"""PyTorch trained as a guest, by the demo's `Guest`, beside PyTorch's own loop: `python -m bench.guests`.

a  the batches are ready in memory; the time of all processors too, which says something on a busy machine
b  they are decoded: JPEGs, in the loop, by DataLoader's worker processes, and by a pipeline's threads; and ready, which
   is what is left when all decoding is hidden

All take turns, an epoch each, in one process, with PyTorch at one thread: of two processors, one is left to decode. The
first epoch, in which workers start and costs are learned, is not counted.
"""

from __future__ import annotations

import asyncio
import atexit
import importlib.util
import json
import os
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, replace
from functools import cache
from time import perf_counter, process_time
from typing import Any

import numpy as np

import asyncsched as asc

from .measure import ROOT, Asked, Contestant, Report, Row, compare, run_bench

NEEDED = ("torch", "PIL", "sklearn")
WORKERS = 2
PROCESSOR = "a processor time"
ASKED = {
    "a asyncsched": Asked(ratio=1.03),
    f"b asyncsched, {WORKERS} threads decode": Asked(ratio=1.0),
}
Batch = tuple[np.ndarray, np.ndarray]


def ready(quick: bool, report: Report) -> None:
    report.rows += _in_a_child("a", 1 if quick else 15)


def decoded(quick: bool, report: Report) -> None:
    report.rows += _in_a_child("b", 1 if quick else 15)


def _in_a_child(section: str, rounds: int) -> list[Row]:
    child = _child()
    assert child.stdin is not None
    assert child.stdout is not None
    print(section, rounds, file=child.stdin, flush=True)
    rows = [Row(**row) for row in json.loads(child.stdout.readline())]
    return [replace(row, asked=ASKED.get(row.name)) for row in rows]


@cache
def _child() -> subprocess.Popen[str]:
    """One for both sections: it takes seconds to load what they need."""
    environment = {k: v for k, v in os.environ.items() if k not in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")}
    command, pipe = [sys.executable, "-m", "bench.guests", "--child"], subprocess.PIPE
    child = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT, env=environment)
    atexit.register(child.communicate)
    return child


# -- in the child -----------------------------------------------------------------------------------------------------


def measured(section: str, rounds: int) -> list[Row]:
    import torch

    torch.set_num_threads(1)
    demo: Any = runpy.run_path(str(ROOT / "demos" / "pytorch_training.py"))
    demo["keep_freed_memory"]()  # for all that take turns
    size = demo["BATCH"]
    files = demo["Files"](2 * size if rounds == 1 else demo["IMAGES"])
    batches = list(_decoding(files, size))
    with asyncio.Runner() as runner:
        if section == "a":
            guest = Guest(demo, runner, lambda s: s.pipeline(batches))
            plain = _plain(demo, lambda: batches)
            ways = {"a plain loop": plain, "a asyncsched": guest.epoch}
            ways |= {
                f"{PROCESSOR}, plain loop": _on_processors(plain),
                f"{PROCESSOR}, asyncsched": _on_processors(guest.epoch),
            }
        else:
            guest = Guest(demo, runner, lambda s: _pipeline(s, files, size))
            loader = _loader(files, size)
            ways = {
                "b plain loop, decodes": _plain(demo, lambda: _decoding(files, size)),
                f"b DataLoader(num_workers={WORKERS})": _plain(demo, lambda: loader),
                f"b asyncsched, {WORKERS} threads decode": guest.epoch,
                "b plain loop, data ready": _plain(demo, lambda: batches),
            }
        to = {f"{PROCESSOR}, asyncsched": f"{PROCESSOR}, plain loop"}
        found = [Contestant(name, way, len(batches), "ms", to.get(name)) for name, way in ways.items()]
        rows = compare(found, rounds)
        runner.run(guest.s.aclose())
    return rows


def _on_processors(way: Callable[[], float]) -> Callable[[], float]:
    """The same in seconds of processors, the event loop's among them: whatever else the machine does."""

    def epoch() -> float:
        began = process_time()
        way()
        return process_time() - began

    return epoch


def _plain(demo: Any, batches: Callable[[], Iterable[Any]]) -> Callable[[], float]:
    """An epoch of PyTorch's own loop, of a module that is trained on and on; in seconds."""
    import torch

    module = demo["network"]()
    optimizer = torch.optim.AdamW(module.parameters(), lr=2e-3)

    def epoch() -> float:
        began = perf_counter()
        for x, y in batches():
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(module(torch.as_tensor(x)), torch.as_tensor(y))
            loss.backward()
            optimizer.step()
            loss.item()
        return perf_counter() - began

    return epoch


class Guest:
    """The same with the demo's tasks."""

    def __init__(self, demo: Any, runner: asyncio.Runner, pipeline: Callable[[asc.Scheduler], Any]) -> None:
        self.runner = runner
        runner.run(self._open(demo, pipeline))

    async def _open(self, demo: Any, pipeline: Callable[[asc.Scheduler], Any]) -> None:
        self.s = await asc.open("cpu", max_bytes="64 MiB")
        self.guest = demo["Guest"](self.s, demo["network"]())
        self.batches = pipeline(self.s).to_device(depth=2)

    def epoch(self) -> float:
        return self.runner.run(self._epoch())

    async def _epoch(self) -> float:
        window, began, losses = self.s.window(2), perf_counter(), []
        async with self.batches.open() as items:
            async for x, y in items:
                async with window:
                    losses.append(await self.guest.step(x, y))
                del x, y
        await asc.gather(*losses)
        return perf_counter() - began


def _decoding(files: Any, size: int) -> Iterator[Batch]:
    for start in range(0, len(files.files), size):
        images, labels = zip(*map(files.example, range(start, start + size)), strict=True)
        yield np.stack(images), np.stack(labels)


def _pipeline(s: asc.Scheduler, files: Any, size: int) -> Any:
    return s.pipeline(range(len(files.files))).map(files.example, workers=WORKERS).batch(size)


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
        for line in sys.stdin:
            section, rounds = line.split()
            print(json.dumps([asdict(row) for row in measured(section, int(rounds))]), flush=True)
    elif missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        print(f"guests: needs {', '.join(missing)}: skipped (`pip install torch pillow scikit-learn`)")
    else:
        run_bench("guests", {"a": ready, "b": decoded})
