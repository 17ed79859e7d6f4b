"""Random programs: made once against eager NumPy, then run by asyncsched and compared byte for byte.

A program is a list of steps on numbered arrays. Making it runs every step eagerly, so each step knows what it must
give: an array, or that it fails. Steps cover fan-out, views and transposes, in-place forms, dropped handles, failing
and cancelled tasks, arrays awaited early and kept, several scopes that share tensors, and frames that hold what is read
in many ways; and what a program around them does: coroutines that fail with handles in their frames, exceptions and
finished asyncio tasks that are kept, puts that are gathered or in task groups, and anyio's cancel scopes.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import asyncsched as asc

from .holding import WAYS

Array = np.ndarray[Any, Any]
DTYPES = ("float32", "float64", "int32", "int64", "complex64", "bool")
LARGE = (150, 130)  # above the size from which buffers are recycled, for any dtype but bool


class Boom(Exception):
    """What failing tasks raise."""


@dataclass
class Step:
    """One step: `kind` on the arrays `reads`, giving array `out`."""

    kind: str
    reads: tuple[int, ...] = ()
    out: int = -1
    extra: Any = None
    scope: int = 0


@dataclass
class Program:
    """Steps, what each array must be (None: its task fails), and the sources of the puts."""

    seed: int
    scopes: int
    steps: list[Step] = field(default_factory=list)
    expected: dict[int, Array | None] = field(default_factory=dict)
    live: set[int] = field(default_factory=set)


def _slice(a: Array) -> Any:
    return a[1:, ::2] if a.ndim == 2 and a.shape[0] > 1 else a[:1] if a.ndim else a[...]


# name -> (how many arrays, eager NumPy, asyncsched)
Op = tuple[int, Callable[..., Any], Callable[..., Any]]
OPS: dict[str, Op] = {
    "add1": (1, lambda a: a + 1, lambda a: a + 1),
    "scale": (1, lambda a: 2.5 * a, lambda a: 2.5 * a),
    "npscalar": (1, lambda a: np.float32(3) * a, lambda a: np.float32(3) * a),
    "square": (1, lambda a: a**2, lambda a: a**2),
    "abs": (1, np.abs, asc.abs),
    "exp": (1, np.exp, asc.exp),
    "sin": (1, np.sin, asc.sin),
    "tanh": (1, np.tanh, asc.tanh),
    "add": (2, np.add, lambda a, b: a + b),
    "mul": (2, np.multiply, lambda a, b: a * b),
    "div": (2, np.divide, lambda a, b: a / b),
    "maximum": (2, np.maximum, asc.maximum),
    "less": (2, np.less, lambda a, b: a < b),
    "where": (2, lambda a, b: np.where(a > 0, a, b), lambda a, b: asc.where(a > 0, a, b)),
    "matmul": (2, np.matmul, lambda a, b: a @ b),
    "sum": (1, np.sum, asc.sum),
    "sum0": (1, lambda a: np.sum(a, axis=0), lambda a: asc.sum(a, axis=0)),
    "max1": (1, lambda a: np.max(a, axis=-1, keepdims=True), lambda a: asc.max(a, axis=-1, keepdims=True)),
    "mean": (1, lambda a: np.mean(a, axis=0), lambda a: asc.mean(a, axis=0)),
    "cumsum": (1, lambda a: np.cumsum(a, axis=0), lambda a: asc.cumulative_sum(a, axis=0)),
    "transpose": (1, lambda a: a.swapaxes(-1, -2), lambda a: a.mT),
    "flip": (1, lambda a: np.flip(a, 0), lambda a: asc.flip(a, axis=0)),
    "slice": (1, _slice, _slice),
    "row": (1, lambda a: a[-1], lambda a: a[-1]),
    "newaxis": (1, lambda a: a[None], lambda a: asc.expand_dims(a, axis=0)),
    "ravel": (1, lambda a: a.reshape(-1), lambda a: a.reshape(-1)),
    "broadcast": (1, lambda a: np.broadcast_to(a, (2, *a.shape)), lambda a: asc.broadcast_to(a, (2, *a.shape))),
    "sort": (1, lambda a: np.sort(a, axis=-1, stable=True), lambda a: asc.sort(a, axis=-1)),
    "concat": (2, lambda a, b: np.concat([a, b]), lambda a, b: asc.concat([a, b])),
    "stack": (2, lambda a, b: np.stack([a, b]), lambda a, b: asc.stack([a, b])),
    "astype": (1, lambda a: a.astype("complex128"), lambda a: a.astype("complex128")),
    "roll": (1, lambda a: np.roll(a, 1, axis=0), lambda a: asc.roll(a, 1, axis=0)),
    "tril": (1, np.tril, asc.tril),
    "diagonal": (1, np.linalg.diagonal, asc.linalg.diagonal),
    "trace": (1, np.linalg.trace, asc.linalg.trace),
    "fft": (1, lambda a: np.fft.fft(a, axis=0), lambda a: asc.fft.fft(a, axis=0)),
    "outer": (2, lambda a, b: np.linalg.outer(a[0], b[0]), lambda a, b: asc.linalg.outer(a[0], b[0])),
}
_ALONG = ("sum0", "max1", "mean", "cumsum", "sort", "roll", "fft")
_KINDS = ("op",) * 12 + ("put", "drop", "drop", "inplace", "assign", "call", "held", "await", "fail", "cancel")


def make(seed: int, *, most: int = 200, scopes: int = 1, around: bool = True) -> Program:
    """A program of up to `most` steps.

    Args:
        around: with what the program around the operations does, which leaves circles for the garbage collector.
    """
    rng = random.Random(seed)
    numbers = np.random.default_rng(seed)
    program = Program(seed, scopes)
    for i in range(3):
        _put(program, rng, numbers, i % scopes)
    for _ in range(rng.randint(5, most)):
        kind = rng.choice((*_KINDS, "around") if around else _KINDS)
        _STEPS[kind](program, rng, numbers, rng.randrange(scopes))
    return program


def _put(program: Program, rng: random.Random, numbers: np.random.Generator, scope: int) -> None:
    array = _source(rng, numbers)
    _add(program, Step("put", extra=array, scope=scope), np.array(array))


def _source(rng: random.Random, numbers: np.random.Generator) -> Array:
    n, m = rng.choice([(1, 2), (3, 4), (4, 4), (0, 3), (33, 20), (64, 64), LARGE])
    dtype = rng.choice(DTYPES)
    array = (numbers.standard_normal((n, m)) * 4).astype(dtype)
    return rng.choice([lambda a: a, np.asfortranarray, lambda a: a[::-1], lambda a: a[:, ::2]])(array)


def _add(program: Program, step: Step, array: Array | None) -> None:
    step.out = len(program.expected)
    program.steps.append(step)
    program.expected[step.out] = array
    program.live.add(step.out)


def _pick(program: Program, rng: random.Random, count: int) -> tuple[int, ...] | None:
    live = sorted(program.live)
    return tuple(rng.choice(live) for _ in range(count)) if live else None


def _op(program: Program, rng: random.Random, numbers: np.random.Generator, scope: int) -> None:
    name = rng.choice(sorted(OPS))
    count, eager, _ = OPS[name]
    reads = _pick(program, rng, count)
    if reads is None:
        return
    arrays = [program.expected[i] for i in reads]
    failed = any(a is None for a in arrays)
    if name in _ALONG and not all(a is None or a.ndim for a in arrays):
        return  # NumPy takes axis 0 of an array without axes, for old times' sake
    if name == "mean" and not all(a is None or a.size for a in arrays):
        return  # NumPy warns of the mean of nothing, and warnings are errors here
    if name == "tril" and any(a is not None and a.ndim == 1 and a.size > 200 for a in arrays):
        return  # NumPy makes a square of a row: of the largest here, seconds of work to be thrown away
    try:
        # A failed operand's shape is unknown here: such programs use only operations that take any shape.
        result = None if failed else np.asarray(_eager(eager, arrays))
    except (ValueError, TypeError, IndexError, np.exceptions.AxisError):
        return
    if failed and name not in ("add1", "scale", "abs", "sum"):
        return
    if result is not None and result.nbytes > 2**20:
        return
    _add(program, Step("op", reads, extra=name, scope=scope), result)


def _eager(function: Callable[..., Any], arrays: list[Any]) -> Any:
    with np.errstate(all="ignore"):
        return function(*arrays)


def _inplace(program: Program, rng: random.Random, numbers: np.random.Generator, scope: int) -> None:
    """`x += 1`: the name is bound anew, and the old handle is gone."""
    reads = _pick(program, rng, 1)
    if reads is None or (array := program.expected[reads[0]]) is None or array.dtype == bool:
        return
    _add(program, Step("op", reads, extra="add1", scope=scope), np.asarray(_eager(lambda a: a + 1, [array])))
    _drop_one(program, reads[0])


def _assign_step(program: Program, rng: random.Random, numbers: np.random.Generator, scope: int) -> None:
    """`x[...] = 7` moves the handle: array `out` is the new version, under the same handle."""
    reads = _pick(program, rng, 1)
    if reads is None or (array := program.expected[reads[0]]) is None or not array.ndim:
        return
    new = array.copy(order="K")
    new[..., :1] = 7
    _add(program, Step("assign", reads, scope=scope), new)
    program.live.discard(reads[0])


def _call(program: Program, rng: random.Random, numbers: np.random.Generator, scope: int) -> None:
    reads = _pick(program, rng, 1)
    if reads is None or (array := program.expected[reads[0]]) is None:
        return
    _add(program, Step("call", reads, scope=scope), np.array(array[::-1] if array.ndim else array))


def _fail(program: Program, rng: random.Random, numbers: np.random.Generator, scope: int) -> None:
    if rng.random() < 0.3 and (reads := _pick(program, rng, 1)) is not None:
        _add(program, Step("fail", reads, scope=scope), None)


def _drop(program: Program, rng: random.Random, numbers: np.random.Generator, scope: int) -> None:
    if len(program.live) > 3 and (reads := _pick(program, rng, 1)) is not None:
        _drop_one(program, reads[0])


def _drop_one(program: Program, number: int) -> None:
    program.live.discard(number)
    program.steps.append(Step("drop", (number,)))


def _await(program: Program, rng: random.Random, numbers: np.random.Generator, scope: int) -> None:
    if rng.random() < 0.4 and (reads := _pick(program, rng, 1)) is not None:
        program.steps.append(Step("await", reads, scope=scope))


def _cancel(program: Program, rng: random.Random, numbers: np.random.Generator, scope: int) -> None:
    if rng.random() < 0.3 and (reads := _pick(program, rng, 1)) is not None:
        program.steps.append(Step("cancel", reads, scope=scope))


def _puts(program: Program, rng: random.Random, numbers: np.random.Generator, scope: int) -> None:
    """Several puts at once."""
    sources = {}
    for _ in range(rng.randint(2, 4)):
        sources[len(program.expected)] = array = _source(rng, numbers)
        program.live.add(len(program.expected))
        program.expected[len(program.expected)] = np.array(array)
    kind = rng.choice(["gathered puts", "puts in a task group", "puts in anyio's group", "puts in tasks that are kept"])
    program.steps.append(Step(kind, extra=sources, scope=scope))


def _failing_frame(program: Program, rng: random.Random, numbers: np.random.Generator, scope: int) -> None:
    """A coroutine fails that holds handles; what it raised, or its task, is kept for a while."""
    if (reads := _pick(program, rng, 1)) is not None:
        kind = rng.choice(["frame fails", "frame fails in a task that is kept", "frame fails with what is kept"])
        program.steps.append(Step(kind, reads, scope=scope))


def _hurried(program: Program, rng: random.Random, numbers: np.random.Generator, scope: int) -> None:
    """Waiting and putting, both cancelled after a few turns of the loop."""
    if (reads := _pick(program, rng, 2)) is not None:
        extra = rng.randint(0, 12), rng.choice([step.extra for step in program.steps if step.kind == "put"])
        program.steps.append(Step("cancel scope", reads, extra=extra, scope=scope))


def _held(program: Program, rng: random.Random, numbers: np.random.Generator, scope: int) -> None:
    """An operation on what a frame holds meanwhile, in one of many ways."""
    if (reads := _pick(program, rng, 1)) is None:
        return
    array = program.expected[reads[0]]
    result = None if array is None else np.asarray(_eager(OPS["add1"][1], [array]))
    if result is None or result.nbytes <= 2**20:
        _add(program, Step("held", reads, extra=rng.choice(sorted(WAYS)), scope=scope), result)


def _forget(program: Program, rng: random.Random, numbers: np.random.Generator, scope: int) -> None:
    program.steps.append(Step("forget"))


def _around(program: Program, rng: random.Random, numbers: np.random.Generator, scope: int) -> None:
    rng.choice([_puts, _failing_frame, _hurried, _forget])(program, rng, numbers, scope)


_STEPS: dict[str, Callable[..., None]] = {
    "op": _op, "put": _put, "drop": _drop, "inplace": _inplace, "assign": _assign_step, "call": _call, "await": _await,
    "held": _held, "fail": _fail, "cancel": _cancel, "around": _around,
}  # fmt: skip
