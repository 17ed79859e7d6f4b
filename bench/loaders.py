"""Loaders of data sets: an epoch of 2,048 images by index, in a random order, decoded in two threads, in batches of 64.

Decoding is simulated: it draws an image of 64 x 64 x 3 bytes and converts it to float32, some 0.1 ms. Each library is
used as its guide says. Then the memory of an epoch. Then an epoch is stopped behind each of its batches, and resumed
from its saved state: the number of places from which it gives other batches than an unbroken epoch.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from functools import partial
from time import process_time
from typing import Any

import numpy as np

from .harness.contestant import Run, Work
from .harness.rows import OURS, Cell, Row, ours
from .libraries import Library
from .perceptron import new_peak, resident

IMAGES, BATCH, SEED = 2048, 64, 0
Batches = AsyncIterator[tuple[Any, Callable[[], Any]]]  # each with the function that saves the place behind it


def decode(number: int) -> tuple[Any, int]:
    """An image and its number."""
    image = np.random.default_rng(int(number)).integers(0, 256, (64, 64, 3), np.uint8)
    return image.astype(np.float32) / 255, int(number)


def stacked(items: list[tuple[Any, int]]) -> tuple[Any, Any]:
    images, numbers = zip(*items, strict=True)
    return np.stack(images), np.array(numbers)


def order(n: int) -> Any:
    return np.random.default_rng(SEED).permutation(n)


async def asyncsched(library: Any, n: int, state: Any) -> Batches:
    pipe = library.s.pipeline(range(n), order=lambda epoch: order(n)).map(decode, workers=2).batch(BATCH)
    if state is not None:
        pipe.load_state_dict(state)
    async with pipe.open() as batches:
        async for batch in batches:
            yield batch, pipe.state_dict


async def torchdata(library: Any, n: int, state: Any) -> Batches:
    from torchdata import nodes

    node: Any = nodes.MapStyleWrapper(range(n), order(n).tolist())
    node = nodes.ParallelMapper(node, decode, num_workers=2, method="thread")
    loader = nodes.Loader(nodes.Prefetcher(nodes.Mapper(nodes.Batcher(node, BATCH, drop_last=False), stacked), 2))
    if state is not None:
        loader.load_state_dict(state)
    for batch in loader:
        yield batch, loader.state_dict


async def grain(library: Any, n: int, state: Any) -> Batches:
    import grain

    items = grain.MapDataset.source(range(n)).shuffle(seed=SEED).map(decode).batch(BATCH, batch_fn=stacked)
    batches = iter(items.to_iter_dataset(grain.ReadOptions(num_threads=2, prefetch_buffer_size=4)))
    if state is not None:
        batches.set_state(state)
    for batch in batches:
        yield batch, batches.get_state


async def spdl(library: Any, n: int, state: Any) -> Batches:
    from spdl.pipeline import PipelineBuilder

    if state is not None:
        raise NotImplementedError("its pipelines have no state to save")
    built = PipelineBuilder().add_source(order(n).tolist()).pipe(decode, concurrency=2).aggregate(BATCH)
    pipe = built.pipe(stacked).add_sink(2).build(num_threads=3)
    with pipe.auto_stop():
        for batch in pipe:
            yield batch, dict


LOADERS = {"torchdata": torchdata, "SPDL": spdl, "grain": grain, OURS: asyncsched}


async def epochs(library: Library, n: int, *, loader: Callable[..., Batches], peak: bool = False) -> Run:
    """Whole epochs; or the bytes by which the process grows in one, after its imports."""

    async def run(count: int) -> float | None:
        if peak:
            [_ async for _ in loader(library, BATCH, None)]
        before = new_peak() if peak else 0
        for _ in range(count):
            assert sum([len(numbers) async for (_, numbers), _ in loader(library, n, None)]) == n
        return float(resident("VmHWM") - before) if peak else None

    return run


async def resumed(library: Library, n: int, *, loader: Callable[..., Batches]) -> Run:
    """The number of places in an epoch behind which other batches come."""

    async def run(count: int) -> float:
        found = [(numbers.tolist(), save()) async for (_, numbers), save in loader(library, n, None)]
        wrong = 0.0
        for place, (_, state) in enumerate(found[:-1], 1):  # behind the last batch some libraries begin anew
            rest = [numbers.tolist() async for (_, numbers), _ in loader(library, n, state)]
            wrong += rest != [numbers for numbers, _ in found[place:]]
        return wrong

    return run


WORKS = {
    f"{kind} {name}": work
    for name, loader in LOADERS.items()
    for kind, work in {
        "epoch": Work(partial(epochs, loader=loader), IMAGES, 2 * BATCH),
        "processors": Work(partial(epochs, loader=loader), IMAGES, 2 * BATCH, clock=process_time),
        "peak": Work(partial(epochs, loader=loader, peak=True), IMAGES, 2 * BATCH, once=True),
        "resumed": Work(partial(resumed, loader=loader), 4 * BATCH, 2 * BATCH, once=True),
    }.items()
}


def _cells(kind: str) -> dict[str, Cell]:
    return {name: (name if name == OURS else f"loaders {name}", f"loaders.{kind} {name}") for name in LOADERS}


_AHEAD, _EXACT = ours(1, "ahead of torchdata"), ours(0, "exact", absolute=True)
ROWS = (
    Row("epoch", "an image, of an epoch", "us", _cells("epoch"), _AHEAD),
    Row("processors", "processor time of an image", "us", _cells("processors"), _AHEAD),
    Row("peak", "by which an epoch grows the process", "MiB", _cells("peak"), _AHEAD, fresh=True),
    Row("resumed", "places from which a resumed epoch goes on otherwise", "count", _cells("resumed"), _EXACT),
)
