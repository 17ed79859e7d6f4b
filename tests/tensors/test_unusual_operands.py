"""Every public function on operands without axes, of nothing, of one element, of the largest numbers, in every dtype.

Functions of the standard give NumPy's values, dtypes and errors. Functions of networks, which NumPy does not have, give
in half and single precision what they give in double; and their gradients are like their operands.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from math import prod
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched import nn
from asyncsched.tensors.functions import elementwise, fft, linalg, manipulation, reductions, statistics
from tests.declared import ARITIES
from tests.thorough import usually

pytestmark = [pytest.mark.one_loop, pytest.mark.filterwarnings("ignore::RuntimeWarning")]  # NumPy's, of nothing
Call = Callable[[Any, Any], Any]  # of the package or NumPy, and an array of it

SHAPES = ((), (0,), (1,), (2,), (0, 3), (3, 0), (1, 1), (2, 2), (2, 0, 3))
_AXES: list[dict[str, Any]] = [{}, {"axis": 0}, {"axis": -1, "keepdims": True}]
_OF_TWO = ("cross", "matmul", "outer", "solve", "vecdot")
_REDUCTIONS = ["all", "any", "count_nonzero", "max", "mean", "min", "prod", "std", "sum", "var"]


def operands() -> Iterator[Any]:
    for dtype in usually(("f4", "i8", "?", "c8"), ("f2", "f4", "f8", "i1", "i8", "u1", "?", "c8")):
        for shape in SHAPES:
            numbers = np.arange(prod(shape)).reshape(shape) % 3
            yield np.asarray(numbers if dtype in "?u1" else numbers - 1, dtype)
    for dtype in ("f2", "f4", "f8"):
        info = np.finfo(dtype)
        yield np.array([info.max, info.min, info.max / 2, info.tiny, info.smallest_subnormal, 0, -0.0], dtype)
        yield np.array([np.nan, np.inf, -np.inf, 1], dtype)
    for dtype in ("i1", "i8", "u8"):
        yield np.array([np.iinfo(dtype).max, np.iinfo(dtype).min, 0, 1], dtype)
    yield np.array([1e30 + 1e30j, np.nan + 1j, complex(np.inf, -np.inf)], "c8")


OPERANDS = list(operands())


def called(name: str, *each: dict[str, Any], of: str = "") -> list[Call]:
    """Calls with some keywords."""

    def call(options: dict[str, Any]) -> Call:
        return lambda m, x: getattr(getattr(m, of) if of else m, name)(x, **options)

    return [call(options) for options in each or ({},)]


def zeros(m: Any, *shape: int) -> Any:
    return m.zeros(shape, dtype=int)


CALLS: dict[str, list[Call]] = {
    **{name: called(name) for name in elementwise.__all__ if ARITIES.get(name, 1) == 1},
    **{
        name: [lambda m, x, name=name: getattr(m, name)(x, x), lambda m, x, name=name: getattr(m, name)(x, x[..., :1])]
        for name in elementwise.__all__ if ARITIES.get(name) == 2
    },
    "clip": [lambda m, x, a=a, b=b: m.clip(x, a, b) for a, b in ((0, 1), (0, None), (None, 0))],
    **{name: called(name, *_AXES, {"axis": ()}) for name in _REDUCTIONS if name != "count_nonzero"},
    "count_nonzero": called("count_nonzero", *_AXES),
    **{name: called(name, *_AXES) for name in ("argmax", "argmin")},
    **{name: called(name, {}, {"axis": 0}) for name in ("argsort", "sort", "diff", "flip")},
    **{
        name: called(name, {"axis": 0}, {"axis": -1, "include_initial": True})
        for name in ("cumulative_sum", "cumulative_prod")
    },
    **{name: called(name) for name in manipulation.__all__ if name.startswith("unique_")},
    **{name: called(name) for name in ("nonzero", "unstack", "matrix_transpose")},
    **{
        name: called(name, *_AXES, {"axis": ()} if name != "median" else {})
        for name in ("nansum", "nanprod", "nanmax", "nanmin", "nanmean", "nanvar", "nanstd", "median")
    },
    **{name: called(name, *_AXES) for name in ("nanargmax", "nanargmin")},
    **{
        name: [lambda m, x, name=name, q=q, o=o: getattr(m, name)(x, q, **o) for q in (0, 0.3, [0.5, 1]) for o in _AXES]
        for name in ("quantile", "percentile")
    },
    **{name: called(name, {}, {"rowvar": False}) for name in ("cov", "corrcoef")},
    "argpartition": [lambda m, x, axis=axis: m.argpartition(x, 0, axis) for axis in (0, -1, None)],
    "bincount": [
        lambda m, x: m.bincount(m.where(m.reshape(x, (-1,)) > 0, 2, 0)),
        lambda m, x: m.bincount(x, minlength=2),
    ],
    "digitize": [lambda m, x, a=a, b=b: m.digitize(x, m.linspace(a, b, 4), a > b) for a, b in ((-1, 2), (2, -1))],
    "histogram": [lambda m, x, o=o: m.histogram(x, 3, **o) for o in ({}, {"range": (-1, 2)}, {"density": True})],
    "isin": [lambda m, x: m.isin(x, x[..., :1])],
    "broadcast_to": [
        lambda m, x: m.broadcast_to(x, (2, *x.shape)),
        lambda m, x: m.broadcast_to(x, (0, *x.shape)),
        lambda m, x: m.broadcast_to(x, x.shape),
    ],
    "broadcast_arrays": [lambda m, x: m.broadcast_arrays(x, x[None])],
    "concat": [lambda m, x, axis=axis: m.concat([x, x], axis=axis) for axis in (0, None)],
    "expand_dims": called("expand_dims", {"axis": 0}, {"axis": (0, -1)}),
    "moveaxis": [lambda m, x: m.moveaxis(x, 0, -1)],
    "permute_dims": [lambda m, x: m.permute_dims(x, tuple(range(x.ndim))[::-1])],
    "repeat": [lambda m, x, n=n: m.repeat(x, n) for n in (0, 2)],
    "reshape": [lambda m, x: m.reshape(x, (-1,)), lambda m, x: m.reshape(x, (1, *x.shape))],
    "roll": [lambda m, x: m.roll(x, 1), lambda m, x: m.roll(x, 1, axis=0)],
    "squeeze": called("squeeze", {"axis": 0}, {"axis": ()}),
    "stack": [lambda m, x, axis=axis: m.stack([x, x], axis=axis) for axis in (0, -1)],
    "tile": [lambda m, x, n=n: m.tile(x, n) for n in ((), (2,), (2, 1), (0,))],
    "dot": [lambda m, x: m.dot(x, x)],
    "einsum": [lambda m, x: m.einsum("...,...->...", x, x)],
    "matmul": [lambda m, x: m.matmul(x, x)],
    "tensordot": [lambda m, x: m.tensordot(x, x, axes=x.ndim), lambda m, x: m.tensordot(x, x, axes=0)],
    "vecdot": [lambda m, x: m.vecdot(x, x)],
    "searchsorted": [lambda m, x: m.searchsorted(m.sort(m.reshape(x, (-1,))), x)],
    "take": [lambda m, x: m.take(x, zeros(m, 2), axis=0), lambda m, x: m.take(x, zeros(m, 0), axis=0)],
    "take_along_axis": [lambda m, x: m.take_along_axis(x, zeros(m, *x.shape), axis=-1)],
    "where": [lambda m, x: m.where(x != 0, x, x * 2), lambda m, x: m.where(x != 0, x, 1)],
    "[]": [lambda m, x, key=key: x[key] for key in (..., None, (), 0, slice(None, None, -1), [0], [])],
    "[mask]": [lambda m, x: x[x != 0]],
    "operators": [lambda m, x: x + 1, lambda m, x: x * 2.5, lambda m, x: 2**x, lambda m, x: x**2, lambda m, x: x // 2],
    **{
        f"linalg.{name}": called(name, of="linalg")
        for name in linalg.__all__ if name not in ("LinAlgError", *_OF_TWO, "tensordot")
    },
    "linalg.matrix_power": [lambda m, x, n=n: m.linalg.matrix_power(x, n) for n in (0, 1, 2)],
    "linalg.vector_norm": called("vector_norm", {}, *[{"axis": 0, "ord": n} for n in (0, 1, 3, np.inf)], of="linalg"),
    **{
        f"linalg.{name}": [lambda m, x, name=name: getattr(m.linalg, name)(x, x)]
        for name in _OF_TWO
    },
    "linalg.tensordot": [lambda m, x: m.linalg.tensordot(x, x, axes=x.ndim)],
    **{f"fft.{name}": called(name, of="fft") for name in fft.__all__ if not name.endswith("freq")},
    **{
        f"fft.{name}": called(name, {}, {"n": 1}, {"n": 4}, of="fft")
        for name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
    },
}  # fmt: skip


def refused(name: str, x: np.ndarray) -> bool:
    """Where the standard, and so the package, refuses what NumPy takes: there it takes no number for an array."""
    if name in ("argsort", "cumulative_sum", "cumulative_prod"):
        return x.ndim == 0
    if name == "histogram":  # of complex numbers, of which NumPy takes the real parts, with a warning
        return x.dtype.kind == "c"
    return name == "linalg.matrix_rank" and x.ndim < 2


def numpys(name: str, call: Call, x: np.ndarray) -> Any:
    """What NumPy gives, or the error that it raises."""
    try:
        found = call(np, x)
    except AttributeError as error:
        raise AssertionError(f"NumPy has no {name}: write in CALLS what it computes") from error
    except Exception as error:
        return error
    found = list(found) if isinstance(found, tuple | list) else [found]
    if name in ("linalg.eig", "linalg.eigvals"):  # complex, whatever the numbers are
        return [np.asarray(a, np.result_type(a, np.complex64)) for a in found]
    # NumPy gives what lies in memory, since it takes the first of nothing: right are zeros.
    return [np.zeros_like(a) if name in ("fft.irfft", "fft.hfft") and x.size == 0 else np.asarray(a) for a in found]


async def values_of(found: Any) -> list[np.ndarray]:
    found = list(found) if isinstance(found, tuple | list) else [found]
    return [await tensor for tensor in found]


def test_every_function_is_in_the_table():
    names = {f"linalg.{name}" for name in linalg.__all__ if name != "LinAlgError"}
    names |= {f"fft.{name}" for name in fft.__all__ if not name.endswith("freq")}
    for theme in (elementwise, manipulation, reductions, statistics):
        names |= set(theme.__all__)
    assert names - set(CALLS) == {"broadcast_shapes", "topk"}
    assert set(NETWORKS) | {"conv1d", "embedding", "dropout"} == set(nn.functional.__all__)


@pytest.mark.parametrize("name", CALLS)
async def test_functions_give_numpys_values_and_errors(s, name):
    for x in OPERANDS:
        tensor = await s.put(x)
        for i, call in enumerate(CALLS[name]):
            what = f"call {i} of {x!r}"
            with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore"):
                expected = numpys(name, call, x)
            if isinstance(expected, Exception) or refused(name, x):
                with pytest.raises((TypeError, ValueError, IndexError, ZeroDivisionError, OverflowError)):
                    await values_of(call(asc, tensor))
                continue
            found = await values_of(call(asc, tensor))
            assert [(a.shape, a.dtype) for a in found] == [(a.shape, a.dtype) for a in expected], what
            for a, b in zip(found, expected, strict=True):
                np.testing.assert_array_equal(a, b, what)


_LOSSES = [{"reduction": reduction} for reduction in ("mean", "sum", "none")]


def alone(name: str, *each: dict[str, Any]) -> list[Callable[[Any], Any]]:
    return [lambda x, options=options: getattr(nn.functional, name)(x, **options) for options in each or ({},)]


def beside(name: str, other: Callable[[Any], Any], *each: dict[str, Any]) -> list[Callable[[Any], Any]]:
    return [lambda x, o=options: getattr(nn.functional, name)(x, other(x), **o) for options in each or ({},)]


def classes(x: asc.Tensor) -> asc.Tensor:
    return asc.zeros(x.shape[:1] + x.shape[2:] if x.ndim > 1 else (), dtype=int)


def ones(x: asc.Tensor, *shape: int) -> asc.Tensor:
    return asc.ones(shape, dtype=x.dtype)


NETWORKS: dict[str, list[Callable[[Any], Any]]] = {
    **{name: alone(name) for name in ("log_softmax", "relu", "sigmoid", "silu", "softmax", "softplus", "tanh")},
    "leaky_relu": alone("leaky_relu"),
    "gelu": alone("gelu", {"approximate": "none"}, {"approximate": "tanh"}),
    **{
        name: beside(name, lambda x: x * 0.5, *_LOSSES)
        for name in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy_with_logits")
    },
    "kl_div": beside("kl_div", lambda x: x * 0.5, *_LOSSES, {"reduction": "batchmean"}),
    "cross_entropy": beside("cross_entropy", classes, *_LOSSES) + beside("cross_entropy", lambda x: x * 0.5, *_LOSSES),
    "nll_loss": beside("nll_loss", classes, *_LOSSES),
    "layer_norm": beside("layer_norm", lambda x: x.shape[-1:]),
    "rms_norm": beside("rms_norm", lambda x: x.shape[-1:], {"eps": 1e-2}),
    "group_norm": beside("group_norm", lambda x: 1),
    "batch_norm": [lambda x: nn.batch_norm(x, None, None, training=True)],
    "linear": [lambda x, n=n: nn.linear(x, ones(x, n, *x.shape[-1:]), ones(x, n)) for n in (0, 2)],
    "scaled_dot_product_attention": [
        lambda x, causal=causal: nn.scaled_dot_product_attention(x, x, x, is_causal=causal) for causal in (False, True)
    ],
    "conv2d": [lambda x, n=n: nn.conv2d(x, ones(x, n, *x.shape[1:2], 1, 1), ones(x, n)) for n in (0, 2)],
    "avg_pool2d": beside("avg_pool2d", lambda x: 1),
    "max_pool2d": beside("max_pool2d", lambda x: 1),
    "adaptive_avg_pool2d": beside("adaptive_avg_pool2d", lambda x: 1),
}
# A named error, for these shapes: too few axes, no classes or no window, or a channel of less than two elements.
FEWEST_AXES = {
    "cross_entropy": 1, "nll_loss": 1, "softmax": 1, "log_softmax": 1, "layer_norm": 1, "rms_norm": 1, "linear": 1,
    "group_norm": 2, "batch_norm": 2, "avg_pool2d": 2, "max_pool2d": 2, "adaptive_avg_pool2d": 2, "conv2d": 4,
    "scaled_dot_product_attention": 2,
}  # fmt: skip


@pytest.mark.parametrize("name", NETWORKS)
async def test_functions_of_networks_agree_in_every_precision(s, name):
    for shape in (*SHAPES, (3, 1), (2, 3, 0, 2), (0, 1, 2, 2), (1, 0, 2, 2), (2, 1, 2, 2)):
        array = np.random.default_rng(0).uniform(0.3, 0.9, shape).astype("f2")
        for call in NETWORKS[name]:
            found = [await with_gradient(s, call, array.astype(dtype)) for dtype in ("f8", "f4", "f2")]
            if len(shape) < FEWEST_AXES.get(name, 0):
                assert isinstance(found[0], ValueError), found[0]
            if isinstance(found[0], Exception):
                assert {type(each) for each in found} == {type(found[0])} <= {ValueError, IndexError}, found
                assert len(shape) < FEWEST_AXES.get(name, 0) or 0 in shape or name in ("conv2d", "batch_norm"), found
                continue
            for each, most in zip(found[1:], (1e-5, 2e-2), strict=True):
                for a, b in zip(each, found[0], strict=True):
                    np.testing.assert_allclose(a, b, rtol=most, atol=most, err_msg=str(shape))


async def with_gradient(s: asc.Scheduler, call: Callable[[Any], Any], array: np.ndarray) -> Any:
    """A value and the gradient of its sum, or the error."""
    x = await s.put(array)
    x.requires_grad = True
    try:
        y = call(x)
        value = await y
    except (TypeError, ValueError, ArithmeticError, LookupError) as error:
        return error
    assert (value.shape, value.dtype) == (y.shape, array.dtype)
    y.sum().backward()
    gradient = await x.grad  # type: ignore[misc]
    assert (gradient.shape, gradient.dtype) == (array.shape, array.dtype)
    return value, gradient


@pytest.mark.parametrize("shape", [(), (1,), (2, 3)])
async def test_the_mean_of_squares_is_that_of_numpy(s, shape):
    x, y = [np.random.default_rng(seed).normal(size=shape) for seed in (0, 1)]
    tensor = await s.put(x)
    tensor.requires_grad = True
    loss = nn.mse_loss(tensor, await s.put(y))
    loss.backward()
    np.testing.assert_allclose(await loss, ((x - y) ** 2).mean())
    np.testing.assert_allclose(await tensor.grad, 2 * (x - y) / x.size)


async def test_gradients_of_nothing_are_nothing(s):
    for shape, axis in (((0,), 0), ((0, 3), 0), ((3, 0), 1), ((2,), 0)):
        x = await s.put(np.ones(shape))
        x.requires_grad = True
        asc.diff(x, axis=axis, n=2).sum().backward()
        np.testing.assert_array_equal(await x.grad, np.zeros(shape))
