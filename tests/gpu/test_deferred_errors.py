"""What only the device can tell fails where it is awaited, with all that was issued on it; no thread waits for it."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched import nn, optim

from .conftest import Card, issued

pytestmark = pytest.mark.one_loop
LOGITS = np.random.default_rng(0).normal(size=(8, 5)).astype(np.float32)
GOOD, BAD = np.arange(8) % 5, np.arange(8) % 5 + 1
WRONG = r"the targets range from 1 to 5, but there are 5 classes: use 0 to 4"


@pytest.mark.parametrize("streams", [1, 3])
async def test_what_was_issued_on_it_fails_with_it(card: Card, streams: int) -> None:
    async with asc.Scheduler("cuda", streams=streams, max_ops=None) as s:
        x, good, bad = await s.put(LOGITS), await s.put(GOOD), await s.put(BAD)
        await (nn.cross_entropy(x, good) * 2 + x.sum())
        with card.held(s):
            loss = nn.cross_entropy(x, bad)
            behind = [loss * 2 + i * x.sum() for i in range(6)]
            fine = nn.cross_entropy(x, good) * 2
            await issued(s)
        with pytest.raises(IndexError, match=WRONG) as caught:
            await behind[-1]
        assert any("cross_entropy" in note and "test_deferred_errors.py" in note for note in caught.value.__notes__)
        for tensor in (loss, *behind):
            with pytest.raises(IndexError, match=WRONG):
                await tensor
        with pytest.raises(IndexError, match=WRONG):
            await (loss + 1)  # issued when it was known
        assert np.isfinite(await fine.item())
        await s.barrier()  # nothing is left unseen
        del loss, behind, tensor, caught


async def test_a_callable_is_not_given_what_may_be_wrong(card: Card) -> None:
    seen: list[Any] = []
    async with asc.Scheduler("cuda") as s:
        x, good, bad = await s.put(LOGITS), await s.put(GOOD), await s.put(BAD)
        with pytest.raises(IndexError, match=WRONG):
            await s.call(seen.append, nn.cross_entropy(x, bad) * 2)
        assert seen == []
        await s.call(seen.append, nn.cross_entropy(x, good) * 2)
        assert len(seen) == 1
        seen.clear()


async def test_an_index_that_is_no_row_fails(card: Card) -> None:
    async with asc.Scheduler("cuda") as s:
        table = await s.put(LOGITS)
        for indices, text in (([0, 8], "from 0 to 8, but there are 8 rows"), ([-1, 3], "from -1 to 3")):
            with pytest.raises(IndexError, match=text):
                await nn.functional.embedding(await s.put(np.array(indices)), table)
        rows = await nn.functional.embedding(await s.put(np.array([7, 0])), table).numpy()
        assert rows.tolist() == LOGITS[[7, 0]].tolist()


def _assign(x: asc.Tensor, key: Any, value: Any) -> asc.Tensor:
    x = x[...]
    x[key] = value
    return x


# Rows of 8, columns of 5: what each is given as its only wrong index, 8, -9, 5 or -6.
INDEXED: dict[str, tuple[Any, int, str]] = {
    "take": (lambda x, i: asc.take(x, i, axis=0), 8, "axis 0 with size 8"),
    "take from the end": (lambda x, i: asc.take(x, i, axis=-1), -6, "axis 1 with size 5"),
    "take of all": (lambda x, i: asc.take(x, i), 40, "axis 0 with size 40"),
    "take_along_axis": (lambda x, i: asc.take_along_axis(x[:3], i[:, None], axis=1), 5, "axis 1 with size 5"),
    "x[i]": (lambda x, i: x[i], -9, "axis 0 with size 8"),
    "x[..., i]": (lambda x, i: x[..., i], 5, "axis 1 with size 5"),
    "x[i, i]": (lambda x, i: x[i, i], 5, "axis 1 with size 5"),
    "x[None, 1:, i]": (lambda x, i: x[None, 1:, i], 5, "axis 1 with size 5"),
    "x[i] = 0": (lambda x, i: _assign(x, i, 0), 8, "axis 0 with size 8"),
    "x[:, i] = 1": (lambda x, i: _assign(x, (slice(None), i), 1), -6, "axis 1 with size 5"),
    "the gradient of x[i]": (lambda x, i: asc.autograd.grad(x[i].sum(), x)[0], 8, "axis 0 with size 8"),
}


@pytest.mark.parametrize("name", INDEXED)
async def test_an_index_out_of_range_fails_as_on_the_cpu(card: Card, name: str) -> None:
    made, wrong, where = INDEXED[name]
    for device in ("cpu", "cuda"):
        async with asc.Scheduler(device) as s:
            x = await s.put(LOGITS)
            x.requires_grad = "gradient" in name
            found = made(x, await s.put(np.array([0, wrong, 1])))
            with pytest.raises(IndexError, match=f"index {wrong} is out of bounds for {where}"):
                await found
            del found
            fine = made(x, await s.put(np.array([0, -5, 4])))
            if device == "cpu":
                expected = await fine.numpy()
            else:
                assert np.allclose(await fine.numpy(), expected)
            with suppress(ExceptionGroup):  # of a gradient, the pass forward
                await s.barrier()


async def test_as_many_are_assigned_as_a_mask_selects(card: Card) -> None:
    full, row, column = LOGITS > 0, LOGITS[0] > 0, LOGITS[:, 0] > 0
    places = ((full,), (..., row), (slice(None, None, -1), row), (column,), (None, column, slice(1, 3)))
    async with asc.Scheduler("cuda") as s:
        for place in places:
            at, mask = next((i, part) for i, part in enumerate(place) if isinstance(part, np.ndarray))
            key = (*place[:at], await s.put(mask), *place[at + 1 :])
            chosen = LOGITS[place]
            for value in (7, np.float32(2.5), np.arange(1.0), chosen * 2, chosen[..., :1] * 3, chosen.astype("f8")):
                expected = LOGITS.copy()
                expected[place] = value
                found = _assign(await s.put(LOGITS), key, await s.put(value) if np.ndim(value) else value)
                assert np.array_equal(await found.numpy(), expected), place
            found = _assign(await s.put(LOGITS), key, await s.put(np.repeat(chosen, 2, axis=_axis_of(mask, place))))
            with pytest.raises(ValueError, match=r"cannot assign \d+ input values to the \d+ output values"):
                await found


def _axis_of(mask: np.ndarray, place: tuple[Any, ...]) -> int:
    return LOGITS.ndim - mask.ndim if place[0] is ... else [part is mask for part in place].index(True)


@pytest.mark.parametrize("wrong", [0, 9])
async def test_a_replay_of_a_captured_step_fails_with_its_index(card: Card, wrong: int) -> None:
    async with asc.Scheduler("cuda") as s:
        x, good, bad = await s.put(LOGITS), await s.put(GOOD), await s.put(GOOD + wrong)
        graph = await s.capture(lambda x, i: asc.take(x, i, axis=0) * 2, x, good)
        results = [graph(x, i) for i in (good, bad, good)]
        for i, result in enumerate(results):
            if i == 1 and wrong:
                with pytest.raises(IndexError, match="index 13 is out of bounds for axis 0 with size 8"):
                    await result
            else:
                assert np.array_equal(await result.numpy(), LOGITS[GOOD] * 2)
        del results, result, graph


@pytest.mark.parametrize("make", [partial(optim.SGD, momentum=0.9), optim.AdamW], ids=["SGD", "AdamW"])
async def test_a_step_with_a_wrong_target_is_skipped(card: Card, make: Any) -> None:
    """As it is on the CPU, with nobody waiting in between."""
    found, told = {}, {}
    for device in ("cpu", "cuda"):
        async with asc.Scheduler(device) as s:
            p = await s.put(LOGITS[:5] / 9)
            p.requires_grad = True
            optimizer, x = make([p], lr=0.1), await s.put(LOGITS)
            after = []
            for target in (BAD, GOOD, BAD, GOOD, BAD, BAD, GOOD):
                nn.cross_entropy(x @ p, await s.put(target)).backward()
                optimizer.step()
                optimizer.zero_grad()
                after.append(p.detach() * 1)
            found[device] = [await tensor.numpy() for tensor in after]
            with pytest.raises(ExceptionGroup) as caught:
                await s.barrier()
            told[device] = [str(error) for error in caught.value.exceptions]
            assert all(isinstance(error, IndexError) for error in caught.value.exceptions)
            del p, optimizer, after, caught
    assert {*told["cpu"]} == {*told["cuda"]}  # of the passes forward and back, as far as both were issued
    for cpu, cuda in zip(found["cpu"], found["cuda"], strict=True):
        assert np.allclose(cpu, cuda, rtol=1e-4, atol=1e-6)
    changed = [not np.array_equal(a, b) for a, b in zip(found["cuda"], found["cuda"][1:], strict=False)]
    assert changed == [True, False, True, False, False, True]


async def test_what_a_skipped_first_step_leaves_are_zeros(card: Card) -> None:
    """They take no memory, and may be read and written over as any others."""
    async with asc.Scheduler("cuda", streams=1) as s:
        p, x = await s.put(LOGITS[:5] / 9), await s.put(LOGITS)
        await s.barrier()
        for _ in range(2):  # compiled, and known to be
            await (p * 0 + 1)
        p.requires_grad = True
        adam = optim.Adam([p])
        nn.cross_entropy(x @ p, await s.put(BAD)).backward()
        adam.step()
        mean = adam.state[0]["mean"]
        one = mean + 1
        del adam
        mean = mean + 1
        with pytest.raises(ExceptionGroup):
            await s.barrier()
        for found in (one, mean):
            assert np.array_equal(await found.numpy(), np.ones((5, 5)))
