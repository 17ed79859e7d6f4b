"""Every way to wait for a result, and every way that is refused.

`await` is the only barrier. The first part times each kind of barrier: on everything, on one tensor, on the first of
ten, on a NumPy array, on a scalar. The second part tries operations that would wait in silence, and prints the
refusals.

    python demos/barriers.py [--size 1000]
"""

from __future__ import annotations

import argparse
import operator
from collections.abc import Awaitable, Callable
from time import perf_counter

if __name__ == "__main__":
    print(__doc__.splitlines()[0], flush=True)  # now, since the imports below take a while

import numpy as np

import asyncsched as asc

QUEUED = 10


async def main(size: int) -> None:
    host = np.random.default_rng(0).standard_normal((size, size), np.float32) / np.float32(size**0.5)
    async with asc.Scheduler() as s:
        x = await s.put(host)
        products(x)
        await s.barrier()  # warm up: BLAS's threads, the first buffers
        await explicit_barriers(s, x)
        await implicit_barriers(x)


def products(x: asc.Tensor) -> list[asc.Tensor]:
    """x @ x, x @ x @ x and so on: each product needs the one before. Returns before the first is computed."""
    chain = [x @ x]
    while len(chain) < QUEUED:
        chain.append(chain[-1] @ x)
    return chain


async def explicit_barriers(s: asc.Scheduler, x: asc.Tensor) -> None:
    print(f"{QUEUED} products of {x.shape[0]} x {x.shape[1]} matrices are queued, then a barrier\n")
    print(f"{'':44}{'issuing':>10}  {'waiting':>10}  done when it returned")
    await timed("on everything: await s.barrier()", x, lambda chain: s.barrier())
    await timed("on the last tensor: await chain[-1]", x, lambda chain: chain[-1])
    await timed("on the first: await chain[0]", x, lambda chain: chain[0])
    await timed("to NumPy: await chain[-1].numpy()", x, lambda chain: chain[-1].numpy())
    await timed("to a scalar: await chain[-1].sum().item()", x, lambda chain: chain[-1].sum().item())
    await s.barrier()


async def timed(what: str, x: asc.Tensor, barrier: Callable[[list[asc.Tensor]], Awaitable[object]]) -> None:
    """Queue the products, wait at the barrier, and print the times, how many products were done, and the type of the
    result."""
    await asc.gather(*products(x))  # no products are left over from the row before
    start = perf_counter()
    chain = products(x)
    issued = perf_counter()
    got = await barrier(chain)
    end = perf_counter()
    done = sum(t.done() for t in chain)
    kind = f"{type(got).__name__} {got.shape}" if hasattr(got, "shape") else repr(got)
    times = f"{(issued - start) * 1e3:7.2f} ms  {(end - issued) * 1e3:7.2f} ms"
    print(f"{what:44}{times}  {done:2} of {QUEUED}, gave {kind}")


async def implicit_barriers(x: asc.Tensor) -> None:
    """Try questions that Python and NumPy could answer only by waiting: they are refused. A length is refused only at
    first."""
    vector = products(x)[-1][0]  # pending for a while
    total, count = vector.sum(), (vector > 0).sum()
    chosen = vector[vector > 0]  # its length depends on data
    attempts: list[tuple[str, Callable[[], object]]] = [
        ("if total > 0:", lambda: bool(total > 0)),
        ("total in (1.0, 2.0)", lambda: total in (1.0, 2.0)),
        ("float(total)", lambda: float(total)),
        ("int(total)", lambda: int(total)),
        ("complex(total)", lambda: complex(total)),
        ("operator.index(count)", lambda: operator.index(count)),
        ("range(count)", lambda: range(count)),
        ("f'{total:.3f}'", lambda: f"{total:.3f}"),
        ("np.asarray(vector)", lambda: np.asarray(vector)),
        ("np.exp(vector)", lambda: np.exp(vector)),
        ("vector.tolist()", vector.tolist),
        ("len(chosen)", lambda: len(chosen)),
    ]
    print("\nRefused, since the event loop would stand still\n")
    for text, attempt in attempts:
        attempted(text, attempt)
    print("\nNever waits\n")
    print(f"{'repr(chosen)':24}{chosen!r}")
    print(f"{'len(vector)':24}{len(vector)}")
    await asc.gather(total, chosen)
    print("\nOnce they are computed\n")
    attempted("float(total)", lambda: float(total))
    attempted("len(chosen)", lambda: len(chosen))
    print(f"{'await total.item()':24}{await total.item()}")


def attempted(text: str, attempt: Callable[[], object]) -> None:
    try:
        print(f"{text:24}{attempt()!r}")
    except asc.ImplicitBarrierError as error:
        print(f"{text:24}{type(error).__name__}: {error}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=1000, help="rows and columns of the matrices (default %(default)s)")
    size = parser.parse_args().size
    asc.run(main(size))
