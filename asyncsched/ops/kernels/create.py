"""Arrays made from numbers only: given, or drawn at random.

NumPy's random numbers come from a generator's state, which is returned, or from a seed; CuPy's from a seed.
"""

from __future__ import annotations

import threading
from itertools import repeat
from math import ceil, prod
from typing import Any

import numpy as np

from ..declare import Cost, Inferred, Meta, Op, Operand, Options, meta, operation, packed_op, with_out
from ..rules import as_meta, blockwise_rule, broadcast, int_bounds, lengths, sample
from .blocks import blocks, flat
from .elementwise import into


def full(xp: Any, value: Any, *, shape: Any, dtype: Any = None, out: Any = None) -> Any:
    """An array filled with a value."""
    return xp.full(shape, value, dtype=dtype) if out is None else into(xp, out, value)


def full_like(xp: Any, x: Any, value: Any, *, dtype: Any = None, out: Any = None) -> Any:
    """An array filled with a value, in the layout of `x`."""
    return xp.full_like(x, value, dtype=dtype) if out is None else into(xp, out, value)


def listed(xp: Any, *numbers: Any, shape: Any, dtype: Any) -> Any:
    """Numbers that are known one by one. On a GPU they are a kernel's arguments, so a capture copies no host array."""
    if xp is np:
        return np.array(numbers, dtype).reshape(shape)
    found = xp.empty(len(numbers), dtype)
    for i, number in enumerate(numbers):
        found[i] = number
    return found.reshape(shape)


def zeros(xp: Any, *, shape: Any, dtype: Any = None, out: Any = None) -> Any:
    """Zeros, which NumPy makes without touching memory."""
    return xp.zeros(shape, dtype=dtype) if out is None else into(xp, out, 0)


def ones(xp: Any, *, shape: Any, dtype: Any = None, out: Any = None) -> Any:
    """Ones."""
    return full(xp, 1, shape=shape, dtype=dtype or np.float64, out=out)


def eye(xp: Any, *, n_rows: int, n_cols: int, k: int = 0, dtype: Any = None) -> Any:
    """Ones on a diagonal."""
    return xp.eye(n_rows, n_cols, k, dtype=dtype)


# -- rules -------------------------------------------------------------------------------------------------------------


def _made(name: str, shape: tuple[int, ...], dtype: np.dtype[Any], contiguous: bool = True) -> Meta:
    """What has the shape that was asked for."""
    if any(length < 0 for length in shape):
        raise ValueError(f"{name}: negative dimensions are not allowed")
    return meta(shape, dtype, contiguous)


def filled_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """An array of a given shape, perhaps filled with an operand."""
    default = as_meta(operands[0]).dtype if operands else np.float64
    dtype = np.dtype(default if options.get("dtype") is None else options["dtype"])
    made = _made(op.name, options["shape"], dtype)
    for operand in operands:
        if broadcast((operand, made)) != made.shape:
            raise ValueError(f"could not broadcast input array from shape {lengths(operand)} into shape {made.shape}")
    return Inferred(made, int_bounds=int_bounds(operands, repeat(dtype)))


def filled_like_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """An array of the first operand's shape and layout, filled with the second."""
    array = as_meta(operands[0])
    dtype = np.dtype(options["dtype"]) if options.get("dtype") is not None else array.dtype
    return Inferred(meta(array.shape, dtype, array.contiguous), int_bounds=int_bounds(operands[1:], repeat(dtype)))


def arange_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """Numbers evenly spaced from `start` to before `stop`."""
    start, stop, step = options["start"], options["stop"], options["step"]
    if step == 0:
        raise ZeroDivisionError("arange: step must not be zero")
    length = max(ceil((stop - start) / step), 0)
    dtype = options.get("dtype")
    if dtype is None:
        dtype = np.result_type(*[np.asarray(value).dtype for value in (start, stop, step)])
    return Inferred(meta((length,), np.dtype(dtype)))


def linspace_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """`num` numbers from the first operand to the second. NumPy computes in the inexact dtype, then converts."""
    num, dtype = options["num"], options.get("dtype")
    if num < 0:
        raise ValueError(f"linspace: number of samples, {num}, must be non-negative")
    if any(lengths(operand) for operand in operands):
        raise ValueError("linspace: start and stop must be numbers")
    ends: list[Any] = [sample(operand, ()) for operand in operands]
    worked = np.linspace(ends[0], ends[1], 1).dtype
    result = meta((num,), worked if dtype is None else np.dtype(dtype))
    return Inferred(result, 0 if result.dtype == worked else num * worked.itemsize)


def eye_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """Ones on a diagonal."""
    return Inferred(_made("eye", (options["n_rows"], options["n_cols"]), np.dtype(options["dtype"])))


_DEVICE_STATES = 65_536  # of a generator on a GPU, which draw in parallel: equal numbers on every card
_here = threading.local()


def words(generator: np.random.Generator) -> tuple[int, ...]:
    """The state of a generator, as words."""
    state: Any = generator.bit_generator.state
    numbers = state["state"]["state"], state["state"]["inc"]
    halves = [word for number in numbers for word in (number & (2**64 - 1), number >> 64)]
    return (*halves, state["has_uint32"], state["uinteger"])


def draw(xp: Any, *arrays: Any, start: Any, method: str, tensors: Any, named: Any, shape: Any, dtype: Any) -> Any:
    """The state after a draw, and the drawn numbers. The state before is `start`, or else the first array."""
    state, operands = (start, arrays) if start is not None else (arrays[0], arrays[1:])
    generator = _generator([int(word) for word in state])
    found = getattr(generator, method)(**dict(named), **dict(zip(tensors, operands, strict=True)))
    return np.asarray(words(generator), np.uint64), np.asarray(found).astype(dtype, copy=False)


def draw_seeded(
    xp: Any, seed: int, *operands: Any, method: str, tensors: Any, named: Any, shape: Any, dtype: Any
) -> Any:
    """A draw from a generator made for it, on devices where no state is kept."""
    generator, given, arrays = seeded(xp, seed), dict(named), dict(zip(tensors, operands, strict=True))
    if method in ("permutation", "choice"):
        return (_permutation if method == "permutation" else _choice)(xp, generator, arrays, shape=shape, **given)
    if method == "normal":
        found = generator.standard_normal(shape) * given["scale"] + given["loc"]
    elif method == "integers":
        found = generator.integers(given["low"], given["high"], size=shape, dtype=dtype, endpoint=given["endpoint"])
    else:
        given.pop("dtype", None)
        found = getattr(generator, method)(**{**given, "size": shape})
    return xp.asarray(found).astype(dtype, copy=False)


def _permutation(xp: Any, generator: Any, arrays: Any, *, shape: Any, x: int | None = None, axis: int = 0) -> Any:
    order = xp.argsort(generator.random(shape[axis]))
    return order if x is not None else xp.take(arrays["x"], order, axis=axis)


def _choice(
    xp: Any, generator: Any, arrays: Any, *, shape: Any, size: Any, replace: bool, axis: int = 0,
    shuffle: bool = True, a: int | None = None,
) -> Any:  # fmt: skip
    count = arrays["a"].shape[axis] if a is None else a
    wanted = prod(size)
    if "p" in arrays:
        ends = xp.cumsum(arrays["p"])
        if replace:
            places = xp.searchsorted(ends / ends[-1], generator.random(wanted), side="right")
        else:  # the largest of u ** (1 / p), by Efraimidis and Spirakis
            places = xp.argsort(-xp.log(generator.random(count)) / arrays["p"])[:wanted]
    elif replace:
        places = generator.integers(0, count, size=wanted)
    else:
        places = xp.argsort(generator.random(count))[:wanted]
    places = places.reshape(size)
    return places if a is not None else xp.take(arrays["a"], places, axis=axis)


def _generator(state: list[int]) -> np.random.Generator:
    """This thread's generator, set to a state. To make a new one takes longer than to draw."""
    if not hasattr(_here, "generator"):
        _here.generator = np.random.Generator(np.random.PCG64(0))
    generator: np.random.Generator = _here.generator
    generator.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": {"state": state[0] | state[1] << 64, "inc": state[2] | state[3] << 64},
        "has_uint32": state[4],
        "uinteger": state[5],
    }
    return generator


def dropout(xp: Any, x: Any, seed: int, *, p: float, out: Any = None) -> Any:
    """Zero with probability p, otherwise x / (1 - p). The same seed drops the same elements."""
    out, result, values = flat(xp, out, x)
    generator = seeded(xp, seed)
    for block in blocks(xp, x.size):
        v = values[block]
        keep = generator.random(v.size, dtype=xp.float32) >= p
        xp.multiply(v, keep, out=result[block])
        result[block] *= 1 / (1 - p) if p < 1 else 0
    return out


def uniform(xp: Any, seed: int, *, shape: Any, dtype: Any, low: float, high: float, out: Any = None) -> Any:
    """Numbers drawn evenly from low to high."""
    out = xp.empty(shape, dtype) if out is None else out
    out[...] = seeded(xp, seed).random(shape, dtype=_drawn(xp, dtype))
    out *= high - low
    out += low
    return out


def normal(xp: Any, seed: int, *, shape: Any, dtype: Any, out: Any = None) -> Any:
    """Numbers drawn from the standard normal distribution."""
    out = xp.empty(shape, dtype) if out is None else out
    out[...] = seeded(xp, seed).standard_normal(shape, dtype=_drawn(xp, dtype))
    return out


def seeded(xp: Any, seed: int) -> Any:
    """A generator that counts. (CuPy's default one takes 13 MB and a slow kernel to set up.)"""
    if xp is np:
        return np.random.default_rng(seed)
    return xp.random.Generator(xp.random.Philox4x3210(seed, size=_DEVICE_STATES))


def _drawn(xp: Any, dtype: Any) -> Any:
    return xp.float64 if dtype == xp.float64 else xp.float32


# -- rules -------------------------------------------------------------------------------------------------------------


# Words of 64 bits: the state and the increment of PCG64, 128 bits each, and two for an unused half of a word.
_STATE = meta((6,), np.dtype(np.uint64))


def draw_parts(name: str, operands: tuple[Operand, ...], options: Options) -> tuple[list[Meta], int]:
    """The state of the generator after the draw, and the drawn numbers."""
    return [_STATE, _made(options["method"], options["shape"], options["dtype"])], _scratch(operands, options)


def draw_seeded_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """The drawn numbers only."""
    result = _made(options["method"], options["shape"], options["dtype"], False)
    return Inferred(result, _scratch(operands, options) + result.nbytes)


def _scratch(operands: tuple[Operand, ...], options: Options) -> int:
    """Bytes of the positions that are permuted or chosen, and of float64 numbers that are converted."""
    drawn: int = prod(options["shape"])
    if options["method"] in ("permutation", "choice"):
        return 16 * (sum(prod(lengths(operand)) for operand in operands) + 2 * drawn)
    return 0 if options["dtype"].itemsize == 8 else 8 * drawn


def dropout_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """`dropout` of x, with a seed."""
    if not 0 <= options["p"] <= 1:
        raise ValueError(f"dropout: p={options['p']} must be a probability, from 0 to 1")
    return blockwise_rule(op, operands, options)


def random_rule(op: Op, operands: tuple[Operand, ...], options: Options) -> Inferred:
    """Random numbers, drawn in their dtype, or in single precision."""
    dtype = np.dtype(options["dtype"])
    if dtype.kind != "f":
        raise TypeError(f"{op.name}: dtype {dtype} is no floating-point dtype: draw in one, and use `astype`")
    result = _made(op.name, options["shape"], dtype)
    return Inferred(result, result.nbytes * max(4, dtype.itemsize) // dtype.itemsize)


OPS = (
    with_out(zeros, filled_rule, "Zeros.", Cost.SHORT, launches=1),
    with_out(ones, filled_rule, "Ones.", Cost.SHORT, launches=1),
    with_out(full, filled_rule, "One value throughout.", Cost.SHORT, launches=1),
    with_out(full_like, filled_like_rule, "One value throughout, in a tensor's layout.", Cost.SHORT, launches=1),
    operation(listed, filled_rule, "Numbers that are known one by one, such as an index's."),
    operation("arange", arange_rule, "Evenly spaced by a step.", launches=1),
    operation("linspace", linspace_rule, "A number of evenly spaced values."),
    operation(eye, eye_rule, "Ones on a diagonal.", launches=2),
    packed_op(draw, draw_parts, "Random numbers from the state of a generator, and the state after."),
    operation(draw_seeded, draw_seeded_rule, "Random numbers from a seed."),
    with_out(dropout, dropout_rule, "Elements dropped at random, the others scaled.", Cost.FUNCTION, inplace=True),
    with_out(uniform, random_rule, "Evenly distributed random numbers."),
    with_out(normal, random_rule, "Normally distributed random numbers."),
)
