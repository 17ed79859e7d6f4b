"""What only the device can tell fails where it is awaited, with all that was issued on it; no thread waits for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched import nn, optim
from asyncsched.ops.table import TABLE
from asyncsched.tensors.tensor import apply
from tests.waiting import until

from .cases import CASES
from .conftest import Card

pytestmark = pytest.mark.one_loop
LOGITS = np.random.default_rng(0).normal(size=(8, 5)).astype(np.float32)
GOOD, BAD = np.arange(8) % 5, np.arange(8) % 5 + 1
WRONG = r"the targets reach from 1 to 5, and there are 5 classes: use 0 to 4"


async def issued(s: asc.Scheduler) -> None:
    """All that was submitted is on its stream."""
    streams = s.devices[0].streams
    await until(lambda: not s.statistics().tasks_pending and all(x.issued.count == x.launched for x in streams))


async def operands(s: asc.Scheduler, name: str) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Those of a row's cases whose results have a shape that does not depend on the data, each run before."""
    found = []
    for case in CASES[name][:40]:
        handles = tuple([await s.put(a) if isinstance(a, np.ndarray) else a for a in case.operands])
        try:
            result = apply(TABLE[name], handles, case.options, scheduler=s)
            known = None not in result.shape
            await result
            await apply(TABLE[name], handles, case.options, scheduler=s)
        except Exception:
            continue
        if known:
            found.append((handles, case.options))
    return found


OURS = [*[name for name, row in TABLE.items() if row.checks], "adam_step"]


@pytest.mark.parametrize("name", OURS)
async def test_rows_are_issued_while_the_device_stands_still(card: Card, name: str) -> None:
    """Those that raise for what they find in the data."""
    async with asc.Scheduler("cuda", streams=1, max_ops=None) as s:
        cases = await operands(s, name)
        await s.barrier()
        with card.held(s):
            results = [apply(TABLE[name], handles, options, scheduler=s) for handles, options in cases]
            await issued(s)
        for result in results:
            await result


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
        assert any("cross_entropy" in note and "test_doubts.py" in note for note in caught.value.__notes__)
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
        for indices, text in (([0, 8], "from 0 to 8, and there are 8 rows"), ([-1, 3], "from -1 to 3")):
            with pytest.raises(IndexError, match=text):
                await nn.functional.embedding(await s.put(np.array(indices)), table)
        rows = await nn.functional.embedding(await s.put(np.array([7, 0])), table).numpy()
        assert rows.tolist() == LOGITS[[7, 0]].tolist()


@pytest.mark.parametrize("make", [optim.SGD, optim.AdamW], ids=lambda make: make.__name__)
async def test_a_step_with_a_wrong_target_is_skipped(card: Card, make: Any) -> None:
    """As it is on the CPU, with nobody waiting in between."""
    found, told = {}, {}
    for device in ("cpu", "cuda"):
        async with asc.Scheduler(device) as s:
            p = await s.put(LOGITS[:5] / 9)
            p.requires_grad = True
            optimizer, x = make([p], lr=0.1), await s.put(LOGITS)
            after = []
            for target in (GOOD, BAD, GOOD, BAD, BAD, GOOD):
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
    assert changed == [False, True, False, False, True]
