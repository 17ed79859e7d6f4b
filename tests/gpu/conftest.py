"""Tests of a CUDA device, each twice: on the card, and on the fake CuPy, which shows that the tests are sound.

`pytest -m gpu` runs them on the card, and skips them with a reason where there is none. Where there is a card those on
the fake are skipped: two modules called `cupy` do not go together in one process.
"""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, ClassVar

import numpy as np
import pytest

import asyncsched as asc
from asyncsched.devices.cuda.device import usable
from tests.cuda_host.runtime import loaded
from tests.fake_cupy import Fake, fake_cupy
from tests.waiting import until

# Else CUDA loads a kernel when it is first launched, and may wait for the device then: within a spin that would be for
# its end.
os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")
NONE = "no CUDA device that CuPy can use: `python -m asyncsched` says what is missing"


# Waits for the host, but not for ever: some seconds at any clock.
SPIN = """
extern "C" __global__ void spin(unsigned long long flag) {
    volatile int* set = (volatile int*) flag;
    for (long long start = clock64(); !*set && clock64() - start < 20000000000LL; ) { }
}
"""


TAKES_MEMORY = {"cudaMalloc", "cudaHostAlloc"}
# What waits for the device in host memory, as far as threads that watch for the end of work, or free memory of a
# scheduler that closed before, do not call it.
WAITS = {
    "cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaMemcpy", "cudaMemcpyAsync to pageable",
    "cudaMemcpyAsync from pageable",
}  # fmt: skip


async def issued(s: asc.Scheduler, unless: Callable[[], object] = bool) -> None:
    """All that was submitted is on its stream, unless something holds."""
    streams = s.devices[0].streams  # type: ignore[attr-defined]

    def over() -> bool:
        return not s.statistics().tasks_pending and all(stream.issued.count == stream.launched for stream in streams)

    await until(lambda: over() or unless())


def graphs_of(s: asc.Scheduler) -> list[Any]:
    """The graphs of captured steps that a scheduler's first device has."""
    return list(s.devices[0]._graphs)  # type: ignore[attr-defined]


def recorded(s: asc.Scheduler) -> list[bool]:
    """Whether each of them is recorded, so that it is replayed. A card tells nobody."""
    return [graph._recorded is not None for graph in graphs_of(s)]


class Card:
    """What the tests run on: a real card, or a fake one.

    Made where no loop runs: compiling a kernel reads and writes files.

    Args:
        fake: the fake, if it is one.
    """

    # What spins may still look at: memory that was given back would be the next one's flag, which arms it anew.
    _flags: ClassVar[list[Any]] = []

    def __init__(self, fake: Fake | None) -> None:
        self.fake = fake
        if fake is None:
            import cupy

            self._spin = cupy.RawKernel(SPIN, "spin")
            self._spin.compile()
            ones = cupy.ones((64, 64), np.float32)  # kernels that tests launch within a spin are loaded before
            for function in (lambda: ones + 1, lambda: ones * 10, lambda: ones.sum(), ones.copy, ones.get):
                function()

    def pick(self, real: int, fake: int) -> int:
        """How large to make something."""
        return real if self.fake is None else fake

    @contextmanager
    def held(self, s: asc.Scheduler) -> Iterator[None]:
        """Within, what is launched on the scheduler's compute streams does not begin."""
        if self.fake is not None:
            with self.fake.pause():
                yield
            return
        with self.busy([stream.cuda for device in s.devices for stream in device.streams]):  # type: ignore[attr-defined]
            yield

    @contextmanager
    def busy(self, streams: list[Any]) -> Iterator[None]:
        """Within, what is launched on these streams of the current device, or of their own, does not begin."""
        if self.fake is not None:
            with ExitStack() as stack:
                for stream in streams:
                    stack.enter_context(self.fake.hold(stream))
                yield
            return
        import cupy

        flag = np.frombuffer(cupy.cuda.alloc_pinned_memory(8), np.int32, 2)
        flag[:] = 0
        self._flags.append(flag)
        for stream in streams:
            with cupy.cuda.Device(max(stream.device_id, 0)), stream:
                self._spin((1,), (1,), (np.uint64(flag.ctypes.data),))
        try:
            yield
        finally:
            flag[:] = 1

    @contextmanager
    def waits(self) -> Iterator[Callable[[], set[str]]]:
        """Says by what a stream's issuing thread has waited for the device within; nothing on a real card."""
        host = loaded() if self.fake is None else None
        if host is not None:
            host.reset()
        before = Counter(self.fake.blocking if self.fake is not None else ())

        def waited() -> set[str]:
            if host is not None:
                return WAITS & host.calls().others.keys()
            now = Counter(self.fake.blocking if self.fake is not None else ()) - before
            return {what for thread, what in now if thread == "issuer" and what not in TAKES_MEMORY}

        yield waited

    def stream(self, **options: Any) -> Any:
        """A user's stream."""
        import cupy

        stream = cupy.cuda.Stream(**options)
        self.forgive()
        return stream

    def forgive(self) -> None:
        """The null stream and blocking ones are for users alone, as here."""
        if self.fake is not None:
            self.fake.default_stream_launches.clear()
            self.fake.blocking_streams.clear()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`ASYNCSCHED_PART=3/14` runs the fourth of fourteen parts. Neighbours go to different ones."""
    part, _, parts = os.environ.get("ASYNCSCHED_PART", "0/1").partition("/")
    items[:] = items[int(part) :: int(parts)]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """One line of what was asked for on a card, and not checked."""
    if config.option.markexpr == "gpu":
        skipped = [report for report in terminalreporter.stats.get("skipped", []) if "tests/gpu/" in report.nodeid]
        reasons = sorted({report.longrepr[2].removeprefix("Skipped: ") for report in skipped})
        terminalreporter.line(f"not checked: {'; '.join(reasons) or 'nothing was skipped'}")


@pytest.fixture(scope="session")
def has_card() -> bool:
    return usable()


@pytest.fixture(params=[pytest.param("card", marks=pytest.mark.gpu), "fake"])
def card(request: pytest.FixtureRequest, has_card: bool) -> Iterator[Card]:
    if request.param == "card":
        if not has_card:
            pytest.skip(NONE)
        yield Card(None)
        return
    if has_card:
        pytest.skip("these run on the card here: pytest -m gpu")
    with fake_cupy(seed=1, devices=2, memory=4 << 30, laziness=0.02) as fake:
        yield Card(fake)
        gc.collect()
        assert fake.problems() == []


@pytest.fixture
async def s(card: Card) -> AsyncIterator[asc.Scheduler]:
    """A scheduler on it."""
    async with asc.Scheduler("cuda") as s:
        yield s


@pytest.fixture
def peers(card: Card) -> None:
    """Two devices."""
    import cupy

    if card.fake is None and cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("needs two CUDA devices")
