"""What comes from outside: arrays of other kinds, and every way to say a dtype."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncsched as asc

MASKED = np.ma.array([1.0, 2.0], mask=[True, False])


class Tagged(np.ndarray[Any, Any]):
    """A subclass that carries something along."""

    tag = "first"


class Metres(np.ndarray[Any, Any]):
    """As of astropy and unyt."""

    unit = "m"


class Quantity:
    """As of pint."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.ones(2)

    @property
    def units(self) -> str:
        return "m"


BARE = {
    "no mask: give `a.filled": (MASKED, np.ma.array([1.0, 2.0]), np.ma.masked),
    "no unit": (np.ones(2).view(Metres), Quantity()),
}
REFUSED = [
    (given, said)
    for said, arrays in BARE.items()
    for array in arrays
    for given in (array, [array, array], ([1.0], [array]), [1.0] * 20 + [array], deque([array]))
]


@pytest.mark.parametrize(("given", "said"), REFUSED)
async def test_masks_and_units_are_refused_since_a_tensor_would_have_the_bare_numbers(
    s: asc.Scheduler, given: Any, said: str, tmp_path: Path
) -> None:
    from asyncsched import array_api as xp

    with pytest.raises(TypeError, match=said):
        await s.put(given)
    with pytest.raises(TypeError, match=said):
        s.put_nowait(given)
    with pytest.raises(TypeError, match=said):
        await s.submit_nowait(lambda: given, shape=2, dtype=float)
    with pytest.raises(TypeError, match=said):
        await asyncio.to_thread(xp.asarray, given)
    with pytest.raises(TypeError, match=f"{said}|not deque|not Quantity"):
        await asc.save(tmp_path / "state", {"a": given})


async def test_a_list_that_contains_itself_is_none_of_numbers(s: asc.Scheduler) -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(ValueError, match="put takes one array"):
        await s.put(endless)


async def test_a_filled_masked_array_may_be_put(s: asc.Scheduler) -> None:
    assert (await (await s.put(MASKED.filled(7)))).tolist() == [7, 2]


@pytest.fixture
def mapped(tmp_path: Path) -> Any:
    return np.memmap(tmp_path / "file", np.float64, "w+", shape=(2,))


async def test_other_subclasses_are_arrays_of_their_numbers(mapped: Any, s: asc.Scheduler) -> None:
    for source in (np.ones(2).view(Tagged), np.ones((1, 2)).view(np.matrix), mapped):
        found = await (await s.put(source))
        assert type(found) is np.ndarray
        assert found.tolist() == source.tolist()


REFUSED = [object, "O", str, "U3", "datetime64[s]", "m8", [("a", int)], "V4", bytes, np.generic, "nonsense", 42, [1]]
TAKES_DTYPE: dict[str, Callable[[asc.Tensor, Any], Any]] = {
    "zeros": lambda x, dtype: asc.zeros(3, dtype=dtype),
    "full": lambda x, dtype: asc.full(3, 1, dtype=dtype),
    "arange": lambda x, dtype: asc.arange(3, dtype=dtype),
    "linspace": lambda x, dtype: asc.linspace(0, 1, 3, dtype=dtype),
    "eye": lambda x, dtype: asc.eye(3, dtype=dtype),
    "zeros_like": lambda x, dtype: asc.zeros_like(x, dtype=dtype),
    "asarray": lambda x, dtype: asc.asarray(x, dtype=dtype),
    "method astype": lambda x, dtype: x.astype(dtype),
    "astype": lambda x, dtype: asc.astype(x, dtype),
    "sum": lambda x, dtype: asc.sum(x, dtype=dtype),
    "method sum": lambda x, dtype: x.sum(dtype=dtype),
    "prod": lambda x, dtype: asc.prod(x, dtype=dtype),
    "cumulative_sum": lambda x, dtype: asc.cumulative_sum(x, dtype=dtype),
    "cumulative_prod": lambda x, dtype: asc.cumulative_prod(x, dtype=dtype),
    "method cumsum": lambda x, dtype: x.cumsum(dtype=dtype),
    "trace": lambda x, dtype: asc.linalg.trace(asc.eye(3), dtype=dtype),
    "fftfreq": lambda x, dtype: asc.fft.fftfreq(3, dtype=dtype),
    "random": lambda x, dtype: asc.random.default_rng(0).random(3, dtype=dtype),
    "integers": lambda x, dtype: asc.random.default_rng(0).integers(0, 3, 3, dtype=dtype),
    "linear": lambda x, dtype: asc.nn.Linear(2, 2, dtype=dtype, rng=0),
}


@pytest.mark.one_loop
@pytest.mark.parametrize("takes", TAKES_DTYPE)
async def test_a_dtype_that_no_tensor_has_is_refused_at_the_line(s: asc.Scheduler, takes: str) -> None:
    x = await s.put(np.arange(3.0))
    for dtype in REFUSED:
        with pytest.raises(TypeError, match=r"is not supported: a tensor has bool|is no dtype: use one of NumPy's"):
            TAKES_DTYPE[takes](x, dtype)
    await s.barrier()


@pytest.mark.one_loop
async def test_a_dtype_of_pytorchs_is_refused(s: asc.Scheduler, torch_may_block: None) -> None:
    import torch

    with pytest.raises(TypeError, match="float32 is no dtype: use one of NumPy's"):
        asc.zeros(3, dtype=torch.float32)  # type: ignore[arg-type]


@pytest.mark.one_loop
@pytest.mark.parametrize("takes", [name for name in TAKES_DTYPE if name not in ("random", "integers", "linear")])
async def test_dtypes_by_any_name_and_in_any_order_of_bytes(s: asc.Scheduler, takes: str) -> None:
    x = await s.put(np.arange(3.0))
    for dtype in (float, "f4", np.float64, np.float32(1).dtype, ">f8", complex, np.longdouble):
        found = await TAKES_DTYPE[takes](x, dtype)
        assert found.dtype == np.dtype(dtype).newbyteorder("=")
