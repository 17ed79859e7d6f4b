"""PyTorch as a guest: its modules run as tasks, with the scheduler's bounds, cancellation and errors.

Requests come in faster than a PyTorch module answers them. Each opens a scope that reserves its bytes, so no more
requests are at work than the limit on bytes allows. Requests of callers that gave up are cancelled. A bad input fails
alone, at its own `await`. The event loop goes on ticking, since the module runs on a stream. The answers equal
PyTorch's own.

    python demos/pytorch_guest.py [--requests 400]         needs PyTorch
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from time import perf_counter

if __name__ == "__main__":
    print(__doc__.splitlines()[0], flush=True)  # now, since the imports below take a while

import numpy as np
from tqdm import tqdm

import asyncsched as asc
from asyncsched.devices.cuda import usable

try:
    import torch
except ImportError:
    sys.exit("PyTorch is not installed: pip install torch")

ROWS, WIDTH = 256, 512


async def main(requests: int) -> None:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.GELU(), torch.nn.Linear(4 * WIDTH, WIDTH)]
    where = "cuda" if torch.cuda.is_available() and usable() else "cpu"  # a device that both PyTorch and CuPy have
    module = torch.nn.Sequential(*layers).eval().to(where)
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal((ROWS, WIDTH), np.float32) for _ in range(8)]
    with torch.no_grad():
        expected = [module(torch.from_numpy(x).to(where)).cpu().numpy() for x in inputs]

    async with asc.Scheduler(where, max_ops=4, max_bytes="16 MiB") as s:
        lags: list[float] = []
        ticking = asyncio.create_task(tick(lags))
        wrong = dropped = 0
        began = perf_counter()

        async def request(i: int, bar: tqdm[None]) -> None:
            nonlocal wrong, dropped
            # The most that one request needs, claimed up front: else many could hold an input, and none could get an
            # answer.
            async with s.scope(name=f"request {i}", reserve="4 MiB"):
                x = await s.put(inputs[i % 8])
                own = "2.5 MiB"  # PyTorch's buffers count, too
                answer = await s.submit(module, x, shape=(ROWS, WIDTH), dtype="float32", workspace=own)
                if i % 10 == 9:
                    dropped += answer.cancel()  # a caller that went away
                else:
                    wrong += not np.array_equal(await answer.numpy(), expected[i % 8])
            bar.update()

        with tqdm(total=requests, unit="request", disable=None) as bar:
            async with asyncio.TaskGroup() as group:
                for i in range(requests):
                    group.create_task(request(i, bar))
        seconds = perf_counter() - began
        try:
            await s.call(module, await s.put(np.zeros((1, 3), np.float32)))
        except RuntimeError as error:
            failure = str(error).splitlines()[0]
        ticking.cancel()
        statistics = s.statistics()

    print(f"{requests} requests in {seconds:.2f} s, {wrong} answers differ from PyTorch's, {dropped} cancelled in time")
    print(f"at most {statistics.peak_tasks_in_flight} tasks in flight of {statistics.max_ops} allowed")
    print(f"peak of tracked bytes {statistics.peak_bytes / 2**20:.1f} MiB of {16:.0f} MiB allowed")
    print(f"the event loop ticked every 5 ms with a median lag of {1e3 * np.median(lags):.2f} ms")
    print(f"a bad input failed alone: {failure}")


async def tick(lags: list[float]) -> None:
    """Sleep 5 ms again and again, and note by how much each was too long."""
    while True:
        began = perf_counter()
        await asyncio.sleep(0.005)
        lags.append(perf_counter() - began - 0.005)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=400)
    asyncio.run(main(parser.parse_args().requests))
