"""CPU and GPU side by side in one program, under one byte budget.

Batches of images come one after another. For each of them:

    on the CPU   bytes become linear light, and each image gets mean 0 and variance 1        a NumPy function, as a task
    on the GPU   the images are projected onto a few directions, and scaled to length 1      a CuPy function, as a task
    on the CPU   the results are added to a running total                                    operators

While the GPU works on one batch, the CPU prepares the next. The program does not say which waits for which: tasks wait
for their inputs, on any device, `to` copies between devices, and both share one limit in bytes. At the end the total is
compared with plain NumPy's. Without a GPU a simulated device takes its place. It computes with NumPy on the event
loop's thread, in an order of its own, and the thread issues nothing meanwhile. So its times say nothing of a GPU, and
nothing overlaps. The picture says so.

    python demos/cpu_and_gpu.py [--batches 60] [--max-bytes "64 MiB"] [--plot cpu_and_gpu.png]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

if __name__ == "__main__":
    print(__doc__.splitlines()[0], flush=True)  # now, since the imports below take a while

import numpy as np
from tqdm import tqdm

import asyncsched as asc
from asyncsched.devices.cuda.device import usable
from asyncsched.devices.sim import SimDevice

IMAGES, PIXELS, DIRECTIONS = 256, 64 * 64 * 3, 128  # sizes of a batch and of an image, number of directions
MIB = 2**20
NO_OVERLAP = "no GPU: a simulated one computes on the event loop's thread, which issues nothing meanwhile: no overlap"


def batches(count: int) -> Iterator[Any]:
    rng = np.random.default_rng(0)
    for _ in range(count):
        yield rng.integers(0, 256, (IMAGES, PIXELS), np.uint8)


def directions() -> Any:
    return np.random.default_rng(1).standard_normal((PIXELS, DIRECTIONS), np.float32)


def prepare(images: Any) -> Any:
    """Bytes to floats, as linear light (sRGB's exponent is about 2.2), of mean 0 and variance 1 image by image."""
    floats = (images / np.float32(255)) ** np.float32(2.2)
    floats -= floats.mean(axis=1, keepdims=True)
    floats /= floats.std(axis=1, keepdims=True)
    return floats


def project(images: Any, onto: Any) -> Any:
    """Unit vectors along the directions. NumPy's arrays or CuPy's: the operators are the same."""
    found = images @ onto
    return found / (found * found).sum(axis=1, keepdims=True) ** 0.5


async def main(count: int, max_bytes: str, plot: str | None) -> None:
    gpu: Any = "cuda:0" if usable() else SimDevice(name="simulated")
    if not usable():
        print("No GPU here: a simulated device takes its place. `python -m asyncsched` says what is missing.")
        print("It shows that the answers are right, and that the limit is kept. Only a real GPU can show overlap.\n")
    async with asc.Scheduler([gpu, "cpu"], max_bytes=max_bytes) as s:
        lanes = [Lane(device) for device in s.devices]
        started = perf_counter()
        total = await run(s, lanes, count)
        seconds, statistics = perf_counter() - started, s.statistics()

    expected, alone = eager(count)
    wrong = float(np.abs(total - expected).max())
    assert wrong < 1e-2, f"the total differs by {wrong}"
    table(lanes, seconds)
    print(f"\npeak tracked: {statistics.peak_bytes / MIB:.1f} MiB on both, of {max_bytes}")
    print(f"{seconds:.2f} s; plain NumPy, one step after the other: {alone:.2f} s; the totals differ by {wrong:.1e}")
    if plot:
        draw(lanes, plot, simulated=not usable())
        print(f"plot: {plot}")


async def run(s: asc.Scheduler, lanes: list[Lane], count: int) -> Any:
    """The running total over all batches, on the host."""
    gpu, cpu = s.devices
    on_gpu, on_cpu = lanes
    onto = await s.put(directions(), device=gpu)
    total = await s.put(np.zeros(DIRECTIONS, np.float32), device=cpu)
    window = s.window(3)  # while one batch is on the GPU, another is prepared, and a third is made
    for images in tqdm(batches(count), total=count, unit="batch", disable=None):
        async with window:
            raw = await s.put(images, device=cpu)
            ready = await s.submit(on_cpu.timed(prepare), raw, shape=raw.shape, dtype="float32", device=cpu)
            found = await s.submit(
                on_gpu.timed(project), ready.to(gpu), onto, shape=(IMAGES, DIRECTIONS), dtype="float32", device=gpu
            )
            total = total + found.to(cpu).sum(axis=0)
    return await total.numpy()


def eager(count: int) -> tuple[Any, float]:
    """The same with plain NumPy, and the seconds that it takes."""
    started, onto = perf_counter(), directions()
    total = np.zeros(DIRECTIONS, np.float32)
    for images in batches(count):
        total += project(prepare(images), onto).sum(axis=0)
    return total, perf_counter() - started


class Lane:
    """When the functions of one device ran: by the host's clock on the CPU, by CUDA events on a GPU."""

    def __init__(self, device: asc.Device) -> None:
        self.name = device.name
        self._clock: type[HostClock] = EventClock if device.kind == "cuda" else HostClock
        self._origin = self._clock(device)
        self._spans: list[tuple[Any, Any]] = []

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arrays: Any) -> Any:
            begin = self._clock()
            result = function(*arrays)
            self._spans.append((begin, self._clock()))
            return result

        return run

    @property
    def spans(self) -> list[tuple[float, float]]:
        """Beginnings and ends, in seconds."""
        return sorted((self._origin.until(begin), self._origin.until(end)) for begin, end in self._spans)


class HostClock:
    """A point in time, here and now."""

    def __init__(self, device: Any = None) -> None:
        self._now = perf_counter()

    def until(self, other: Any) -> float:
        return float(other._now - self._now)


class EventClock(HostClock):
    """A point in the current stream. No task records the origin: it is a point of the given device."""

    def __init__(self, device: Any = None) -> None:
        import cupy

        self._cuda = cupy.cuda
        self._event = cupy.cuda.Event()
        self._event.record(device.streams[0].cuda if device else None)

    def until(self, other: Any) -> float:
        return float(self._cuda.get_elapsed_time(self._event, other._event)) / 1e3


def table(lanes: list[Lane], seconds: float) -> None:
    print(f"{'device':12}{'tasks':>8}{'busy':>12}{'of the time':>14}")
    for lane in reversed(lanes):
        busy = sum(end - begin for begin, end in lane.spans)
        print(f"{lane.name:12}{len(lane.spans):8}{busy:10.3f} s{busy / seconds:14.0%}")


def draw(lanes: list[Lane], path: str, *, simulated: bool) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(11, 2.9), layout="constrained")
    for row, lane in enumerate(lanes):
        spans = [(begin, end - begin) for begin, end in lane.spans]
        axes.broken_barh(spans, (row - 0.35, 0.7), facecolor=f"C{row}", edgecolor="white", linewidth=0.6)
    axes.set_yticks(
        range(len(lanes)), [f"{lane.name}: {what}" for lane, what in zip(lanes, ("project", "prepare"), strict=True)]
    )
    figure.suptitle("the times of both devices, a bar for each batch")
    if simulated:
        axes.set_title(NO_OVERLAP, color="tab:red", fontsize="medium")
    axes.set(xlabel="time (s)", xlim=0)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=60, help="how many (default %(default)s)")
    parser.add_argument("--max-bytes", default="64 MiB", metavar="SIZE", help="for both devices (default %(default)s)")
    parser.add_argument("--plot", metavar="PATH", help="write a timeline as a PNG")
    options = parser.parse_args()
    asc.run(main(options.batches, options.max_bytes, options.plot))
