"""Rows with a faster kernel: how far they are off, and how they are switched off."""

from __future__ import annotations

import logging
import math
import sys
import threading
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched import nn
from asyncsched.ops import TABLE, Blas, Op, resolve
from asyncsched.ops.kernels import compiled

pytestmark = pytest.mark.one_loop

BOUNDED = [name for name, row in TABLE.items() if row.bound is not None]
ENTROPY = {"reduction": "none", "ignore_index": -100, "label_smoothing": 0.0}
SHAPE = (150, 130)  # enough elements for a compiled loop


def given(scale: float, seed: int = 0) -> dict[str, list[tuple[tuple[Any, ...], dict[str, Any]]]]:
    """Operands and options for each row with a bound."""
    rng = np.random.default_rng(seed)
    x, g, w, b = [(scale * rng.standard_normal(shape)).astype("f4") for shape in (SHAPE, SHAPE, SHAPE[1:], SHAPE[1:])]
    target = rng.integers(0, SHAPE[1], SHAPE[0])
    far = x + np.float32(5 * scale)
    uneven = np.where(np.arange(SHAPE[1]) < 64, far, x)  # what comes first tells little of the mean
    attended, shapes = {"causal": True, "scale": None}, (SHAPE,) * 3
    packed = np.concatenate([x.ravel(), g.ravel(), far.ravel()])
    return {
        "gelu": [((x,), {"approximate": a}) for a in ("none", "tanh")],
        "gelu_backward": [((g, x), {"approximate": a}) for a in ("none", "tanh")],
        "softmax": [((x,), {"log": log}) for log in (False, True)],
        "layer_norm": [((rows, w / scale, b / scale), {"eps": 1e-5}) for rows in (x, far, uneven)],
        "cross_entropy": [((x, target), ENTROPY | {"label_smoothing": smooth}) for smooth in (0.0, 0.1)],
        "attention": [((packed, 0), attended | {"shapes": shapes})],
        "attention_unpacked": [((x, g, far, x[:, :1] > 0), attended)],  # some queries attend to nothing
        **{name: [] for name, op in TABLE.items() if op.blas is Blas.PRODUCT},  # in parts: see `devices/test_team.py`
    }


def is_float(operand: Any) -> bool:
    return isinstance(operand, np.ndarray) and operand.dtype.kind == "f"


def run(row: Op, operands: Any, options: Any) -> Any:
    with np.errstate(all="ignore"):
        return resolve(row, np)(*[a.copy() if isinstance(a, np.ndarray) else a for a in operands], **options)


def assert_within(row: Op, operands: Any, options: Any) -> None:
    """No number is further off than the table says, seen from the exact row's, in units of the largest operand."""
    assert row.bound is not None
    assert row.exact is not None
    found, exact = run(row, operands, options), run(row.exact, operands, options)
    unit = max(1.0, *[float(np.abs(a).max()) for a in operands if is_float(a)])
    allowed = row.bound.relative * np.abs(exact) + row.bound.absolute * unit
    assert (np.abs(found - exact) <= allowed).all(), float(np.max(np.abs(found - exact) - allowed))


def test_every_row_with_a_bound_has_a_case():
    assert set(BOUNDED) == set(given(1.0))
    assert all(TABLE[name].exact.name == name for name in BOUNDED)


@pytest.mark.parametrize("scale", [0.01, 1.0, 3.0, 30.0, 1000.0])
@pytest.mark.parametrize("name", BOUNDED)
def test_no_result_is_off_by_more_than_the_table_says(name, scale):
    compiled.finish()
    for seed in range(3):
        for operands, options in given(scale, seed)[name]:
            assert_within(TABLE[name], operands, options)


@pytest.mark.parametrize("scale", [1e-3, 1.0])
@pytest.mark.parametrize(("name", "options"), [("cross_entropy", ENTROPY), ("softmax", {"log": True}), ("softmax", {})])
def test_logits_far_from_0_keep_their_differences(name, options, scale):
    compiled.finish()
    (x, target), _ = given(scale)["cross_entropy"][0]
    x += np.float32(1e4)  # exact differences, from here on
    operands = (x, target) if name == "cross_entropy" else (x,)
    near = tuple([a - np.float32(1e4) if is_float(a) else a for a in operands])
    exact = run(TABLE[name].exact, [a.astype("f8") if is_float(a) else a for a in near], options)
    np.testing.assert_allclose(run(TABLE[name], operands, options), exact, rtol=3e-6, atol=3e-6)


@pytest.mark.parametrize("dtype", ["f2", "f8"])
@pytest.mark.parametrize("name", BOUNDED)
def test_in_other_dtypes_the_rows_are_exact(name, dtype):
    for operands, options in given(1.0)[name]:
        cast = [a.astype(dtype) if is_float(a) else a for a in operands]
        assert run(TABLE[name], cast, options).tobytes() == run(TABLE[name].exact, cast, options).tobytes()


def test_gelu_is_as_near_the_truth_as_single_precision_lets_it():
    x = np.linspace(-12, 12, 48_001, dtype="f4")
    truth = np.array([v * math.erfc(-v / math.sqrt(2)) / 2 for v in x.tolist()])
    for row in (TABLE["gelu"], TABLE["gelu"].exact):
        assert np.abs(run(row, (x,), {"approximate": "none"}) - truth).max() < 6e-7


@pytest.mark.parametrize("name", ["gelu", "gelu_backward"])
def test_far_out_gelu_is_0_or_its_operand(name):
    x = np.array([-3e38, -1e30, -40.0, 40.0, 1e18], "f4").repeat(compiled.WORTH)
    operands = (x,) if name == "gelu" else (np.ones_like(x), x)
    y = run(TABLE[name], operands, {"approximate": "none"})[:: compiled.WORTH]
    assert y.tolist() == ([0, 0, 0, 40, x[-1]] if name == "gelu" else [0, 0, 0, 1, 1])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e4, -1e4, 89.0, -110.0])
def test_a_row_with_a_number_far_out_is_as_in_the_textbook_and_no_other_row_notices(value):
    x = given(1.0)["softmax"][0][0][0]
    far = x.copy()
    far[7, 3] = value
    for name, options in (("softmax", {"log": False}), ("softmax", {"log": True})):
        found, before = run(TABLE[name], (far,), options), run(TABLE[name], (x,), options)
        with np.errstate(all="ignore"):
            shifted = far[7].astype("f8") - far[7].max()
            textbook = np.exp(shifted) / np.exp(shifted).sum()
            textbook = np.log(textbook) if options["log"] and abs(value) < 90 else textbook
        if not options["log"] or abs(value) < 90:
            np.testing.assert_allclose(found[7], textbook, rtol=2e-6, atol=2e-6)
        assert (np.delete(found, 7, 0) == np.delete(before, 7, 0)).all()


async def test_inside_exact_the_plain_kernel_runs(s):
    x = np.linspace(-6, 6, 40_000, dtype="f4")
    t = await s.put(x)
    exact, fast = [run(row, (x,), {"approximate": "none"}) for row in (TABLE["gelu"].exact, TABLE["gelu"])]
    assert (exact != fast).any()
    with asc.exact():
        inside = nn.gelu(t)
        assert (await inside).tobytes() == exact.tobytes()
    assert (await nn.gelu(t)).tobytes() == fast.tobytes()


async def test_a_derivative_is_exact_if_it_is_asked_for_inside(s):
    x = np.linspace(-6, 6, 40_000, dtype="f4")
    t = await s.put(x)
    t.requires_grad = True
    with asc.exact():
        nn.gelu(t).sum().backward()
    expected = run(TABLE["gelu_backward"].exact, (np.ones_like(x), x), {"approximate": "none"})
    assert (await t.grad).tobytes() == expected.tobytes()


# -- loops, of numba or of these tests ---------------------------------------------------------------------------


class Compiler:
    """In the place of numba: what it compiles notes that it ran, and gives zeros."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        names = ("gelu", "softmax", "layer_norm", "cross_entropy", "exponentials")
        self.LOOPS = {name: self._loop(name) for name in names}

    def _loop(self, name: str) -> Any:
        def loop(*arrays: Any) -> None:
            self.ran.append(name)
            arrays[-1][...] = 0

        return loop


@pytest.fixture
def unstarted(monkeypatch):
    """As in a fresh process where numba is installed."""
    monkeypatch.setattr(compiled, "_started", False)
    monkeypatch.setattr(compiled, "_compiler", None)
    monkeypatch.setattr(compiled, "_loops", {})
    monkeypatch.setattr(compiled, "_installed", lambda: True)


@pytest.fixture
def compiler(unstarted, monkeypatch):
    found = Compiler()
    monkeypatch.setitem(sys.modules, "asyncsched.ops.kernels.loops", found)
    assert compiled.finish()
    return found


@pytest.mark.parametrize("name", ["gelu", "softmax", "layer_norm", "cross_entropy"])
def test_compiled_loops_run_where_they_pay(compiler, name):
    operands, options = given(1.0)[name][0]
    assert not run(TABLE[name], operands, options).any()
    assert compiler.ran == [name]
    small = [a[:3] if len(a) == SHAPE[0] else a for a in operands]
    assert run(TABLE[name], small, options).any()
    assert run(TABLE[name].exact, operands, options).any()
    turned = [np.asfortranarray(a) for a in operands]
    with np.errstate(all="ignore"):
        assert resolve(TABLE[name], np)(*turned, **options).any()
    assert compiler.ran == [name]


@pytest.mark.parametrize("name", ["attention", "attention_unpacked"])
def test_attention_has_a_loop_for_its_weights(compiler, name):
    operands, options = given(1.0)[name][0]
    exact = run(TABLE[name].exact, operands, options)
    assert compiler.ran == []
    found = run(TABLE[name], operands, options)  # sums of 0 are not ordinary: all is computed again
    assert compiler.ran == ["exponentials"]
    np.testing.assert_allclose(found, exact, rtol=3e-6, atol=3e-6)


async def test_inside_exact_nothing_compiled_runs(s, compiler):
    t = await s.put(np.ones(SHAPE, "f4"))
    with asc.exact():
        await nn.softmax(t)
    assert compiler.ran == []
    await nn.softmax(t)
    assert compiler.ran == ["softmax"]


def test_until_it_is_compiled_the_plain_kernel_runs(unstarted, monkeypatch):
    gate, threads = threading.Event(), []

    class Slow:
        @property
        def LOOPS(self) -> Any:
            threads.append(threading.current_thread())
            assert gate.wait(60)
            return Compiler().LOOPS

    monkeypatch.setitem(sys.modules, "asyncsched.ops.kernels.loops", Slow())
    operands, options = given(1.0)["softmax"][0]
    assert run(TABLE["softmax"], operands, options).any()
    gate.set()
    assert compiled.finish()
    assert [thread.name for thread in threads] == ["asyncsched compiler"]
    assert not run(TABLE["softmax"], operands, options).any()


def test_where_compiling_fails_that_is_said_once_and_the_plain_kernel_runs(unstarted, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "asyncsched.ops.kernels.loops", None)  # importing it raises
    operands, options = given(1.0)["softmax"][0]
    with caplog.at_level(logging.WARNING):
        assert not compiled.finish()
        for _ in range(2):
            assert run(TABLE["softmax"], operands, options).any()
    assert [record.message for record in caplog.records] == [
        "numba could not compile the operations of networks: they run without it"
    ]


def test_without_numba_nothing_is_tried(unstarted, monkeypatch):
    monkeypatch.setattr(compiled, "_installed", lambda: False)
    assert not compiled.finish()
    assert not [thread for thread in threading.enumerate() if thread.name == "asyncsched compiler"]
