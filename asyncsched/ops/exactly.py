"""Asking for the bits of the plain kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_exactly: ContextVar[bool] = ContextVar("asyncsched.exact", default=False)
asked: Callable[[], bool] = _exactly.get  # whether the current context is inside `exact()`


@contextmanager
def exact() -> Iterator[None]:
    """Operations issued inside give the bits of the plain kernels: `with asc.exact():`.

    Outside, a few operations of networks in float32 have a faster kernel (gelu by a quotient; softmax, layer_norm and
    cross_entropy with loops compiled by numba, if that is installed, from when they are compiled on). The table of
    operations says how far each may be off: `TABLE["gelu"].bound`. Large matrix products are cut into parts for
    several streams, which may change their last bits. What decomposes matrices has all threads of BLAS where it runs
    alone, and the last bits depend on how many it has: inside it has those of one stream. In float32, numba compiles
    runs of a captured step too, with an exp and a tanh of its own (`TABLE["exp"].scalar_code`), unless it is captured
    inside; on CUDA such runs are kernels made of CuPy's own expressions (`devices.cuda.fused`), unless it is captured
    inside. (So is there an operation of several elementwise steps, anywhere, with the bits of its steps.) Everything
    else is exact anyway.

    It holds for this context alone: for the coroutine it is used in, and for tasks that one creates inside. Derivatives
    are exact if `backward()` is called inside. It waits for nothing.

    >>> async def main():
    ...     async with asc.Scheduler("cpu") as s:
    ...         x = await s.put(np.ones((2, 2), np.float32))
    ...         with asc.exact():
    ...             return await asc.nn.softmax(x)
    >>> asc.run(main)
    array([[0.5, 0.5],
           [0.5, 0.5]], dtype=float32)
    """
    token = _exactly.set(True)
    try:
        yield
    finally:
        _exactly.reset(token)
