"""Switching to the bits of the plain kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextvars import ContextVar

from .._blocks import contextmanager
from .._generators import Mark

_exactly: ContextVar[tuple[Mark, ...]] = ContextVar("asyncsched.exact", default=())

# Those that the current context is inside of: true if there is one.
asked: Callable[[], tuple[Mark, ...]] = _exactly.get


@contextmanager
def exact() -> Iterator[None]:
    """Make operations issued inside the block give the bits of the plain kernels: `with asc.exact():`.

    Outside of it

    - a few operations of networks in float32 have a faster kernel: gelu by a quotient; softmax, layer_norm and
      cross_entropy by loops that numba compiles, if it is installed, once they are compiled. `TABLE["gelu"].bound` says
      how far results may differ, as for each operation;
    - large matrix products are cut into parts for several streams, which may change their last bits;
    - a matrix decomposition that runs alone uses all BLAS threads, whose number may change its last bits; inside it
      uses those of one stream;
    - numba compiles float32 runs of a captured step with an exp and a tanh of its own (`TABLE["exp"].scalar_code`). On
      CUDA such runs are kernels made from CuPy's own expressions (`devices.cuda.fused`). To prevent both, capture the
      step inside. (On CUDA, an operation of several elementwise steps is such a kernel everywhere, with the bits of its
      steps.)

    All other operations are always exact.

    It holds only for this context: for the coroutine that uses it, and for tasks created inside. Derivatives are exact
    if `backward()` is called inside. It waits for nothing.

    >>> async def main():
    ...     async with asc.Scheduler("cpu") as s:
    ...         x = await s.put(np.ones((2, 2), np.float32))
    ...         with asc.exact():
    ...             return await asc.nn.softmax(x)
    >>> asc.run(main)
    array([[0.5, 0.5],
           [0.5, 0.5]], dtype=float32)
    """
    mark = Mark(_exactly)
    mark.enter()
    try:
        yield
    finally:
        mark.leave()
