"""Random numbers: `asc.random`, with NumPy's names: `asc.random.default_rng(seed).normal(size=(3, 4))`.

Each draw is a task. Draws of one generator follow each other in the order of the calls, in whatever order their tasks
are admitted: on the CPU the numbers are those of `numpy.random.default_rng` with the same seed. A draw takes the state
that the previous draw left as an operand, and changes nothing in place.

So a draw that fails, or is cancelled before it has run, leaves the generator as it was before. Waiting draws that were
called after it fail or are cancelled with it, as all its dependents do. The next call then draws the same numbers as
the failed one would have. `cancel()` on a result gives up only those numbers, and the generator goes on behind them.

On CUDA each draw uses a CuPy generator of its own, seeded by the generator's seed and the number of the call. The
numbers are equal from run to run, but not NumPy's. There a failed draw does not affect the others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import cache
from operator import index
from typing import Any, NoReturn, TypeAlias

import numpy as np
from numpy.typing import DTypeLike

from ... import _instead
from ...devices.contract import Device
from ...ops.kernels.create import words
from ...runtime.context import find
from ...runtime.runtime import Runtime
from ..arguments import dtype_of
from ..handles import runtime_of
from ..tensor import Tensor
from ._common import known_shape, lengths, op, refuse_tracked, several

Size: TypeAlias = int | Sequence[int] | None
# As text, since NumPy imports `random` when it is named
Seed: TypeAlias = "int | Sequence[int] | np.random.SeedSequence | None"

_FLOATS = (np.dtype(np.float32), np.dtype(np.float64))


def default_rng(seed: Seed = None, *, device: object = None, scheduler: Any = None) -> Generator:
    """A generator of random numbers.

    Args:
        seed: equal seeds give equal numbers; None takes a seed from the operating system.
        device: where to draw; default: the first device of the scheduler.
        scheduler: the scheduler of the draws; default: the ambient one at the first draw.

    >>> async def main():
    ...     async with asc.Scheduler("cpu"):
    ...         rng = asc.random.default_rng(0)
    ...         x = rng.normal(size=2)                  # returns at once
    ...         return await x
    >>> asc.run(main)
    array([ 0.12573022, -0.13210486])
    >>> np.random.default_rng(0).normal(size=2)
    array([ 0.12573022, -0.13210486])
    """
    return Generator(seed, device=device, scheduler=scheduler)


class Generator:
    """Draws random numbers as tensors. Made by `default_rng`. Its first draw binds it to one scheduler.

    Methods, arguments and defaults are NumPy's. Parameters are numbers, checked at once; for other distributions draw
    standard numbers and compute: `rng.normal(size=t.shape) * t`. If NumPy's method has no `dtype`, ours converts the
    numbers to it. `size=None` gives one number, a tensor without dimensions.
    """

    def __init__(self, seed: Seed = None, *, device: object = None, scheduler: Any = None) -> None:
        self._seeds = seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed)
        self._start = words(np.random.default_rng(self._seeds))
        # States of the generator, oldest first: a certain one, then those after each draw that may still fail. The next
        # draw begins with the newest.
        self._states: deque[Tensor] = deque()
        self._calls = 0
        self._device, self._scheduler = device, scheduler
        self._runtime: Runtime | None = None

    # -- distributions ------------------------------------------------------------------------------------------

    def random(self, size: Size = None, dtype: DTypeLike = np.float64) -> Tensor:
        """Draw evenly from 0 to before 1, in float64 or float32."""
        return self._standard("random", size, dtype)

    def standard_normal(self, size: Size = None, dtype: DTypeLike = np.float64) -> Tensor:
        """Draw from the normal distribution with mean 0 and variance 1, in float64 or float32."""
        return self._standard("standard_normal", size, dtype)

    def standard_exponential(self, size: Size = None, dtype: DTypeLike = np.float64) -> Tensor:
        """Draw from the exponential distribution with mean 1, in float64 or float32."""
        return self._standard("standard_exponential", size, dtype)

    def normal(self, loc: float = 0.0, scale: float = 1.0, size: Size = None, dtype: DTypeLike | None = None) -> Tensor:
        """Draw from the normal distribution with mean `loc` and standard deviation `scale`."""
        return self._distribution("normal", size, dtype, loc=loc, scale=scale)

    def uniform(self, low: float = 0.0, high: float = 1.0, size: Size = None, dtype: DTypeLike | None = None) -> Tensor:
        """Draw evenly from `low` to before `high`."""
        return self._distribution("uniform", size, dtype, low=low, high=high)

    def exponential(self, scale: float = 1.0, size: Size = None, dtype: DTypeLike | None = None) -> Tensor:
        """Draw from the exponential distribution with mean `scale`."""
        return self._distribution("exponential", size, dtype, scale=scale)

    def gamma(self, shape: float, scale: float = 1.0, size: Size = None, dtype: DTypeLike | None = None) -> Tensor:
        """Draw from the gamma distribution."""
        return self._distribution("gamma", size, dtype, shape=shape, scale=scale)

    def beta(self, a: float, b: float, size: Size = None, dtype: DTypeLike | None = None) -> Tensor:
        """Draw from the beta distribution."""
        return self._distribution("beta", size, dtype, a=a, b=b)

    def poisson(self, lam: float = 1.0, size: Size = None, dtype: DTypeLike | None = None) -> Tensor:
        """Draw from the Poisson distribution, in int64."""
        return self._distribution("poisson", size, dtype, lam=lam)

    def binomial(self, n: int, p: float, size: Size = None, dtype: DTypeLike | None = None) -> Tensor:
        """Draw how many of `n` trials succeed, each with probability `p`, in int64."""
        return self._distribution("binomial", size, dtype, n=n, p=p)

    def integers(
        self, low: int, high: int | None = None, size: Size = None, dtype: DTypeLike = np.int64, endpoint: bool = False
    ) -> Tensor:
        """Draw integers evenly from `low` to before `high` (or to `high` with `endpoint`). A single argument is
        `high`."""
        first, last = (0, low) if high is None else (low, high)
        form = dtype_of(dtype)
        named = {"low": index(first), "high": index(last), "dtype": form, "endpoint": bool(endpoint)}
        return self._distribution("integers", size, form, **named)

    # -- orders and choices -------------------------------------------------------------------------------------

    def permutation(self, x: int | Tensor, axis: int = 0) -> Tensor:
        """The numbers from 0 to before `x` in random order; or a copy of a tensor with its parts along an axis so."""
        if isinstance(x, Tensor):
            shape = known_shape(x, "permutation")
            axis = range(len(shape))[axis]
            return self._draw("permutation", {"axis": axis}, shape, x.dtype, {"x": x})
        return self._draw("permutation", {"x": index(x)}, (index(x),), np.dtype(np.int64))

    def choice(
        self, a: int | Tensor, size: Size = None, replace: bool = True, p: Tensor | None = None, axis: int = 0,
        shuffle: bool = True,
    ) -> Tensor:  # fmt: skip
        """Parts of a tensor along an axis, or numbers from 0 to before `a`, chosen with probabilities `p`."""
        shape = known_shape(a, "choice") if isinstance(a, Tensor) else (index(a),)
        axis = range(len(shape))[axis]
        chosen = () if size is None else lengths(size)
        if not replace and int(np.prod(chosen, dtype=np.int64)) > shape[axis]:
            raise ValueError(f"choice: {chosen} cannot be taken from {shape[axis]} without replacement")
        if p is not None and (not isinstance(p, Tensor) or p.shape != (shape[axis],)):
            raise ValueError(f"choice: p must be a tensor of {shape[axis]} probabilities: `await s.put(p)` makes one")
        named: dict[str, Any] = {"size": chosen, "replace": bool(replace), "axis": axis, "shuffle": bool(shuffle)}
        tensors = {} if p is None else {"p": p}
        if isinstance(a, Tensor):
            form = (*shape[:axis], *chosen, *shape[axis + 1 :])
            return self._draw("choice", named, form, a.dtype, {"a": a, **tensors})
        return self._draw("choice", {"a": index(a), **named}, chosen, np.dtype(np.int64), tensors)

    def shuffle(self, x: object, axis: int = 0) -> NoReturn:
        """Always raises TypeError: tensors are not changed in place. `permutation` makes a new one."""
        raise TypeError("shuffle works in place, and tensors are values: use `x = rng.permutation(x)`")

    # -- one draw -----------------------------------------------------------------------------------------------

    def _standard(self, method: str, size: Size, dtype: DTypeLike) -> Tensor:
        form = dtype_of(dtype)
        if form not in _FLOATS:
            raise TypeError(f"{method}: dtype must be float64 or float32, not {form}")
        return self._draw(method, {"dtype": form}, _shape(size), form, sized=True)

    def _distribution(self, method: str, size: Size, result: DTypeLike | None, /, **named: Any) -> Tensor:
        for name, value in named.items():
            if isinstance(value, Tensor):
                raise TypeError(f"{method}: {name} must be a number: draw standard numbers, and compute with them")
        found = getattr(_sample(), method)(**named, size=1)  # raises NumPy's errors
        return self._draw(method, named, _shape(size), found.dtype if result is None else dtype_of(result), sized=True)

    def _draw(
        self, method: str, named: dict[str, Any], shape: tuple[int, ...], dtype: np.dtype[Any],
        tensors: dict[str, Tensor] | None = None, *, sized: bool = False,
    ) -> Tensor:  # fmt: skip
        tensors = tensors or {}
        refuse_tracked(method, tuple(tensors.values()))
        runtime, device = self._target(tensors)
        if sized:
            named = {**named, "size": shape}
        options: dict[str, Any] = {"method": method, "tensors": tuple(tensors), "named": tuple(named.items())}
        options |= {"shape": shape, "dtype": dtype}
        self._calls += 1
        if device.xp is not np:
            return op("draw_seeded", self._seed(), *tensors.values(), scheduler=runtime, device=device, **options)
        state = self._newest()
        operands = tensors.values() if state is None else (state, *tensors.values())
        options["start"] = self._start if state is None else None
        after, drawn = several("draw", *operands, scheduler=runtime, device=device, **options)
        self._states.append(op("copy", after))  # of its own, so that the state does not hold the drawn numbers
        return drawn

    def _target(self, tensors: dict[str, Tensor]) -> tuple[Runtime, Device]:
        """The runtime and the device of a draw. Raises in a captured step, whose replays would repeat the numbers."""
        given = next(iter(tensors.values()), None)
        runtime = find(self._scheduler) if given is None else runtime_of(given._value)
        if runtime.sink is not None:
            runtime.sink.refuse("a draw of random numbers")
        if self._runtime is not None and self._runtime is not runtime:
            self._leave_scheduler()
        self._runtime = runtime
        device = given.device if given is not None else runtime.device(self._device)
        return runtime, device

    def _leave_scheduler(self) -> None:
        """Leave the scheduler of the draws so far, and take the state to another."""
        state = self._newest()
        if state is not None and not state.done():
            raise ValueError("the generator's draws in another scheduler are not done: `await` them first")
        if state is not None:
            self._start = tuple([int(word) for word in state._value.array])
        self._states.clear()

    def _newest(self) -> Tensor | None:
        """The state to draw from; None for the initial one."""
        states = self._states
        while states and states[-1]._value.failure is not None:
            states.pop()  # its draw failed
        while len(states) > 1 and states[1].done():
            states.popleft()
        return states[-1] if states else None

    def _seed(self) -> int:
        """The seed of this call's own generator."""
        children = np.random.SeedSequence(self._seeds.entropy, spawn_key=(*self._seeds.spawn_key, self._calls))
        return int(children.generate_state(1, np.uint64)[0] >> np.uint64(1))


def _shape(size: Size) -> tuple[int, ...]:
    return () if size is None else lengths(size)


@cache
def _sample() -> Any:
    """NumPy's generator, to check parameters with. Made when first used, since NumPy imports `random` then."""
    return np.random.default_rng(0)


__all__ = ["Generator", "default_rng"]


_instead.explain_missing(globals(), "asyncsched.random", _instead.RANDOM, listed=True)
