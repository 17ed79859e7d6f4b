"""Captured steps as fused kernels: the bits of row by row, for every elementwise row and dtype."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched import nn
from asyncsched.devices.cuda import expressions, fused
from asyncsched.devices.cuda.fused import FusedSteps, fusible
from asyncsched.ops.table import TABLE
from asyncsched.tensors.tensor import apply
from tests.declared import UFUNCS

from .cases import CASES, values
from .close import strides
from .conftest import NONE, graphs_of

pytestmark = pytest.mark.one_loop
PROGRAMS = int(os.environ.get("ASYNCSCHED_CUDA_PROGRAMS", "200")) // 40
DTYPES = ("?", "i1", "u1", "i2", "i4", "u4", "i8", "u8", "f2", "f4", "f8")
COMMON = ("?", "u1", "i4", "i8", "f2", "f4", "f8")


def same(ours: np.ndarray, theirs: np.ndarray) -> bool:
    """Equal bits, but for those of what is not a number."""
    if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
        return False
    if ours.dtype.kind != "f":
        return ours.tobytes() == theirs.tobytes()
    nan = np.isnan(ours)
    return np.array_equal(nan, np.isnan(theirs)) and ours[~nan].tobytes() == theirs[~nan].tobytes()


def any_values(dtype: str, seed: int = 0, shape: tuple[int, ...] = (6, 40)) -> np.ndarray:
    """Numbers of all sizes, zeros, infinities, NaN, and the ends of integers."""
    rng = np.random.default_rng(seed)
    kind = np.dtype(dtype)
    if kind.kind == "b":
        return rng.random(shape) < 0.5
    with np.errstate(all="ignore"):
        found = (rng.normal(size=shape) * 10.0 ** rng.integers(-3, 4, shape)).astype(dtype)
    special = (
        [0, -0.0, np.inf, -np.inf, np.nan, 1, -1]
        if kind.kind == "f"
        else [0, 1, np.iinfo(kind).max, np.iinfo(kind).min]
    )
    found.reshape(-1)[: len(special)] = np.array(special, dtype)
    rng.shuffle(found.reshape(-1))
    return found


def programs_of(s: asc.Scheduler) -> list[Any]:
    """What the graphs run."""
    return [graph._program for graph in graphs_of(s)]


def runs_in(program: Any) -> list[Any]:
    """Its kernels, None for rows by themselves."""
    return [run for _, run in program._parts]


def runs_of(s: asc.Scheduler) -> list[Any]:
    """Those of all graphs."""
    return [run for program in programs_of(s) for run in runs_in(program)]


async def compare(s: asc.Scheduler, step: Callable[..., list[asc.Tensor]], *arrays: np.ndarray) -> asc.Graph:
    """Capture a step, and see that it gives what CuPy's functions give; and again, for other numbers."""
    s.devices[0].memory._steps.launches = lambda *_: None  # type: ignore[attr-defined]
    tensors = [await s.put(array) for array in arrays]
    graph = await s.capture(step, *tensors)
    for again in (tensors, [await s.put(array[::-1].copy()) for array in arrays]):
        expected = step(*again)
        for number, (ours, theirs) in enumerate(zip(graph(*again), expected, strict=True)):
            a, b = await ours.numpy(), await theirs.numpy()
            assert same(a, b), (number, expected[number], a[a != b], b[a != b])
    assert not any(program._failed for program in programs_of(s))
    return graph


def all_rows(x: asc.Tensor, y: asc.Tensor) -> list[asc.Tensor]:
    """Every universal function that NumPy has for these dtypes, and every cast."""
    found = [x.astype(dtype) for dtype in DTYPES] if x.dtype.kind != "f" else [x.astype("f2"), x.astype("f8"), x != 0]
    for name in UFUNCS:
        single = getattr(np, str(TABLE[name].kernel)).nin == 1
        for operands in [(x,)] if single else [(x, y), (x, 3)]:
            try:
                found.append(apply(TABLE[name], operands))
            except (TypeError, OverflowError, ValueError):
                continue  # NumPy's own refusal
    return [*found, asc.where(x < y, x, y), asc.where(x, 1, y), asc.clip(x, 1, 5), asc.maximum(asc.abs(x) + 1, y)]


@pytest.mark.gpu
@pytest.mark.timeout(300)
@pytest.mark.parametrize("dtype", DTYPES if PROGRAMS > 5 else COMMON)
async def test_every_function_of_every_dtype(has_card, dtype):
    """ASYNCSCHED_CUDA_PROGRAMS=400 takes all dtypes: thousands of CuPy's kernels to compare with."""
    if not has_card:
        pytest.skip(NONE)
    async with asc.Scheduler("cuda", streams=1) as s:
        pair = [any_values(dtype, seed) for seed in range(2)]
        if np.dtype(dtype).kind == "i":
            pair[1] = abs(pair[1] // 2) % 7  # shifts by negative numbers are nobody's promise
        await compare(s, all_rows, *pair)
        alone = len([run for run in runs_of(s) if run is None])
        assert alone <= (8 if dtype == "f8" else 4), "all are fused, but for the remainder, and pow and logaddexp of f8"


def networks(x: asc.Tensor, y: asc.Tensor) -> list[asc.Tensor]:
    f = nn.functional
    found = [
        f.relu(x),
        f.sigmoid(x),
        f.silu(x),
        f.leaky_relu(x),
        f.softplus(x),
        f.gelu(x),
        f.gelu(x, "tanh"),
        asc.erf(x),
    ]
    for function in (f.relu, f.sigmoid, f.leaky_relu, f.softplus, f.gelu, lambda x: asc.maximum(x, y) * asc.tanh(x)):
        leaf = x.detach()
        leaf.requires_grad = True
        found += asc.autograd.grad((function(leaf) * y).sum(), [leaf])
    return found


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
async def test_what_networks_have_and_its_gradients(card, dtype):
    async with asc.Scheduler("cuda", streams=1) as s:
        await compare(s, networks, any_values(dtype), any_values(dtype, 1))


async def test_halves_that_a_kernel_neither_reads_nor_writes(card):
    async with asc.Scheduler("cuda", streams=1) as s:
        await compare(s, lambda x: [asc.sqrt(abs(x).astype("f2")).astype("f4")], values(8, 8))


async def test_a_training_step_with_products(card):
    """Between products, its runs are kernels."""

    def step(x: asc.Tensor, w: asc.Tensor) -> list[asc.Tensor]:
        leaf = w.detach()
        leaf.requires_grad = True
        h = nn.functional.gelu(x @ leaf, "tanh") * 2 - 1
        loss = (h * h + h).sum()
        return [loss, *asc.autograd.grad(loss, [leaf])]

    async with asc.Scheduler("cuda", streams=1) as s:
        graph = await compare(s, step, values(8, 8), values(8, 8, seed=1))
        if card.fake is None:
            assert [len(run.writes) for run in runs_of(s) if run], repr(graph)


@pytest.mark.gpu
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(PROGRAMS))
async def test_random_programs_with_broadcasting(has_card, seed):
    if not has_card:
        pytest.skip(NONE)
    rng = random.Random(seed)
    shapes = [(6, 40), (6, 1), (40,), (1, 1), (), (2, 6, 40), (1, 6, 1)]
    arrays = [any_values(rng.choice(DTYPES), seed, (6, 40))]
    arrays += [values(*rng.choice(shapes), dtype=rng.choice(DTYPES), seed=seed) for _ in range(4)]

    def step(*tensors: asc.Tensor) -> list[asc.Tensor]:
        rng = random.Random(seed)  # the same each time
        found = list(tensors)
        while len(found) < 30:
            name = rng.choice(
                ["add", "subtract", "multiply", "divide", "maximum", "less", "where", "exp", "abs", "sqrt"]
            )
            row, operands = TABLE[name], [rng.choice(found[-8:]) for _ in range(3)]
            count = {"where": 3, "exp": 1, "abs": 1, "sqrt": 1}.get(name, 2)
            if count == 2 and rng.random() < 0.3:
                operands[rng.randrange(2)] = rng.choice([2, 0.5, True])  # type: ignore[call-overload]
            try:
                found.append(apply(row, tuple(operands[:count])))
            except (TypeError, OverflowError):
                continue
        return found[-10:]

    async with asc.Scheduler("cuda", streams=1) as s:
        tensors = [await s.put(array) for array in arrays]
        graph = await s.capture(step, *tensors)
        for ours, theirs in zip(graph(*tensors), step(*tensors), strict=True):
            assert same(await ours.numpy(), await theirs.numpy()), theirs


def chain(x: asc.Tensor) -> asc.Tensor:
    for _ in range(10):
        x = asc.tanh(x) * 2 + 1
    return x


async def test_a_run_is_one_kernel_and_its_intermediates_take_no_memory(card):
    """Inside `asc.exact()` it stays rows; and all of it where CuPy's expressions are not to be had, as on the fake."""
    async with asc.Scheduler("cuda", streams=1) as s:
        x = await s.put(values(64, 64))
        graph = await s.capture(chain, x)
        with asc.exact():
            rows = await s.capture(chain, x)
        assert await graph(x).numpy() == pytest.approx(await rows(x).numpy(), abs=0)
        found = [len([run for run in runs_in(program) if run]) for program in programs_of(s)]
        assert sorted(found) == ([0, 1] if card.fake is None else [0, 0])
        assert rows.owned == 4 * 64 * 64 * 3
        assert graph.owned == (0 if card.fake is None else rows.owned)  # which is then no graph
        assert same(await graph(x).numpy(), await chain(x).numpy())


@pytest.mark.parametrize("name", expressions.PRIVATE)
async def test_what_cupy_has_under_another_name_is_done_by_its_public_functions(card, monkeypatch, name):
    if card.fake is not None and name != next(iter(expressions.PRIVATE)):
        pytest.skip("the fake has none of them")
    monkeypatch.setitem(expressions.PRIVATE, name, "_gone")

    def step(x: asc.Tensor, y: asc.Tensor) -> list[asc.Tensor]:
        return [*networks(x, y), asc.where(x < y, x, 1) * 2, asc.clip(x, 0, 1) + y, chain(x)]

    async with asc.Scheduler("cuda", streams=1) as s:
        graph = await compare(s, step, any_values("f4"), any_values("f4", 1))
        cupys = any("out0" in run.source[2] for run in runs_of(s) if run)
        if card.fake is None and not name.endswith("by result"):  # which casts alone ask for
            assert cupys == (name in ("where", "clip", "scalar")), repr(graph)


async def test_more_operands_than_a_kernel_takes_are_several_kernels(card):
    async with asc.Scheduler("cuda", streams=1) as s:
        tensors = [await s.put(values(4, 1, 5, seed=seed)) for seed in range(60)]

        def total(*tensors: asc.Tensor) -> list[asc.Tensor]:
            found = tensors[0] + 1
            for tensor in tensors[1:]:
                found = found * 0.5 + tensor
            return [found]

        graph = await s.capture(total, *tensors)
        assert same(await graph(*tensors)[0].numpy(), await total(*tensors)[0].numpy())
        if card.fake is None:
            assert len([run for run in runs_of(s) if run]) == 2


async def test_what_lies_in_another_layout_or_is_empty_stays_rows(card):
    def step(x: asc.Tensor) -> list[asc.Tensor]:
        h = x * 2
        (h + 2) * 3  # which nobody reads
        return [(h.mT + 1) * 3, (h[:, ::2] + 1) * 3, (h[:0] + 1) * 3, h + 1]

    async with asc.Scheduler("cuda", streams=1) as s:
        for array in (values(6, 8), np.asfortranarray(values(6, 8))):
            x = await s.put(array)
            graph = await s.capture(step, x)
            for ours, theirs in zip(graph(x), step(x), strict=True):
                assert same(await ours.numpy(), await theirs.numpy())
                assert card.fake or strides(await ours) == strides(await theirs)


@pytest.mark.gpu
async def test_where_a_kernel_does_not_compile_the_rows_run(has_card, monkeypatch, caplog):
    if not has_card:
        pytest.skip(NONE)
    monkeypatch.setattr(expressions.Names, "ctype", lambda names, dtype: "nonsense")
    async with asc.Scheduler("cuda", streams=1) as s:
        x = await s.put(values(7, 9))
        graph = await s.capture(chain, x)
        assert same(await graph(x).numpy(), await chain(x).numpy())
    assert "does not compile" in caplog.text


async def test_on_each_of_two_devices(card, peers):
    async with asc.Scheduler(["cuda:0", "cuda:1"], streams=1) as s:
        for device in ("cuda:0", "cuda:1"):
            x = await s.put(values(16, 16), device=device)
            graph = await s.capture(chain, x)
            assert same(await graph(x).numpy(), await chain(x).numpy())


async def test_operations_are_one_kernel_with_the_bits_of_cupys_functions(card, monkeypatch):
    """Also where nothing is captured. In host memory CuPy has no `erfinv`."""
    names = sorted(name for name, op in TABLE.items() if (fusible(op) or name in UFUNCS) and name != "erfinv")
    cases = [(name, case) for name in names for case in CASES[name] if all(map(_dense, case.operands))]
    # Of universal functions single precision: each has a kernel of ours and one of CuPy's to compile.
    single = [{getattr(a, "dtype", "f4") for a in case.operands} == {np.dtype("f4")} for _, case in cases]
    cases = [found for found, wanted in zip(cases, single, strict=True) if wanted or found[0] not in UFUNCS]
    found, kernels, alone = list[list[bytes]](), set[str](), fused._alone

    def noted(cupy: Any, op: Any, *args: Any) -> Any:
        if run := alone(cupy, op, *args):
            kernels.add(op.name)
        return run

    monkeypatch.setattr(fused, "_alone", noted)
    for ours in (True, False):
        if not ours:
            monkeypatch.setattr(FusedSteps, "run", lambda *_: None)
            monkeypatch.setattr(FusedSteps, "launches", lambda *_: None)
        async with asc.Scheduler("cuda", streams=1) as s:
            given = []
            for name, case in cases:
                operands = tuple([await s.put(a) if isinstance(a, np.ndarray) else a for a in case.operands])
                try:
                    result = apply(TABLE[name], operands, case.options, scheduler=s)
                except TypeError:  # there is no such function for this dtype
                    continue
                given.append((await result.numpy()).tobytes())
            found.append(given)
    assert found[0] == found[1]
    assert card.fake is not None or {name for name in names if not name.startswith("bitwise")} - kernels == {
        "remainder"
    }


async def test_numbers_beside_an_array_have_the_bits_of_cupys_functions(card, monkeypatch):
    """Zeros with and without a sign, equal numbers of several types, the ends of integers, more than are kept."""
    numbers = {
        "f4": (0.0, -0.0, 1, 1.0, True, np.inf, np.nan, np.float32(2), *[i / 7 for i in range(100)]),
        "f2": (0.0, -0.0, 1, 65504), "i1": (0, -1, 127, -128, True, np.int8(3)), "u8": (0, 1, 2**63 - 1),
        "?": (0, 1, True, False, 0.5),
    }  # fmt: skip
    found: list[list[bytes]] = []
    for ours in (True, False):
        if not ours:
            monkeypatch.setattr(FusedSteps, "launches", lambda *_: None)
        async with asc.Scheduler("cuda", streams=1) as s:
            tensors = {dtype: await s.put(any_values(dtype)) for dtype in numbers}
            results = [
                function(tensors[dtype], number)
                for dtype in numbers
                for number in numbers[dtype]
                for function in (asc.add, asc.maximum, asc.multiply, asc.less, asc.divide)
            ]
            found.append([(await result.numpy()).tobytes() for result in results])
    assert found[0] == found[1]


async def test_a_functions_result_may_have_gaps(card):
    """Its form does not tell."""
    a = values(8, 16)
    async with asc.Scheduler("cuda", streams=1) as s:
        x, dense = await s.put(a), await s.put(a[:, ::2].copy())
        for _ in range(3):
            sparse = await s.submit(lambda array: array[:, ::2], x, shape=(8, 8), dtype=np.float32)
            for one in (dense, sparse):
                assert same(await (one + 1).numpy(), a[:, ::2] + 1)
                assert same(await (one * dense).numpy(), a[:, ::2] * a[:, ::2])


def _dense(operand: Any) -> bool:
    return not isinstance(operand, np.ndarray) or bool(operand.flags.c_contiguous)
