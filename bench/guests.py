"""PyTorch trained as a guest, by the demo's `Guest`, beside PyTorch's own loop: in turn, an epoch each.

First the batches are ready in memory, also with the time of all processors, which means something on a busy machine,
too. Then they are JPEGs, which are decoded in the loop, by DataLoader's worker processes, or by a pipeline's threads.
"data ready" is the time that is left if all decoding is hidden. PyTorch has one thread: of two processors, one is left
to decode.
"""

from __future__ import annotations

import runpy
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from time import process_time
from typing import Any

import numpy as np

from .harness.contestant import Run, Work
from .harness.rows import ROOT, Row, Target, ours
from .libraries import Library

WORKERS = 2
Batch = tuple[np.ndarray, np.ndarray]


@cache
def demo() -> dict[str, Any]:
    found: dict[str, Any] = runpy.run_path(str(ROOT / "demos" / "pytorch_training.py"))
    found["keep_freed_memory"]()  # for all turns
    return found


@cache
def files(quick: bool) -> Any:
    return demo()["Files"](2 * demo()["BATCH"] if quick else demo()["IMAGES"])


@cache
def in_memory(quick: bool) -> list[Batch]:
    return list(decoding(files(quick)))


def decoding(files: Any) -> Iterator[Batch]:
    for start in range(0, len(files.files), demo()["BATCH"]):
        images, labels = zip(*map(files.example, range(start, start + demo()["BATCH"])), strict=True)
        yield np.stack(images), np.stack(labels)


def loading(files: Any) -> Any:
    from torch.utils.data import DataLoader, default_collate

    def decoded(chosen: list[int]) -> Any:
        return default_collate([files.example(i) for i in chosen])

    chosen: Any = range(len(files.files))
    return DataLoader(chosen, demo()["BATCH"], collate_fn=decoded, num_workers=WORKERS, persistent_workers=True)


async def plain(library: Library, n: int, *, batches: Callable[[bool], Callable[[], Iterable[Any]]]) -> Run:
    """Epochs of PyTorch's own loop, which go on training one module: seconds for a batch."""
    torch, each = library.xp, batches(library.quick)
    module = demo()["network"]()
    optimizer = torch.optim.AdamW(module.parameters(), lr=2e-3)

    async def run(count: int) -> None:
        for _ in range(count):
            for x, y in each():
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(module(torch.as_tensor(x)), torch.as_tensor(y))
                loss.backward()
                optimizer.step()
                loss.item()

    return run


async def guest(library: Library, n: int, *, decode: bool) -> Run:
    """The same with the demo's tasks."""
    import asyncsched as asc

    s = await asc.open("cpu", max_bytes="64 MiB")  # it ends with the process
    given: Any = s.pipeline(in_memory(library.quick))
    if decode:
        found = files(library.quick)
        given = s.pipeline(range(len(found.files))).map(found.example, workers=WORKERS).batch(demo()["BATCH"])
    module, batches, window = demo()["Guest"](s, demo()["network"]()), given.to_device(depth=2), s.window(2)

    async def run(count: int) -> None:
        for _ in range(count):
            losses = []
            async with batches.open() as items:
                async for x, y in items:
                    async with window:
                        losses.append(await module.step(x, y))
                    del x, y
            await asc.gather(*losses)

    return run


_BATCHES = 10
_READY = partial(plain, batches=lambda quick: lambda: in_memory(quick))
_GUEST = partial(guest, decode=False)
WORKS: dict[str, Work] = {
    "plain, ready": Work(_READY, _BATCHES, 2),
    "plain, decodes": Work(partial(plain, batches=lambda quick: lambda: decoding(files(quick))), _BATCHES, 2),
    "plain, DataLoader": Work(partial(plain, batches=lambda quick: partial(iter, loading(files(quick)))), _BATCHES, 2),
    "guest, ready": Work(_GUEST, _BATCHES, 2),
    "guest, decodes": Work(partial(guest, decode=True), _BATCHES, 2),
    "processors, plain": Work(_READY, _BATCHES, 2, clock=process_time),
    "processors, guest": Work(_GUEST, _BATCHES, 2, clock=process_time),
}


def _row(key: str, title: str, works: dict[str, str], targets: dict[str, Target]) -> Row:
    return Row(key, title, "ms", {column: ("guest", f"guests.{work}") for column, work in works.items()}, targets)


_READY_BY = {"plain loop": "plain, ready", "asyncsched": "guest, ready"}
_PROCESSORS = {"plain loop": "processors, plain", "asyncsched": "processors, guest"}
_DECODED = {"plain loop": "plain, decodes", f"DataLoader(num_workers={WORKERS})": "plain, DataLoader"}
_DECODED |= {"asyncsched": "guest, decodes", "data ready": "plain, ready"}
ROWS = (
    _row("ready", "a batch, ready in memory", _READY_BY, ours(1.03, "tasks cost little beside a step")),
    _row("processors", "a batch, ready in memory: time of all processors", _PROCESSORS, {}),
    _row("decoded", "a batch, decoded", _DECODED, ours(1, "decoding is hidden beside the steps")),
)
