"""A producer and consumers with an `asyncio.Queue`, under a limit in bytes, without a deadlock.

The trap: frames in the queue take all bytes, so the consumers wait for room, and the producer waits for the consumers.
Frames differ in size, so `maxsize=` does not help. The cure: each side claims its part before it begins. The `reserve=`
of the producer bounds the queue in bytes, and a consumer's results fit into its own reserve. Both ways are run:

    python demos/producer_consumer.py [FRAMES]
"""

from __future__ import annotations

import asyncio
import sys

if __name__ == "__main__":
    print(__doc__.splitlines()[0], flush=True)  # now, since the imports below take a while

import numpy as np

import asyncsched as asc

LIMIT, AHEAD, WORK, CONSUMERS = "32 MiB", "12 MiB", "9 MiB", 2  # a computation takes two arrays like a frame, of 4 MiB


async def produce(s: asc.Scheduler, queue: asyncio.Queue, frames: list[np.ndarray], ahead: str | None) -> None:
    async with s.scope(name="producer", reserve=ahead):
        for number, frame in enumerate(frames):
            await queue.put((number, await s.put(frame)))  # waits until the frames in the queue leave room
    await asyncio.gather(*[queue.put(None) for _ in range(CONSUMERS)])


async def consume(s: asc.Scheduler, queue: asyncio.Queue, spreads: dict[int, float], work: str | None) -> None:
    async with s.scope(name="consumer", reserve=work):
        while (item := await queue.get()) is not None:
            centred = item[1] - item[1].mean(axis=0)
            spreads[item[0]] = await asc.sqrt((centred * centred).mean()).item()
            del item, centred  # while it waits for the next frame, it holds none


async def run(frames: list[np.ndarray], ahead: str | None, work: str | None) -> None:
    queue, spreads = asyncio.Queue(), dict[int, float]()
    async with asc.Scheduler("cpu", max_bytes=LIMIT) as s, asyncio.TaskGroup() as group:
        group.create_task(produce(s, queue, frames, ahead))
        while not s.load().bytes_pending:  # noqa: ASYNC110  # the consumers come late: the producer waits already
            await asyncio.sleep(0.01)
        for _ in range(CONSUMERS):
            group.create_task(consume(s, queue, spreads, work))
    np.testing.assert_allclose([spreads[n] for n in range(len(frames))], [(x - x.mean(axis=0)).std() for x in frames])
    print(f"with reserves: {len(spreads)} frames, as NumPy has them; peak {s.statistics().peak_bytes / 2**20:.1f} MiB")


if __name__ == "__main__":
    rng, count = np.random.default_rng(0), int(sys.argv[1]) if sys.argv[1:] else 40
    frames = [rng.normal(size=(4096 if n % 3 < 2 else 64 * (1 + n % 7), 128)) for n in range(count)]
    print(f"{sum(frame.nbytes for frame in frames) / 2**20:.1f} MiB of frames under a limit of {LIMIT}")
    try:
        asc.run(run(frames, None, None))
    except* asc.MemoryDeadlockError as stuck:
        print(f"without reserves: {str(stuck.exceptions[0]).splitlines()[0]}")
    asc.run(run(frames, AHEAD, WORK))
