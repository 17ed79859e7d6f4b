"""Every row of the table on the device against NumPy: names and keywords that CuPy takes, values, dtypes and layouts.

A row's cases run to the last, and all that failed are listed: a card may be at hand for a short while only. On the
fake, which computes by NumPy, some of them run by default.
"""

from __future__ import annotations

import warnings
from operator import add, eq, lt, mul, sub
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched.ops.declare import UNPACK
from asyncsched.ops.kernels.blocks import blocks
from asyncsched.ops.kernels.elementwise import comparison_rule, ufunc_rule
from asyncsched.ops.op import plan, resolve
from asyncsched.ops.table import TABLE
from asyncsched.tensors.functions._common import several
from asyncsched.tensors.tensor import apply
from tests.cuda_host.runtime import loaded
from tests.thorough import usually

from .cases import CASES, PACKED, RANDOM, Case, X, absent, cases_of, groups
from .close import differs, strides

pytestmark = pytest.mark.one_loop
ALL = 10_000  # cases of a row


def test_every_row_has_cases():
    assert {name for name, cases in CASES.items() if cases} == set(TABLE)


@pytest.mark.parametrize("names", groups(name for name in TABLE if name not in (*RANDOM, *PACKED)))
async def test_rows_equal_numpy(card, names):
    wrong = []
    cases = [(name, case) for name in names for case in cases_of(name, card.pick(ALL, usually(4, ALL)))]
    async with asc.Scheduler("cuda", max_bytes="256 MiB") as s:
        for name, case in cases:
            expected = _eager(name, case)
            if expected is not None:
                wrong += [f"{name}, {_described(case)}: {text}" for text in await _compared(s, name, case, expected)]
    if wrong and all(map(absent, wrong)):
        pytest.skip(f"not there in host memory: {wrong[0]}")
    assert not wrong, "\n".join([f"{len(wrong)} of {len(cases)} cases", *wrong[:40]])


@pytest.mark.parametrize("dtype", ["int8", "int32", "uint8", "float16", "float32", "float64"])
async def test_numbers_beside_a_tensor_count_as_in_numpy(card, dtype):
    """By operators, which are issued in another way than functions."""
    array, wrong = np.array([[0, 1, 5], [2, 100, 3]], dtype), []
    async with asc.Scheduler("cuda") as s:
        x = await s.put(array)
        for operator in (add, sub, mul, lt, eq):
            for number in (2, 0, 0.1, -0.0, 1e300, float("nan"), float("inf"), True):
                with np.errstate(all="ignore"):
                    expected = operator(array, number)
                for _ in range(2):
                    found = await operator(x, number).numpy()
                    if (found.dtype, str(found.tolist())) != (expected.dtype, str(expected.tolist())):  # of any NaN
                        wrong.append((operator.__name__, number, found, expected))
    assert not wrong


def _eager(name: str, case: Case) -> Any:
    """What NumPy gives; None where it refuses such operands."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return np.asarray(resolve(TABLE[name], np)(*case.operands, **case.options))
        except (TypeError, ValueError):
            return None


async def _compared(s: asc.Scheduler, name: str, case: Case, expected: np.ndarray) -> list[str]:
    """What is wrong with what the device gives, with the operands held, and with the task as their only holder."""
    held: list[Any] = []
    wrong = []
    for keep in (held, None):
        try:
            result = await _applied(s, name, case, keep)
            array, host = await result, await result.numpy()
        except Exception as error:
            return [f"{type(error).__name__}: {error}"]
        wrong += filter(None, [differs(host, expected, _magnitude(name, case)), _laid_out(name, case, array, expected)])
    for tensor, operand in zip(held, case.operands, strict=True):
        if isinstance(operand, np.ndarray) and (await tensor.numpy()).tobytes() != operand.tobytes():
            wrong.append("an operand was written over")
    return wrong


async def _applied(s: asc.Scheduler, name: str, case: Case, keep: list[Any] | None) -> asc.Tensor:
    handles = [await s.put(a) if isinstance(a, np.ndarray) else a for a in case.operands]
    if keep is not None:
        keep += handles
    return apply(TABLE[name], tuple(handles), case.options, scheduler=s)


def _magnitude(name: str, case: Case) -> Any:
    """The size of the terms that are summed: their signs may cancel."""
    if TABLE[name].rule in (ufunc_rule, comparison_rule):
        return None
    arrays = [np.abs(a) for a in case.operands if isinstance(a, np.ndarray)]
    return max((float(np.fmax.reduce(a, axis=None, initial=1)) for a in arrays), default=1.0) * 4


def _laid_out(name: str, case: Case, array: Any, expected: np.ndarray) -> str | None:
    """Views lie as NumPy's; what a plan promises to be contiguous is."""
    op = TABLE[name]
    operands = tuple([_meta(a) for a in case.operands])
    if plan(op, operands, case.options).meta.contiguous and not array.flags.c_contiguous:
        return f"planned as contiguous, with strides {array.strides}"
    dense = all(_dense(a) for a in case.operands)
    if op.view and dense and strides(array) != strides(expected):
        return f"strides {array.strides} instead of {expected.strides}"
    return None


def _dense(operand: Any) -> bool:
    """Whether a put leaves its layout as it is."""
    return not isinstance(operand, np.ndarray) or operand.flags.c_contiguous or operand.flags.f_contiguous


def _meta(operand: Any) -> Any:
    from asyncsched.ops.meta import meta

    if isinstance(operand, np.ndarray):
        return meta(operand.shape, operand.dtype, operand.flags.c_contiguous)
    return operand


def _described(case: Case) -> str:
    operands = [f"{a.dtype}{list(a.shape)}" if isinstance(a, np.ndarray) else repr(a) for a in case.operands]
    return f"({', '.join(operands)}) {case.options or ''}"


async def test_decompositions(card):
    """Their parts are known but for signs and phases: what they make is compared."""
    async with asc.Scheduler("cuda", max_bytes="256 MiB") as s:
        for name in ("eigh", "qr", "svd", "slogdet", *(("eig",) if loaded() is None else ())):
            for case in CASES[name]:
                x = case.operands[0]
                parts = [await part.numpy() for part in getattr(asc.linalg, name)(await s.put(x), **case.options)]
                assert np.allclose(*_made_of(name, x, parts), atol=1e-3), (name, case.options)


async def test_histograms_have_numpys_counts_and_edges(card):
    async with asc.Scheduler("cuda", max_bytes="256 MiB") as s:
        for case in CASES["histogram"]:
            expected = _eager_parts("histogram", case)
            handles = [await s.put(a) for a in case.operands]
            for got, like in zip(several("histogram", *handles, **case.options), expected, strict=True):
                assert differs(await got.numpy(), like, 4.0) is None, _described(case)
        wrong = [asc.histogram(await s.put(np.array([1.0, np.inf, 2]))), asc.histogram(await s.put(X), [2.0, 1])]
        for found in wrong:
            with pytest.raises(ValueError, match="finite|monotonically"):
                await found


def _eager_parts(name: str, case: Case) -> Any:
    operation = TABLE[name]
    places = plan(operation, tuple([_meta(a) for a in case.operands]), case.options).parts
    buffer = resolve(operation, np)(*case.operands, **case.options)
    return [resolve(UNPACK, np)(buffer, **place) for place in places]


def _made_of(name: str, x: np.ndarray, parts: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    if name in ("eigh", "eig"):
        return x @ parts[1], parts[1] * parts[0][..., None, :]
    if name == "qr":
        return parts[0] @ parts[1], x
    if name == "slogdet":
        return parts[0] * np.exp(parts[1]), np.linalg.det(x)
    u, singular, vh = parts
    k = singular.shape[-1]
    return (u[..., :k] * singular[..., None, :]) @ vh[..., :k, :], x


def test_blocks_are_few_where_each_step_is_a_launch(card):
    import cupy

    assert len(blocks(np, 1 << 21)) > 16
    assert len(blocks(cupy, 1 << 21)) == 2
    assert len(blocks(cupy, 8, 1 << 21)) == 8


@pytest.mark.parametrize("name", RANDOM)
async def test_random_numbers_have_their_distribution(s, name):
    for case in CASES[name]:
        first, again = [await (await _applied(s, name, case, None)).numpy() for _ in range(2)]
        assert first.tobytes() == again.tobytes(), "the same seed gives the same numbers"
        assert first.dtype == _eager(name, case).dtype
        expected = _eager(name, case)
        for got, like in ((first.mean(), expected.mean()), (first.std(), expected.std())):
            assert abs(got - like) < 0.05, case
        assert abs(np.mean(first == 0) - np.mean(expected == 0)) < 0.03
