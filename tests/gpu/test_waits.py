"""No row of the table waits for the device: all of them are issued while it stands still."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import asyncsched as asc
from asyncsched.ops.table import TABLE
from asyncsched.tensors.tensor import apply
from tests.cuda_host.runtime import loaded
from tests.thorough import usually

from .cases import CASES, absent, cases_of, groups
from .conftest import Card, issued

pytestmark = pytest.mark.one_loop
# Those whose shape the data decides: the host must know it, to take memory.
SHAPED = {"argwhere", "bincount", "repeat_each", "unique_packed", "unique_values"}
# CuPy leaves an error of LAPACK's on the device, and NaN or less in the result, unless it may wait for it.
LAPACK = {
    "cholesky", "cofactors", "eig", "eigh", "eigvals", "eigvalsh", "inv", "matrix_power", "matrix_rank", "pinv", "qr",
    "solve", "svd", "svdvals",
}  # fmt: skip
ON_HOST = {"draw", "gradient"}  # run on CPUs alone


async def operands(card: Card, s: asc.Scheduler, name: str) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Those of a row's cases whose results have a shape that does not depend on the data, each run twice before."""
    found = []
    for case in cases_of(name, card.pick(40, usually(4, 40))):
        handles = tuple([await s.put(a) if isinstance(a, np.ndarray) else a for a in case.operands])
        try:
            result = apply(TABLE[name], handles, case.options, scheduler=s)
            known = None not in result.shape
            await result
            await apply(TABLE[name], handles, case.options, scheduler=s)
        except TypeError:  # NumPy refuses these, too
            continue
        except Exception as error:
            if not absent(str(error)):
                raise
            return []
        if known:
            found.append((handles, case.options))
    return found


@pytest.mark.parametrize("names", groups(TABLE.keys() - SHAPED - LAPACK - ON_HOST))
async def test_rows_are_issued_while_the_device_stands_still(card: Card, names: list[str]) -> None:
    async with asc.Scheduler("cuda", streams=1, max_ops=None) as s:
        for name in names:
            await is_issued(card, s, name)


async def is_issued(card: Card, s: asc.Scheduler, name: str) -> None:
    cases, x = await operands(card, s, name), await s.put(np.ones(4, np.float32))
    assert cases or (loaded() is not None and name == "erfinv"), name  # which host memory lacks
    await (x + 1)
    # A card's queue takes few commands, and who gives it more waits: some ten launches with events of their own.
    for some in [[case] for case in cases] if card.fake is None else [cases]:
        with card.held(s), card.waits() as waited:
            first = x + 1
            results = [apply(TABLE[name], handles, options, scheduler=s) for handles, options in some]
            await issued(s, unless=waited)
            assert not waited(), name
            assert not first.done(), f"{name}: the device did not stand still"
        for result in results:
            await result


@pytest.mark.parametrize("name", sorted(SHAPED | LAPACK))
async def test_a_row_that_waits_does_so_on_its_streams_thread(card: Card, name: str) -> None:
    if card.fake is None and loaded() is None:
        pytest.skip("on a card nothing counts what waits")
    if card.fake is None and name in ("eig", "eigvals"):
        pytest.skip("not there in host memory: eigenvalues of matrices that are not symmetric")
    async with asc.Scheduler("cuda", streams=1) as s:
        case = CASES[name][0]
        handles = tuple([await s.put(a) for a in case.operands])
        await s.barrier()
        with card.held(s), card.waits() as waited:
            result = apply(TABLE[name], handles, case.options, scheduler=s)
            await issued(s, unless=waited)
            assert waited()
            assert not result.done()
        await result
