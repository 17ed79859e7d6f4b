"""Attention, in blocks of heads and queries."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from conftest import meta_of, peak_of

from asyncsched.ops import TABLE, plan, resolve
from asyncsched.ops.kernels import attention

RNG = np.random.default_rng(0)
HOW = {"causal": False, "scale": None}


def real(*shape: int) -> Any:
    return RNG.standard_normal(shape, np.float32)


def textbook(q: Any, k: Any, v: Any, causal: bool) -> Any:
    scores = q.astype("f8") @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    scores = np.where(np.tri(*scores.shape[-2:], dtype=bool) | (not causal), scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True) @ v


def attend(*operands: Any, name: str = "attention_unpacked", **options: Any) -> Any:
    with np.errstate(all="ignore"):
        return resolve(TABLE[name], np)(*operands, **options)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("lead", "lengths", "widths"),
    [
        ((2, 3), (100, 100), (64, 64)),
        ((), (6, 64), (3000, 1)),
        ((3,), (37, 129), (150, 33)),
        ((2, 2), (300, 70), (20, 100)),  # more queries than keys: causal, the last ones attend to all
        ((4,), (70, 300), (64, 130)),
    ],
)
def test_attention_equals_the_textbook(lead, lengths, widths, causal):
    q, k, v = real(*lead, lengths[0], widths[0]), real(*lead, lengths[1], widths[0]), real(*lead, lengths[1], widths[1])
    found = attend(q, k, v, 0, causal=causal, scale=None)
    np.testing.assert_allclose(found, textbook(q, k, v, causal), rtol=3e-6, atol=2e-6)


@pytest.mark.parametrize("lead", [(3, 4), (300, 4), (5, 60, 4), (0, 4), (2, 0)])
def test_queries_attend_to_as_many_keys_as_their_lengths_say(lead):
    """Many small heads are done at once, or many of them at a time, up to the longest."""
    q, k, v = real(*lead, 1, 24), real(*lead, 200, 24), real(*lead, 200, 16)
    lengths = RNG.integers(1, 150, lead[0])
    k[..., 150:, :] = np.nan  # nobody asks for those
    mask = (np.arange(200) < lengths[:, None]).reshape(lead[0], *[1] * len(lead), 200)
    found = attend(q, k, v, mask, causal=False, scale=None)
    assert found.shape == (*lead, 1, 16)
    for i, n in enumerate(lengths):
        want = textbook(q[i], k[i, ..., :n, :], v[i, ..., :n, :], False)
        np.testing.assert_allclose(found[i], want, rtol=3e-6, atol=2e-6)


@pytest.mark.parametrize("mask", [None, "bool", "float"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", [(100, 100), (70, 130), (130, 70)])
@pytest.mark.parametrize("lead", [(2, 3), ()])
def test_long_ones_are_attended_to_some_queries_at_a_time(monkeypatch, lead, lengths, causal, mask):
    q, k, v, grad = [RNG.standard_normal((*lead, length, 8)) for length in (*lengths, lengths[1], lengths[0])]
    given = 0 if mask is None else RNG.standard_normal(lengths) > 0
    given = np.where(given, -np.inf, 0.5) if mask == "float" else given
    packed = np.concatenate([one.ravel() for one in (q, k, v)])
    options = {"causal": causal, "scale": None, "shapes": (q.shape, k.shape, v.shape)}
    found = []
    for most in (1 << 19, 1):
        monkeypatch.setattr(attention, "_SCORES", most)
        monkeypatch.setattr(attention, "_QUERIES", 32)
        found.append([attend(packed, given, name="attention", **options)])
        found[-1].append(attend(packed, given, grad, name="attention_backward", **options))
    assert len(attention._queries(np, *lengths)) > 1
    for whole, some in zip(*found, strict=True):
        assert np.isfinite(whole).all()
        np.testing.assert_allclose(some, whole, rtol=1e-11, atol=1e-12)
    if mask is None:
        np.testing.assert_allclose(found[1][0], textbook(q, k, v, causal), rtol=1e-9, atol=1e-12)


def test_a_long_head_is_no_square_of_bytes():
    """Forward and backward, by the plan and in truth."""
    q, k, v = real(1, 6000, 16), real(1, 6000, 16), real(1, 6000, 16)
    packed = np.concatenate([one.ravel() for one in (q, k, v)])
    options = {"causal": False, "scale": None, "shapes": (q.shape,) * 3}
    for name, operands in (("attention", (packed, 0)), ("attention_backward", (packed, 0, real(1, 6000, 16)))):
        planned = plan(
            TABLE[name], tuple(meta_of(one) if isinstance(one, np.ndarray) else one for one in operands), options
        )
        kernel = resolve(TABLE[name], np)
        peak = peak_of(partial(kernel, *operands, **options))
        assert peak <= planned.cost < 6000 * 6000 * 4


@pytest.mark.parametrize("value", [1e4, -1e4, np.nan, np.inf])
def test_a_query_far_out_has_its_heads_done_as_in_the_textbook(value):
    q, k, v = real(3, 100, 64), real(3, 90, 64), real(3, 90, 64)
    q[1, 7, 3] = value
    found = attend(q, k, v, 0, **HOW)
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(found, textbook(q, k, v, False), rtol=1e-3, atol=3e-6)
